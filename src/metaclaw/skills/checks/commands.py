"""A shell script as checks see it: its simple commands one by one, in plain spelling, and what it only quotes.

Each command is seen as it is written and with its words without quotes; then again without what only starts it (`sudo`, `xargs`,
`env A=1`, `timeout 5`), without the folder of its program, and without options before its subcommand (`git -c k=v push` is
`git push`, `python -m pip` is `pip`). Scripts within it (`bash -c`, `$(…)`, a here document for a shell) are read the same way.

What a command only quotes, because it prints, searches, records or writes it down, is marked: a match that lies wholly in it and
reads like a command does not count.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from metaclaw.skills.checks.programs import QUOTING, RECORDING, SHELLS, program_name, quoted_places, shortened
from metaclaw.skills.checks.shell import Command, Script, ShellSyntaxError, Word, read_script

MOST_SCRIPT_CHARS: Final = 200_000
_MOST_SCRIPTS: Final = 64
_MOST_STEPS: Final = 8
_SCRIPT_OPTION: Final = re.compile(r"-[A-Za-z]*c|/c|-command", re.IGNORECASE)
_KEYWORDS: Final = ("if", "then", "elif", "else", "while", "until", "do", "time", "!", "{", "}", "fi", "done", "esac", "coproc")
_PIECES: Final = re.compile(r"[;&|\n()`]+")
_NEGATED_SET: Final = re.compile(r"\[\^(?:\\.|[^\]\\])+\]")
_OPERATOR: Final = re.compile(r"[;&]|\\n")
_LIKE_A_COMMAND: Final = re.compile(
    r"[\s;&|(\"'`$!]*(?:--?[A-Za-z][A-Za-z-]*|(?:[\w.~-]*/)*[a-z][a-z.+-]{0,15}\d{0,2})(?=\s|\Z|[;&|)=])"
)

_LAST_OPTION: Final = re.compile(r"(?:^|[\s\"'])--?[A-Za-z][\w-]*[\s\"']*\Z")
_MOST_OPTION_CHARS: Final = 80
_LEFT_OUT: Final = "…"


class SeenText(NamedTuple):
    """A text that a pattern looks at. `quoted` are the parts of it that are only quoted."""

    text: str
    quoted: tuple[tuple[int, int], ...] = ()

    def counts(self, begin: int, end: int) -> bool:
        """Whether a match at this place counts: not if it is like a command and lies in a quoted part, nor if it ends in one with
        an option, such as `commit .*--no-verify` in the words of a commit message."""
        for first, last in self.quoted:
            if first <= begin and end <= last:
                return _LIKE_A_COMMAND.match(self.text, begin, end) is None
            if first < end <= last and begin < first:
                return _LAST_OPTION.search(self.text, max(begin, end - _MOST_OPTION_CHARS), end) is None
        return True


@dataclass(frozen=True, slots=True)
class Commands:
    """A script as it is written, and what it comes down to: `lines` are its commands in plain spelling without what is only quoted,
    `texts` the same, and with it, and as they are written."""

    whole: SeenText
    texts: tuple[SeenText, ...]
    lines: tuple[str, ...]


@lru_cache(128)  # every rule looks at the same commands
def commands_of(source: str) -> Commands:
    """The commands of a script. Never raises: of one that cannot be read, the pieces between operators."""
    if len(source) <= MOST_SCRIPT_CHARS:
        try:
            return _Walk().walk(source)
        except ShellSyntaxError:
            pass
    pieces = tuple(dict.fromkeys(piece.strip() for piece in _PIECES.split(source) if piece.strip()))
    return Commands(SeenText(source), tuple(map(SeenText, (source, *pieces))), pieces)


@lru_cache(1024)
def names_operator(pattern: str) -> bool:
    """Whether a pattern names `;`, `&` or a new line, so that it may be about several commands."""
    return _OPERATOR.search(_NEGATED_SET.sub("", pattern)) is not None


class _Walk:
    """Goes through a script and all scripts within it."""

    def __init__(self) -> None:
        self._texts: dict[SeenText, None] = {}
        self._lines: dict[str, None] = {}
        self._variables: dict[str, str] = {}
        self._scripts = 0

    def walk(self, source: str) -> Commands:
        script = read_script(source, self._variables)
        quoted = self._add_script(script, 0)
        whole = SeenText(_without_comments(script), quoted)
        return Commands(whole, tuple(self._texts) or (whole,), tuple(self._lines))

    def _add_script(self, script: Script, depth: int) -> tuple[tuple[int, int], ...]:
        """Add what a script comes down to; the parts of it that are only quoted."""
        quoted: list[tuple[int, int]] = []
        places = [(command, _plain_words(command)) for command in script.commands]
        is_run, files = _what_is_run(places)
        for command, words in places:
            if not words and not command.given:
                quoted += [(word.begin, word.end) for word in command.assignments if command.end]
                self._add_line([word.text for word in command.assignments], [(0, len(command.assignments) - 1)])
                continue
            spans = _quoted_words(words)
            if command.end:
                quoted += [(words[first].begin, words[last].end) for first, last in spans]
            self._add_command(command, words, spans, depth)
            is_script = is_run or any(name.removeprefix("./") in files for name in _written(command, words))
            quoted += self._add_given(command, words, depth, is_script=is_script)
            if is_script and spans:
                self._add_source("\n".join(" ".join(word.text for word in words[first : last + 1]) for first, last in spans), depth)
        quoted.sort()
        written = _without_comments(script)
        for pipeline in script.pipelines:
            begin, end = pipeline.begin, pipeline.end
            inside = tuple((first - begin, last - begin) for first, last in quoted if begin <= first and last <= end)
            self._texts[SeenText(written[begin:end].rstrip(), inside)] = None
            if len(pipeline.commands) > 1:
                self._texts[SeenText(" | ".join(_shortest(command) for command in pipeline.commands))] = None
        return tuple(quoted)

    def _add_given(self, command: Command, words: Sequence[Word], depth: int, *, is_script: bool) -> list[tuple[int, int]]:
        """Add what a command reads from its input: a script, text, or what only it knows."""
        if not command.given:
            return []
        reads_scripts = is_script or _reads_script(words)
        is_quoted = not words or program_name(words[0].text) in QUOTING | RECORDING | {"patch"}
        for one in command.given:
            if reads_scripts:
                self._add_source(one.text, depth)
            self._texts[SeenText(one.text, ((0, len(one.text)),) if is_quoted else ())] = None
        return [(one.begin, one.end) for one in command.given] if is_quoted and command.end else []

    def _add_source(self, source: str, depth: int) -> None:
        self._scripts += 1
        if depth >= _MOST_STEPS or self._scripts > _MOST_SCRIPTS:
            raise ShellSyntaxError("too many scripts within scripts")
        try:
            script = read_script(source, self._variables)
        except ShellSyntaxError:
            self._texts[SeenText(source)] = None
            return
        self._add_script(script, depth + 1)

    def _add_command(self, command: Command, words: list[Word], spans: Sequence[tuple[int, int]], depth: int) -> None:
        self._add_line([word.text for word in (*command.assignments, *words)], spans, len(command.assignments))
        if spans and program_name(words[0].text) in QUOTING:
            return
        texts = [word.text for word in words]
        if command.assignments:
            self._add_line(texts, spans)
        for _ in range(_MOST_STEPS):
            for source in _scripts_in(texts):
                self._add_source(source, depth)
            shorter = shortened(texts)
            if shorter is None:
                return
            texts = shorter
            self._add_line(texts, quoted_places(texts))

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
        if quoted:
            line = _without(texts, [(first + skipped, last + skipped) for first, last in spans])
            self._texts[SeenText(line)] = None
        self._lines[line] = None


def _without_comments(script: Script) -> str:
    """A script as it is written, with blanks in place of its comments."""
    pieces, at = [], 0
    for begin, end in script.comments:
        pieces += [script.source[at:begin], " " * (end - begin)]
        at = end
    return "".join((*pieces, script.source[at:]))


def _without(texts: Sequence[str], spans: Sequence[tuple[int, int]]) -> str:
    """A command without the words that are only text to it."""
    left_out = {place for first, last in spans for place in range(first, last + 1)}
    return " ".join(_LEFT_OUT if place in left_out else text for place, text in enumerate(texts))


def _shortest(command: Command) -> str:
    """A command without what only starts it and what is only quoted."""
    texts = [word.text for word in _plain_words(command)]
    for _ in range(_MOST_STEPS):
        shorter = shortened(texts)
        if shorter is None:
            break
        texts = shorter
    return _without(texts, quoted_places(texts))


def _plain_words(command: Command) -> list[Word]:
    """The words of a command without the words of the language before it."""
    words = command.words
    at = 0
    while at < len(words) and words[at].text in _KEYWORDS:
        at += 1
    return words[at:]


def _what_is_run(places: Sequence[tuple[Command, list[Word]]]) -> tuple[bool, frozenset[str]]:
    """Whether a shell reads what the other commands print, and which files are run."""
    is_run, files = False, set[str]()
    for command, words in places:
        if not words:
            continue
        name = words[0].text
        if command.is_fed and not command.given and _reads_script(words):
            is_run = True
        operands = [word.text for word in words[1:] if not word.text.startswith("-")]
        if program_name(name) in SHELLS | {"source", ".", "eval"}:
            files.update(one.removeprefix("./") for one in operands[:1])
        files.add(name.removeprefix("./"))
        files.update(word.text.removeprefix("./") for word in words[1:] if word.text.startswith("./"))
    return is_run, frozenset(files)


def _written(command: Command, words: Sequence[Word]) -> list[str]:
    """The files that a command writes."""
    files = list(command.writes)
    if words and program_name(words[0].text) == "tee":
        files += [word.text for word in words[1:] if not word.text.startswith("-")]
    return files


def _reads_script(words: Sequence[Word]) -> bool:
    """Whether a command runs what it reads from its input."""
    texts = [word.text for word in words]
    for at, text in enumerate(texts):
        name = program_name(text)
        if name in ("ssh", "su", "at", "batch") and at == 0:
            return True
        if name in SHELLS:
            rest = texts[at + 1 :]
            return not any(_SCRIPT_OPTION.fullmatch(one) for one in rest) and ("-s" in rest or all(one[:1] == "-" for one in rest))
        if name == "xargs":
            return any(program_name(one) in SHELLS for one in texts[at + 1 :])
    return False


def _scripts_in(texts: Sequence[str]) -> Iterator[str]:
    """The scripts that a command is given as words."""
    name = program_name(texts[0]) if texts else ""
    if name == "eval":
        yield " ".join(texts[1:])
    if name == "env" and "-S" in texts[:-1]:
        yield texts[texts.index("-S") + 1]
    if name in ("ssh", "watch", "parallel") and len(texts) > 1:
        yield texts[-1]
    if name in ("su", "script", "runuser") and "-c" in texts[:-1]:
        yield texts[texts.index("-c") + 1]
    for at, text in enumerate(texts):
        if program_name(text) in SHELLS:
            option = next((i for i in range(at + 1, min(at + 8, len(texts))) if _SCRIPT_OPTION.fullmatch(texts[i])), None)
            if option is not None and option + 1 < len(texts):
                yield texts[option + 1]
        elif text in ("-exec", "-execdir", "-ok") and name == "find":
            yield " ".join(one for one in texts[at + 1 :] if one not in (";", "+", "{}"))


def _quoted_words(words: Sequence[Word]) -> list[tuple[int, int]]:
    return quoted_places([word.text for word in words])
