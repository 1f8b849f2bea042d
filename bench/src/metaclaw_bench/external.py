"""Any agent there is a command for: the command is run once a message, and what it prints is the
answer.

    my-agent --session {session} --message {message}

The template is split as a shell would split it, then filled in, and run without a shell: no text in
a message can become a command. Of `{session}`, `{message}`, `{workspace}`, `{state}`, `{opening}`,
`{user}`, `{base_url}`, `{api_key}` and `{model}` any may be used. `{state}` is a folder of the
day's own, outside the workspace, for what the agent remembers. `{opening}` is a file with what was
said before the first question, a JSON object with `role` and `text` a line; a template without it
gets the person's part of it with the first message, since nothing else says which day it is.
`{user}` is who speaks, empty where the benchmark does not say. Without `{message}` the message
comes on standard input. The command runs in the workspace, with this program's environment and the
addresses and keys that agents look for. It is not sandboxed: it is the user's own program, with its
own tools and its own ways of keeping them in check."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from anyio.to_thread import run_sync

from metaclaw.plugin import ConfigError
from metaclaw_bench.agent import Answered, Asked, Failed, Why
from metaclaw_bench.process_guard import ProcessGuard
from metaclaw_bench.questions import Day

_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_KNOWN: Final = frozenset(
    {"session", "message", "workspace", "state", "opening", "user", "base_url", "api_key", "model"}
)
_MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
_MAX_WORDS: Final = 500


@dataclass(frozen=True, slots=True)
class Command:
    """A command template and what it is filled in with. `retries` are for a command that fails, not
    for a wrong answer.
    """

    template: str
    base_url: str
    api_key: str
    model: str
    retries: int = 3
    seconds: float = 600.0
    user: str | None = None

    def argv(self) -> tuple[str, ...]:
        """The template's words. Raises ConfigError for one that cannot be used."""
        try:
            words = tuple(shlex.split(self.template))
        except ValueError as error:
            raise ConfigError(f"the agent command cannot be split into words: {error}") from error
        if not words:
            raise ConfigError(
                "the agent command is empty: write one, such as 'my-agent --message {message}'"
            )
        unknown = sorted({name for word in words for name in _PLACEHOLDER.findall(word)} - _KNOWN)
        if unknown:
            raise ConfigError(
                f"the agent command has {{{unknown[0]}}}; known are"
                f" {', '.join(f'{{{name}}}' for name in sorted(_KNOWN))}"
            )
        return words


@dataclass(frozen=True, slots=True)
class _Ended:
    status: int
    output: str
    errors: str


@dataclass(slots=True)
class _Begun:
    """A day under way. `untold` is what the person said before the first question, as long as the
    agent has not heard it.
    """

    day: Day
    workspace: Path
    room: "tempfile.TemporaryDirectory[str]"
    untold: str

    @property
    def state(self) -> Path:
        return Path(self.room.name) / "state"

    @property
    def opening(self) -> Path:
        return Path(self.room.name) / "opening.jsonl"


class ExternalAgent:
    """Works through one day at a time (ports: `Agent`); what it remembers from message to message
    is its own affair.
    """

    def __init__(self, command: Command) -> None:
        """Raises ConfigError for a template that cannot be used."""
        self._command = command
        self._argv = command.argv()
        self._begun: _Begun | None = None
        self._guard = ProcessGuard()

    async def begin(self, day: Day, workspace: Path) -> None:
        """Take up a day in a workspace."""
        room = tempfile.TemporaryDirectory(prefix="metaclaw-agent-", ignore_cleanup_errors=True)
        is_given = any("{opening}" in word for word in self._argv)
        untold = (
            "" if is_given else "\n\n".join(one.text for one in day.opening if one.role == "user")
        )
        self._begun = begun = _Begun(day, workspace.resolve(), room, untold)
        begun.state.mkdir()
        begun.opening.write_text(
            "".join(json.dumps({"role": one.role, "text": one.text}) + "\n" for one in day.opening),
            "utf-8",
        )

    async def ask(self, text: str, *, closing: bool = False) -> Asked:
        """Run the command, again where it fails. `closing` makes no difference: such an agent
        cannot be told.
        """
        begun = self._begun
        if begun is None:
            raise RuntimeError("no day was begun")
        text = "\n\n".join(filter(None, (begun.untold, text)))
        begun.untold = ""
        filling = self._filling(begun, text)
        argv = [_PLACEHOLDER.sub(lambda found: filling[found[1]], word) for word in self._argv]
        given = "" if any("{message}" in word for word in self._argv) else text
        why = ""
        for attempt in range(1, self._command.retries + 2):
            try:
                ended = await self._run(argv, begun.workspace, given)
            except TimeoutError:
                return Failed(
                    Why.SECONDS,
                    f"the command took longer than {self._command.seconds:g} s",
                    steps=attempt,
                )
            except (OSError, ValueError) as error:
                return Failed(
                    Why.COMMAND, f"the command could not be started: {error}", steps=attempt
                )
            if ended.status == 0:
                return Answered(ended.output, None, attempt)
            why = (
                f"the command ended with status {ended.status}:"
                f" {(ended.errors or ended.output).strip()[-_MAX_WORDS:]}"
            )
        return Failed(Why.COMMAND, why, steps=self._command.retries + 1)

    async def end(self) -> None:
        """Forget the day."""
        await run_sync(self._guard.close)
        if self._begun is not None:
            await run_sync(self._begun.room.cleanup)
        self._begun = None

    def _filling(self, begun: _Begun, text: str) -> Mapping[str, str]:
        command = self._command
        return {
            "session": begun.day.session,
            "message": text,
            "workspace": str(begun.workspace),
            "state": str(begun.state),
            "opening": str(begun.opening),
            "user": command.user or "",
            "base_url": command.base_url,
            "api_key": command.api_key,
            "model": command.model,
        }

    def _environment(self) -> dict[str, str]:
        url, key = self._command.base_url.rstrip("/"), self._command.api_key
        anthropic = {"ANTHROPIC_BASE_URL": url.removesuffix("/v1"), "ANTHROPIC_AUTH_TOKEN": key}
        return {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, **anthropic}

    async def _run(self, argv: list[str], workspace: Path, given: str) -> _Ended:
        """Raises TimeoutError, or OSError and ValueError where no process can be made of it."""
        # Files, not pipes: a process that is left in the background must not hold up the answer.
        with (
            tempfile.TemporaryFile() as source,
            tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() as errors,
        ):
            source.write(given.encode("utf-8", "replace"))
            source.seek(0)
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=source,
                stdout=output,
                stderr=errors,
                cwd=workspace,
                env=self._environment(),
                start_new_session=True,
            )
            with self._guard.hold(process.pid):
                try:
                    async with asyncio.timeout(self._command.seconds):
                        status = await process.wait()
                finally:
                    await asyncio.shield(asyncio.ensure_future(_stop(process)))
            return _Ended(status, _read(output), _read(errors))


def _read(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the command and what it started in its group, whether or not it has ended by itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
