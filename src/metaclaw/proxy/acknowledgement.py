"""Acknowledgements: one line at the end of a session's next answer that says which rules were noted (`learning.acknowledge`).

They are kept in memory only; one that is lost with the process does no harm. The line is added to what the client is shown; the
model's own answer is recorded as it was, and so are the tokens that weights may be trained on.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Origin, TurnKind
from metaclaw.proxy.http.client import Incoming
from metaclaw.skills import UNKNOWN_PROJECT, rule_text
from metaclaw.wires import Footer, wire_format

_MOST_SESSIONS: Final = 1024
_MOST_CHARS: Final = 300


class Acknowledgements:
    """Notes that wait to be acknowledged, by session. `session_of` finds the session of a turn; it blocks."""

    def __init__(self, session_of: Callable[[TurnId], SessionId | None]) -> None:
        self._session_of = session_of
        self._notes: OrderedDict[SessionId, dict[SkillName, str]] = OrderedDict()

    def noted(self, put: Sequence[Skill], gone: Sequence[Skill], turns: Sequence[TurnId]) -> None:
        """Rules came into force or went, because of what was said in the newest of these turns. Call from a thread."""
        session = self._session_of(turns[-1]) if turns else None
        if session is None:
            return
        notes = dict(self._notes.get(session, {}))  # the event loop may be reading the other
        for rule in gone:
            if notes.pop(rule.name, None) is None and not put:
                notes[rule.name] = f"no longer in force: {_one_line(rule)}"
        notes |= {rule.name: _one_line(rule) for rule in put}
        self._notes[session] = notes
        while len(self._notes) > _MOST_SESSIONS:
            self._notes.popitem(last=False)

    def footer(self, incoming: Incoming, origin: Origin) -> Footer | None:
        """The footer with the line for the answer to this request; None where nothing is to be acknowledged."""
        if not self._notes or origin.kind is not TurnKind.MAIN or origin.parent is not None:
            return None
        notes = self._notes.get(origin.session)
        if not notes or wire_format(incoming.wire).wants_json(incoming.json):
            return None
        return Footer(incoming.wire, _line(list(notes.values())))

    def told(self, session: SessionId) -> None:
        """The session's line was added."""
        self._notes.pop(session, None)


def _one_line(rule: Skill) -> str:
    where = f" (in all your projects: it is not known which one you meant; `metaclaw rules edit {rule.name} --project FOLDER`)"
    return " ".join(rule_text(rule).split()) + (where if rule.extra.get("project") == UNKNOWN_PROJECT else "")


def _line(words: Sequence[str]) -> str:
    said = "; ".join(words)
    return f"\n\nNoted: {said if len(said) <= _MOST_CHARS else said[: _MOST_CHARS - 1] + '…'} — undo with `metaclaw undo`"
