"""Faults of the environment, as programs and services word them: network, quota, disk, rights, missing programs."""

import re

from metaclaw.outcome import shell
from metaclaw.outcome.reading import Ran
from metaclaw.outcome.tables import programs_of

# Looked for as plain text in lower case: a regular expression of that many words would take ten times as long.
_NETWORK, _SERVICE, _MACHINE, _PROGRAM, _REFUSED = (
    programs_of(f"fault_{kind}") for kind in ("network", "service", "machine", "program", "refused")
)
_INSTALLABLE = frozenset(programs_of("installable"))
_STATUS = re.compile(
    r"(?:\b(?:http|error|status|code|e)\W{0,3}(?:code\W{0,2})?|\(|^)(?P<code>429|5\d\d|402)\b(?!\s*(?:ms|kb|mb|bytes|/))"
)
_NOT_FOUND = re.compile(r"(?:^|\n)\S{0,40}sh: (?:\d+: |line \d+: )?\S{1,60}: not found\b")
_MODULE = re.compile(r"no module named '?(?P<python>[\w.]+)|cannot find (?:module|package) '(?P<node>[^'./][^']*)'")
_TIMED_OUT = ("timed out", "timeout", "deadline")


def environment_fault(ran: Ran, *, is_own_server: bool) -> str | None:
    """The words by which a failed run is told to be the environment's fault; None where it is not.

    `is_own_server` says that what was asked for an answer is what the agent itself has just made.
    """
    text = ran.text.lower()
    if found := _first(text, _MACHINE) or _first(text, _NETWORK):
        return None if is_own_server and "timed out" in found else found
    if not is_own_server and (found := _first(text, _SERVICE) or _status(text) or _first(text, _REFUSED)):
        return found
    if ran.exit_code == 127 or _NOT_FOUND.search(text):
        return "command not found"
    if found := _first(text, _PROGRAM):
        return found
    return _missing_library(text) or _slow_outside(ran, text)


def _first(text: str, needles: tuple[str, ...]) -> str | None:
    return next((needle for needle in needles if needle in text), None)


def _status(text: str) -> str | None:
    found = _STATUS.search(text)
    return f"status {found['code']}" if found else None


def _missing_library(text: str) -> str | None:
    found = _MODULE.search(text)
    if found is None:
        return None
    name = found["node"] or (found["python"] or "").split(".")[0]
    return f"{name} is not installed" if found["node"] or name in _INSTALLABLE else None


def _slow_outside(ran: Ran, text: str) -> str | None:
    """A command that talks to the outside and was given up on."""
    if ran.exit_code != 124 and not any(word in text for word in _TIMED_OUT):
        return None
    return "timed out" if shell.Use.NETWORK in shell.uses(ran.command) else None
