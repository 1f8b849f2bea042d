"""The person is content: praise, thanks, a yes; or takes the blame themselves."""

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Signs of content."""
    reply = seen.reply
    found = []
    if reply.accepted:
        found.append(signal(f"accepted.{reply.accepted[0]}", reply.accepted[1]))
    if reply.excuses and not reply.is_negative:
        found.append(signal("accepted.excused", reply.excuses))
    return tuple(found)
