"""Work that goes its way: every call was answered and no answer is a failure. Where the person spoke, their words count."""

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.results import GOOD, Meaning
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Calls that went well."""
    if seen.has_said or not seen.findings or any(finding.meaning not in GOOD for finding in seen.findings):
        return ()
    if seen.found(Meaning.EXPECTED):
        return (signal("progress.expected", seen.findings[-1].quote),)
    if found := seen.found(Meaning.ANSWER):
        return (signal("progress.answer", found.quote),)
    return (signal("progress.tools", f"{len(seen.findings)} calls went well"),)
