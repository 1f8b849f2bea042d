"""Capabilities of a skill: the hosts, paths, credentials, shell pipes and risky commands in its
text.
"""

import ipaddress
import re
import tomllib
from collections.abc import Iterable
from importlib.resources import files
from typing import Final, NamedTuple

from metaclaw.text import visible_text

_TABLE: Final = tomllib.loads(
    (files("metaclaw.privacy") / "capabilities.toml").read_text(encoding="utf-8")
)


def _compiled(section: str) -> dict[str, re.Pattern[str]]:
    return {name: re.compile(text.replace("\n", "")) for name, text in _TABLE[section].items()}


_PATTERNS: Final = _compiled("patterns")
_COMMANDS: Final = _compiled("commands")
_DOT: Final = re.compile(r"(?i)\s?(?:\[\.\]|\(\.\)|\[dot\]|\(dot\)| dot )\s?")
FORBIDS: Final = _PATTERNS["forbids"]
"""Words that forbid something."""
EXCEPTS: Final = _PATTERNS["excepts"]
"""Words that turn a prohibition into a condition or an order."""
_DOCUMENTATION = frozenset(
    ("example.com", "example.org", "example.net", "localhost", "127.0.0.1", "0.0.0.0", "::1")
)


class Capabilities(NamedTuple):
    """What an agent that follows a text would use. Empty for most skills."""

    hosts: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()
    credentials: frozenset[str] = frozenset()
    pipes: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return any(self)

    def __or__(self, other: "Capabilities") -> "Capabilities":
        return Capabilities(*map(frozenset.union, self, other))

    def __sub__(self, other: "Capabilities") -> "Capabilities":
        return Capabilities(*map(frozenset.difference, self, other))

    def words(self) -> str:
        """For people: `hosts: evil.example; pipes: curl … | sh`."""
        named = zip(self._fields, map(sorted, self), strict=True)
        return "; ".join(f"{name}: {', '.join(values)}" for name, values in named if values)


def capabilities(text: str) -> Capabilities:
    """The capabilities in a text, including disguised ones."""
    shown = visible_text(text)
    return Capabilities(
        frozenset(_hosts(shown)),
        frozenset(match[1].rstrip("/.,") for match in _PATTERNS["path"].finditer(shown)),
        frozenset(
            next(group for group in match.groups() if group).strip("/").lower()
            for match in _PATTERNS["credential"].finditer(shown)
        ),
        frozenset(" ".join(match[1].split())[:120] for match in _PATTERNS["pipe"].finditer(shown)),
        frozenset(name for name, pattern in _COMMANDS.items() if pattern.search(shown)),
    )


def _hosts(text: str) -> Iterable[str]:
    for name in ("url", "at", "socket"):
        matches = _PATTERNS[name].finditer(text)
        yield from (host for match in matches if (host := _host(match[1])))
    for match in _PATTERNS["domain"].finditer(text):
        if not _PATTERNS["code_names"].search(match[1]) and (host := _host(match[1])):
            yield host
    for match in _PATTERNS["address"].finditer(text):
        if (match[2] or _is_address(match[1])) and (host := _host(match[1] or match[2])):
            yield host
    for match in _PATTERNS["defanged"].finditer(text):
        name = _DOT.sub(".", match[1])
        if _PATTERNS["domain"].fullmatch(name):
            yield name.lower()


def _host(name: str) -> str:
    host = name.lower().strip("[].").removeprefix("www.")
    return "" if host in _DOCUMENTATION else host


def _is_address(text: str) -> bool:
    try:
        return not ipaddress.ip_address(text).is_unspecified
    except ValueError:
        return False
