"""One proxy per home: the lock, and what is known about who holds it."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from metaclaw.errors import MetaClawError
from metaclaw.instance import acquire, find
from tests.cli.program import metaclaw

HOLDER = """
import sys, pathlib
from metaclaw.instance import acquire
with acquire(pathlib.Path(sys.argv[1])) as instance:
    instance.announce("http://127.0.0.1:1")
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(home: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_nobody_runs_in_a_new_home(home: Path) -> None:
    assert find(home) is None


def test_a_rule_that_is_added_before_the_first_start_makes_a_home_for_its_owner_only(
    home: Path,
) -> None:
    assert metaclaw("rules", "add", "Be kind.").code == 0
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_the_holder_is_found_with_its_address_until_it_lets_go(home: Path) -> None:
    with acquire(home) as instance:
        running = find(home)
        assert running is not None
        assert (running.pid, running.url) == (os.getpid(), None)
        instance.announce("http://127.0.0.1:5")
        running = find(home)
        assert running is not None
        assert running.url == "http://127.0.0.1:5"
        assert running.started_at is not None
        assert stat.S_IMODE((home / "run" / "serving.json").stat().st_mode) == 0o600
        assert stat.S_IMODE((home / "run" / "metaclaw.pid").stat().st_mode) == 0o600
        instance.retract()
    assert find(home) is None
    assert not (home / "run" / "serving.json").read_text().strip()


def test_a_second_one_is_refused_with_the_first_ones_number(home: Path) -> None:
    with hold(home) as process:
        with (
            pytest.raises(
                MetaClawError, match=rf"runs already at http://127.0.0.1:1 \(pid {process.pid}\)"
            ),
            acquire(home),
        ):
            pass
        process.communicate(b"")
    assert find(home) is None


def test_after_kill_9_nobody_runs_and_the_next_may(home: Path) -> None:
    with hold(home) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert (home / "run" / "serving.json").exists()
    assert find(home) is None
    with acquire(home):
        running = find(home)
        assert running is not None
        assert running.url is None, "a dead proxy's address was taken for ours"


def test_a_stale_address_is_not_believed(home: Path) -> None:
    with acquire(home):
        (home / "run" / "serving.json").write_text(
            json.dumps({"pid": 1, "url": "http://elsewhere", "started_at": "2026-01-01"})
        )
        running = find(home)
        assert running is not None
        assert running.url is None


def test_a_run_folder_that_cannot_be_used_is_said_so(home: Path) -> None:
    home.mkdir()
    (home / "run").write_text("")
    with pytest.raises(MetaClawError, match="cannot be used"), acquire(home):
        pass


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs the system's list of locks")
def test_the_holder_is_found_although_it_could_write_nothing(home: Path) -> None:
    with hold(home) as process:
        for name in ("metaclaw.pid", "serving.json"):
            (home / "run" / name).write_text("")
        running = find(home)
        assert running is not None
        assert (running.pid, running.url) == (process.pid, None)
        process.communicate(b"")


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs the system's list of locks")
def test_what_a_dead_proxy_has_written_is_not_believed(home: Path) -> None:
    with hold(home) as process:
        (home / "run" / "metaclaw.pid").write_text("1\n")
        running = find(home)
        assert running is not None
        assert running.pid == process.pid
        process.communicate(b"")


def test_a_disk_that_cannot_be_written_to_can_be_locked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with acquire(home):
        pass
    opened = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with acquire(home):
        assert find(home) is not None
    assert find(home) is None
