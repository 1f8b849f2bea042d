"""A reader of shell scripts: the simple commands that a script runs, with their words as the shell would pass them on.

It reads what POSIX shells have in common: quotes, escapes, continued lines, comments, pipes, lists, groups, functions,
substitutions, here documents, and variables that the script itself sets. It runs nothing and reads no files. It takes time linear
in the length, and nesting is bounded. A script that it cannot read raises `ShellSyntaxError`; most shells would refuse it, too.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from metaclaw.skills.checks.shell_words import (
    EXPANDED,
    MOST_VALUE_CHARS,
    ShellSyntaxError,
    Word,
    WordReader,
    decoded_text,
    printed_text,
    quoted_text,
)

_RESERVED: Final = dict.fromkeys(range(4), "�")  # control characters that `WordReader` uses as marks
_MOST_DEPTH: Final = 8
_MOST_COMMANDS: Final = 1_000
_MOST_LISTS: Final = 10_000
_MOST_FED: Final = 64
_BLANKS: Final = re.compile(r"(?:[ \t\r]|\\\r?\n)*")
_REDIRECTION: Final = re.compile(r"(?:\d{0,3}(?:<<<|<<-?|<>|<&|>&|>>|>\||<|>)|&>>?)")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]\s]{0,40}\])?\+?=")
_FUNCTION: Final = re.compile(r"\(\s*\)\s*")
_SIGNS: Final = ("", "\n", ";", "&", "|", "(", ")")
_LONG_OPERATORS: Final = ("||", "&&", ";;")
_OPENERS: Final = frozenset(("{", "if", "while", "until", "for", "case", "select"))
_CLOSERS: Final = frozenset(("}", "fi", "done", "esac"))
KEYWORDS: Final = frozenset(("then", "elif", "else", "do", "time", "!", "coproc", "if", "while", "until", "{")) | _CLOSERS
"""Words of the shell language that may precede a command."""
_DECLARING: Final = frozenset(("export", "declare", "readonly", "typeset", "local"))


@dataclass(frozen=True, slots=True)
class Given:
    """A text that a command reads from its standard input: a here document, or the word after `<<<`."""

    text: str
    begin: int
    end: int


@dataclass(slots=True, eq=False)
class Command:
    """A simple command. `writes` are the files of its output, `empties` those it truncates, `reads` those of its input; `is_fed`
    says that its input is a pipe."""

    begin: int
    end: int = 0
    is_fed: bool = False
    assignments: list[Word] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    empties: list[str] = field(default_factory=list)
    reads: list[Word] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.assignments or self.words or self.given or self.writes or self.reads)


@dataclass(slots=True)
class Script:
    """The commands of a script in order, including those of substitutions; its pipelines, the bodies of its functions, and the
    places of its comments."""

    source: str
    commands: list[Command] = field(default_factory=list)
    pipelines: list[list[Command]] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    comments: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _HereDocument:
    command: Command
    delimiter: str
    is_literal: bool
    strips_tabs: bool


@dataclass(slots=True)
class _Group:
    """Commands between an opening and a closing word or sign. They are the body of `function`, or the arguments in parentheses of
    the PowerShell command `argument_of`."""

    opener: str
    first: int
    begin: int
    function: str
    feeders: list[Command]
    argument_of: Command | None = None


def read_script(source: str, variables: dict[str, str] | None = None) -> Script:
    """The commands of a script. `variables` are known values; those that the script sets are added. Raises ShellSyntaxError."""
    return _Reader(source.translate(_RESERVED), {} if variables is None else variables).read()


class _Reader(WordReader):
    def __init__(self, source: str, variables: dict[str, str], depth: int = 0) -> None:
        super().__init__(source, variables)
        self._depth = depth
        self._script = Script(source)
        self._awaited: list[_HereDocument] = []
        self._lists = 0
        self._groups: list[_Group] = []
        self._closed: list[Command] = []
        self._last = Command(0)
        self._function = ""

    def read(self) -> Script:
        self._read_list("")
        return self._script

    def _command_count(self) -> int:
        return len(self._script.commands)

    def _read_list(self, closer: str) -> None:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ShellSyntaxError("nested too deeply")
        outer, self._awaited = self._awaited, []
        groups, self._groups = self._groups, []
        parentheses, is_open = 0, True
        while is_open:
            sign, pipeline = self._pipeline()
            self._lists += 1
            if self._lists > _MOST_LISTS:
                raise ShellSyntaxError("too many commands")
            is_open = sign != "" and not (sign == closer and not parentheses)
            if is_open and sign == "(" and self._begins_function(pipeline):
                continue
            if is_open:
                parentheses += (sign == "(") - (sign == ")" and parentheses > 0)
                self._at += 2 if self._source.startswith(_LONG_OPERATORS, self._at) else 1
                if sign == "(":
                    self._open("(", self._at, pipeline, self._command_count())
                    if any(word.text not in KEYWORDS for word in self._last.words):
                        self._groups[-1].argument_of = self._last
                        self._groups[-1].feeders = []
                elif sign == ")":
                    self._close(self._at - 1)
            if sign == "\n":
                self._here_documents()
        if sign != closer:
            raise ShellSyntaxError("a substitution is not closed")
        self._here_documents()
        self._awaited, self._groups = outer, groups
        self._depth -= 1

    def _begins_function(self, pipeline: list[Command]) -> bool:
        """Whether this is `name ()`. If so, it is consumed, and the next group is the body of the function."""
        found = _FUNCTION.match(self._source, self._at)
        words = pipeline[-1].words if pipeline else []
        if found is None or len(words) not in (1, 2):
            return False
        self._function = words[-1].text
        self._at = found.end()
        return True

    def _open(self, opener: str, begin: int, feeders: list[Command], first: int) -> None:
        self._groups.append(_Group(opener, first, begin, self._function, feeders))
        self._function = ""

    def _close(self, end: int) -> None:
        if self._groups:
            group = self._groups.pop()
            self._closed = self._script.commands[group.first :][:_MOST_FED]
            if group.function:
                self._script.functions[group.function] = self._source[group.begin : end]
            if group.argument_of is not None and self._closed:
                self._script.pipelines.append([*self._closed, group.argument_of])

    def _pipeline(self) -> tuple[str, list[Command]]:
        """Read commands with pipes between them; return the sign after them, and the commands that feed what follows."""
        feeders: list[Command] = []
        while True:
            self._skip_blanks()
            command = Command(self._at)
            sign = self._command(command)
            if command:
                is_member = bool(command.words) and command.words[0].text.startswith(".") and self._source[command.begin - 1] == ")"
                self._closed = self._closed if is_member else []
                self._end(command, feeders)
                self._feed(feeders, command)
            if sign != "|" or self._source.startswith("||", self._at):
                break
            self._at += 2 if self._source.startswith("|&", self._at) else 1
            self._skip_lines()
            feeders = [*feeders, *(self._closed or ([command] if command else []))]
            self._closed = []
        if not command:
            self._closed = []
        self._last = command
        return sign, feeders if sign == "(" and not command else [command]

    def _feed(self, feeders: list[Command], command: Command) -> None:
        """Record the commands that feed this one by a pipe before it or before its group."""
        for group in self._groups:
            feeders = [*group.feeders, *feeders]
        if feeders:
            command.is_fed = True
            self._script.pipelines.append([*feeders[-_MOST_FED:], command])

    def _command(self, command: Command) -> str:
        """Read the words of a command; return the sign after them."""
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
                self._take(command)

    def _skip_blanks(self) -> None:
        blanks = _BLANKS.match(self._source, self._at)
        assert blanks is not None
        self._at = blanks.end()

    def _skip_lines(self) -> None:
        """Skip line ends after a pipe, and the here documents that begin there."""
        self._skip_blanks()
        while self._source.startswith("\n", self._at):
            self._at += 1
            self._here_documents()
            self._skip_blanks()

    def _end(self, command: Command, feeders: list[Command]) -> None:
        command.end = command.begin + len(self._source[command.begin : self._at].rstrip(" \t\r\n\\"))
        self._script.commands.append(command)
        if len(self._script.commands) > _MOST_COMMANDS:
            raise ShellSyntaxError("too many commands")
        for place, word in enumerate(command.words):
            if word.text in _CLOSERS:
                self._close(word.begin)
            elif word.text in _OPENERS:
                self._open(word.text, word.end, feeders, self._command_count() - 1)
                if word.text in ("for", "case", "select"):
                    break
            elif word.text == "function" and place + 1 < len(command.words):
                self._function = command.words[place + 1].text
            elif word.text not in KEYWORDS and (place == 0 or command.words[place - 1].text != "function"):
                break
        self._remember(command)

    def _remember(self, command: Command) -> None:
        """Keep the variables that a command sets."""
        texts = [word.text for word in command.words]
        while texts and texts[0] in KEYWORDS:
            texts = texts[1:]
        if not texts:
            for word in command.assignments:
                self._assign(word.text)
            return
        match texts[0]:
            case "for" | "select" if len(texts) > 3 and texts[2] == "in":
                self._variables[texts[1]] = " ".join(texts[3:])[:MOST_VALUE_CHARS]
            case "set" if "--" in texts:
                arguments = texts[texts.index("--") + 1 :]
                self._variables |= {str(place): text for place, text in enumerate(arguments[:64], 1)}
                self._variables["@"] = " ".join(arguments)[:MOST_VALUE_CHARS]
            case "read" if command.given and len(texts) > 1:
                self._variables[texts[-1]] = command.given[0].text[:MOST_VALUE_CHARS]
            case name if name.startswith("$") and texts[1:2] == ["="]:  # PowerShell
                self._variables[name[1:]] = f"$({' '.join(texts[2:])})"[:MOST_VALUE_CHARS]
            case name if name in _DECLARING:
                for text in texts[1:]:
                    self._assign(text)
            case _:
                return

    def _assign(self, text: str) -> None:
        head = _ASSIGNMENT.match(text)
        if head is not None:
            before = self._variables.get(head[1], "") if head[0].endswith("+=") else ""
            self._variables[head[1]] = (before + text[head.end() :])[:MOST_VALUE_CHARS]

    def _take(self, command: Command) -> None:
        """Read the next word. The first words may be assignments, also of lists."""
        begin = self._at
        is_assignment = not command.words and _ASSIGNMENT.match(self._source, begin) is not None
        words = self._words()
        if is_assignment and words and _ASSIGNMENT.match(words[0].text):
            text = " ".join(word.text for word in words)
            if self._source.startswith("(", self._at) and text.endswith("="):
                text += self._listed()
            command.assignments.append(Word(text, begin, self._at, words[0].inner))
        else:
            command.words += words

    def _listed(self) -> str:
        """The words between the parentheses of `name=(…)`."""
        self._at += 1
        texts: list[str] = []
        while True:
            while self._source.startswith(("\n", " ", "\t", "\r"), self._at):
                self._at += 1
            if self._source.startswith(")", self._at):
                self._at += 1
                return " ".join(texts)
            if self._at >= len(self._source):
                raise ShellSyntaxError("a list is not closed")
            texts += [word.text for word in self._words()]

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
        elif operator == "<":
            command.reads.append(word)
        elif ">" in operator:
            command.writes.append(word.text)
            if operator in (">", ">|", "&>"):
                command.empties.append(word.text)

    def _here_documents(self) -> None:
        for document in self._awaited:
            begin = self._at
            lines: list[str] = []
            stop = begin
            while self._at < len(self._source):
                line = self._line()
                line = line.lstrip("\t") if document.strips_tabs else line
                if line == document.delimiter:
                    break
                lines.append(line)
                stop = self._at
            text = "\n".join(lines)
            document.command.given.append(Given(text, begin, stop))
            if not document.is_literal and any(sign in text for sign in EXPANDED):
                self._read_apart(quoted_text(text))
        self._awaited = []

    def _line(self) -> str:
        end = self._source.find("\n", self._at)
        end = len(self._source) if end < 0 else end
        line = self._source[self._at : end].removesuffix("\r")
        self._at = min(end + 1, len(self._source))
        return line

    def _read_apart(self, text: str) -> None:
        """Add the commands of another text to the script, without places."""
        for command in _Reader(text, self._variables, self._depth).read().commands:
            command.begin = command.end = 0
            self._script.commands.append(command)

    def _printed(self, first: int) -> str | None:
        inner = [command for command in self._script.commands[first:] if command.words]
        if len(inner) == 2:
            return self._printed_by_two(*inner)
        if len(inner) != 1:
            return None
        (command,) = inner
        name, *texts = [word.text for word in command.words]
        if name == "cat" and not texts and len(command.given) == 1:
            return command.given[0].text
        if command.given or command.reads:
            return None
        if name in ("which", "command", "type") and texts and (name == "which" or texts[0] in ("-v", "-p")):
            return texts[-1]
        return printed_text(name, texts)

    def _printed_by_two(self, feeder: Command, command: Command) -> str | None:
        """The output of `echo … | base64 -d`, or None if it is not known."""
        if not command.is_fed or feeder.given or feeder.reads:
            return None
        name, *texts = [word.text for word in feeder.words]
        fed = printed_text(name, texts)
        return None if fed is None else decoded_text([word.text for word in command.words], fed)
