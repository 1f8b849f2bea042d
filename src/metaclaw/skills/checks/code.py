"""Programs in other languages, as checks see them: the commands that they give to a shell or start themselves."""

import re
import shlex
from collections.abc import Iterator
from typing import Final

from metaclaw.skills.checks.code_actions import code_commands

_MOST_CHARS: Final = 20_000
_MOST_LITERALS: Final = 200
_STARTS: Final = re.compile(
    r"system|popen|subprocess|\bexec|spawn|\brun\s*\(|check_(?:call|output)|getoutput|shell|qx|%x|\bCommand\b|Deno\.Command|\$`|`",
    re.IGNORECASE,
)
_LITERAL: Final = re.compile(
    r'[rbfu]?"""(.*?)"""|[rbfu]?\'\'\'(.*?)\'\'\'|"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'|`((?:[^`\\]|\\.)*)`', re.DOTALL
)
_QUOTED_BY_PERL: Final = re.compile(r"(?:qx|%x)\s*[{(\[/]([^})\]/\n]*)")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}
_BETWEEN: Final = re.compile(r"\s*,\s*\[?\s*")
_JOINED: Final = re.compile(r"\s*\+?\s*")
_HIDDEN: Final = re.compile(
    r"\b(?:exec|eval|execfile|Function|compile|runInThisContext|instance_eval|system|popen|run|call|check_output|execSync|spawn)\s*\("
    r"[^;\n]{0,300}?(?:b64decode|a85decode|b32decode|fromhex|unhexlify|decompress|rot_?13|atob\s*\(|['\"]base64['\"]|decode64|unpack\s*\("
    r"|base64_decode|urlopen|requests\.get|httpx\.get|fetch\s*\()"
)
_MAGIC: Final = re.compile(
    r"^\s*(?:[!%]|(?=(?:pip|conda|git|npm|sudo)\s))(?:%?(?:sh|bash|system|script bash)\b)?\s*(\S.*)$", re.MULTILINE
)


def code_scripts(code: str) -> list[str]:
    """The scripts and commands in a program, and the lines of a notebook that a shell runs."""
    text = code[:_MOST_CHARS]
    found = [match[1] for match in _MAGIC.finditer(text)]
    if code.lstrip().startswith("%%"):
        found.append(text.partition("\n")[2])
    found.append("\n".join(code_commands(text)))
    if _STARTS.search(text):
        found += _QUOTED_BY_PERL.findall(text)
        found += _commands(text)
    return list(dict.fromkeys(one for one in found if one.strip()))


def hides_code(code: str) -> bool:
    """Whether a program runs what it decodes or loads first."""
    return _HIDDEN.search(code, 0, _MOST_CHARS) is not None


def literals_of(code: str) -> list[str]:
    """The texts in a program."""
    return [text for text, _, _ in _literals(code[:_MOST_CHARS])]


def _literals(code: str) -> Iterator[tuple[str, int, int]]:
    for match, _ in zip(_LITERAL.finditer(code), range(_MOST_LITERALS), strict=False):
        yield unescaped(next(filter(None, match.groups()), "")), match.start(), match.end()


def _commands(code: str) -> Iterator[str]:
    """Texts with several words; and rows of texts with commas between them, which are the words of a command."""
    row: list[str] = []
    last = -1
    for text, begin, end in _literals(code):
        between = code[last:begin] if last >= 0 else "x"
        if row and _BETWEEN.fullmatch(between):
            row.append(text)
        elif row and _JOINED.fullmatch(between):
            row[-1] += text
        else:
            yield from _row(row)
            row = [text]
        last = end
    yield from _row(row)


def _row(row: list[str]) -> Iterator[str]:
    if row:
        yield from (text for text in row if len(text.split()) > 1)
        yield shlex.join(row) if len(row) > 1 else row[0]


def unescaped(text: str) -> str:
    """A text without the escapes of Python and JavaScript."""

    def plain(match: re.Match[str]) -> str:
        sign = match[1]
        return chr(int(sign[1:], 16)) if len(sign) > 1 else _ESCAPED.get(sign, sign)

    return _ESCAPE.sub(plain, text)
