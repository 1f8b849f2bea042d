"""What failed was not the agent: network, quota, disk, rights, a missing program, a service outside, the model's provider."""

from metaclaw.domain.turn import TurnEnd
from metaclaw.domain.verdict import Fault, Signal
from metaclaw.outcome.results import Meaning
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal
from metaclaw.outcome.words import likeness


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Faults of the environment."""
    if seen.reply.corrections:
        return ()  # the person says that the agent should have known
    if found := seen.found(Meaning.ENVIRONMENT):
        return (signal("environment.fault", found.quote, Fault.ENVIRONMENT),)
    if seen.step.end is TurnEnd.FAILED:
        return (signal("environment.provider", "the provider failed", Fault.ENVIRONMENT),)
    if _was_sent_again(seen):
        return (signal("environment.line", "the same request came again", Fault.ENVIRONMENT),)
    return ()


def _was_sent_again(seen: Seen) -> bool:
    """The line broke before the answer was whole, and the client, not the person, repeated the request."""
    said = seen.step.said_after
    if seen.step.end is not TurnEnd.CANCELLED or said is None:
        return False
    like = likeness(seen.step.task, said)
    return said.strip() == seen.step.task.strip() or (like.size > 0 and like.lost == like.added == 0)
