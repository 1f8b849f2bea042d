"""Shell commands: when two say the same, and when one only looks. What cannot be told is neither trivial nor harmless."""

import re
import shlex
from dataclasses import dataclass
from typing import Final

_WORD: Final = r"(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|[^\s'\"\\;&|<>()])+"
_TOKEN: Final = re.compile(rf"\s*(?:({_WORD})|([;&|<>()]+))")
_PIECE: Final = re.compile(r"'([^']*)'|\"((?:\\.|[^\"\\])*)\"|(\\.)|([^'\"\\]+)")
_PLAIN: Final = re.compile(r"[\w@%+=:,./ -]*")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_SEPARATORS: Final = frozenset({";", "&&", "||", "|"})
# Error output joined to the rest, or anything thrown away: nothing is written.
_REDIRECT: Final = re.compile(r"(?:\d|&)?>(?:&\d|\s*/dev/null)(?=[\s;&|)]|$)")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LOOKERS: Final = _set(
    "ls cat head tail grep egrep fgrep rg ag wc pwd echo printf which type file stat tree du df ps printenv date whoami id uname"
    " diff cmp uniq cut tr jq basename dirname realpath readlink test true false nl column xxd hexdump md5sum sha256sum cd sleep"
    " find sort sed awk pytest mypy flake8 pylint pyright tox jest vitest eslint"
)
# Programs that only look when their first word is one of these.
_SUBCOMMANDS: Final = {
    "git": _set("status log diff show rev-parse ls-files blame grep describe shortlog reflog cat-file"),
    "npm": _set("test t ls view outdated --version -v"),
    "yarn": _set("test lint --version"),
    "pnpm": _set("test lint ls --version"),
    "cargo": _set("test check clippy --version"),
    "go": _set("test vet version list"),
    "make": _set("test tests check lint"),
    "ruff": _set("check --version"),
    "pip": _set("list show freeze --version"),
    "tsc": _set("--noEmit --version"),
    **dict.fromkeys(("python", "python3", "node", "ruby", "java", "rustc", "gcc"), _set("--version -V -version")),
}
_RUN_SCRIPTS: Final = _set("test lint typecheck")
_PYTHON_MODULES: Final = _set("pytest unittest mypy flake8 pylint")
# Options and programs within a program that make a looker write.
_BETRAYING: Final = {
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


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    is_operator: bool = False


def canonical_command(command: str) -> str:
    """The same for commands that differ only in blanks, in quotes around plain words, or in a semicolon at the end."""
    command = command.strip()
    tokens = _tokens(command)
    if tokens is None:
        return command
    while tokens and tokens[-1] == _Token(";", is_operator=True):
        tokens.pop()
    return " ".join(token.text for token in tokens)


def only_looks(command: str) -> bool:
    """Whether a command changes nothing that a later command could see, as far as its words tell."""
    bare = _REDIRECT.sub(" ", command).strip()
    tokens = _tokens(bare)
    if not tokens or "`" in bare or "$(" in bare:
        return False
    simple: list[list[str]] = [[]]
    for token in tokens:
        if not token.is_operator:
            simple[-1].append(token.text)
        elif token.text in _SEPARATORS:
            simple.append([])
        else:
            return False
    return all(_looks(words) for words in simple if words)


def paths_read(command: str) -> tuple[str, ...] | None:
    """The files a command reads, where it does nothing else; None where it may have to do with anything."""
    tokens = _tokens(_REDIRECT.sub(" ", command).strip())
    if not tokens or tokens[0].text not in _FILE_READERS:
        return None
    if any(token.is_operator or set(token.text) & set("*?[$`~\\") for token in tokens):
        return None
    words = [token.text for token in tokens[1:] if not token.text.startswith("-") and not token.text.isdecimal()]
    return tuple(sorted("".join(shlex.split(word)) for word in words)) or None


def _looks(words: list[str]) -> bool:
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    if words[:1] == ["timeout"]:
        words = words[2:]
    if not words:
        return False
    name, *rest = words
    if any(word.startswith(_BETRAYING.get(name, ())) for word in rest):
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


def _tokens(command: str) -> list[_Token] | None:
    """Words and operators; None for what this small reader does not understand: several lines, here-documents, open quotes."""
    if "\n" in command or "<<" in command or "#" in command:
        return None
    tokens: list[_Token] = []
    at = 0
    while at < len(command):
        found = _TOKEN.match(command, at)
        if found is None:
            return None
        word, operator = found[1], found[2]
        if word is not None:
            tokens.append(_Token(_plain_word(word)))
        elif tokens and operator[0] in "<>" and found.start(2) == at and tokens[-1].text.isdecimal():
            tokens[-1] = _Token(tokens[-1].text + operator, is_operator=True)
        else:
            tokens.append(_Token(operator, is_operator=True))
        at = found.end()
    return tokens


def _plain_word(word: str) -> str:
    """A word with plain quoting; left as it is where a shell would do something with what is in it."""
    inner: list[str] = []
    for single, double, escaped, bare in _PIECE.findall(word):
        text = single or double or bare
        if escaped or not _PLAIN.fullmatch(text):
            return word
        inner.append(text)
    return shlex.quote("".join(inner))
