"""A shell script as checks see it: its simple commands one by one, in plain spelling, what it only quotes, and the files it writes.

Each command is seen with its words without quotes; then again without what only starts it (`sudo`, `xargs`, `env A=1`,
`timeout 5`), without the folder of its program, and without options before its subcommand (`git -c k=v push` is `git push`,
`python -m pip` is `pip`). Scripts within it (`bash -c`, `$(…)`, a here document for a shell, functions and aliases that it calls)
are read the same way.

What a command only quotes, because it prints, searches, records or writes it down, is marked: a match that lies wholly in it and
reads like a command does not count.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from metaclaw.skills.checks.code import code_scripts
from metaclaw.skills.checks.programs import INTERPRETERS, QUOTING, RECORDING, program_name, shortened
from metaclaw.skills.checks.quotation import quoted_places, shows_help
from metaclaw.skills.checks.script_parts import (
    Roles,
    bare_words,
    commands_in,
    find_roles,
    plain_words,
    printed_by,
    scripts_in,
    written_files,
)
from metaclaw.skills.checks.shell import Command, Script, read_script
from metaclaw.skills.checks.shell_words import MOST_VALUE_CHARS, ShellSyntaxError, Word

MOST_SCRIPT_CHARS: Final = 200_000
_MOST_SCRIPTS: Final = 64
_MOST_STEPS: Final = 8
_PIECES: Final = re.compile(r"[;&|\n()`]+")
_NEGATED_SET: Final = re.compile(r"\[\^(?:\\.|[^\]\\])+\]")
_OPERATOR: Final = re.compile(r"[;&]|\\n")
_IN_WORD: Final = re.compile(r"[;&|\n]")
_EXPANDED: Final = ("$(", "`", "<(", ">(")
_LIKE_A_COMMAND: Final = re.compile(
    r"[\s;&|(\"'`$!]*(?:--?[A-Za-z][A-Za-z-]*|(?:[\w.~-]*/)*[a-z][a-z.+-]{0,15}\d{0,2})(?=\s|\Z|[;&|)=])"
)

_LAST_OPTION: Final = re.compile(r"(?:(?:^|[\s\"'])--?[A-Za-z][\w-]*|[;&|]\s*[\w./-]+)[\s\"']*\Z")
_MOST_OPTION_CHARS: Final = 80
_LEFT_OUT: Final = "…"


class SeenText(NamedTuple):
    """A text that a pattern looks at. `quoted` are the parts of it that are only quoted."""

    text: str
    quoted: tuple[tuple[int, int], ...] = ()

    def counts(self, begin: int, end: int) -> bool:
        """Whether a match at this place counts: not if it is like a command and lies in a quoted part, nor if it ends in one with
        an option, such as `commit .*--no-verify` in the words of a commit message, or with a command behind an operator."""
        for first, last in self.quoted:
            if first <= begin and end <= last:
                return _LIKE_A_COMMAND.match(self.text, begin, end) is None
            if first < end <= last and begin < first:
                return _LAST_OPTION.search(self.text, max(first - 1, begin, end - _MOST_OPTION_CHARS), end) is None
        return True


@dataclass(frozen=True, slots=True)
class Commands:
    """What a script comes down to. `written` is all of it without its comments, `wholes` each script with its words in plain
    spelling and its operators. `lines` are its commands in plain spelling without what is only quoted, `texts` the same, and with
    it. `files` are the files that it writes, by path, with the text where that is known."""

    written: SeenText
    wholes: tuple[SeenText, ...]
    texts: tuple[SeenText, ...]
    lines: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()


@lru_cache(128)  # every rule looks at the same commands
def commands_of(source: str) -> Commands:
    """The commands of a script. Never raises: of one that cannot be read, the pieces between operators."""
    if len(source) <= MOST_SCRIPT_CHARS:
        try:
            return _Walk().walk(source)
        except (ShellSyntaxError, RecursionError):
            pass
    pieces = tuple(dict.fromkeys(piece.strip() for piece in _PIECES.split(source) if piece.strip()))
    whole = SeenText(source)
    return Commands(whole, (whole,), tuple(map(SeenText, (source, *pieces))), pieces)


@lru_cache(128)
def code_texts(code: str) -> tuple[SeenText, ...]:
    """A program in another language: itself, and the commands that it starts."""
    inner = [commands_of(script) for script in code_scripts(code)]
    return (SeenText(code), *dict.fromkeys(text for one in inner for text in one.texts))


@lru_cache(1024)
def names_operator(pattern: str) -> bool:
    """Whether a pattern names `;`, `&` or a new line, so that it may be about several commands."""
    return _OPERATOR.search(_NEGATED_SET.sub("", pattern)) is not None


class _Walk:
    """Goes through a script and all scripts within it."""

    def __init__(self) -> None:
        self._texts: dict[SeenText, None] = {}
        self._wholes: dict[SeenText, None] = {}
        self._lines: dict[str, None] = {}
        self._files: dict[str, str] = {}
        self._variables: dict[str, str] = {"IFS": " "}
        self._functions: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._scripts = 0

    def walk(self, source: str) -> Commands:
        script = read_script(source, self._variables)
        quoted = self._add_script(script, 0)
        written = SeenText(_without_comments(script), quoted)
        texts = tuple(self._texts) or (written,)
        return Commands(written, tuple(self._wholes), texts, tuple(self._lines), tuple(self._files.items()))

    def _add_script(self, script: Script, depth: int) -> tuple[tuple[int, int], ...]:
        """Add what a script comes down to; the parts of it that are only quoted."""
        quoted: list[tuple[int, int]] = []
        self._functions |= script.functions
        places = [(command, plain_words(command)) for command in script.commands]
        roles = find_roles(script, places)
        folder = ""
        for command, words in places:
            texts = [word.text for word in words]
            folder = (
                f"{folder}{texts[1].rstrip('/')}/" if texts[:1] == ["cd"] and len(texts) == 2 and "$" not in texts[1] else folder
            )
            if not words and not command.given:
                quoted += [(word.begin, word.end) for word in command.assignments if command.end]
                self._add_line([word.text for word in command.assignments], [(0, len(command.assignments) - 1)])
                continue
            spans = quoted_places(texts)
            if command.end:
                quoted += [(words[first].begin, words[last].end) for first, last in spans]
            self._add_command(command, words, spans, depth)
            quoted += self._add_given(command, texts, roles, depth)
            self._add_printed(command, texts, roles, depth)
            self._add_message(command, texts, roles)
            for path, text in written_files(command, texts, roles):
                self._files[path if path.startswith(("/", "~")) else folder + path] = text
        quoted.sort()
        self._add_pipelines(script)
        self._wholes[_whole(script, quoted)] = None
        return tuple(quoted)

    def _add_pipelines(self, script: Script) -> None:
        """Add commands with pipes between them in plain spelling."""
        known: dict[Command, str] = {}
        for pipeline in script.pipelines:
            for command in pipeline.commands:
                if command not in known:
                    known[command] = _IN_WORD.sub(" ", _shortest(command))
            texts = [known[command] for command in pipeline.commands if known[command]]
            if len(texts) > 1:
                self._texts[SeenText(" | ".join(texts))] = None

    def _add_given(self, command: Command, texts: Sequence[str], roles: Roles, depth: int) -> list[tuple[int, int]]:
        """Add what a command reads from its input: a script, text, or what only it knows."""
        if not command.given:
            return []
        name = program_name(texts[0]) if texts else ""
        is_text = not texts or name in QUOTING | RECORDING | {"patch", "apply_patch", "applypatch"}
        for one in command.given:
            if command in roles.scripts or command in roles.readers:
                self._add_source(one.text, depth)
            elif name in INTERPRETERS or command in roles.code:
                for source in code_scripts(one.text):
                    self._add_source(source, depth)
            is_quoted = is_text and command not in roles.code
            self._texts[SeenText(one.text, ((0, len(one.text)),) if is_quoted else ())] = None
        return [(one.begin, one.end) for one in command.given] if is_text and command.end else []

    def _add_printed(self, command: Command, texts: Sequence[str], roles: Roles, depth: int) -> None:
        """Add what a command prints, where another reads it as a script, a program, or its words."""
        printed = printed_by(texts)
        if printed is None:
            return
        if command in roles.scripts:
            self._add_source(printed, depth)
        if command in roles.code:
            self._texts[SeenText(printed)] = None
            for source in code_scripts(printed):
                self._add_source(source, depth)
        for starter in roles.arguments.get(command, ()):
            self._add_words([*starter, *printed.split()], depth)

    def _add_message(self, command: Command, texts: list[str], roles: Roles) -> None:
        """Add a commit whose message comes from its input or from a file of the script as if it were given by `-m`."""
        bare = bare_words(texts)
        if bare[:2] != ["git", "commit"]:
            return
        name = next((one.partition("=")[2] if "=" in one else one[2:] for one in bare if re.match(r"--file=|-F\S", one)), "")
        name = name or next((after for one, after in pairwise(bare) if one in ("-F", "--file")), "")
        given = "\n".join(one.text for one in command.given) or roles.fed.get(command, "")
        text = given if name in ("-", "/dev/stdin") else self._files.get(name, "")
        if text:
            self._add_line(["git", "commit", "-m", text], [(3, 3)])

    def _add_source(self, source: str, depth: int, arguments: Sequence[str] = ()) -> None:
        self._scripts += 1
        if depth >= _MOST_STEPS or self._scripts > _MOST_SCRIPTS:
            raise ShellSyntaxError("too many scripts within scripts")
        if arguments:
            self._variables |= {str(place): text for place, text in enumerate(arguments[:9], 1)}
            self._variables["@"] = " ".join(arguments)[:MOST_VALUE_CHARS]
        try:
            script = read_script(source, self._variables)
        except ShellSyntaxError:
            self._texts[SeenText(source)] = None
            return
        self._add_script(script, depth + 1)

    def _add_command(self, command: Command, words: list[Word], spans: Sequence[tuple[int, int]], depth: int) -> None:
        texts = [word.text for word in words]
        self._add_line([*(word.text for word in command.assignments), *texts], spans, len(command.assignments))
        name = program_name(texts[0]) if texts else ""
        if name == "alias":
            self._aliases |= {key: value for key, sign, value in (text.partition("=") for text in texts[1:]) if sign}
        if (spans and name in QUOTING) or (texts and shows_help(texts)):
            return
        if command.assignments:
            self._add_line(texts, spans)
        for word in command.reads:
            if word.inner[0] < word.inner[1]:
                self._add_line([*texts, "<", word.text], [])
        self._add_steps(texts, depth)

    def _add_words(self, texts: list[str], depth: int) -> None:
        """Add a command that another starts."""
        self._scripts += 1
        if texts and depth < _MOST_STEPS and self._scripts <= _MOST_SCRIPTS:
            spans = quoted_places(texts)
            self._add_line(texts, spans)
            if not (spans and program_name(texts[0]) in QUOTING):
                self._add_steps(texts, depth)

    def _add_steps(self, texts: list[str], depth: int) -> None:
        """Add what is left of a command, step by step, without what only starts it, and the scripts in its words."""
        for _ in range(_MOST_STEPS):
            for source in scripts_in(texts):
                self._add_source(source, depth)
            for inner in commands_in(texts):
                self._add_words(inner, depth + 1)
            self._add_called(texts, depth)
            shorter = shortened(texts)
            if shorter is None:
                return
            texts = shorter
            self._add_line(texts, quoted_places(texts))
            if program_name(texts[0]) in QUOTING:
                return

    def _add_called(self, texts: Sequence[str], depth: int) -> None:
        """Add what a function or alias of the script does."""
        if not texts or depth >= _MOST_STEPS - 1:
            return
        if texts[0] in self._functions:
            body = self._functions.pop(texts[0])  # one that calls itself is read once
            self._add_source(body, depth, texts[1:])
            self._functions[texts[0]] = body
        elif texts[0] in self._aliases:
            value = self._aliases.pop(texts[0])
            self._add_source(" ".join((value, *texts[1:])), depth)
            self._aliases[texts[0]] = value

    def _add_line(self, texts: Sequence[str], spans: Sequence[tuple[int, int]], skipped: int = 0) -> None:
        line = " ".join(texts)
        if not line.strip():
            return
        ends, at = [], 0
        for text in texts:
            ends.append((at, at + len(text)))
            at += len(text) + 1
        quoted = tuple((ends[first + skipped][0], ends[last + skipped][1]) for first, last in spans)
        self._texts[SeenText(line, quoted)] = None
        if quoted and not (len(quoted) == 1 and quoted[0] == (0, len(line))):
            line = _without(texts, [(first + skipped, last + skipped) for first, last in spans])
            self._texts[SeenText(line)] = None
        if line not in self._lines and not (texts and shows_help(texts)):
            self._lines[line] = None


def _without_comments(script: Script) -> str:
    """A script as it is written, with blanks in place of its comments."""
    pieces, at = [], 0
    for begin, end in script.comments:
        pieces += [script.source[at:begin], " " * (end - begin)]
        at = end
    return "".join((*pieces, script.source[at:]))


def _whole(script: Script, quoted: Sequence[tuple[int, int]]) -> SeenText:
    """A script with its words in plain spelling: signs of the language within them are blanks, and here documents are left out."""
    written = _without_comments(script)
    places: dict[tuple[int, int], list[str]] = {}
    for command in script.commands:
        if command.end:
            for word in (*command.assignments, *command.words):
                places.setdefault((word.begin, word.end), []).append(word.text)
            places |= {(one.begin, one.end): [_LEFT_OUT] for one in command.given}
    marks = iter(quoted)
    mark = next(marks, None)
    pieces: list[str] = []
    parts: list[tuple[int, int]] = []
    at = size = 0
    for (begin, end), texts in sorted(places.items(), key=lambda one: (one[0][0], -one[0][1])):
        if begin < at:
            continue  # within a word
        raw = written[begin:end]
        plain = raw if any(sign in raw for sign in _EXPANDED) else _IN_WORD.sub(" ", " ".join(texts))
        pieces += [written[at:begin], plain]
        size += begin - at
        while mark is not None and mark[1] < end:
            mark = next(marks, None)
        if mark is not None and mark[0] <= begin:
            parts.append((size, size + len(plain)))
        size += len(plain)
        at = end
    return SeenText("".join((*pieces, written[at:])).strip("\n"), tuple(parts))


def _without(texts: Sequence[str], spans: Sequence[tuple[int, int]]) -> str:
    """A command without the words that are only text to it."""
    left_out = {place for first, last in spans for place in range(first, last + 1)}
    return " ".join(_LEFT_OUT if place in left_out else text for place, text in enumerate(texts))


def _shortest(command: Command) -> str:
    """A command without what only starts it and what is only quoted."""
    texts = bare_words([word.text for word in plain_words(command)])
    return _without(texts, quoted_places(texts))
