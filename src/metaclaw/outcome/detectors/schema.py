"""A call that does not fit its tool's schema, or an answer that has not the form its client needs."""

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.results import Meaning
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.tables import programs_of
from metaclaw.outcome.weights import signal

# Clients without a tool result to hang it on write this in the person's name.
_NOTES = programs_of("note_schema")


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Rejected calls."""
    if found := seen.found(Meaning.SCHEMA):
        return (signal("schema.rejected", found.quote),)
    for note in seen.notes:
        low = note[:600].lower()
        if sign := next((sign for sign in _NOTES if sign in low), None):
            return (signal("schema.rejected", sign),)
    return ()
