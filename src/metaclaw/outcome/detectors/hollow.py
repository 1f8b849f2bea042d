"""A call that ended well and did nothing: no row, file or test was touched, or its object was not even there."""

import re

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.reading import ToolKind
from metaclaw.outcome.results import Meaning
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal

_NOTHING_DONE = re.compile(
    r"^(?:UPDATE|DELETE|INSERT 0|MERGE) 0$|\b0 rows? (?:affected|updated|deleted|changed)|\b0 files? changed|\b0 replacements?\b"
    r"|no tests ran|collected 0 items|no test files|no tests? (?:were )?found|nothing (?:added )?to commit"
    r"|no changes added to commit|\bno (?:files|changes) (?:were )?(?:changed|made|applied)|\bmodified 0\b"
    r"|nothing to (?:do|update|push)|no files? matched",
    re.MULTILINE,
)
_NOT_THERE = re.compile(r"[\w./-]{1,40}: (?:\S.{0,160}: )?no such file or directory", re.IGNORECASE)
_FEW_LINES = 2


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Calls that were hollow."""
    for ran, finding in zip(seen.ran, seen.findings, strict=True):
        if finding.meaning is not Meaning.FINE or ran.kind is not ToolKind.SHELL:
            continue
        if found := _NOTHING_DONE.search(ran.text):
            return (signal("hollow.nothing_done", found[0]),)
        lines = [line for line in ran.text.splitlines() if line.strip()]
        if 0 < len(lines) <= _FEW_LINES and all(_NOT_THERE.match(line) for line in lines):
            return (signal("hollow.not_there", lines[0]),)
    return ()
