"""What a file check asks for, read from its command alone: names, counts, fields, a backup, a log.
The rest is left out.
"""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_SNIPPET: Final = re.compile(r'(\$\()?python3? -c "((?:[^"\\]|\\.)*)"(?(1)\))')
_GLOB: Final = re.compile(r"glob\.glob\('([^']+)'\)")
_KEYWORD: Final = re.compile(r"'([^']+)' in \w+\b")
_AT_LEAST: Final = re.compile(r"len\(\w+\)\s*>=\s*(\d+)")
_MEMBER: Final = re.compile(r"open\('([^']+)'\).*?\bin \w+\['(\w+)'\] if \w+\['(\w+)'\]=='([^']+)'")
_GOT: Final = re.compile(r"\.get\('(\w+)'")
_READ: Final = re.compile(r"open\('([^']+)'\)\.read\(\)")


@dataclass(frozen=True, slots=True)
class Target:
    """A file: by its path, or any that a pattern matches and whose name has one of the keywords (if
    there are any).
    """

    path: str
    is_pattern: bool = False
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Files:
    """So many files that match the target's pattern."""

    target: Target
    at_least: int = 1


@dataclass(frozen=True, slots=True)
class Names:
    """So many files in a folder that are called as the house calls them."""

    folder: str
    ending: str
    at_least: int = 1


@dataclass(frozen=True, slots=True)
class Times:
    """Fields of a JSON file that are times."""

    target: Target
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """A file that says when, by whom, how far."""

    target: Target


@dataclass(frozen=True, slots=True)
class Backup:
    """A file that was changed and has a backup."""

    path: str


@dataclass(frozen=True, slots=True)
class Log:
    """So many entries in the log, the last with this beginning of its task."""

    path: str
    at_least: int = 1
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """An element of a list in a JSON file, known by a key, with these fields."""

    path: str
    list: str
    key: str
    value: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A file whose text has times and these phrases in it."""

    path: str
    phrases: tuple[str, ...]


Want = Files | Names | Times | Metadata | Backup | Log | Member | Text


def wants(command: str) -> list[Want]:
    """Everything the command is seen to ask for, in its order."""
    snippets = [found[2] for found in _SNIPPET.finditer(command)]
    places = iter(range(len(snippets)))
    plain = _SNIPPET.sub(lambda _: f"@{next(places)}", command)
    found: list[Want] = []
    for part in plain.split("&&"):
        # What a shell understands and this does not is one of the things that cannot be read.
        with suppress(ValueError, KeyError):
            found.extend(_of_part(shlex.split(part), snippets))
    return found


def _of_part(words: list[str], snippets: list[str]) -> Iterator[Want]:
    match words:
        case [alone] if alone.startswith("@"):
            yield from _of_snippet(snippets[int(alone[1:])])
        case [_, "scripts/check_iso8601.py", file, *fields]:
            yield Times(_target(file, snippets), tuple(fields))
        case [_, "scripts/check_metadata.py", file]:
            yield Metadata(_target(file, snippets))
        case [_, "scripts/check_backup.py", file]:
            yield Backup(file)
        case [_, "scripts/check_filename.py", *options]:
            given = _options(options)
            yield Names(given["--dir"], given["--ext"], int(given.get("--min-count", "1")))
        case [_, "scripts/check_done_log.py", log, *options]:
            given = _options(options)
            yield Log(log, int(given.get("--min-entries", "1")), given.get("--task-prefix", ""))


def _of_snippet(code: str) -> Iterator[Want]:
    at_least, member, read = _AT_LEAST.search(code), _MEMBER.search(code), _READ.search(code)
    got = tuple(dict.fromkeys(_GOT.findall(code)))
    if member:
        yield Member(member[1], member[2], member[3], member[4], got)
    elif _GLOB.search(code):
        yield Files(_globbed(code), int(at_least[1]) if at_least else 1)
        if got:
            yield Times(_globbed(code), got)
    elif read:
        yield Text(read[1], tuple(_KEYWORD.findall(code)))


def _target(word: str, snippets: list[str]) -> Target:
    return _globbed(snippets[int(word[1:])]) if word.startswith("@") else Target(word)


def _globbed(code: str) -> Target:
    pattern = _GLOB.search(code)
    if not pattern:
        raise ValueError(f"no pattern in {code}")
    return Target(pattern[1], is_pattern=True, keywords=tuple(_KEYWORD.findall(code)))


def _options(words: list[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=False))
