"""Programs that check answers run behind walls, or not at all."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import metaclaw.skills.checks.inside as inside
from metaclaw.domain.chat import Text, ToolCall
from metaclaw.domain.check import Finding, ProgramCheck
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.checks import examine

_SCRIPT = Path(inside.__file__)
_NOT_REFUSED = 9

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are walled in on Linux only")


def _run(source: str, text: str = "on 2026-01-02", limit_s: float = 60.0) -> Finding:
    return examine(ProgramCheck(source, approved=True), [Text(text), ToolCall("c", "bash", '{"command": "ls"}')], limit_s)


def _walled() -> bool:
    return _run("pass").outcome is Outcome.PASS


needs_walls = pytest.mark.skipif(not _walled(), reason=f"this kernel gives no walls: {_run('pass').reason}")


@needs_walls
@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("import json, sys\nsys.exit(0 if '2026' in json.load(sys.stdin)['text'] else 1)", Outcome.PASS),
        ("import json, sys\nsys.exit(0 if '2027' in json.load(sys.stdin)['text'] else 1)", Outcome.FAIL),
        (
            "import json, sys\nassert json.load(sys.stdin)['calls'] == [{'name': 'bash', 'arguments': {'command': 'ls'}}]",
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


@needs_walls
@pytest.mark.parametrize("source", _ESCAPES.values(), ids=_ESCAPES.keys())
def test_nothing_outside_can_be_reached(source: str) -> None:
    """What succeeds would end with a pass: every one of these must break instead."""
    finding = _run(source)

    assert finding.outcome is Outcome.UNKNOWN
    assert not Path("/tmp/metaclaw-escape").exists()


@needs_walls
def test_a_program_sees_nobodys_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")

    assert _run("import os\nassert not any('SECRET' in name for name in os.environ)").outcome is Outcome.PASS


@needs_walls
@pytest.mark.parametrize("source", ["while True: pass", "import time\ntime.sleep(60)"])
def test_a_program_that_does_not_end_is_ended(source: str) -> None:
    finding = _run(source, limit_s=1.0)

    assert finding == Finding(Outcome.UNKNOWN, "the program took longer than 1 s")


@needs_walls
def test_more_than_one_wall_stands() -> None:
    reason = _run("pass").reason

    assert "seccomp" in reason
    assert "namespaces" in reason or "landlock" in reason


def test_a_program_nobody_agreed_to_is_not_run() -> None:
    finding = examine(ProgramCheck("raise SystemExit(0)"), [Text("x")])

    assert finding == Finding(Outcome.UNKNOWN, "the program waits for a person to agree to it")


def _behind(wall: str, attempt: str, folder: Path) -> int:
    """Exit status of an attempt with one wall alone: 0 where it is refused, 9 where it succeeds, 7 where there is no such wall."""
    code = f"""
import ctypes, os, runpy, socket, sys
inside = runpy.run_path({str(_SCRIPT)!r})
libc = ctypes.CDLL(None, use_errno=True)
listening = socket.socket(); listening.bind(("127.0.0.1", 0)); listening.listen()
port = listening.getsockname()[1]
connecting = socket.socket()
libc.prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0)))
if not inside[{wall!r}](libc):
    os._exit(7)
try:
    {attempt}
except OSError:
    os._exit(0)
os._exit({_NOT_REFUSED})
"""
    return subprocess.run([sys.executable, "-I", "-c", code], cwd=folder, check=False).returncode


@pytest.mark.parametrize(
    ("wall", "attempt"),
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
def test_each_wall_holds_by_itself(wall: str, attempt: str, tmp_path: Path) -> None:
    status = _behind(wall, attempt, tmp_path)
    if status == 7:
        pytest.skip(f"this kernel does not give {wall}")

    assert status == 0


def test_without_walls_a_program_is_not_run(tmp_path: Path) -> None:
    """The script with every wall taken out of it must refuse to go on."""
    script = tmp_path / "inside.py"
    source = _SCRIPT.read_text("utf-8")
    assert "def _raise_walls() -> list[str]:" in source
    script.write_text(source.replace("walls = _raise_walls()", "walls = []"), "utf-8")
    given = b'{"what": "program", "source": "print(1)", "answer": {}, "seconds": 5, "memory_mib": 512}'

    ended = subprocess.run([sys.executable, "-I", "-S", str(script)], input=given, capture_output=True, check=False)

    assert ended.returncode == inside.NO_WALLS
    assert ended.stdout == b"walls: \n"


def test_an_attempt_that_succeeds_is_no_wall() -> None:
    script = runpy.run_path(str(_SCRIPT))

    assert not script["_is_refused"](os.getpid)
    assert script["_is_refused"](Path("/nowhere/at/all").stat)
