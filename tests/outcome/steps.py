"""Short builders of steps for the tests of detectors and verdicts."""

import json
from collections.abc import Mapping, Sequence
from itertools import count

from metaclaw.domain.chat import Finish, Message, Part, Role, Text, ToolCall, ToolResult
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope, Stamp, Step, TurnEnd
from metaclaw.outcome import sense

_numbers = count(1)

Ran = tuple[ToolCall, ToolResult]


def ran(
    name: str, arguments: Mapping[str, object] | str, text: str, *, is_error: bool = False
) -> Ran:
    """A call and its result."""
    call_id = f"call_{next(_numbers)}"
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(call_id, name, written), ToolResult(call_id, (Text(text),), is_error)


def bash(command: str, output: str, code: int = 0) -> Ran:
    """A command as Claude Code runs it."""
    return ran(
        "Bash",
        {"command": command},
        output if code == 0 else f"Exit code {code}\n{output}",
        is_error=code != 0,
    )


def edit(path: str = "a.py", old: str = "x", new: str = "y") -> Ran:
    """An edit that went in."""
    return ran(
        "Edit",
        {"file_path": path, "old_string": old, "new_string": new},
        f"The file {path} has been updated.",
    )


def past(*runs: Ran) -> tuple[Message, ...]:
    """Earlier calls for the same task."""
    return tuple(
        message
        for call, result in runs
        for message in (Message(Role.ASSISTANT, (call,)), Message(Role.USER, (result,)))
    )


def step(
    task: str = "do it",
    answer: str = "Done.",
    *runs: Ran,
    said: str | None = None,
    note: str | None = None,
    history: Sequence[Message] = (),
    end: TurnEnd = TurnEnd.COMPLETED,
    finish: Finish | None = None,
    is_last: bool = False,
    previous: Step | None = None,
) -> Step:
    """A step with what followed it."""
    after: list[Part] = [result for _, result in runs]
    after += [Text(text) for text in (note, said) if text is not None]
    return Step(
        turn=TurnId("t_1"),
        session=SessionId("s_1"),
        scope=Scope(),
        stamp=Stamp(0, 0, "", ()),
        model="m",
        task=task,
        history=(Message(Role.USER, (Text(task),)), *history),
        tools=(),
        answer=(Text(answer), *(call for call, _ in runs)),
        end=end,
        after=(Message(Role.USER, tuple(after)),) if after else (),
        said_after=said,
        is_last=is_last,
        previous=previous,
        finish=finish,
    )


def heard(one: Step, later: Step | None = None) -> set[str]:
    """The detectors that speak about a step."""
    return {signal.detector for signal in sense(one, later).signals}


def kinds(one: Step, later: Step | None = None) -> set[str]:
    """The same, without what comes behind the dot."""
    return {name.split(".")[0] for name in heard(one, later)}
