"""A reader of shell scripts: which simple commands a script runs, with their words as the shell would pass them on.

It reads what the shells of POSIX have in common: quotes, escapes, lines that go on, comments, pipes, lists, substitutions, here
documents, and variables that the script itself sets to a text. It runs nothing and knows no files. The time is linear in the
length, and nesting is bounded. What it cannot read raises `ShellSyntaxError`; a shell would mostly refuse that, too.
"""

import re
from dataclasses import dataclass, field
from typing import Final

_MOST_DEPTH: Final = 8
_MOST_COMMANDS: Final = 1_000
_MOST_LISTS: Final = 10_000
_MOST_VALUE_CHARS: Final = 2_000
_BLANKS: Final = re.compile(r"(?:[ \t\r]|\\\r?\n)*")
_PLAIN: Final = re.compile(r"[^\s\\'\"`$<>|&;()]+")
_IN_DOUBLE: Final = re.compile(r'[^\\"`$]+')
_REDIRECTION: Final = re.compile(r"(?:\d{0,3}(?:<<<|<<-?|<>|<&|>&|>>|>\||<|>)|&>>?)")
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\}|[@*#?$!-])")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=")
_ANSI_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|[0-7]{1,3}|.)", re.DOTALL)
_ANSI_SIGNS: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_SIGNS: Final = ("", "\n", ";", "&", "|", "(", ")")
_LONG_OPERATORS: Final = ("||", "&&", ";;")
_EXPANDED: Final = ("$(", "`")


class ShellSyntaxError(ValueError):
    """A script that is not complete, or nested too deeply."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: its text without quotes, and where it stands in the script."""

    text: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Given:
    """A text that a command reads from its standard input: a here document, or a word behind `<<<`."""

    text: str
    begin: int
    end: int


@dataclass(slots=True)
class Command:
    """A simple command. `writes` are the files its output goes to; `is_fed` says that a pipe leads into it."""

    begin: int
    end: int = 0
    is_fed: bool = False
    assignments: list[Word] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.assignments or self.words or self.given or self.writes)


@dataclass(slots=True)
class Pipeline:
    """Commands with pipes between them, and where they stand in the script."""

    commands: list[Command]
    begin: int
    end: int


@dataclass(slots=True)
class Script:
    """The commands of a script in their order, those of substitutions included, its pipelines, and the places of its comments."""

    source: str
    commands: list[Command] = field(default_factory=list)
    pipelines: list[Pipeline] = field(default_factory=list)
    comments: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _HereDocument:
    command: Command
    delimiter: str
    is_literal: bool
    strips_tabs: bool


def read_script(source: str, variables: dict[str, str] | None = None) -> Script:
    """The commands of a script. `variables` are known values, and get those that the script sets. Raises ShellSyntaxError."""
    return _Reader(source, {} if variables is None else variables).read()


class _Reader:
    def __init__(self, source: str, variables: dict[str, str], depth: int = 0) -> None:
        self._source = source
        self._variables = variables
        self._at = 0
        self._depth = depth
        self._script = Script(source)
        self._awaited: list[_HereDocument] = []
        self._lists = 0

    def read(self) -> Script:
        self._list("")
        return self._script

    def _list(self, closer: str) -> None:
        """Read commands up to the end, or up to the sign that closes them."""
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ShellSyntaxError("nested too deeply")
        outer, self._awaited = self._awaited, []
        parentheses, is_open = 0, True
        while is_open:
            sign = self._pipeline()
            self._lists += 1
            if self._lists > _MOST_LISTS:
                raise ShellSyntaxError("too many commands")
            is_open = sign != "" and not (sign == closer and not parentheses)
            if is_open:
                parentheses += (sign == "(") - (sign == ")" and parentheses > 0)
                self._at += 2 if self._source.startswith(_LONG_OPERATORS, self._at) else 1
            if sign == "\n":
                self._here_documents()
        if sign != closer:
            raise ShellSyntaxError("a substitution is not closed")
        self._here_documents()
        self._awaited = outer
        self._depth -= 1

    def _pipeline(self) -> str:
        """Read commands with pipes between them; the sign behind them."""
        pipeline = Pipeline([], -1, 0)
        is_fed = False
        while True:
            self._skip_blanks()
            command = Command(self._at, is_fed=is_fed)
            sign = self._command(command)
            if pipeline.begin < 0:
                pipeline.begin = command.begin
            if command:
                self._end(command)
                pipeline.commands.append(command)
            if sign != "|" or self._source.startswith("||", self._at):
                break
            self._at += 2 if self._source.startswith("|&", self._at) else 1
            is_fed = True
        if pipeline.commands:
            pipeline.end = self._end_of(pipeline.begin)
            self._script.pipelines.append(pipeline)
        return sign

    def _command(self, command: Command) -> str:
        """Read the words of a command; the sign behind them."""
        source = self._source
        while True:
            self._skip_blanks()
            at = self._at
            sign = source[at : at + 1]
            if sign in _SIGNS and not source.startswith("&>", at):
                return sign
            redirection = _REDIRECTION.match(source, at)
            if sign == "#":
                end = source.find("\n", at)
                self._at = len(source) if end < 0 else end
                self._script.comments.append((at, self._at))
            elif redirection is not None and not source.startswith("(", redirection.end()):
                self._redirect(command, redirection)
            else:
                self._take(command, self._word())

    def _skip_blanks(self) -> None:
        blanks = _BLANKS.match(self._source, self._at)
        assert blanks is not None
        self._at = blanks.end()

    def _end(self, command: Command) -> None:
        command.end = self._end_of(command.begin)
        self._script.commands.append(command)
        if len(self._script.commands) > _MOST_COMMANDS:
            raise ShellSyntaxError("too many commands")
        if not command.words:
            for word in command.assignments:
                name, _, value = word.text.partition("=")
                self._variables[name.rstrip("+")] = value[:_MOST_VALUE_CHARS]

    def _end_of(self, begin: int) -> int:
        return begin + len(self._source[begin : self._at].rstrip(" \t\r\n\\"))

    def _take(self, command: Command, word: Word) -> None:
        if not command.words and _ASSIGNMENT.match(self._source, word.begin) and _ASSIGNMENT.match(word.text):
            command.assignments.append(word)
        else:
            command.words.append(word)

    def _redirect(self, command: Command, redirection: re.Match[str]) -> None:
        self._at = redirection.end()
        operator = redirection[0].lstrip("0123456789")
        self._skip_blanks()
        begin = self._at
        if self._source[begin : begin + 1] in _SIGNS:
            raise ShellSyntaxError("a redirection without a target")
        word = self._word()
        if operator in ("<<", "<<-"):
            is_literal = any(sign in self._source[begin : word.end] for sign in "'\"\\")
            self._awaited.append(_HereDocument(command, word.text, is_literal, operator == "<<-"))
        elif operator == "<<<":
            command.given.append(Given(word.text, word.begin, word.end))
        elif ">" in operator:
            command.writes.append(word.text)

    def _here_documents(self) -> None:
        for one in self._awaited:
            begin = self._at
            lines: list[str] = []
            stop = begin
            while self._at < len(self._source):
                line = self._line()
                line = line.lstrip("\t") if one.strips_tabs else line
                if line == one.delimiter:
                    break
                lines.append(line)
                stop = self._at
            text = "\n".join(lines)
            one.command.given.append(Given(text, begin, stop))
            if not one.is_literal and any(sign in text for sign in _EXPANDED):
                self._read_apart(_expanded_parts(text))
        self._awaited = []

    def _line(self) -> str:
        end = self._source.find("\n", self._at)
        end = len(self._source) if end < 0 else end
        line = self._source[self._at : end].removesuffix("\r")
        self._at = min(end + 1, len(self._source))
        return line

    def _read_apart(self, text: str) -> None:
        """Read what is run within another text: its commands count as the script's own, without places."""
        for command in _Reader(text, self._variables, self._depth).read().commands:
            self._script.commands.append(_placeless(command))

    def _word(self) -> Word:
        source, begin = self._source, self._at
        pieces: list[str] = []
        while self._at < len(source):
            plain = _PLAIN.match(source, self._at)
            if plain is not None:
                pieces.append(plain[0])
                self._at = plain.end()
                continue
            sign = source[self._at]
            if sign == "\\":
                pieces.append("" if source.startswith(("\\\n", "\\\r\n"), self._at) else source[self._at + 1 : self._at + 2])
                self._at += 3 if source.startswith("\\\r\n", self._at) else 2
            elif sign == "'":
                pieces.append(self._single())
            elif sign == '"':
                pieces.append(self._double())
            elif sign == "`":
                pieces.append(self._backquoted())
            elif sign == "$":
                pieces.append(self._dollar(is_quoted=False))
            elif source.startswith(("<(", ">("), self._at):
                pieces.append(self._substitution())
            else:
                break
        if self._at == begin:
            raise ShellSyntaxError(f"{source[begin : begin + 1]!r} is not expected here")
        return Word("".join(pieces), begin, self._at)

    def _single(self) -> str:
        end = self._source.find("'", self._at + 1)
        if end < 0:
            raise ShellSyntaxError("a quote is not closed")
        text = self._source[self._at + 1 : end]
        self._at = end + 1
        return text

    def _double(self) -> str:
        source = self._source
        self._at += 1
        pieces: list[str] = []
        while self._at < len(source):
            plain = _IN_DOUBLE.match(source, self._at)
            if plain is not None:
                pieces.append(plain[0])
                self._at = plain.end()
                continue
            sign = source[self._at]
            if sign == '"':
                self._at += 1
                return "".join(pieces)
            if sign == "\\":
                escaped = source[self._at + 1 : self._at + 2]
                pieces.append("" if escaped == "\n" else escaped if escaped in '$`"\\' else f"\\{escaped}")
                self._at += 2
            else:
                pieces.append(self._backquoted() if sign == "`" else self._dollar(is_quoted=True))
        raise ShellSyntaxError("a quote is not closed")

    def _dollar(self, *, is_quoted: bool) -> str:
        source, at = self._source, self._at
        if source.startswith("$((", at):
            end = source.find("))", at)
            if end >= 0:
                self._at = end + 2
                return source[at : self._at]
        if source.startswith("$(", at):
            return self._substitution()
        if source.startswith("$'", at) and not is_quoted:
            return self._ansi()
        if source.startswith('$"', at) and not is_quoted:
            self._at += 1
            return self._double()
        variable = _VARIABLE.match(source, at)
        if variable is not None:
            self._at = variable.end()
            name = variable[1] or variable[2]
            return self._variables.get(name, variable[0]) if name else "" if variable[0] in ("$@", "$*") else variable[0]
        if source.startswith("${", at):
            end = source.find("}", at)
            if end < 0:
                raise ShellSyntaxError("a variable is not closed")
            self._at = end + 1
            return source[at : self._at]
        self._at += 1
        return "$"

    def _ansi(self) -> str:
        source, at = self._source, self._at + 2
        end = at
        while end < len(source) and source[end] != "'":
            end += 2 if source[end] == "\\" else 1
        if end >= len(source):
            raise ShellSyntaxError("a quote is not closed")
        self._at = end + 1
        return _ANSI_ESCAPE.sub(_ansi_sign, source[at:end])

    def _substitution(self) -> str:
        """`$(…)`, `<(…)` or `>(…)`: as written, or the text that `cat` gives back from a here document."""
        begin, first = self._at, len(self._script.commands)
        self._at += 2
        self._list(")")
        self._at += 1
        inner = self._script.commands[first:]
        if len(inner) == 1 and [word.text for word in inner[0].words] == ["cat"] and len(inner[0].given) == 1:
            return inner[0].given[0].text
        return self._source[begin : self._at]

    def _backquoted(self) -> str:
        source, begin = self._source, self._at
        end = begin + 1
        while end < len(source) and source[end] != "`":
            end += 2 if source[end] == "\\" else 1
        if end >= len(source):
            raise ShellSyntaxError("a substitution is not closed")
        self._at = end + 1
        self._read_apart(re.sub(r"\\([$`\\])", r"\1", source[begin + 1 : end]))
        return source[begin : self._at]


def _ansi_sign(match: re.Match[str]) -> str:
    sign = match[1]
    if sign[0] in "xu" and len(sign) > 1:
        return chr(int(sign[1:], 16))
    return chr(int(sign, 8) % 256) if sign[0] in "01234567" else _ANSI_SIGNS.get(sign, sign if sign in "'\"\\?" else f"\\{sign}")


def _expanded_parts(text: str) -> str:
    """A here document as words in double quotes, so that only its substitutions are read."""
    return ': "' + text.replace('"', '\\"') + '"'


def _placeless(command: Command) -> Command:
    command.begin = command.end = 0
    return command
