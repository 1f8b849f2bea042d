"""The life of the proxy under test: the real program, with a home and a configuration of its own,
started and stopped.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.plugin import find
from metaclaw_bench.process_guard import ProcessGuard
from metaclaw_bench.running.api import Api, ProxyError

_PAUSE_S: Final = 0.05
_STOP_S: Final = 60.0
_LOG_CHARS: Final = 3_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proxy lives: its home folder, and the log of everything it says."""

    home: Path
    log: Path


@dataclass(frozen=True, slots=True)
class Front:
    """What an agent needs of a running proxy."""

    api: Api
    model: str

    @property
    def base_url(self) -> str:
        """Its address for OpenAI clients."""
        return f"{self.api.url}/v1"


@asynccontextmanager
async def running(
    place: Place, config: str, model: str, *, sets: Sequence[str] = (), wait_s: float = 600.0
) -> AsyncIterator[Front]:
    """The program on this home with this configuration and these `section.key=value`, from when it
    can serve until the block ends.

    Whatever still runs on the home is a leftover of a run that was killed, and is stopped first.
    Raises ProxyError."""
    await clear(place.home)
    key = secrets.token_urlsafe(24)
    _write_config(place.home, f'[proxy]\nport = 0\napi_key = "{key}"\n\n{config}')
    guard = ProcessGuard()
    child = _spawn(place, sets)
    try:
        with guard.hold(child.pid):
            yield Front(Api(await _serving_url(place, child, key, wait_s), key), model)
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(child)
            await run_sync(guard.close)


async def clear(home: Path) -> None:
    """Stop the proxy of this home, if one runs."""
    deadline = time.monotonic() + _STOP_S
    while (found := find(home)) is not None:
        late = time.monotonic() > deadline
        with suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGKILL if late else signal.SIGTERM)
        await anyio.sleep(_PAUSE_S)


def _spawn(place: Place, sets: Sequence[str]) -> "subprocess.Popen[bytes]":
    place.log.parent.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-P", "-m", "metaclaw", "--home", str(place.home), "start"]
    command = [*program, *(word for one in sets for word in ("--set", one))]
    with place.log.open("ab") as log:
        # A process group of its own: the guard ends it with everything it started.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_clean(os.environ),
            start_new_session=True,
        )


def _write_config(home: Path, text: str) -> None:
    """Write the configuration, readable by its owner only: it holds the key."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = home / "config.toml"
    config.touch(mode=0o600)
    config.write_text(text, "utf-8")


def _clean(env: Mapping[str, str]) -> dict[str, str]:
    """Without the owner's own settings: a run depends on what it writes down, and on nothing
    else.
    """
    return {
        name: value
        for name, value in env.items()
        if not name.startswith("METACLAW__") and name != "METACLAW_HOME"
    }


async def _serving_url(
    place: Place, child: "subprocess.Popen[bytes]", key: str, wait_s: float
) -> str:
    deadline = time.monotonic() + wait_s
    while child.poll() is None:
        found = find(place.home)
        if (
            found is not None
            and found.pid == child.pid
            and found.url is not None
            and await Api(found.url, key).is_ready()
        ):
            return found.url
        if time.monotonic() > deadline:
            raise ProxyError(
                f"the proxy cannot serve after {wait_s:g} s; its log is"
                f" {place.log}:\n{_tail(place.log)}"
            )
        await anyio.sleep(_PAUSE_S)
    raise ProxyError(
        f"the proxy ended at its start with exit code {child.returncode}; its log is"
        f" {place.log}:\n{_tail(place.log)}"
    )


async def _stop(child: "subprocess.Popen[bytes]") -> None:
    """A first signal lets it finish; one that does not end is killed."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    while child.poll() is None:
        if time.monotonic() > deadline:
            child.kill()
        await anyio.sleep(_PAUSE_S / 5)


def _tail(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-_LOG_CHARS:]
