"""A recorded session as a cassette: tool calls are answered from the recording; no tool is run.

Calls are compared in a canonical form, without the order of keys, blanks, harmless quotes and the
model's remarks about the call. The tool's name and the command tell the effect of a call: it looks,
takes a note, changes a file, or may change anything.

A recorded result is valid only after the same changes as in the recording: the result of reading a
file before an edit does not answer a read after the edit. Only changes that may concern the call
are compared. A call that changes something gets its recorded result, too; a call without a valid
result is a miss."""

import json
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeAlias

from metaclaw.domain.chat import Json, Message, Role, Text, ToolCall, ToolResult
from metaclaw.domain.turn import Step
from metaclaw.outcome import bare_call_id
from metaclaw.skills import Script, ShellSyntaxError, Word, read_script
from metaclaw.wires import call_name, decode_json

_PLAIN: Final = re.compile(r"[\w@%+=:,./ -]*")
_EXPANDED: Final = frozenset("*?[$`~\\{")
_QUOTED: Final = re.compile(r"['\"\\]")
_OPERATOR: Final = re.compile(r"\s*((?:\d{0,3}|&)[<>]+&?|[;&|()]+)\s*")
# Redirections to these targets write no file, except `> 1`, which writes a file named 1.
_NO_FILES: Final = frozenset(("/dev/null", "1", "2"))
_NUMBERED_FILE: Final = re.compile(r">\s*\d")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LOOKERS: Final = _set(
    "ls cat head tail grep egrep fgrep rg ag wc pwd echo printf which type file stat tree du df ps"
    " printenv date whoami id uname diff cmp uniq cut tr jq basename dirname realpath readlink test"
    " true false nl column xxd hexdump md5sum sha256sum cd sleep find sort sed awk pytest mypy"
    " flake8 pylint pyright tox jest vitest eslint"
)
# These programs only look if their first argument is in the set.
_SUBCOMMANDS: Final = {
    "git": _set(
        "status log diff show rev-parse ls-files blame grep describe shortlog reflog cat-file"
    ),
    "npm": _set("test t ls view outdated --version -v"),
    "yarn": _set("test lint --version"),
    "pnpm": _set("test lint ls --version"),
    "cargo": _set("test check clippy --version"),
    "go": _set("test vet version list"),
    "make": _set("test tests check lint"),
    "ruff": _set("check --version"),
    "pip": _set("list show freeze --version"),
    "tsc": _set("--noEmit --version"),
    **dict.fromkeys(
        ("python", "python3", "node", "ruby", "java", "rustc", "gcc"), _set("--version -V -version")
    ),
}
_RUN_SCRIPTS: Final = _set("test lint typecheck")
_PYTHON_MODULES: Final = _set("pytest unittest mypy flake8 pylint")
# With these options, the program writes.
_WRITING_OPTIONS: Final = {
    "find": ("-delete", "-exec", "-ok", "-fprint", "-fls"),
    "sort": ("-o", "--output"),
    "sed": ("-i", "--in-place"),
    "ruff": ("--fix",),
    "eslint": ("--fix",),
    "jest": ("-u", "--updateSnapshot"),
    "vitest": ("-u", "--update"),
    "pytest": ("--snapshot-update",),
}
_FILE_READERS: Final = _set("cat head tail nl wc stat file")


def canonical_command(command: str) -> str:
    """The command without differences in blanks, in quotes around plain words, and in a semicolon
    at the end.
    """
    command = command.strip()
    script = _one_line(command)
    if script is None:
        return command
    pieces, at = list[str](), 0
    begin_of = attrgetter("begin")
    for begin, group in groupby(sorted(_words(script), key=begin_of), key=begin_of):
        words = list(group)
        if begin < at:  # within a substitution
            continue
        pieces += (_spaced(command[at:begin]), _plain_word(command[begin : words[0].end], words))
        at = words[0].end
    pieces.append(_spaced(command[at:]).rstrip("; "))
    return " ".join(piece for piece in pieces if piece)


def only_looks(command: str) -> bool:
    """Whether a command, judged by its words, changes nothing that a later command could see."""
    script = _one_line(command.strip())
    if (
        script is None
        or not script.commands
        or script.functions
        or any(sign in command for sign in ("`", "$(", "<(", ">("))
    ):
        return False
    return not _writes(script) and all(
        _looks([word.text for word in command.words]) for command in script.commands
    )


def paths_read(command: str) -> tuple[str, ...] | None:
    """The files that a command reads, if it does nothing else; None if it may concern anything."""
    script = _one_line(command.strip())
    if script is None or len(script.commands) != 1 or _writes(script):
        return None
    (only,) = script.commands
    name, *words = only.words or (None,)
    if only.assignments or only.reads or name is None or name.text not in _FILE_READERS:
        return None
    if any(_EXPANDED.intersection(command.strip()[word.begin : word.end]) for word in words):
        return None
    return (
        tuple(
            sorted(
                word.text
                for word in words
                if not word.text.startswith("-") and not word.text.isdecimal()
            )
        )
        or None
    )


def _one_line(command: str) -> Script | None:
    """The script of one line; None for several lines, comments, here documents, and text that is no
    shell command.
    """
    if "\n" in command:
        return None
    try:
        script = read_script(command)
    except ShellSyntaxError:
        return None
    return None if script.comments or any(command.inputs for command in script.commands) else script


def _writes(script: Script) -> bool:
    """Whether output of a command goes to a file."""
    if _NUMBERED_FILE.search(script.source) is not None:
        return True
    return not all(_NO_FILES.issuperset(command.writes) for command in script.commands)


def _words(script: Script) -> Iterator[Word]:
    for command in script.commands:
        if command.end:  # commands of back quotes have no place in the script
            yield from (*command.assignments, *command.words)


def _plain_word(written: str, words: Sequence[Word]) -> str:
    """A word with plain quoting, or as written if a shell would expand it."""
    text = words[0].text
    return (
        shlex.quote(text)
        if len(words) == 1 and _PLAIN.fullmatch(text) and not _EXPANDED.intersection(written)
        else written
    )


def _spaced(between: str) -> str:
    """The text between two words, with one blank between its operators."""
    return (
        between.strip()
        if _QUOTED.search(between)
        else " ".join(_OPERATOR.sub(r" \1 ", between).split())
    )


def _looks(words: list[str]) -> bool:
    if words[:1] == ["timeout"]:
        words = words[2:]
    if not words:
        return False
    name, *rest = words
    if any(word.startswith(_WRITING_OPTIONS.get(name, ())) for word in rest):
        return False
    if name == "awk":
        return not any(">" in word or "system" in word for word in rest)
    if name in ("python", "python3") and rest[:1] == ["-m"]:
        return rest[1:2] != [] and rest[1] in _PYTHON_MODULES
    if name in ("npm", "yarn", "pnpm") and rest[:1] == ["run"]:
        return rest[1:2] != [] and rest[1] in _RUN_SCRIPTS
    if name == "git":
        rest = _without_git_options(rest)
    return name in _LOOKERS or (rest != [] and rest[0] in _SUBCOMMANDS.get(name, ()))


def _without_git_options(words: list[str]) -> list[str]:
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-C", "-c") else words[1:]
    return words


_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SHELL: Final = _set("bash shell sh terminal exec command cmd run execute powershell console")
_COMMANDS: Final = ("command", "cmd", "script")
_LOOKS: Final = _set(
    "read get list ls view cat grep glob search find fetch show describe lookup stat inspect browse"
    " count status"
)
_CHANGES: Final = _set(
    "write edit create update delete remove set put post send patch apply insert replace move"
    " rename add commit push run execute submit kill start stop upload install save query"
)
_NOTES: Final = _set("todo todos plan think thinking")
_NOTE_VERBS: Final = _set("write read update create set list enter exit mode tool sequential")
_VERBS: Final = ("command", "action", "operation")
_PATHS: Final = (
    "file_path",
    "filepath",
    "path",
    "file",
    "filename",
    "notebook_path",
    "target_file",
    "absolute_path",
)
_PATCHED: Final = re.compile(
    r"^(?:\*\*\* (?:Add|Update|Delete) File: |\+\+\+ (?:b/)?)(\S[^\n\t]*)", re.MULTILINE
)
# The model's remarks about a call, and its timeout: they do not change the result.
_REMARKS: Final = _set(
    "description explanation reason justification thought rationale why timeout timeout_ms"
    " timeout_s yield_time_ms"
)
# Arguments that say how much of the result is wanted.
_AMOUNTS: Final = _set(
    "limit offset head_limit max_results num_results page_size max_output_tokens max_lines lines"
    " start_line end_line view_range max_length max_chars"
)


class CallEffect(StrEnum):
    LOOK = "look"
    NOTE = "note"
    WRITE = "write"
    ANYTHING = "anything"


@dataclass(frozen=True, slots=True)
class CallMeaning:
    """The meaning of a call. `key` is its canonical form, `loose` the same without the arguments
    that limit the result. `paths` are the files it reads or changes; None: it may be any."""

    name: str
    key: str
    loose: str
    effect: CallEffect
    paths: tuple[str, ...] | None

    @property
    def changes(self) -> bool:
        """Whether it may change a later result."""
        return self.effect in (CallEffect.WRITE, CallEffect.ANYTHING)

    def touches(self, other: "CallMeaning") -> bool:
        """Whether both calls may concern the same files."""
        if self.paths is None or other.paths is None:
            return True
        return any(_overlap(mine, theirs) for mine in self.paths for theirs in other.paths)


def understand(call: ToolCall) -> CallMeaning:
    name = call_name(call)
    arguments = _decoded(call.arguments)
    if not isinstance(arguments, dict):
        key = f"{name} {json.dumps(arguments)}"
        return CallMeaning(name, key, key, CallEffect.ANYTHING, None)
    words = {word.lower() for word in _WORDS.findall(name)}
    command = _command(arguments) if words & _SHELL else None
    effect = _effect(words, command, arguments)
    paths = paths_read(command) if command is not None else _paths(arguments)
    if command is None and effect is not CallEffect.LOOK:
        key = _key(name, arguments, None)
        return CallMeaning(name, key, key, effect, paths)
    compared = {
        key: _trimmed(value) for key, value in arguments.items() if key.lower() not in _REMARKS
    }
    without_amounts = {key: value for key, value in compared.items() if key.lower() not in _AMOUNTS}
    return CallMeaning(
        name, _key(name, compared, command), _key(name, without_amounts, command), effect, paths
    )


def _effect(words: set[str], command: str | None, arguments: dict[str, Json]) -> CallEffect:
    if command is not None:
        return CallEffect.LOOK if only_looks(command) else CallEffect.ANYTHING
    if words & _NOTES and words <= _NOTES | _NOTE_VERBS:
        return CallEffect.NOTE
    # A tool with several uses has the verb in an argument: `{"command": "view", "path": …}`.
    verbs = {verb for name in _VERBS if isinstance(verb := arguments.get(name), str)}
    if verbs & _LOOKS or (not verbs and words & _LOOKS and not words & _CHANGES):
        return CallEffect.LOOK
    return (
        CallEffect.WRITE
        if (words | verbs) & _CHANGES and _paths(arguments)
        else CallEffect.ANYTHING
    )


def _decoded(arguments: str) -> Json:
    try:
        return decode_json(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments.strip()


def _command(arguments: dict[str, Json]) -> str | None:
    """The command line, which is a text, a list of words, or the last argument of `bash -c`."""
    value = next((arguments[name] for name in _COMMANDS if name in arguments), None)
    match value:
        case str():
            return value
        case [str() as shell, str() as flag, str() as line] if (
            posixpath.basename(shell) in ("bash", "sh", "zsh") and "c" in flag
        ):
            return line
        case [str(), *_]:
            return shlex.join(str(word) for word in value)
        case _:
            return None


def _paths(arguments: dict[str, Json]) -> tuple[str, ...] | None:
    """The files that a call names, or None."""
    found = [
        value for name in _PATHS if isinstance(value := arguments.get(name), str) and value.strip()
    ]
    if not found and isinstance(patch := arguments.get("input") or arguments.get("patch"), str):
        found = _PATCHED.findall(patch)
    return tuple(sorted({_clean_path(path) for path in found})) or None


def _clean_path(path: str) -> str:
    return path.strip() if "://" in path else posixpath.normpath(path.strip())


def _overlap(mine: str, theirs: str) -> bool:
    """Whether two paths may be the same, or one may contain the other. The folder of a relative
    path is not known.
    """
    if mine == theirs or "." in (mine, theirs):
        return True
    short, long = sorted((mine.strip("/"), theirs.strip("/")), key=len)
    return f"/{short}/" in f"/{long}/"


def _key(name: str, arguments: dict[str, Json], command: str | None) -> str:
    shown = {key: _canonical(key, value) for key, value in arguments.items() if value is not None}
    if command is not None:
        shown = {key: value for key, value in shown.items() if key not in _COMMANDS} | {
            "command": canonical_command(command)
        }
    return f"{name} {json.dumps(shown, sort_keys=True, separators=(',', ':'))}"


def _canonical(key: str, value: Json) -> Json:
    match value:
        case str() if key in _PATHS and value.strip():
            return _clean_path(value)
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_canonical("", item) for item in value]
        case dict():
            return {
                name: _canonical(name, item) for name, item in value.items() if item is not None
            }
        case _:
            return value


def _trimmed(value: Json) -> Json:
    return value.strip() if isinstance(value, str) else value


# Clients replace old results with such a text to save tokens.
_EMPTIED: Final = re.compile(
    r"\W*(?:old )?tool (?:result|output)s?(?: content)? (?:was |were"
    r" )?(?:cleared|removed|omitted|pruned)",
    re.I,
)
_CUSTOM: Final = {"custom_tool_call": "custom_tool_call_output"}


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A recorded call and its result, if any."""

    meaning: CallMeaning
    result: ToolResult | None

    @property
    def changed(self) -> bool:
        """Whether it may have changed something. A failed write has not."""
        failed = (
            self.meaning.effect is CallEffect.WRITE
            and self.result is not None
            and self.result.is_error
        )
        return self.meaning.changes and not failed


@dataclass(frozen=True, slots=True)
class ExactResult:
    """The same call was recorded after the same changes."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class SimilarResult:
    """A similar call was recorded, and its result can be used; `differs` names the difference."""

    result: ToolResult
    differs: str


@dataclass(frozen=True, slots=True)
class Miss:
    """No recorded result answers the call; `why` is for people."""

    why: str


PlaybackResult: TypeAlias = ExactResult | SimilarResult | Miss


@dataclass(frozen=True, slots=True)
class Recording:
    """The tool calls of a session with their results, in order. The first `start` calls came before
    the replayed step.
    """

    calls: tuple[RecordedCall, ...]
    start: int

    @classmethod
    def of(cls, steps: Sequence[Step]) -> "Recording":
        """The recording of consecutive steps of one thread."""
        if not steps:
            return cls((), 0)
        before = _recorded_calls(steps[0].history)
        return cls(tuple(_recorded_calls((*steps[0].history, *_said(steps)))), len(before))


class Cassette:
    """One replay of a recording. It remembers which results were used and which changes were
    made.
    """

    def __init__(self, recording: Recording) -> None:
        self._calls = recording.calls
        self._start = recording.start
        self._played: set[int] = set()
        self._changes = [
            recorded.meaning for recorded in recording.calls[: recording.start] if recorded.changed
        ]

    def play(self, call: ToolCall) -> PlaybackResult:
        """The recorded result of this call, with its id."""
        meaning = understand(call)
        same = [
            at
            for at, recorded in enumerate(self._calls)
            if recorded.result is not None and recorded.meaning.key == meaning.key
        ]
        fitting = [at for at in same if self._has_same_changes(at, meaning)]
        if fitting:
            return ExactResult(self._give(self._choose(fitting), call, meaning))
        near = self._near(meaning)
        if near is not None:
            at, differs = near
            return SimilarResult(self._give(at, call, meaning), differs)
        if same:
            return Miss(f"{meaning.name} was recorded, but not after the same changes")
        known = any(recorded.meaning.name == meaning.name for recorded in self._calls)
        return Miss(
            f"this call of {meaning.name} was not recorded"
            if known
            else f"no call of {meaning.name} was recorded"
        )

    def closes(self, call: ToolCall) -> bool:
        """Whether the recorded session ended with this call, so that no result was recorded."""
        last = self._calls[-1] if len(self._calls) > self._start else None
        return last is not None and last.result is None and last.meaning.key == understand(call).key

    def _has_same_changes(self, at: int, meaning: CallMeaning) -> bool:
        """Whether the same changes that concern this call came before it in the recording and in
        the replay.
        """
        before = (recorded.meaning for recorded in self._calls[:at] if recorded.changed)
        return _changes_for(meaning, before) == _changes_for(meaning, self._changes)

    def _choose(self, fitting: Sequence[int]) -> int:
        """The next unused result; a call that is made more often than recorded gets the last result
        again.
        """
        fresh = (at for at in fitting if at >= self._start and at not in self._played)
        return next(fresh, fitting[-1])

    def _near(self, meaning: CallMeaning) -> tuple[int, str] | None:
        """The first similar call whose result can be used, and the difference."""
        for at, recorded in enumerate(self._calls):
            known = recorded.meaning
            if (
                recorded.result is None
                or known.name != meaning.name
                or known.effect is not meaning.effect
            ):
                continue
            match meaning.effect:
                case CallEffect.NOTE:
                    return at, "a note, in other words"
                case CallEffect.LOOK if known.loose == meaning.loose and self._has_same_changes(
                    at, meaning
                ):
                    return at, "how much of it is wanted"
                case CallEffect.WRITE if (
                    known.paths == meaning.paths
                    and not recorded.result.is_error
                    and self._has_same_changes(at, meaning)
                ):
                    return at, "what is written"
        return None

    def _give(self, at: int, call: ToolCall, meaning: CallMeaning) -> ToolResult:
        recorded = self._calls[at]
        self._played.add(at)
        if meaning.changes and (recorded.changed or recorded.meaning.key != meaning.key):
            self._changes.append(meaning)
        result = recorded.result
        assert result is not None, "only calls with a result are given"
        kind = _CUSTOM.get(str(call.extra.get("type")))
        return replace(result, call_id=call.id, extra={} if kind is None else {"type": kind})


def _changes_for(
    call: CallMeaning, changes: Iterable[CallMeaning]
) -> dict[tuple[str, ...] | None, list[str]]:
    """The changes that may concern a call, in order for each set of files."""
    by_paths: dict[tuple[str, ...] | None, list[str]] = {}
    for change in changes:
        if change.touches(call):
            by_paths.setdefault(change.paths, []).append(change.key)
    return by_paths


def _said(steps: Sequence[Step]) -> Iterator[Message]:
    for step in steps:
        yield Message(Role.ASSISTANT, step.answer)
        yield from step.after


def _recorded_calls(messages: Iterable[Message]) -> list[RecordedCall]:
    """Calls with their results. A session may reuse ids: a result belongs to the last unanswered
    call with its id.
    """
    calls: list[RecordedCall] = []
    waiting: dict[str, int] = {}
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolCall):
            waiting[bare_call_id(part.id)] = len(calls)
            calls.append(RecordedCall(understand(part), None))
        elif isinstance(part, ToolResult):
            at = waiting.pop(bare_call_id(part.call_id), None)
            if at is not None and not _is_emptied(part):
                calls[at] = replace(calls[at], result=part)
    return calls


def _is_emptied(result: ToolResult) -> bool:
    return (
        len(result.parts) == 1
        and isinstance(only := result.parts[0], Text)
        and _EMPTIED.match(only.text) is not None
    )
