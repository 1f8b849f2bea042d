"""A proxy of its own in the background: spawned from this program, watched until it can serve."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO

import click

from metaclaw.cli.client import Api, at, rows
from metaclaw.cli.output import duration, plain
from metaclaw.cli.progress import show_progress
from metaclaw.domain.chat import Json
from metaclaw.errors import MetaClawError
from metaclaw.instance import find

if TYPE_CHECKING:
    from metaclaw.config import Config

_PAUSE_S = 0.05
_PARENT_S = 0.5
_LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class Facts:
    """What the new proxy says about itself."""

    model: str | None
    skills: int


def launch(
    home: Path, config: "Config", overrides: Sequence[str], timeout_s: float, *, ends_with_parent: bool = False
) -> tuple[Api, Facts]:
    """Start the proxy and return once it can serve. Raises MetaClawError with the end of its log if it ends instead.

    With `ends_with_parent` the proxy stops when this process is gone, also where that was killed.
    """
    running = find(home)
    if running is not None:
        raise MetaClawError(f"a proxy of {home} runs already at {running.url} (pid {running.pid}); stop it with: metaclaw stop")
    key = config.proxy.api_key
    assert key is not None
    log = home / "logs" / "metaclaw.log"
    began_at = log.stat().st_size if log.exists() else 0
    command = [sys.executable, "-P", "-m", "metaclaw.cli", "--home", str(home), "start", "--detached"]
    with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        child = _spawn(command, home, file, {"overrides": list(overrides), "ends_with_parent": ends_with_parent})
    api = _await_ready(home, child, key.resolve(), _Log(log, began_at), timeout_s)
    status = api.facts("/api/status")
    if at(status, "degraded"):
        click.echo(f"metaclaw: it serves, but turns are not being recorded: {plain(at(status, 'store', 'reason'))}", err=True)
    return api, _facts(status)


@dataclass(frozen=True, slots=True)
class _Log:
    """What the child has written so far."""

    path: Path
    began_at: int

    def lines(self) -> list[str]:
        with self.path.open("rb") as file:
            file.seek(self.began_at)
            return file.read().decode("utf-8", "replace").splitlines()


def overrides_from_parent() -> list[str]:
    """In the background process: the settings its parent hands over. Where it is to end with its parent, a thread watches that."""
    told = json.load(sys.stdin)
    if told["ends_with_parent"]:
        Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    overrides: list[str] = told["overrides"]
    return overrides


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _spawn(command: Sequence[str], home: Path, log: BinaryIO, told: dict[str, Json]) -> "subprocess.Popen[bytes]":
    """Overrides may hold secrets; they go through a pipe because everybody can read a process's arguments."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=home, start_new_session=True)
    assert child.stdin is not None
    with suppress(BrokenPipeError), child.stdin as pipe:  # a child that died at once is reported with its log
        pipe.write(json.dumps(told).encode())
    return child


def _await_ready(home: Path, child: "subprocess.Popen[bytes]", key: str, log: _Log, timeout_s: float) -> Api:
    began = time.monotonic()
    while child.poll() is None:
        running = find(home)
        if running is not None and running.pid == child.pid and running.url is not None:
            api = Api(running.url, key)
            if _is_ready(api):
                show_progress("")
                return api
        if time.monotonic() > began + timeout_s:
            raise MetaClawError(
                f"the proxy (pid {child.pid}) cannot serve after {timeout_s:g} s, but still tries; its log is {log.path}"
            )
        show_progress(_progress(next(iter(reversed(log.lines())), ""), time.monotonic() - began))
        time.sleep(_PAUSE_S)
    show_progress("")
    tail = "\n".join(plain(line) for line in log.lines()[-_LOG_LINES:])
    raise MetaClawError(f"the proxy ended at once with exit code {child.returncode}; the end of its log ({log.path}):\n{tail}")


def _is_ready(api: Api) -> bool:
    """Whether it answers requests. A proxy whose store is broken is not ready for a balancer, but it serves: no reason to wait."""
    try:
        status, _ = api.get("/readyz")
        if status == 200:
            return True
        facts = api.facts("/api/status")
    except MetaClawError:
        return False
    return at(facts, "degraded") is True and at(facts, "engine", "state") in (None, "ready")


def _progress(line: str, waited_s: float) -> str:
    """What the proxy does while it starts, from the newest line of its log."""
    state = re.search(r"state='(?:starting: )?([^']+)'", line)
    doing = f": embedded model, {state[1]}" if state else ""
    return f"starting, {duration(waited_s)}{doing}"


def _facts(status: dict[str, Json]) -> Facts:
    models = [model for provider in rows(at(status, "providers")) for model in rows(at(provider, "models"))]
    count = at(status, "skills", "count")
    return Facts(str(models[0]) if models else None, count if isinstance(count, int) else 0)
