"""What the turn did is taken back: the person asks for it, does it with their own hands, or the agent's next answer does."""

import re

import msgspec

from metaclaw.domain.chat import ToolCall
from metaclaw.domain.verdict import Signal
from metaclaw.outcome import phrases, shell
from metaclaw.outcome.reading import ToolKind, command_of, is_edit, tool_kind
from metaclaw.outcome.seen import Seen
from metaclaw.outcome.weights import signal
from metaclaw.outcome.words import spoken

_OWN_COMMAND = re.compile(r"<bash-input>([^<]{1,400})</bash-input>|<user_shell_command>[\s\S]{0,80}?<command>([^<]{1,400})")
_MAX_ARGUMENTS = 100_000


class _Edit(msgspec.Struct):
    """An edit's two texts, by the names that clients give them."""

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


def detect(seen: Seen) -> tuple[Signal, ...]:
    """Work that was taken back."""
    if quote := seen.reply.undo:
        return (signal("undone.asked", quote),)
    for note in seen.notes:
        found = _OWN_COMMAND.search(note)
        if found and shell.undoes(found[1] or found[2]):
            return (signal("undone.by_person", found[1] or found[2]),)
    quote = _undone_later(seen)
    return (signal("undone.by_agent", quote),) if quote else ()


def _undone_later(seen: Seen) -> str | None:
    """What the next answer does to this one's edits, where nobody had asked for it."""
    if seen.later is None or seen.has_said or not any(map(is_edit, seen.step.calls)):
        return None
    if phrases.UNDO.find(spoken(seen.step.task)):
        return None
    opposite = {texts[::-1] for call in seen.step.calls if (texts := _texts(call))}
    for call in seen.later.calls:
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
