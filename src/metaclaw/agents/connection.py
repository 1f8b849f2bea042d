"""Connect and disconnect agents: plan and make the change to an agent's file, keep a backup and a
record to undo it, and run a trial with the real program."""

import difflib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from metaclaw.agents.agent import Agent, Endpoint, Setting
from metaclaw.agents.formats import (
    Item,
    KeyPath,
    TextFormat,
    UnreadableTextError,
    lookup,
    with_value,
)
from metaclaw.domain.turn import TRIAL_QUESTION
from metaclaw.durable_files import replace_file
from metaclaw.errors import ConfigError, MetaClawError

_SECRET = re.compile(
    r"""((?:api[-_]?keys?|token|secret|password)["']?\s*[:=]\s*\[?\s*["']?)([^"'\s,}\]]{6,})""",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FileChange:
    """The content of a file before and after a change; None if there is no file."""

    file: Path
    before: bytes | None
    after: bytes | None
    notes: tuple[str, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether anything differs."""
        return self.before != self.after


def difference(change: FileChange, key: str) -> str:
    """The change as a unified diff, with keys masked."""
    before, after = _lines(change.before), _lines(change.after)
    old, new = (
        "/dev/null" if content is None else str(change.file)
        for content in (change.before, change.after)
    )
    text = "\n".join(difflib.unified_diff(before, after, old, new, n=2, lineterm=""))
    text = text.replace(key, "<MetaClaw key>") if key else text
    return _SECRET.sub(
        lambda found: found[0] if found[2].startswith("<Meta") else f"{found[1]}********", text
    )


def applied(
    file: Path, text: TextFormat, content: str, settings: Sequence[Setting]
) -> tuple[str, list[Setting]]:
    """Put the settings into the content; also returns those that were set. Raises ConfigError if
    something else would change.
    """
    tree = _read(file, text, content)
    made: list[Setting] = []
    # Where a new entry is inserted before the others of its section, the last one goes first.
    for setting in settings if text.is_appending else reversed(settings):
        if setting.within is not None and not lookup(tree, setting.within)[0]:
            continue
        made.append(setting)
        if lookup(tree, setting.path) == (True, setting.value):
            continue
        tree = with_value(tree, setting.path, setting.value)
        content = _proven(file, text, content, setting, tree)
    return content, [setting for setting in settings if setting in made]


def undone(
    file: Path, text: TextFormat, content: str, original: str, settings: Sequence[Setting]
) -> tuple[str, list[str]]:
    """Put the former values back. Values that were changed since stay; their paths are returned."""
    tree, before = _read(file, text, content), _read(file, text, original)
    left: list[str] = []
    # The last one first, because an element of a list is found by its first value.
    for setting in reversed(settings):
        is_there, value = lookup(tree, setting.path)
        if not is_there:
            continue
        if value != setting.value:
            left.append(".".join(str(part) for part in setting.path))
            continue
        had, old = lookup(before, setting.path)
        content = (
            text.put(content, setting.path, old)
            if had
            else _without(text, content, before, setting.path)
        )
        tree = _read(file, text, content)
    return content, left


def _without(text: TextFormat, content: str, before: object, path: KeyPath) -> str:
    """Remove a value, and the sections that were created for it and are empty now."""
    owner = path[-2] if len(path) > 1 else None
    if isinstance(owner, Item) and path[-1] == owner.key:
        if lookup(text.read(content), path[:-1])[1] != {owner.key: owner.value}:
            return content  # an element that has other values now keeps its name
        path = path[:-1]
    content = text.remove(content, path)
    for depth in range(len(path) - 1, 0, -1):
        outer = path[:depth]
        value = lookup(text.read(content), outer)[1]
        had, old = lookup(before, outer)
        if value not in ({}, []):
            return content
        if had:
            return content if value == old else text.put(content, outer, old)
        content = text.remove(content, outer)
    return content


def _proven(file: Path, text: TextFormat, content: str, setting: Setting, wanted: object) -> str:
    try:
        changed = text.put(content, setting.path, setting.value)
        if text.read(changed) == wanted:
            return changed
    except UnreadableTextError:
        pass
    name = ".".join(str(part) for part in setting.path)
    raise ConfigError(
        f"{file}: {name} cannot be set without changing something else there; set it by hand. The"
        " file was left as it is"
    )


def _read(file: Path, text: TextFormat, content: str) -> object:
    try:
        return text.read(content)
    except UnreadableTextError as error:
        raise ConfigError(
            f"{file} is not valid {text.name} ({error}); correct it first. The file was left as"
            " it is"
        ) from error


def _lines(content: bytes | None) -> list[str]:
    return [] if content is None else content.decode("utf-8", "replace").splitlines()


_NEW_FILE_MODE = 0o600


class ConnectionState(StrEnum):
    """Whether an agent's configuration points at the proxy."""

    CONNECTED = "connected"
    CHANGED = "changed since"
    NOT_CONNECTED = "not connected"


class _Setting(msgspec.Struct, frozen=True):
    """A value that was set, and its path."""

    path: tuple[str | Item, ...]
    value: Any


class _Record(msgspec.Struct, frozen=True):
    """The record of a change to an agent's file, as it is stored. `model` is the one that the
    person chose for this agent; `folders` were created for the file."""

    file: str
    existed: bool
    sha256: str
    settings: tuple[_Setting, ...]
    folders: tuple[str, ...]
    model: str | None = None


class Connections:
    """The agents of one home. Records and backups are kept in `agents/` there, for their owner
    only.
    """

    def __init__(self, home: Path, env: Mapping[str, str] | None = None) -> None:
        self._folder = home / "agents"
        self._env = os.environ if env is None else env

    def file(self, agent: Agent) -> Path | None:
        """The agent's configuration file: the one that was connected, else the one it would read
        now.
        """
        if (record := self._record(agent)) is not None:
            return Path(record.file)
        return None if agent.file is None else agent.file(self._env)

    def chosen_model(self, agent: Agent) -> str | None:
        """The model that the person chose when the agent was connected, or None."""
        record = self._record(agent)
        return None if record is None else record.model

    def has_mcp(self, agent: Agent) -> bool:
        """Whether the agent is connected with our MCP server."""
        record = self._record(agent.mcp_file or agent)
        return record is not None and any("mcp" in str(one.path[0]) for one in record.settings)

    def backup(self, agent: Agent) -> Path:
        """The path of the backup of the original file."""
        return self._folder / f"{agent.name}.backup"

    def state(self, agent: Agent) -> ConnectionState:
        """Whether the agent is connected, by its record and its file."""
        record = self._record(agent)
        if record is None or agent.text is None:
            return ConnectionState.NOT_CONNECTED
        content = _content(Path(record.file))
        try:
            tree = agent.text.read("" if content is None else content.decode("utf-8"))
        except (UnreadableTextError, UnicodeDecodeError):
            return ConnectionState.CHANGED
        in_place = all(
            lookup(tree, setting.path) == (True, setting.value) for setting in record.settings
        )
        return ConnectionState.CONNECTED if in_place else ConnectionState.CHANGED

    def plan_connect(self, agent: Agent, endpoint: Endpoint) -> "PlannedConnection":
        """Compute the change that connects the agent. Nothing is written."""
        if agent.file is None or agent.text is None:
            raise MetaClawError(
                f"{agent.title} is connected by hand; metaclaw agents connect {agent.name}"
                " prints how"
            )
        file, record = agent.file(self._env), self._record(agent)
        if record is not None and record.file != str(file):
            raise MetaClawError(
                f"{agent.title} is connected in {record.file}, but its configuration is now {file};"
                f" first run: metaclaw agents disconnect {agent.name}"
            )
        current = _content(file)
        original = current if record is None else self._restored(agent, record, current)[0]
        text, settings = applied(
            file, agent.text, _decoded(file, original), agent.settings(endpoint)
        )
        change = FileChange(file, current, text.encode("utf-8"))
        return PlannedConnection(
            change, original, tuple(settings), endpoint.model if endpoint.is_model_chosen else None
        )

    def connect(self, agent: Agent, plan: "PlannedConnection") -> None:
        """Make the planned change. The backup and the record are written first."""
        change = plan.change
        assert change.after is not None
        _require_unchanged(change)
        known = self._record(agent)
        folders = tuple(str(parent) for parent in change.file.parents if not parent.exists())
        record = _Record(
            str(change.file),
            plan.original is not None,
            hashlib.sha256(change.after).hexdigest(),
            tuple(_Setting(one.path, one.value) for one in plan.settings),
            folders or (known.folders if known else ()),
            plan.model,
        )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if plan.original is not None:
            replace_file(self.backup(agent), plan.original)
        replace_file(self._record_file(agent), msgspec.json.encode(record))
        _write(change.file, change.after)

    def plan_disconnect(self, agent: Agent) -> FileChange:
        """Compute the change that disconnects the agent. Nothing is written. Raises MetaClawError
        if it is not connected.
        """
        record = self._record(agent)
        if record is None:
            raise MetaClawError(f"{agent.title} is not connected; there is nothing to undo")
        file = Path(record.file)
        current = _content(file)
        restored, left = self._restored(agent, record, current)
        notes = tuple(f"{path} was changed since and stays as it is" for path in left)
        return FileChange(file, current, restored, notes)

    def disconnect(self, agent: Agent, change: FileChange) -> None:
        """Make the planned change, then drop the record and the backup."""
        record = self._record(agent)
        assert record is not None
        _require_unchanged(change)
        if change.after is None:
            change.file.unlink(missing_ok=True)
            _remove_empty(record.folders)
        elif change.is_needed:
            _write(change.file, change.after)
        self._record_file(agent).unlink(missing_ok=True)
        self.backup(agent).unlink(missing_ok=True)

    def _restored(
        self, agent: Agent, record: _Record, current: bytes | None
    ) -> tuple[bytes | None, list[str]]:
        """The original content: byte for byte if the file has not changed since, else the current
        content without our settings.
        """
        original = _content(self.backup(agent)) if record.existed else None
        if record.existed and original is None:
            raise MetaClawError(
                f"the backup {self.backup(agent)} is gone; take the lines of metaclaw out of"
                f" {record.file} by hand"
            )
        if current is None:
            return None, []
        if hashlib.sha256(current).hexdigest() == record.sha256:
            return original, []
        assert agent.text is not None
        file = Path(record.file)
        before, now = _decoded(file, original), _decoded(file, current)
        settings = [Setting(one.path, one.value) for one in record.settings]
        text, left = undone(file, agent.text, now, before, settings)
        return text.encode("utf-8"), left

    def _record_file(self, agent: Agent) -> Path:
        return self._folder / f"{agent.name}.json"

    def _record(self, agent: Agent) -> _Record | None:
        path = self._record_file(agent)
        content = _content(path)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=_Record)
        except msgspec.MsgspecError as error:
            raise MetaClawError(
                f"{path}, which says how {agent.title} was connected, cannot be read"
                f" ({type(error).__name__}); the file as it was before is {self.backup(agent)}"
            ) from error


@dataclass(frozen=True, slots=True)
class PlannedConnection:
    """A change with what is needed to undo it."""

    change: FileChange
    original: bytes | None
    settings: tuple[Setting, ...]
    model: str | None = None


def _require_unchanged(change: FileChange) -> None:
    if _content(change.file) != change.before:
        raise MetaClawError(
            f"{change.file} was changed by another program in the meantime; nothing was written."
            " Try again"
        )


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read ({error.strerror}); nothing was changed"
        ) from error


def _decoded(file: Path, content: bytes | None) -> str:
    try:
        return "" if content is None else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not a text in UTF-8; correct it first. The file was left as it is"
        ) from error


def _write(file: Path, content: bytes) -> None:
    """Replace a file atomically, keeping its mode. A symbolic link stays a link."""
    try:
        mode = file.stat().st_mode & 0o777 if file.exists() else _NEW_FILE_MODE
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, content)
        file.chmod(mode)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written ({error.strerror}); it was left as it is"
        ) from error


def _remove_empty(folders: tuple[str, ...]) -> None:
    """Remove the folders that were created for a file, if they are empty."""
    for folder in map(Path, folders):
        if not folder.is_dir() or any(folder.iterdir()):
            return
        folder.rmdir()


_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Trial:
    """The exit code of the program and its output."""

    code: int
    answer: str
    errors: str

    @property
    def has_answer(self) -> bool:
        """Whether it ended well and printed something."""
        return self.code == 0 and bool(self.answer)


def find_program(agent: Agent) -> str | None:
    """The agent's program on this machine, or None."""
    return shutil.which(agent.program) if agent.program else None


def require_program(agent: Agent) -> str:
    """The agent's program. Raises MetaClawError if it is not installed, or cannot run
    unattended.
    """
    if agent.question is None:
        raise MetaClawError(
            f"{agent.title} cannot be run unattended; ask it something yourself, then: metaclaw"
            " sessions list"
        )
    program = find_program(agent)
    if program is None:
        raise MetaClawError(
            f"{agent.title} is not installed here (no {agent.program} on the PATH); install it:"
            f" {agent.install}"
        )
    return program


def run_trial(agent: Agent, program: str, timeout_s: float) -> Trial:
    """Run the agent once in an empty folder. Raises MetaClawError if it does not end."""
    assert agent.question is not None
    with tempfile.TemporaryDirectory(prefix="metaclaw-agent-") as folder:
        try:
            done = subprocess.run(
                [program, *agent.question(TRIAL_QUESTION)],
                env={**os.environ, "NO_COLOR": "1"},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MetaClawError(
                f"{agent.title} did not finish within {timeout_s:g} s; see metaclaw doctor, or give"
                " it --timeout"
            ) from error
        except OSError as error:
            raise MetaClawError(
                f"{agent.title} ({program}) cannot be started: {error.strerror}"
            ) from error
    return Trial(done.returncode, _plain(done.stdout), _plain(done.stderr))


def _plain(output: bytes) -> str:
    return _COLOUR.sub("", output.decode("utf-8", "replace")).strip()
