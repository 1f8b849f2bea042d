"""Procedures: shell commands that several sessions ran in the same order, as one script.

Only commands that worked count, and only their own text. Words that differ between the sessions
become arguments of the script. Commands that only look are left out. An edit, the person's next
message, a command of several lines, and one that a tool's output had spelled out before end a
sequence: a script could not do the same, or it would repeat what no one but the output said."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from metaclaw.domain.chat import Message, ToolCall, ToolResult, text_of
from metaclaw.outcome.episodes import failure_signature
from metaclaw.outcome.phrases import programs_of
from metaclaw.outcome.reading import (
    LOOKING,
    CommandUse,
    ToolKind,
    command_uses,
    exchanges,
    is_edit,
    read_result,
)

LEAST_COMMANDS: Final = 3
_MOST_COMMANDS: Final = 12
_LEAST_TELLING: Final = 2
_MOST_ARGUMENTS: Final = 4
_COMMAND_CHARS: Final = 300
_MOST_READ: Final = 100
_WORD: Final = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+""")
_VALUE: Final = re.compile(r"""[\w./:@+,%-]+|"[^"`$\\]*"|'[^']*'""")
_OPTION: Final = re.compile(r"((?:--?)?\w[\w-]*=)(.*)", re.DOTALL)
_OPERATOR: Final = re.compile(r"[;|&<>()]")
_PLAIN: Final = re.compile(r"[a-z][a-z:_-]{0,30}")
_ARGUMENT: Final = re.compile(r'"\$\d"')
_PAUSES: Final = frozenset(("sleep", "wait", "echo", "pwd", "true"))
# Every agent does these after every task, without being told.
_EVERYDAY: Final = frozenset(programs_of("everyday"))

Command = tuple[str, ...]
"""The words of a command as they were written, with their quotation marks."""


@dataclass(frozen=True, slots=True)
class Procedure:
    """Commands as lines of a script, with `$1` and so on in the place of words that differed.
    `heads` are their programs and subcommands. `arguments` say where each argument stands."""

    lines: tuple[str, ...]
    heads: tuple[str, ...]
    arguments: tuple[str, ...]

    def script(self, name: str) -> str:
        """The text of the script of this name."""
        needed = len(self.arguments)
        usage = " ".join([name, *(f"ARGUMENT{number}" for number in range(1, needed + 1))])
        return "\n".join(
            [
                "#!/bin/sh",
                *(f"# ${number}: {what}" for number, what in enumerate(self.arguments, 1)),
                "set -e",
                f'[ $# -eq {needed} ] || {{ echo "usage: {usage}" >&2; exit 2; }}',
                *self.lines,
                "",
            ]
        )


def runs_of(messages: Sequence[Message]) -> list[tuple[Command, ...]]:
    """The sequences of commands in a session that may be procedures."""
    runs: list[list[Command]] = [[]]
    shown = ""
    for one in exchanges(messages):
        if isinstance(one, str):
            runs.append([])
            continue
        for command in _commands_that_worked(*one):
            if command and not _is_borrowed(command, shown):
                runs[-1].append(command)
            else:
                runs.append([])
        shown += f"\n{text_of(one[1].parts)}"
    left, found = _MOST_READ, list[tuple[Command, ...]]()
    for run in reversed(runs):  # of a very long session the end
        if len(kept := run[max(0, len(run) - left) :]) >= LEAST_COMMANDS:
            found.append(tuple(kept))
            left -= len(kept)
    return found


def procedure_in(
    session: Sequence[tuple[Command, ...]],
    others: Sequence[Sequence[tuple[Command, ...]]],
    least: int,
) -> tuple[Procedure, tuple[int, ...]] | None:
    """The longest sequence of a session that so many sessions have, itself included, with the
    places of the `others`; None if there is none.
    """
    places: dict[tuple[Command, ...], dict[int, tuple[Command, ...]]] = {}
    for number, runs in enumerate(others):
        for shapes, window in _windows(runs):
            places.setdefault(shapes, {}).setdefault(number, window)
    for shapes, window in sorted(_windows(session), key=lambda found: -len(found[0])):
        same = places.get(shapes, {})
        if len(same) < least - 1:
            continue
        chosen = list(same)[1 - least :]  # the newest
        made = _procedure([window, *(same[number] for number in chosen)])
        if made is not None:
            return made, tuple(chosen)
    return None


def _is_borrowed(command: Command, shown: str) -> bool:
    """Whether outputs had spelled out a command, or an address in it."""
    is_spelled = len(command) > 1 and " ".join(command) in shown
    return is_spelled or any("://" in word and word.strip("\"'") in shown for word in command)


def _commands_that_worked(call: ToolCall, result: ToolResult) -> Iterator[Command]:
    """The commands of a call; an empty one where a script cannot take the call's place."""
    run = read_result(result, call)
    if run.kind is not ToolKind.SHELL:
        if is_edit(call):
            yield ()
        return
    has_failed = run.says_failed or run.exit_code not in (None, 0)
    if has_failed or failure_signature(call, result):
        return
    text = run.command.strip()
    if "\n" in text or len(text) > _COMMAND_CHARS or _WORD.sub("", text).strip():
        yield ()
        return
    for command in _split(_WORD.findall(text)):
        if not command or not _only_looks(command):
            yield command


def _split(words: Sequence[str]) -> Iterator[Command]:
    """The parts of `a && b && c`; anything more is one command. A `cd` alone ends a sequence: in some
    clients it holds for the next calls, in others it does not.
    """
    rest = [word for word in words if word != "&&"]
    if words[:1] == ["cd"]:
        yield ("(", *words, ")") if len(rest) < len(words) else ()
        return
    if any(map(_is_operator, rest)):
        yield tuple(words)
        return
    part: list[str] = []
    for word in (*words, "&&"):
        if word != "&&":
            part.append(word)
        elif part:
            yield tuple(part)
            part = []


def _is_operator(word: str) -> bool:
    return _OPERATOR.search(re.sub(r"""\\.|"[^"]*"|'[^']*'""", "", word)) is not None


def _only_looks(command: Command) -> bool:
    return command[0] in _PAUSES or LOOKING.issuperset(command_uses(" ".join(command)))


def _windows(
    runs: Iterable[tuple[Command, ...]],
) -> Iterator[tuple[tuple[Command, ...], tuple[Command, ...]]]:
    """Every sequence of a session that is long enough, with its shape."""
    for run in runs:
        shapes = tuple(map(_shape, run))
        for begin in range(len(run) - LEAST_COMMANDS + 1):
            for end in range(begin + LEAST_COMMANDS, min(len(run), begin + _MOST_COMMANDS) + 1):
                yield shapes[begin:end], run[begin:end]


def _shape(command: Command) -> Command:
    """The words without those that may be arguments of a script: paths, versions, quoted texts, and
    plain words behind the program's command.
    """
    head = _head(command).split()
    fixed = (word if number == 0 or "_" not in word else "" for number, word in enumerate(head))
    return (*fixed, *map(_argument_shape, command[len(head) :]))


def _argument_shape(word: str) -> str:
    if not _is_value(word):
        return word
    option = _OPTION.fullmatch(word)
    return option[1] if option else ""


def _is_value(word: str) -> bool:
    option = _OPTION.fullmatch(word)
    if option is not None:
        return _VALUE.fullmatch(option[2]) is not None
    return not word.startswith("-") and _VALUE.fullmatch(word) is not None


def _is_plain(word: str) -> bool:
    return _PLAIN.fullmatch(word) is not None


def _head(command: Command) -> str:
    """The program with the plain words behind it: `make`, `git push`, `npm run build`."""
    most = 3 if command[1:2] in (("run",), ("exec",), ("compose",)) else 2
    return " ".join((command[0], *takewhile(_is_plain, command[1:most])))


def _procedure(windows: Sequence[tuple[Command, ...]]) -> Procedure | None:
    """One script for these sequences of the same shape; None if too little of them is the same, or
    too little of it is worth a script.
    """
    heads = tuple(map(_common_head, *windows))
    telling = {head for head in heads if not _is_everyday(head)}
    if len(telling) < _LEAST_TELLING:
        return None
    values: dict[tuple[str, ...], str] = {}
    plain: list[tuple[str, ...]] = []
    lines: list[str] = []
    for head, *commands in zip(heads, *windows, strict=True):
        line = []
        for words in zip(*commands, strict=True):
            if len(set(words)) == 1:
                line.append(words[0])
                continue
            options = [_OPTION.fullmatch(word) for word in words]
            found = [
                option[2] if option else word for option, word in zip(options, words, strict=True)
            ]
            values.setdefault(tuple(found), f"a word of `{head}`")
            if options[0] is None and any(map(_is_plain, words)):
                plain.append(words)
            number = list(values).index(tuple(found)) + 1
            line.append(f'{options[0][1] if options[0] else ""}"${number}"')
        lines.append(" ".join(line))
    different = {_ARGUMENT.sub("", line) for line in lines}
    if len(different) < LEAST_COMMANDS or len(values) > _MOST_ARGUMENTS:
        return None
    if plain and not _are_one_word(plain):
        return None
    return Procedure(tuple(lines), heads, tuple(values.values()))


def _common_head(*commands: Command) -> str:
    words = zip(*(_head(command).split() for command in commands), strict=False)
    return " ".join(same[0] for same in words if len(set(same)) == 1)


def _are_one_word(plain: Sequence[tuple[str, ...]]) -> bool:
    """Whether one word differs, alone or as a part of others: where several plain words do, the
    commands have only their programs in common.
    """
    return any(
        all(word in other for others in plain for word, other in zip(words, others, strict=True))
        for words in plain
    )


def _is_everyday(head: str) -> bool:
    uses = command_uses(head)
    return head in _EVERYDAY or {CommandUse.TEST, CommandUse.CHECK}.issuperset(uses)
