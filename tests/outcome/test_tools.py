"""The meaning of tool results: errors, exits, exceptions, schemas, tests and the environment, as
real clients report them.
"""

import json

import pytest

from metaclaw.domain.chat import Message, Role, Text, ToolCall, ToolResult
from metaclaw.domain.verdict import Fault, Outcome
from metaclaw.outcome import sense
from tests.outcome.steps import Ran, bash, edit, heard, kinds, past, ran, step
from tests.support.cases import each

CODEX = (
    "Chunk ID: 1a2b3c\nWall time: 0.1 seconds\nProcess exited with code {code}\nOriginal token"
    " count: 3\nOutput:\n{output}\n"
)


@each(
    "run",
    [
        ran(
            "Edit",
            {},
            "<tool_use_error>String to replace not found in file.</tool_use_error>",
            is_error=True,
        ),
        ran("edit", {}, "Could not find the exact text in a.py. The old text must match exactly."),
        ran(
            "apply_patch",
            {},
            "apply_patch verification failed: Failed to find expected lines in a.py",
        ),
        ran(
            "patch",
            {},
            json.dumps({"success": False, "error": "Could not find a match for old_string"}),
        ),
        ran("read", {"path": "x"}, "ENOENT: no such file or directory, access 'x'"),
        ran("calendar", {}, '{"status": "error", "error": "start must be a date"}'),
    ],
)
def test_a_tool_that_reports_an_error_is_heard_whatever_the_client(run: Ran) -> None:
    assert kinds(step("change it", "Changing.", run)) == {"tool_error"}


@each(
    "run",
    [
        ran(
            "read",
            {"path": "log"},
            "ERROR 10:00 worker died\nTraceback (most recent call last):\nKeyError: 'x'",
        ),
        ran("Grep", {"pattern": "Error"}, "src/errors.py:4:class ConfigError(Exception):"),
        ran("save", {}, '{"ok": true, "error": null}'),
        ran("check", {}, '{"errors": [], "valid": true}'),
        ran(
            "Bash",
            {"command": "bash -n x && echo OK"},
            '{"output": "OK", "exit_code": 0, "error": null}',
            is_error=True,
        ),
        bash("docker rm old || true", "Error response from daemon: No such container: old"),
        bash(
            "tail -5 app.log",
            "Traceback (most recent call last):\n  File 'a.py', line 1\nValueError: bad",
        ),
    ],
)
def test_the_word_error_alone_is_no_error(run: Ran) -> None:
    assert heard(step("look", "Looking.", run)) == {"progress.tools"}


@each(
    "text",
    [
        "Exit code 2\nusage: tool",
        CODEX.format(code=2, output="usage: tool"),
        "usage: tool\n\n(Command exited with code 2)",
        json.dumps({"output": "usage: tool", "exit_code": 2, "error": None}),
        json.dumps({"returncode": 2, "output": "usage: tool"}, indent=2),
        json.dumps(
            {"output": "usage: tool", "metadata": {"exit_code": 2, "duration_seconds": 0.1}}
        ),
        "Command failed with exit code 2.\n[stderr]\nusage: tool",
    ],
)
def test_an_exit_code_is_read_in_each_clients_form(text: str) -> None:
    assert heard(step("run it", "Running.", ran("exec", {"command": "tool --wrong"}, text))) == {
        "exit.failed"
    }


@each(
    ("command", "output", "code"),
    [
        ("grep -rn foo src", "", 1),
        ("cd web && git grep -n eval", "", 1),
        ("grep -n x f | grep -v y", "", 1),
        ("diff a b", "1c1", 1),
        ("git diff --quiet", "", 1),
        ("[ -f .env ]", "", 1),
        ("test -d x && echo yes", "", 1),
        ("systemctl is-active api", "inactive", 3),
        ("command -v jq", "", 1),
        ("timeout 5 ./server", "listening", 124),
        ("ruff check .", "a.py:1:1: F401\nFound 1 error.", 1),
    ],
)
def test_an_exit_code_that_is_an_answer_is_no_failure(command: str, output: str, code: int) -> None:
    assert heard(step("tell me", "Checking.", bash(command, output, code))) == {"progress.answer"}


def test_a_checker_that_complains_after_the_agents_own_edit_is_a_failure() -> None:
    again = step(
        "add types", "Checking.", bash("mypy .", "a.py:1: error: bad", 1), history=past(edit())
    )
    assert "exit.failed" in heard(again)


@pytest.mark.parametrize(
    ("text", "speaks"),
    [
        ("This should fail, the function does not exist yet.", "progress.expected"),
        ("Let me reproduce the crash.", "progress.expected"),
        ("Verifying the fix.", "tests.failed"),
    ],
)
def test_a_test_that_was_meant_to_fail_is_told_from_one_that_was_not(
    text: str, speaks: str
) -> None:
    run = bash("pytest -q", "1 failed in 0.1s", 1)
    assert heard(step("add slugify", text, run, history=past(edit()))) == {speaks}


def test_a_colour_is_not_an_announcement_of_failure() -> None:
    run = bash("pytest -q", "1 failed in 0.1s", 1)
    assert heard(step("make the button red", "Running the tests.", run, history=past(edit()))) == {
        "tests.failed"
    }


def test_tests_that_fail_before_anything_was_changed_are_the_state_of_things() -> None:
    first = step(
        "the build is broken, find out why", "Looking.", bash("pytest -q", "1 failed in 0.1s", 1)
    )
    assert sense(first).verdict is not None
    assert heard(first) == {"progress.answer"}


@each(
    "output",
    [
        "9 passed in 0.4s",
        "test result: ok. 12 passed; 0 failed; 0 ignored",
        "Tests:       7 passed, 7 total",
        "Ran 12 tests in 0.02s\n\nOK",
        "ok  \texample.com/list\t0.010s",
    ],
)
def test_passing_tests_speak_for_the_turn(output: str) -> None:
    command = "go test ./..." if "example" in output else "pytest"
    if "result" in output:
        command = "cargo test"
    sensed = sense(step("fix it", "Testing.", bash(command, output), history=past(edit())))
    assert "tests.passed" in {signal.detector for signal in sensed.signals}
    assert sensed.verdict is not None
    assert sensed.verdict.outcome is Outcome.PASS


@each(
    "output",
    [
        "Traceback (most recent call last):\n  File 'x', line 1\nTypeError: bad",
        "panic: runtime error: index out of range",
        "thread 'main' panicked at src/main.rs:9:24",
        "/w/x.js:3\nReferenceError: yaml is not defined\n    at Object.<anonymous> (/w/x.js:3:13)",
    ],
)
@each("code", [0, 1])
def test_a_crash_of_what_was_run_is_an_exception_even_behind_a_pipe(output: str, code: int) -> None:
    assert heard(step("run it", "Running.", bash("./program | tail", output, code))) == {
        "exception.raised"
    }


@each(
    "run",
    [
        ran(
            "Edit",
            {},
            "<tool_use_error>InputValidationError: required parameter `old_string` is"
            " missing</tool_use_error>",
            is_error=True,
        ),
        ran(
            "exec",
            {},
            'Validation failed for tool "exec":\n  - command: must have required properties'
            " command",
        ),
        ran(
            "grep",
            {},
            "The grep tool was called with invalid arguments: []. Please rewrite the input.",
        ),
        ran(
            "shell", '{"command": [', "failed to parse function arguments: EOF while parsing a list"
        ),
        ran("mcp__x__y", {}, "MCP error -32602: Invalid arguments for tool y", is_error=True),
    ],
)
def test_a_rejected_call_is_a_schema_failure(run: Ran) -> None:
    assert kinds(step("do it", "Doing.", run)) == {"schema"}


def test_a_client_that_misses_a_call_says_so_in_the_persons_name() -> None:
    note = "Tool call error:\n\n<error>\nNo tool calls found in the response.\n</error>"
    assert kinds(step("fix it", "I would change line 4.", note=note)) == {"schema"}


@each(
    ("command", "output", "code"),
    [
        ("curl -f https://a.example", "curl: (6) Could not resolve host: a.example", 6),
        ("npm ci", "npm error code ETIMEDOUT", 1),
        ("gh issue list", "HTTP 403: API rate limit exceeded", 1),
        ("pip download x", "ERROR: HTTP error 503 while getting x", 1),
        ("ffmpeg -i a b", "bash: ffmpeg: command not found", 127),
        ("tar xf a", "tar: Cannot write: No space left on device", 2),
        ("cp a /usr", "cp: cannot create regular file: Permission denied", 1),
        ("docker ps", "Cannot connect to the Docker daemon", 1),
        ("python plot.py", "ModuleNotFoundError: No module named 'matplotlib'", 1),
        ("git fetch", "command timed out after 120000 milliseconds", 124),
    ],
)
def test_a_fault_of_the_environment_is_never_the_agents(
    command: str, output: str, code: int
) -> None:
    verdict = sense(step("do it", "Doing.", bash(command, output, code))).verdict
    assert verdict is not None
    assert (verdict.outcome, verdict.fault) == (Outcome.FAIL, Fault.ENVIRONMENT)
    assert not verdict.teaches
    assert verdict.p_fail is None, "what was not seen has no score"


def test_the_agents_own_server_is_not_the_environment() -> None:
    run = bash(
        "curl -sf localhost:8000/users", "curl: (22) The requested URL returned error: 500", 22
    )
    assert heard(step("add a route", "Trying.", run, history=past(edit()))) == {"exit.failed"}


def test_failing_tests_that_speak_of_rate_limits_are_failing_tests() -> None:
    run = bash(
        "pytest",
        "FAILED tests/test_limits.py::test_rate_limit_exceeded - connection refused\n1 failed, 3"
        " passed",
        1,
    )
    assert heard(step("fix the limiter", "Testing.", run, history=past(edit()))) == {"tests.failed"}


def test_a_command_that_never_ends_is_the_agents_doing() -> None:
    run = ran(
        "Bash", {"command": "npm run dev"}, "Command timed out after 2m 0.0s\nready", is_error=True
    )
    assert heard(step("start it", "Starting.", run)) == {"exit.hangs"}


def test_the_same_call_with_the_same_answer_is_a_repeat_until_something_changes() -> None:
    look = bash("grep -rn handler src", "", 1)
    assert "repeat.same" in heard(
        step("find it", "Searching.", look, history=past(bash("grep -rn handler src", "", 1)))
    )
    changed = past(bash("grep -rn handler src", "", 1), edit())
    assert "repeat.same" not in heard(step("find it", "Searching.", look, history=changed))


def test_asking_again_and_hearing_something_new_is_no_repeat() -> None:
    now = bash("gh run view 8", "completed")
    assert kinds(
        step("wait for it", "Looking.", now, history=past(bash("gh run view 8", "in progress")))
    ) == {"progress"}


def test_a_repeat_is_seen_behind_a_clients_floating_message_and_rewritten_ids() -> None:
    floating = Message(
        Role.USER,
        (Text("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>x<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"),),
    )
    now = ToolCall("call_ab12", "exec", '{"command": "ls config"}')
    before = ToolCall("callcd34", "exec", '{"command": "ls config"}')
    earlier = past((before, ToolResult("callcd34", (Text("app.toml"),))))
    again = step(
        "where is it",
        "Looking.",
        (now, ToolResult("callab12", (Text("app.toml"),))),
        history=(*earlier, floating),
    )
    assert "repeat.same" in heard(again)


@pytest.mark.parametrize(
    ("command", "output"),
    [("psql -c 'update t set a=1'", "UPDATE 0"), ("pytest -k new", "no tests ran in 0.01s")],
)
def test_a_call_that_did_nothing_does_not_pass_for_progress(command: str, output: str) -> None:
    assert "progress.tools" not in heard(step("update all", "Updating.", bash(command, output)))
