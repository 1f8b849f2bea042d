"""Command-line programs: which start other programs, and which of their words are only text. And
the files in a patch.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Final


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TABLES: Final = tomllib.loads(
    (files("metaclaw.checks") / "shell_programs.toml").read_text(encoding="utf-8")
)
SHELLS, DATABASES, INTERPRETERS, QUOTING, RECORDING = (
    words(TABLES[name]) for name in ("shells", "databases", "interpreters", "quoting", "recording")
)
_STARTERS: Final[dict[str, tuple[frozenset[str], int]]] = {
    " ".join(name.split()): (words(options), operands)
    for names, options, operands in TABLES["starters"]
    for name in names.split(",")
}
_GLOBAL_OPTIONS: Final = {
    name: words(options) for name, options in TABLES["global_options"].items()
}
_NAMED_VERSION: Final = re.compile(r"(pip|python|pypy|easy_install|node|ruby|perl|php|lua)[\d.]+")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_VERSION: Final = re.compile(r"v?\d[\w.]*|lts(?:/\S+)?|node|stable|latest|default|current|system")
_OPTIONAL: Final = -1


def shortened(texts: Sequence[str]) -> list[str] | None:
    """A command without its first starter (`sudo`, `env A=1`, a folder); None if nothing can be
    removed.
    """
    if not texts or not texts[0]:
        return None
    first = texts[0]
    if _ASSIGNMENT.match(first) and len(texts) > 1:
        return list(texts[1:])
    if first[0] in "!%" and first[1:2].isalpha():  # a shell command in a notebook
        return [first[1:], *texts[1:]]
    name = program_name(first)
    if name != first:
        return [name, *texts[1:]]
    if name in QUOTING:
        return None
    if name == "docker" and texts[1:2] == ["compose"]:
        rest = _behind(texts, 2, _GLOBAL_OPTIONS["docker-compose"], 0)
        if rest and len(rest) + 2 < len(texts):
            return [name, "compose", *rest]
    if name == "command" and texts[1:2] in (["-v"], ["-V"]):
        return None
    for begin in (3, 2, 1):
        starter = _STARTERS.get(" ".join(texts[:begin])) if len(texts) > begin else None
        if starter is not None:
            rest = _behind(texts, begin, *starter)
            return rest if rest and len(rest) < len(texts) else None
    if name in ("python", "pypy", "py"):
        return _module(texts)
    if name in _GLOBAL_OPTIONS:
        rest = _behind(texts, 1, _GLOBAL_OPTIONS[name], 0)
        if rest and len(rest) + 1 < len(texts):
            return [name, *rest]
    if "--" in texts[1:-1] and name not in RECORDING | SHELLS | INTERPRETERS:
        rest = list(texts[texts.index("--", 1) + 1 :])
        return None if rest[0].startswith("-") else rest
    return None


@lru_cache(1024)  # called several times for each command
def bare_words(texts: tuple[str, ...]) -> tuple[str, ...]:
    """A command without its starters."""
    for _ in range(_MOST_STEPS):
        shorter = shortened(texts)
        if shorter is None:
            break
        texts = tuple(shorter)
    return texts


def _behind(texts: Sequence[str], at: int, options: frozenset[str], operands: int) -> list[str]:
    """The words after the options, settings and operands of a command that starts another."""
    while at < len(texts):
        text = texts[at]
        if text == "--":
            return list(texts[at + 1 + max(operands, 0) :])
        if text.startswith("-") and len(text) > 1:
            at += 2 if text in options else 1
        elif _ASSIGNMENT.match(text):
            at += 1
        elif operands > 0:
            operands -= 1
            at += 1
        elif operands == _OPTIONAL and _VERSION.fullmatch(text):
            operands = 0
            at += 1
        else:
            break
    return list(texts[at:])


def _module(texts: Sequence[str]) -> list[str] | None:
    """`python -m pip install` becomes `pip install`."""
    at = 1
    while at < len(texts) and texts[at].startswith("-"):
        module = re.fullmatch(r"-[A-Za-z]*m(.*)", texts[at])
        if module is not None:
            rest = [module[1], *texts[at + 1 :]] if module[1] else list(texts[at + 1 :])
            return rest or None
        at += 2 if texts[at] in ("-X", "-W") else 1
    return None


def is_starter(texts: Sequence[str]) -> bool:
    """Whether a command starts another."""
    return any(" ".join(texts[:count]) in _STARTERS for count in (1, 2, 3))


@lru_cache(4096)
def program_name(text: str) -> str:
    """The name of a program, without its folder, `.exe` and version."""
    name = re.split(r"[/\\]", text)[-1] if "/" in text or "\\" in text else text
    name = name.removesuffix(".exe")
    version = _NAMED_VERSION.fullmatch(name)
    return version[1] if version else name or text


_MOST_STEPS: Final = 8
_HELP: Final = words("--help --version -help -version")
_MESSAGE: Final = re.compile(r"-[a-zA-Z]*m|--message")
_BLANK: Final = re.compile(r"\S\s+\S")


def quoted_places(texts: Sequence[str]) -> list[tuple[int, int]]:
    """The words of a command that are only text to it, as ranges of the first and last index."""
    plain = bare_words(tuple(texts))
    if not plain:
        return []
    name, last = program_name(plain[0]), len(texts) - 1
    offset = len(texts) - len(plain)
    if shows_help(texts):
        return [(0, last)]
    if name in QUOTING or (name == "command" and plain[1:2] in (("-v",), ("-V",))):
        return [(offset + 1, last)] if last > offset else []
    if name in ("awk", "gawk") and not any("system" in text or "|" in text for text in plain):
        return [(offset + 1, last)] if last > offset else []
    if plain[:2] == ("git", "grep") and last > offset + 1:
        return [(offset + 2, last)]
    if name in INTERPRETERS or name in DATABASES:
        return []
    return [
        (at, at)
        for at, text in enumerate(texts)
        if at and (_BLANK.search(text) or (name in RECORDING and _MESSAGE.fullmatch(texts[at - 1])))
    ]


def shows_help(texts: Sequence[str]) -> bool:
    """Whether a command only prints help or a version."""
    if not texts or is_starter(texts) or program_name(texts[0]) in SHELLS | INTERPRETERS:
        return texts[1:2] != [] and texts[1] in _HELP
    for at, text in enumerate(texts[1:], 1):
        if text == "--":
            return False
        if text in _HELP and texts[at - 1] != "-m":
            return True
    return program_name(texts[0]) == "git" and texts[-1] == "-h" and len(texts) == 3


PATCH_BEGIN: Final = "*** Begin Patch"
PATCH_FILE: Final = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$")
_DIFF_FILE: Final = re.compile(r"^(?:\+\+\+|---) (?:[ab]/)?(\S.*?)(?:\t.*)?$")


def patched_files(patch: str) -> Iterator[tuple[str, list[str]]]:
    """The files of a patch, each with the lines that it adds."""
    path, added = "", list[str]()
    for line in patch.splitlines():
        named = PATCH_FILE.match(line) or _DIFF_FILE.match(line)
        if named is not None:
            if path and (added or named[1] != path):
                yield path, added
            if named[1] != "/dev/null":
                path, added = named[1].strip(), []
        elif line.startswith("+"):
            added.append(line[1:])
    if path or added:
        yield path, added
