"""Programs that check answers run in a sandbox, or not at all."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import metaclaw.checks.program_server as inside
import metaclaw.checks.workers as workers
from metaclaw.checks.workers import ProgramResult, ProgramServer, work_clock
from metaclaw.domain.chat import Message, Role, Text, Tool, ToolCall, ToolResult
from metaclaw.domain.check import Conversation, Finding, ProgramCheck
from metaclaw.domain.verdict import Outcome
from metaclaw.skills import examine, examine_many
from tests.support.cases import each

_SCRIPT = Path(inside.__file__)
_NOT_REFUSED = 9

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is a sandbox on Linux only")


def _run(source: str, text: str = "on 2026-01-02", limit_s: float = 60.0) -> Finding:
    return examine(
        ProgramCheck(source, approved=True),
        [Text(text), ToolCall("c", "bash", '{"command": "ls"}')],
        limit_s,
    )


def _is_sandboxed() -> bool:
    return _run("pass").outcome is Outcome.PASS


needs_sandbox = pytest.mark.skipif(
    not _is_sandboxed(), reason=f"this kernel gives no sandbox: {_run('pass').reason}"
)


@needs_sandbox
@each(
    ("source", "outcome"),
    [
        (
            "import json, sys\nsys.exit(0 if '2026' in json.load(sys.stdin)['text'] else 1)",
            Outcome.PASS,
        ),
        (
            "import json, sys\nsys.exit(0 if '2027' in json.load(sys.stdin)['text'] else 1)",
            Outcome.FAIL,
        ),
        (
            (
                "import json, sys\nassert json.load(sys.stdin)['calls'] == [{'name': 'bash',"
                " 'arguments': {'command': 'ls'}}]"
            ),
            Outcome.PASS,
        ),
        ("import datetime\ndatetime.datetime.strptime('2026-01-02', '%Y-%m-%d')", Outcome.PASS),
        ("assert False, 'no date'", Outcome.FAIL),
        ("raise SystemExit(1)", Outcome.FAIL),
        ("1 / 0", Outcome.UNKNOWN),
        ("raise SystemExit(3)", Outcome.UNKNOWN),
        ("this is no python", Outcome.UNKNOWN),
        ("import numpy", Outcome.UNKNOWN),
    ],
)
def test_the_exit_status_is_the_outcome_and_a_crash_is_not(source: str, outcome: Outcome) -> None:
    assert _run(source).outcome is outcome


@needs_sandbox
@each(
    ("printed", "status", "outcome", "score"),
    [
        ('{"score": 1, "reason": "right"}', 0, Outcome.PASS, 1.0),
        ('{"score": 0.7, "reason": "nearly"}', 0, Outcome.UNKNOWN, 0.7),
        ('{"score": 0.7}', 1, Outcome.UNKNOWN, 0.7),
        ('{"score": 0.3}', 0, Outcome.FAIL, 0.3),
        ('thinking\\n{"score": 0}', 0, Outcome.FAIL, 0.0),
        ('{"score": 1}\\nbut no', 1, Outcome.FAIL, 0.0),
        ('{"score": 1.5}', 0, Outcome.UNKNOWN, None),
        ('{"score": true}', 0, Outcome.UNKNOWN, None),
        ('{"score": NaN}', 0, Outcome.UNKNOWN, None),
        ('{"score": 0.3}', 3, Outcome.UNKNOWN, None),
        ("[1]", 0, Outcome.PASS, 1.0),
        ("{broken", 1, Outcome.FAIL, 0.0),
    ],
)
def test_a_score_in_the_last_line_counts_more_than_the_exit_status(
    printed: str, status: int, outcome: Outcome, score: float | None
) -> None:
    finding = _run(f"print('{printed}')\nraise SystemExit({status})")

    assert (finding.outcome, finding.score) == (outcome, score)


@needs_sandbox
def test_the_reason_of_a_score_is_told() -> None:
    assert _run('print(\'{"score": 0.2, "reason": "no zone"}\')').reason.startswith(
        "no zone; sandbox: "
    )


@needs_sandbox
def test_a_program_sees_the_conversation() -> None:
    said = (
        Message(Role.SYSTEM, (Text("Be short."),)),
        Message(Role.USER, (Text("List the files."),)),
        Message(Role.ASSISTANT, (Text("So:"), ToolCall("c1", "bash", '{"command": "ls"}'))),
        Message(Role.USER, (ToolResult("c1", (Text("a.txt"),)), Text("And now?"))),
    )
    conversation = Conversation(said, "And now?", (Tool("bash", "Run it.", {"type": "object"}),))
    source = """
import json, sys
seen = json.load(sys.stdin)
assert seen["task"] == "And now?"
assert seen["text"] == "Done."
assert seen["tools"] == [{"name": "bash", "description": "Run it.", "parameters": {"type": "object"}}]
assert seen["messages"] == [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "List the files."},
    {"role": "assistant", "content": "So:", "calls": [{"name": "bash", "arguments": {"command": "ls"}}]},
    {"role": "tool", "content": "a.txt", "is_error": False},
    {"role": "user", "content": "And now?"},
], seen["messages"]
"""
    finding = examine(
        ProgramCheck(source, approved=True), [Text("Done.")], 60.0, conversation=conversation
    )

    assert (finding.outcome, finding.score) == (Outcome.PASS, 1.0), finding.reason


@needs_sandbox
def test_answers_are_scored_together_and_in_order() -> None:
    check = ProgramCheck(
        "import json, sys\nprint(json.dumps({'score': int(json.load(sys.stdin)['text']) / 10}))",
        approved=True,
    )
    found = examine_many(check, [[Text(str(number))] for number in range(11)], 60.0)

    assert [finding.score for finding in found] == [number / 10 for number in range(11)]


_TRACES = {
    "a module": (
        "import json\njson.left = 'secret'",
        "import json\nassert not hasattr(json, 'left')",
    ),
    "a builtin": (
        "import builtins\nbuiltins.left = 'secret'",
        "import builtins\nassert not hasattr(builtins, 'left')",
    ),
    "standard output": ("print('{\"score\": 0.3}')", "pass"),
    "a changed function": (
        "import json\njson.load = None",
        "import json, sys\njson.load(sys.stdin)",
    ),
    "a signal": (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "import signal\nassert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL",
    ),
    "the text of the answer": (
        "pass",
        (
            "import gc\nseen = [str(o)[::-1] for o in gc.get_objects() if isinstance(o, (str,"
            " bytes, list, dict))]\nassert not any('-hsifarbeZ' in one for one in seen)"
        ),
    ),
}


@needs_sandbox
@pytest.mark.parametrize(("first", "second"), _TRACES.values(), ids=_TRACES.keys())
def test_a_run_leaves_nothing_to_the_next(first: str, second: str) -> None:
    server = ProgramServer()
    try:
        server.run(first, {"text": "Zebrafish-"}, 60.0)
        ended = server.run(second, {}, 60.0)
    finally:
        server.close()

    assert (ended.status, ended.errors) == (inside.PASSED, "")
    assert ended.output.startswith("sandbox: ")
    assert ended.output.count("\n") == 1


@needs_sandbox
@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.abort()",
        "import ctypes\nctypes.string_at(0)",
        "while True: pass",
        "import os\nos._exit(9)",
    ],
)
def test_a_run_that_dies_or_hangs_does_not_hurt_the_next(source: str) -> None:
    server = ProgramServer()
    try:
        assert server.run(source, {}, 1.0).status != inside.PASSED
        assert server.run("pass", {}, 60.0).status == inside.PASSED
    finally:
        server.close()


@needs_sandbox
def test_a_server_that_was_killed_is_started_again() -> None:
    _run("pass")
    for server in workers._programs._idle:
        server._child.kill()
        server._child.wait()

    assert _run("pass").outcome is Outcome.PASS


_ESCAPES = {
    "read a file": "open('/etc/passwd').read()",
    "read the home": f"open({str(Path.home())!r} + '/.profile').read()",
    "list a folder": "import os\nos.listdir('/')",
    "look for a file": "import os\nos.stat('/etc/passwd')",
    "write a file": "open('/tmp/metaclaw-escape', 'w').write('x')",
    "open a socket": "import socket\nsocket.socket()",
    "connect": "import socket\nsocket.create_connection(('127.0.0.1', 9))",
    "fork": "import os\nos.fork()",
    "start a program": "import os\nos.execv('/bin/sh', ['sh'])",
    "start a thread": "import threading\nthreading.Thread(target=print).start()",
    "signal others": "import os\nos.kill(os.getppid(), 9)",
    "leave the root": "import os\nos.chroot('/')",
    "go up": "import os\nos.chdir('..')",
    "eat memory": "x = bytearray(10 ** 10)",
    "print without end": "while True: print('x' * 10_000)",
}


@needs_sandbox
@each("source", _ESCAPES.values(), ids=_ESCAPES.keys())
def test_nothing_outside_can_be_reached(source: str) -> None:
    """What succeeds would end with a pass: every one of these must break instead."""
    finding = _run(source)

    assert finding.outcome is Outcome.UNKNOWN
    assert not Path("/tmp/metaclaw-escape").exists()


@needs_sandbox
def test_a_program_sees_nobodys_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")

    assert (
        _run("import os\nassert not any('SECRET' in name for name in os.environ)").outcome
        is Outcome.PASS
    )


@needs_sandbox
@pytest.mark.parametrize("source", ["while True: pass", "import time\ntime.sleep(60)"])
def test_a_program_that_does_not_end_is_ended(source: str) -> None:
    finding = _run(source, limit_s=0.2)

    assert finding == Finding(
        Outcome.UNKNOWN, "the program took longer than 0.2 s", has_failed=True
    )


@needs_sandbox
def test_the_limit_of_a_program_counts_its_work_and_not_its_waiting() -> None:
    before = work_clock()
    assert _run("import time\ntime.sleep(1.2)", limit_s=0.6).outcome is Outcome.PASS
    waited = work_clock()
    assert _run("for _ in range(20_000_000): pass").outcome is Outcome.PASS
    assert work_clock() - waited > waited - before


@needs_sandbox
def test_the_sandbox_has_more_than_one_layer() -> None:
    reason = _run("pass").reason

    assert "seccomp" in reason
    assert "namespaces" in reason or "landlock" in reason


def test_a_program_nobody_agreed_to_is_not_run() -> None:
    finding = examine(ProgramCheck("raise SystemExit(0)"), [Text("x")])

    assert finding == Finding(
        Outcome.UNKNOWN, "the program waits for a person to agree to it", is_undecided=True
    )


def _behind(layer: str, attempt: str, folder: Path) -> int:
    """Exit status of an attempt with one layer alone: 0 if refused, 9 if it succeeds, 7 if there is
    no such layer.
    """
    code = f"""
import ctypes, os, runpy, socket, sys
inside = runpy.run_path({str(_SCRIPT)!r})
libc = ctypes.CDLL(None, use_errno=True)
listening = socket.socket(); listening.bind(("127.0.0.1", 0)); listening.listen()
port = listening.getsockname()[1]
connecting = socket.socket()
libc.prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0)))
if not inside[{layer!r}](libc):
    os._exit(7)
try:
    {attempt}
except OSError:
    os._exit(0)
os._exit({_NOT_REFUSED})
"""
    return subprocess.run([sys.executable, "-I", "-c", code], cwd=folder, check=False).returncode


@pytest.mark.parametrize(
    ("layer", "attempt"),
    [
        ("_enter_namespaces", "open('/etc/passwd')"),
        ("_enter_namespaces", "socket.socket().connect(('127.0.0.1', port))"),
        ("_enter_namespaces", "os.chroot('/')"),
        ("_restrict_with_landlock", "open('/etc/passwd')"),
        ("_filter_calls", "open('/etc/passwd')"),
        ("_filter_calls", "connecting.connect(('127.0.0.1', port))"),
        ("_filter_calls", "os.fork()"),
    ],
)
def test_each_layer_holds_by_itself(layer: str, attempt: str, tmp_path: Path) -> None:
    status = _behind(layer, attempt, tmp_path)
    if status == 7:
        pytest.skip(f"this kernel does not give {layer}")

    assert status == 0


def test_without_a_sandbox_a_program_is_not_run(tmp_path: Path) -> None:
    """The script with every layer taken out of it must refuse to go on."""
    script = tmp_path / "server.py"
    source = _SCRIPT.read_text("utf-8")
    assert "layers = _enter_sandbox(libc)" in source
    script.write_text(source.replace("layers = _enter_sandbox(libc)", "layers = []"), "utf-8")
    server = ProgramServer(script)
    try:
        ended = server.run("print(1)", {}, 60.0)
    finally:
        server.close()

    assert ended == ProgramResult(inside.NO_SANDBOX, "sandbox: \n", "")


def test_an_attempt_that_succeeds_is_no_layer() -> None:
    script = runpy.run_path(str(_SCRIPT))

    assert not script["_is_refused"](os.getpid)
    assert script["_is_refused"](Path("/nowhere/at/all").stat)
