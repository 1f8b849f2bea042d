"""Words of a shell script: expand quotes, escapes, variables, braces and substitutions as the shell would.

Only values that the script itself sets are known. A word whose value is known only at run time stays as written.
"""

import base64
import binascii
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

MOST_VALUE_CHARS: Final = 2_000
_MOST_ARITHMETIC_CHARS: Final = 2_000
_MOST_BRACES: Final = 64
_MOST_BRACED_CHARS: Final = 1_000
_MOST_PARAMETERS: Final = 16
_PLAIN: Final = re.compile(r"[^\s\\'\"`$<>|&;()]+")
_IN_DOUBLE: Final = re.compile(r'[^\\"`$]+')
_IN_PARAMETER: Final = re.compile(r"[^\\'\"`$}]+")
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|[@*#?$!-])")
_PARAMETER: Final = re.compile(r"\$\{(!|#)?(\w+|[@*#?$!-])(\[[^\]\s]{0,40}\])?")
_WHOLE_LIST: Final = re.compile(r'"\$(?:@|\{@\}|\{(\w+)\[@\]\})"')
_ANSI_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|[0-7]{1,3}|.)", re.DOTALL)
_ANSI_SIGNS: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_BRACES: Final = str.maketrans("{,}", "\x01\x02\x03")
_NO_BRACES: Final = str.maketrans("\x01\x02\x03", "{,}")
_BRACED: Final = re.compile("\x01([^\x01\x03]*)\x03")
_SPLIT: Final = "\x00"
_RESERVED: Final = re.compile("[\x00-\x03]")
_SPACE: Final = re.compile(r"\s+")
_SPACE_OUTSIDE: Final = re.compile(r"(\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`)|\s+")
EXPANDED: Final = ("$(", "`")


class ShellSyntaxError(ValueError):
    """A script that is not complete, or nested too deeply."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: its text without quotes, and its place in the script. `inner` is the range of the script's commands that
    are substitutions within it."""

    text: str
    begin: int
    end: int
    inner: tuple[int, int] = (0, 0)


class WordReader(ABC):
    """Reads words. A subclass that reads scripts reads the commands of substitutions."""

    def __init__(self, source: str, variables: dict[str, str]) -> None:
        self._source = source
        self._variables = variables
        self._at = 0
        self._parameters = 0

    @abstractmethod
    def _command_count(self) -> int:
        """The number of commands that were read."""

    @abstractmethod
    def _read_list(self, closer: str) -> None:
        """Read commands up to the sign that closes them."""

    @abstractmethod
    def _read_apart(self, text: str) -> None:
        """Read the commands of substitutions within a text."""

    @abstractmethod
    def _printed(self, first: int) -> str | None:
        """The text that the commands from index `first` on print, or None if that is not known."""

    def _words(self) -> list[Word]:
        """The words that one written word expands to: none for an empty variable, several if a value has blanks."""
        source, begin, first = self._source, self._at, self._command_count()
        pieces: list[str] = []
        is_plain = True
        while self._at < len(source):
            plain = _PLAIN.match(source, self._at)
            if plain is not None:
                pieces.append(plain[0].translate(_BRACES) if "{" in plain[0] or "," in plain[0] or "}" in plain[0] else plain[0])
                self._at = plain.end()
                continue
            sign = source[self._at]
            if sign == "\\":
                pieces.append("" if source.startswith(("\\\n", "\\\r\n"), self._at) else source[self._at + 1 : self._at + 2])
                self._at += 3 if source.startswith("\\\r\n", self._at) else 2
            elif sign == "'":
                pieces.append(self._single())
                is_plain = False
            elif sign == '"':
                whole = _WHOLE_LIST.match(source, self._at)
                if whole is None:
                    pieces.append(self._double())
                    is_plain = False
                else:
                    self._at = whole.end()
                    pieces.append(_split(self._variables.get(whole[1] or "@", "" if whole[1] is None else whole[0][1:-1])))
            elif sign == "`":
                pieces.append(self._backquoted())
            elif sign == "$":
                pieces.append(self._dollar(is_quoted=False))
            elif source.startswith(("<(", ">("), self._at):
                pieces.append(self._substitution())
            else:
                break
        if self._at == begin:
            raise ShellSyntaxError("an unexpected sign")
        text, inner = "".join(pieces), (first, self._command_count())
        if is_plain and not text.strip(_SPLIT):
            return []
        parts = text.split(_SPLIT) if _SPLIT in text else [text]
        words = [word for part in parts if part or len(parts) == 1 for word in _expanded_braces(part)]
        return [Word(word, begin, self._at, inner) for word in words]

    def _word(self) -> Word:
        """One word, joined if it expands to several."""
        begin = self._at
        words = self._words()
        return words[0] if len(words) == 1 else Word(" ".join(word.text for word in words), begin, self._at)

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
        if source.startswith("$((", at) and (text := self._arithmetic()) is not None:
            return text
        if source.startswith("$(", at):
            found = self._substitution()
            return found if is_quoted or found == source[at : self._at] else _split(found)
        if source.startswith("$'", at) and not is_quoted:
            return self._ansi()
        if source.startswith('$"', at) and not is_quoted:
            self._at += 1
            return self._double()
        if source.startswith("${", at):
            found = self._parameter()
            return found if is_quoted else _split(found)
        variable = _VARIABLE.match(source, at)
        if variable is None:
            self._at += 1
            return "$"
        self._at = variable.end()
        name = variable[1] or ("@" if variable[0] in ("$@", "$*") else "")
        value = self._variables.get(name, "" if name == "@" else variable[0])
        return value if is_quoted else _split(value)

    def _parameter(self) -> str:
        """`${…}`: the value, or its default."""
        source, at = self._source, self._at
        head = _PARAMETER.match(source, at)
        self._at = at + 2 if head is None else head.end()
        self._parameters += 1
        if self._parameters > _MOST_PARAMETERS:
            raise ShellSyntaxError("nested too deeply")
        rest = self._rest_of_parameter()
        self._parameters -= 1
        written = source[at : self._at]
        if head is None or head[1] == "#":
            return written
        name = "@" if head[2] == "*" else head[2]
        value = self._variables.get(name)
        if head[1] == "!" and value is not None:
            value = self._variables.get(value)
        operator = rest.lstrip(":")[:1]
        if operator in ("-", "=", "?") and not value:
            if operator == "=":
                self._variables[name] = rest.lstrip(":")[1:][:MOST_VALUE_CHARS]
            return rest.lstrip(":")[1:]
        if operator == "+":
            return rest.lstrip(":")[1:] if value or name.isdecimal() is False else ""
        return written if value is None else _changed(value, rest)

    def _rest_of_parameter(self) -> str:
        source, pieces = self._source, list[str]()
        while self._at < len(source):
            plain = _IN_PARAMETER.match(source, self._at)
            if plain is not None:
                pieces.append(plain[0])
                self._at = plain.end()
                continue
            sign = source[self._at]
            if sign == "}":
                self._at += 1
                return "".join(pieces)
            if sign == "\\":
                pieces.append(source[self._at + 1 : self._at + 2])
                self._at += 2
            elif sign in "'\"":
                pieces.append(self._single() if sign == "'" else self._double())
            else:
                pieces.append(self._backquoted() if sign == "`" else self._dollar(is_quoted=True))
        raise ShellSyntaxError("a variable is not closed")

    def _arithmetic(self) -> str | None:
        """`$((…))` as written; None if it is a substitution that begins with a parenthesis."""
        source, at, depth = self._source, self._at, 0
        for place in range(at + 1, min(len(source), at + _MOST_ARITHMETIC_CHARS)):
            depth += (source[place] == "(") - (source[place] == ")")
            if depth == 0:
                break
        else:
            return None
        if source[place - 1] != ")":
            return None
        inner = source[at + 3 : place - 1]
        if any(sign in inner for sign in EXPANDED):
            self._read_apart(quoted_text(inner))
        self._at = place + 1
        return source[at : self._at]

    def _ansi(self) -> str:
        source, at = self._source, self._at + 2
        end = at
        while end < len(source) and source[end] != "'":
            end += 2 if source[end] == "\\" else 1
        if end >= len(source):
            raise ShellSyntaxError("a quote is not closed")
        self._at = end + 1
        return unescaped(source[at:end])

    def _substitution(self) -> str:
        """`$(…)`, `<(…)` or `>(…)`: its output if that is known, else as written."""
        begin, first = self._at, self._command_count()
        self._at += 2
        self._read_list(")")
        self._at += 1
        printed = self._printed(first) if self._source[begin] == "$" else None
        return self._source[begin : self._at] if printed is None else printed

    def _backquoted(self) -> str:
        source, begin = self._source, self._at
        first, end = self._command_count(), begin + 1
        while end < len(source) and source[end] != "`":
            end += 2 if source[end] == "\\" else 1
        if end >= len(source):
            raise ShellSyntaxError("a substitution is not closed")
        self._at = end + 1
        if source[begin + 1 : end].strip():
            self._read_apart(re.sub(r"\\([$`\\])", r"\1", source[begin + 1 : end]))
        printed = self._printed(first)
        return source[begin : self._at] if printed is None else printed


def quoted_text(text: str) -> str:
    """A text as a word in double quotes, so that only its substitutions are read."""
    return ': "' + text.replace('"', '\\"') + '"'


def unescaped(text: str) -> str:
    """A text with the escapes that `printf` and `echo -e` know."""
    return _RESERVED.sub("", _ANSI_ESCAPE.sub(_ansi_sign, text))


def _split(value: str) -> str:
    """Split an unquoted value at blanks, except those within a substitution."""
    if "$(" in value or "`" in value:
        return _SPACE_OUTSIDE.sub(lambda match: match[1] or _SPLIT, value)
    return _SPACE.sub(_SPLIT, value)


def _expanded_braces(text: str) -> Sequence[str]:
    """`{a,b}` as two words; other braces stay."""
    if "\x01" not in text or len(text) > _MOST_BRACED_CHARS:
        return (text.translate(_NO_BRACES) if "\x01" in text or "\x02" in text or "\x03" in text else text,)
    found, left = [text], _MOST_BRACES
    while left and (at := next((i for i, word in enumerate(found) if _alternatives(word)), None)) is not None:
        word, left = found[at], left - 1
        match = _alternatives(word)
        assert match is not None
        found[at : at + 1] = [word[: match.start()] + piece + word[match.end() :] for piece in match[1].split("\x02")]
        if len(found) > _MOST_BRACES:
            break
    return [word.translate(_NO_BRACES) for word in found if word]


def _alternatives(text: str) -> re.Match[str] | None:
    return next((match for match in _BRACED.finditer(text) if "\x02" in match[1]), None)


def _changed(value: str, rest: str) -> str:
    """A value changed by the operator after a variable's name, if that needs no patterns; else the value."""
    if part := re.fullmatch(r":(\d{1,4})(?::(\d{1,4}))?", rest):
        return value[int(part[1]) :][: int(part[2]) if part[2] else None]
    if part := re.fullmatch(r"(//?)([^/*?\[]+)/?([^/]*)", rest):
        return value.replace(part[2], part[3], -1 if part[1] == "//" else 1)
    if part := re.fullmatch(r"(%%?|##?)([^*?\[]+)", rest):
        return value.removesuffix(part[2]) if part[1][0] == "%" else value.removeprefix(part[2])
    cases: dict[str, Any] = {",,": str.lower, "^^": str.upper, "@L": str.lower, "@U": str.upper}
    return cases[rest](value) if rest in cases else value


def _ansi_sign(match: re.Match[str]) -> str:
    sign = match[1]
    if sign[0] in "xu" and len(sign) > 1:
        return chr(int(sign[1:], 16))
    return chr(int(sign, 8) % 256) if sign[0] in "01234567" else _ANSI_SIGNS.get(sign, sign if sign in "'\"\\?" else f"\\{sign}")


def printed_text(name: str, texts: list[str]) -> str | None:
    """The output of `echo`, `print` or `printf`; None for other commands."""
    if name in ("echo", "print"):
        is_escaped = bool(texts) and texts[0].startswith("-") and "e" in texts[0]
        text = " ".join(texts[1:] if texts and re.fullmatch("-[neE]+", texts[0]) else texts)
        return unescaped(text) if is_escaped else text
    texts = texts[1:] if texts[:1] == ["--"] else texts
    if name == "printf" and texts:
        return _formatted(texts[0], texts[1:]).rstrip("\n")
    return None


def _formatted(form: str, values: list[str]) -> str:
    """The output of `printf`; the format is reused while values are left."""
    left = list(values)

    def value(match: re.Match[str]) -> str:
        return "%" if match[0] == "%%" else left.pop(0) if left else ""

    pieces = [re.sub(r"%(?:%|[-+ 0-9.]*[a-zA-Z])", value, unescaped(form))]
    for _ in range(16):
        if not left or "%" not in form.replace("%%", ""):
            break
        pieces.append(re.sub(r"%(?:%|[-+ 0-9.]*[a-zA-Z])", value, unescaped(form)))
    return "".join(pieces)


def decoded_text(texts: Sequence[str], fed: str) -> str | None:
    """The output of `base64 -d`, `xxd -r -p` and the like for the input `fed`; None for other programs."""
    options = " ".join(texts[1:])
    try:
        if texts[0] in ("base64", "gbase64") and re.search(r"(?:^| )(?:-\w*[dD]|--decode)", options):
            return base64.b64decode(fed).decode().rstrip("\n")
        if texts[0] == "openssl" and "base64" in options and re.search(r" -\w*d", options):
            return base64.b64decode(fed).decode().rstrip("\n")
        if texts[0] == "xxd" and "r" in options and "p" in options:
            return bytes.fromhex(fed).decode().rstrip("\n")
        if texts[0] == "rev":
            return fed[::-1]
    except (ValueError, binascii.Error):
        return None
    return None
