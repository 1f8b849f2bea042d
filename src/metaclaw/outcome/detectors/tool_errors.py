"""A tool says that what it was asked to do is wrong: no such text, no such file, no such tool; or aider could not apply an edit."""

from metaclaw.domain.verdict import Signal
from metaclaw.outcome.results import Meaning
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.tables import programs_of
from metaclaw.outcome.weights import signal

# aider has no tools: it answers in the person's name.
_NOTES = programs_of("note_edit")


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Errors that tools report."""
    if found := seen.found(Meaning.ERROR):
        return (signal("tool_error.reported", found.quote),)
    if found := seen.found(Meaning.UNKNOWN_TOOL):
        return (signal("tool_error.no_such_tool", found.quote),)
    for note in seen.notes:
        low = note[:600].lower()
        if any(sign in low for sign in _NOTES):
            return (signal("tool_error.reported", note),)
    return ()
