"""What Gemini CLI 0.61.0 tells of its shell and its edits, as it wrote it."""

import pytest

from metaclaw.domain.chat import Wire
from metaclaw.outcome import episodes_of
from metaclaw.outcome.reading import exchanges, read_result
from metaclaw.wires import wire_format

END = "\nProcess Group PGID: 4891\n</untrusted_context>"


def conversation(*steps: tuple[str, dict[str, object], dict[str, object]]) -> list[object]:
    contents: list[object] = [{"role": "user", "parts": [{"text": "Fix it."}]}]
    for number, (name, args, response) in enumerate(steps):
        named = {"id": f"{name}_{number}", "name": name}
        contents.append({"role": "model", "parts": [{"functionCall": {**named, "args": args}}]})
        answered = {"functionResponse": {**named, "response": response}}
        contents.append({"role": "user", "parts": [answered]})
    return contents


def parsed(*steps: tuple[str, dict[str, object], dict[str, object]]) -> object:
    body = {"model": "m", "contents": conversation(*steps)}
    return wire_format(Wire.GEMINI).parse_request(body).messages  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("output", "code", "text"),
    [
        (f"<untrusted_context>\nOutput: no tset\nExit Code: 1{END}", 1, "no tset"),
        (f"<untrusted_context>\nOutput: fine{END}", 0, "fine"),
        ("Output: (empty)\nExit Code: 127\nProcess Group PGID: 7", 127, ""),
        (f"<untrusted_context>\nOutput: a\nError: no shell{END}", None, "a\nno shell"),
        (f"<untrusted_context>\nOutput: a\nSignal: 9{END}", None, "a"),
    ],
)
def test_a_command_has_its_output_and_its_exit_code(
    output: str, code: int | None, text: str
) -> None:
    spoken = parsed(("run_shell_command", {"command": "npm tset"}, {"output": output}))
    call, result = next(one for one in exchanges(spoken) if not isinstance(one, str))  # type: ignore[arg-type]
    run = read_result(result, call)
    assert (run.exit_code, run.text) == (code, text)


def test_a_failed_command_and_a_failed_edit_are_episodes_with_what_worked() -> None:
    failed = f'<untrusted_context>\nOutput: Unknown command: "tset"\nExit Code: 1{END}'
    edit = {"file_path": "a.py", "new_string": "y"}
    spoken = parsed(
        ("run_shell_command", {"command": "npm tset"}, {"output": failed}),
        ("run_shell_command", {"command": "npm test"}, {"output": f"Output: ok{END}"}),
        ("replace", {**edit, "old_string": "b"}, {"error": "Could not find an exact match."}),
        ("replace", {**edit, "old_string": "a"}, {"output": "Successfully modified file: a.py"}),
    )
    found = episodes_of(spoken)  # type: ignore[arg-type]
    assert [(one.signature.tool, one.failed.name) for one in found] == [
        ("shell", "run_shell_command"),
        ("edit", "replace"),
    ]
    assert all(one.fix is not None for one in found)
