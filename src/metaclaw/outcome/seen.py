"""What detectors look at: a step read once, what its tool results mean, and what the person's reply says."""

from functools import cached_property

from metaclaw.outcome.reading import Reading
from metaclaw.outcome.reply import Reply, read_reply
from metaclaw.outcome.results import Finding, Meaning, findings


class Seen(Reading):
    """A step, seen with what followed it."""

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What each answered call came to."""
        return findings(self)

    @cached_property
    def reply(self) -> Reply:
        """What the person's next words say about the answer."""
        return read_reply(self)

    def found(self, *meanings: Meaning) -> Finding | None:
        """The first result of such a meaning."""
        return next((finding for finding in self.findings if finding.meaning in meanings), None)
