"""Acknowledgements: one line at the end of a session's next answer that says which rules were noted
(`learning.acknowledge`). Unless it is set, only the first lessons of a home are acknowledged, and
only in a client in which a person reads the answer. Output that a program reads gets no line.

They are kept in memory only, and lost when the process ends. The line is added to what the client
is shown; the model's own answer is recorded without it, and so are the tokens that weights may be
trained on."""

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Origin, TurnKind
from metaclaw.proxy.http.client import Incoming
from metaclaw.wires import Footer, wire_format

_MOST_SESSIONS: Final = 1024
_MOST_CHARS: Final = 300
_FIRST_LESSONS: Final = 10
# `claude -p` and its SDK name themselves `sdk-…`.
_HEADLESS: Final = re.compile(r"\(external, sdk|codex_exec")
# Clients whose runs without a person can be told from the others, or that have none.
_INTERACTIVE: Final = frozenset(("claude-code", "codex", "openclaw", "hermes", "copaw"))


class Acknowledgements:
    """Changed rules that have not been acknowledged yet, by session. `session_of` returns the
    session of a turn, `lessons` how many lessons this home has learned; both block. `is_on` is the
    setting.
    """

    def __init__(
        self,
        session_of: Callable[[TurnId], SessionId | None],
        is_on: bool | None = None,
        lessons: Callable[[], int] = lambda: 0,
    ) -> None:
        self._session_of, self._is_on, self._lessons = session_of, is_on, lessons
        self.notes: OrderedDict[SessionId, dict[SkillName, str]] = OrderedDict()
        """The lines to add, by rule; empty if nothing is to be acknowledged."""

    def noted(self, put: Sequence[Skill], gone: Sequence[Skill], turns: Sequence[TurnId]) -> None:
        """Remember rules that the newest of these turns put in force or retired. Call from a
        thread.
        """
        if self._is_on is False or (self._is_on is None and self._lessons() >= _FIRST_LESSONS):
            return
        session = self._session_of(turns[-1]) if turns else None
        if session is None:
            return
        notes = dict(
            self.notes.get(session, {})
        )  # a copy, because the event loop may be reading the original
        for rule in gone:
            if notes.pop(rule.name, None) is None and not put:
                notes[rule.name] = f"no longer in force: {_one_line(rule)}"
        notes |= {rule.name: _one_line(rule) for rule in put}
        self.notes[session] = notes
        while len(self.notes) > _MOST_SESSIONS:
            self.notes.popitem(last=False)

    def footer(self, incoming: Incoming, origin: Origin) -> Footer | None:
        """The footer that adds the line to the answer of this request; None if there is nothing to
        acknowledge.
        """
        if origin.kind is not TurnKind.MAIN or origin.parent is not None:
            return None
        notes = self.notes.get(origin.session)
        if not notes or wire_format(incoming.wire).wants_json(incoming.json):
            return None
        headers = incoming.headers
        client = f"{headers.get('user-agent', '')} {headers.get('originator', '')}"
        is_told = self._is_on is True or origin.agent in _INTERACTIVE
        if not is_told or _HEADLESS.search(client):
            return None
        return Footer(incoming.wire, _line(list(notes.values())))

    def acknowledged(self, session: SessionId) -> None:
        """Drop the session's notes, because the line was added."""
        self.notes.pop(session, None)


def _one_line(rule: Skill) -> str:
    unknown_project = (
        " (in all your projects: it is not known which one you meant; `metaclaw rules edit"
        f" {rule.name} --project FOLDER`)"
    )
    return " ".join(rule.body.split()) + (unknown_project if rule.is_project_unknown else "")


def _line(notes: Sequence[str]) -> str:
    text = "; ".join(notes)
    return (
        f"\n\nNoted: {text if len(text) <= _MOST_CHARS else text[: _MOST_CHARS - 1] + '…'} — undo"
        " with `metaclaw undo`"
    )
