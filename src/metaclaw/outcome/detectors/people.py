"""Detectors of what people do next: correct, repeat, interrupt, revert, accept, or go on."""

import re

import msgspec

from metaclaw.domain.chat import ToolCall
from metaclaw.domain.turn import TurnEnd
from metaclaw.domain.verdict import Signal
from metaclaw.outcome import phrases, shell
from metaclaw.outcome.detectors.tools import environment_faults
from metaclaw.outcome.phrases import spoken
from metaclaw.outcome.reading import ToolKind, command_of, is_edit, tool_kind
from metaclaw.outcome.results import ResultMeaning
from metaclaw.outcome.signals import ObservedStep, signal


def corrections(observed: ObservedStep) -> tuple[Signal, ...]:
    """The user corrects the answer."""
    return tuple(signal(f"correction.{kind}", quote) for kind, quote in observed.reply.corrections)


def repeated_requests(observed: ObservedStep) -> tuple[Signal, ...]:
    """The user repeats the request. After a failed turn it is the client that does."""
    if observed.step.end is TurnEnd.FAILED:
        return ()
    return tuple(signal(f"redo.{kind}", quote) for kind, quote in observed.reply.redo)


def interruptions(observed: ObservedStep) -> tuple[Signal, ...]:
    """The user stopped the agent or refused a call, unless they say that it was not because of the answer."""
    if observed.reply.excuses or observed.reply.accepted or (phrases.RESUME.find(observed.said) and not observed.reply.corrections):
        return ()
    if found := observed.found(ResultMeaning.REFUSED):
        return (signal("interrupt.refused", found.quote),)
    if quote := _stopped(observed):
        return (signal("interrupt.stopped", quote),)
    if observed.step.end is TurnEnd.CANCELLED and not environment_faults(observed):
        return (signal("interrupt.hung_up", "the client went away"),)
    return ()


def _stopped(observed: ObservedStep) -> str | None:
    if found := observed.found(ResultMeaning.STOPPED):
        return found.quote
    for note in observed.notes:
        if len(note) < 600 and (quote := phrases.INTERRUPTED.find(spoken(note))):
            return quote
    return None


_OWN_COMMAND = re.compile(r"<bash-input>([^<]{1,400})</bash-input>|<user_shell_command>[\s\S]{0,80}?<command>([^<]{1,400})")
_MAX_ARGUMENTS = 100_000


class _Edit(msgspec.Struct):
    """The old and new text of an edit, under the names that clients use."""

    old_string: str | None = None
    new_string: str | None = None
    oldString: str | None = None  # noqa: N815
    newString: str | None = None  # noqa: N815
    oldText: str | None = None  # noqa: N815
    newText: str | None = None  # noqa: N815
    old_str: str | None = None
    new_str: str | None = None

    @property
    def texts(self) -> tuple[str, str] | None:
        """Before and after."""
        before = next((one for one in (self.old_string, self.oldString, self.oldText, self.old_str) if one is not None), None)
        after = next((one for one in (self.new_string, self.newString, self.newText, self.new_str) if one is not None), None)
        return (before, after) if before is not None and after is not None else None


_edit = msgspec.json.Decoder(_Edit)


def reverted_work(observed: ObservedStep) -> tuple[Signal, ...]:
    """The work of the turn is reverted, by the user's request or command or by the agent's next answer."""
    if quote := observed.reply.undo:
        return (signal("undone.asked", quote),)
    for note in observed.notes:
        found = _OWN_COMMAND.search(note)
        if found and shell.undoes(found[1] or found[2]):
            return (signal("undone.by_person", found[1] or found[2]),)
    quote = _undone_later(observed)
    return (signal("undone.by_agent", quote),) if quote else ()


def _undone_later(observed: ObservedStep) -> str | None:
    """How the next answer reverts this one's edits without being asked to; None if it does not."""
    if observed.later is None or observed.has_said or not any(map(is_edit, observed.step.calls)):
        return None
    if phrases.UNDO.find(spoken(observed.step.task)):
        return None
    opposite = {texts[::-1] for call in observed.step.calls if (texts := _texts(call))}
    for call in observed.later.calls:
        if tool_kind(call.name) is ToolKind.SHELL and shell.undoes(command := command_of(call)):
            return command
        if (texts := _texts(call)) and texts in opposite:
            return f"{call.name} puts back {texts[1]}"
    return None


def _texts(call: ToolCall) -> tuple[str, str] | None:
    if tool_kind(call.name) is not ToolKind.EDIT or len(call.arguments) > _MAX_ARGUMENTS:
        return None
    try:
        return _edit.decode(call.arguments).texts
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def acceptance(observed: ObservedStep) -> tuple[Signal, ...]:
    """The user is content, or takes the blame."""
    reply = observed.reply
    found = []
    if reply.accepted:
        found.append(signal(f"accepted.{reply.accepted[0]}", reply.accepted[1]))
    if reply.excuses and not reply.is_negative:
        found.append(signal("accepted.excused", reply.excuses))
    return tuple(found)


def next_sentence(observed: ObservedStep) -> tuple[Signal, ...]:
    """The kind of sentence the user goes on with, if no phrase tells what they think of the answer."""
    reply = observed.reply
    if not observed.has_said or reply.is_negative:
        return ()
    if observed.asked_back and (phrases.ASSENT.opens(observed.said) or phrases.DENIALS.opens(observed.said)):
        return (signal("progress.answered", observed.said.strip()),)
    if reply.next is None or reply.accepted:
        return ()
    return (signal(*reply.next),)
