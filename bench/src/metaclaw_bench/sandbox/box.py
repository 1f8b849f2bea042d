"""A sandbox: shell commands in a workspace, behind the strongest walls this machine gives."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from anyio.to_thread import run_sync

from metaclaw_bench.json_types import Json
from metaclaw_bench.sandbox.limits import Limits, Ran, Stopped, Strength
from metaclaw_bench.sandbox.output import Kept
from metaclaw_bench.workspaces import used_bytes

_SCRIPT: Final = Path(__file__).with_name("inside.py")
_COMMAND: Final = (os.path.realpath(sys.executable), "-I", "-S", str(_SCRIPT))
# It may be installed where the interpreter is, which commands can see: checkers and generators are
# in it.
_PACKAGE: Final = Path(__file__).resolve().parents[2]
_GRACE_S: Final = 5.0
_LOOK_S: Final = 0.1
_CHUNK_BYTES: Final = 65_536
_PROBE: Final = Limits(seconds=10.0)


class Sandbox:
    """Runs commands in one workspace. `hidden` are folders no command may see even where they lie
    in a system folder.

    Only namespaces can hide a folder inside of one that is seen.
    """

    def __init__(
        self,
        workspace: Path,
        limits: Limits | None = None,
        *,
        hidden: Sequence[Path] = (),
        strength: Strength | None = None,
    ) -> None:
        """Without a strength, the strongest is taken; finding out which that is blocks for some
        tenths of a second, once.
        """
        self.limits = limits or Limits()
        self.strength = strength or strongest()
        self._workspace = workspace.resolve()
        self._hidden = (_PACKAGE, *(path.resolve() for path in hidden))

    async def run(self, command: str) -> Ran:
        """Run a command with `sh`, in the workspace. When this returns, or is cancelled, no process
        of it is left.
        """
        with tempfile.TemporaryDirectory(
            prefix="metaclaw-box-", ignore_cleanup_errors=True
        ) as room:
            process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                start_new_session=True,
            )
            kept = Kept(self.limits.output_bytes)
            try:
                async with asyncio.timeout(self.limits.seconds + _GRACE_S):
                    given = _task(
                        self.strength,
                        self._workspace,
                        Path(room),
                        self._hidden,
                        self.limits,
                        command,
                    )
                    report = await self._within_quota(_converse(process, given, kept))
            except TimeoutError:
                report = f"end {Stopped.OUT_OF_TIME}"
            finally:
                await asyncio.shield(asyncio.ensure_future(_stop(process)))
        return _ran(report, kept)

    async def _within_quota(self, talk: Coroutine[object, object, str]) -> str:
        """The command's report; that it ran out of space where the workspace grew beyond its quota
        first.
        """
        running = asyncio.ensure_future(talk)
        watching = asyncio.ensure_future(self._outgrown())
        try:
            await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
            return running.result() if running.done() else f"end {Stopped.OUT_OF_SPACE}"
        finally:
            for task in (running, watching):
                task.cancel()
            await asyncio.gather(running, watching, return_exceptions=True)

    async def _outgrown(self) -> None:
        """Return once the workspace is larger than its quota, and than it was: what is too large
        already may still be deleted.
        """
        most = max(
            self.limits.workspace_mib * 1024 * 1024, await run_sync(used_bytes, self._workspace)
        )
        while True:
            began = time.monotonic()
            if await run_sync(used_bytes, self._workspace) > most:
                return
            # Looking must not take more than a part of the time, however many files there are.
            await asyncio.sleep(max(_LOOK_S, 10 * (time.monotonic() - began)))


def strongest() -> Strength:
    """The strongest walls that stand here and hold when tried. Blocks for some tenths of a second,
    the first time.
    """
    if sys.platform == "linux":
        for strength in (Strength.NAMESPACES, Strength.LANDLOCK):
            if holds(strength):
                return strength
    return Strength.LIMITS


@lru_cache(maxsize=len(Strength))
def holds(strength: Strength) -> bool:
    """Whether these walls can be raised here, and keep a process from a folder outside and from the
    network. Tried once; blocks.
    """
    with (
        tempfile.TemporaryDirectory(prefix="metaclaw-box-") as room,
        tempfile.TemporaryDirectory(prefix="metaclaw-box-") as workspace,
        tempfile.TemporaryDirectory(prefix="metaclaw-box-") as canary,
    ):
        Path(canary).chmod(0o755)  # it is the walls that must keep it, not its owner
        given = _task(strength, Path(workspace), Path(room), (), _PROBE, None, Path(canary))
        try:
            ended = subprocess.run(
                _COMMAND, input=given, capture_output=True, env={}, cwd="/", timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return ended.stderr == b"end 0\n"


def _task(
    strength: Strength,
    workspace: Path,
    room: Path,
    hidden: Sequence[Path],
    limits: Limits,
    command: str | None,
    canary: Path | None = None,
) -> bytes:
    task: dict[str, Json] = {
        "walls": strength.value,
        "workspace": str(workspace),
        "room": os.path.realpath(room),
        "hidden": [str(path) for path in hidden],
        "seconds": limits.seconds,
        "memory_mib": limits.memory_mib,
        "processes": limits.processes,
        "file_mib": limits.file_mib,
        "command": command,
        "canary": None if canary is None else str(canary),
    }
    return json.dumps(task).encode()


async def _converse(process: asyncio.subprocess.Process, given: bytes, kept: Kept) -> str:
    """Hand the task over and read what comes back, to the end."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(given)
    process.stdin.close()
    report = Kept(4_000)
    await asyncio.gather(_read(process.stdout, kept), _read(process.stderr, report))
    return report.text()


async def _read(stream: asyncio.StreamReader, kept: Kept) -> None:
    while chunk := await stream.read(_CHUNK_BYTES):
        kept.add(chunk)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Have the supervisor end everything; if it does not, end it and whatever is in its group."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(_GRACE_S):
                await process.wait()
        except TimeoutError:
            _signal(process, signal.SIGKILL)
            await process.wait()


def _signal(process: asyncio.subprocess.Process, which: signal.Signals) -> None:
    try:
        if which is signal.SIGKILL:
            os.killpg(process.pid, which)
        else:
            os.kill(process.pid, which)
    except ProcessLookupError:
        return


def _ran(report: str, kept: Kept) -> Ran:
    lines = report.splitlines()
    last = lines[-1] if lines else ""
    if len(lines) != 1 or not last.startswith("end "):
        return Ran(Stopped.NOT_STARTED, report.strip() or "the sandbox broke off")
    word = last.removeprefix("end ")
    end = Stopped(word) if word in set(Stopped) else int(word)
    return Ran(end, kept.text(), kept.left_out_bytes)
