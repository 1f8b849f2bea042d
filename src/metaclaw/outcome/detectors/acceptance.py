"""The person is content: praise, thanks, a yes; or simply goes on to the next thing."""

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Signs of content."""
    reply = seen.reply
    found = []
    if reply.accepted:
        found.append(signal(f"accepted.{reply.accepted[0]}", reply.accepted[1]))
    if reply.goes_on:
        found.append(signal(f"progress.{reply.goes_on[0]}", reply.goes_on[1]))
    if reply.excuses and not reply.is_negative:
        found.append(signal("accepted.excused", reply.excuses))
    if seen.has_said and seen.asked_back and not reply.is_negative:
        found.append(signal("progress.answered", seen.said.strip()))
    return tuple(found)
