"""Queries over many sessions and turns, for the web pages. All block, and read a bounded number of
rows.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, ScalarSelect, and_, func, or_, select, tuple_

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.store.database import Queries
from metaclaw.store.deduplication import rebuild_body
from metaclaw.store.generations import select_members, skill_of
from metaclaw.store.rows import (
    LedgerEvent,
    SessionRow,
    event_of,
    session_of,
    unpack_placed,
)
from metaclaw.store.schema import (
    events,
    generations,
    memberships,
    payloads,
    sessions,
    stands,
    turns,
)

_RECENT_TURNS = 2000
_RECENT_CALLS = 1000
_RECENT_EVENTS = 5000


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """A filter for a list of sessions. `text` is searched in ids, agents, projects and users;
    `titled` are sessions whose titles contain it. One of a session's turns must have the `outcome`,
    and one the `model`. Sessions without a main turn match only `with_side_only`."""

    text: str = ""
    agent: str = ""
    model: str = ""
    project: str = ""
    person: str = ""
    outcome: Outcome | None = None
    titled: Collection[SessionId] = ()
    with_side_only: bool = False


ALL_SESSIONS = SessionFilter(with_side_only=True)


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """The request of a session's first main turn, for its title."""

    session: SessionId
    agent: str
    wire: Wire
    request: bytes


@dataclass(frozen=True, slots=True)
class TurnPlace:
    """The session, agent, workspace, channel and time of a turn."""

    turn: TurnId
    session: SessionId
    agent: str
    workspace: str | None
    channel: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class LastPlaced:
    """The last turn in whose prompt a rule or skill was placed, and the number of recent turns with
    it.
    """

    turn: TurnId
    session: SessionId
    agent: str
    at: datetime
    times: int


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """One answer of a provider, without its text."""

    provider: str
    model: str
    at: datetime
    end: TurnEnd
    status: int
    error: str | None
    first_byte_s: float | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class SkillVersion:
    """A text of a rule or skill, in force from generation `since` until `until` (None: still)."""

    skill: Skill
    since: int
    until: int | None
    at: datetime | None
    reason: str


class Overview(Queries):
    """Reads for the pages. Raises StoreError. For a `user` there are no sessions and turns of
    others."""

    def sessions(
        self, wanted: SessionFilter, limit: int, before: SessionId | None = None
    ) -> list[SessionRow]:
        """The matching sessions, the one with the newest request first; only those behind the
        session `before`, if given.
        """
        query = select(sessions).where(*_conditions(wanted), self._of_user(sessions))
        query = query.order_by(*_LATEST_FIRST).limit(limit)
        if before is not None:
            mark = sessions.alias("mark")
            place = select(*mark.c["last_us", "id"]).where(mark.c.id == before).scalar_subquery()
            query = query.where(tuple_(*sessions.c["last_us", "id"]) < place)
        return self._database.read("listing sessions", query, session_of)

    def count(self, wanted: SessionFilter) -> int:
        """The number of matching sessions."""
        query = select(func.count()).select_from(sessions)
        query = query.where(*_conditions(wanted), self._of_user(sessions))
        return self._database.read_number("counting sessions", query)

    def ids(self) -> list[SessionId]:
        """All sessions with a main turn, the one with the newest request first."""
        query = select(sessions.c.id).where(sessions.c.main_turns > 0, self._of_user(sessions))
        query = query.order_by(*_LATEST_FIRST)
        return self._database.records("listing sessions", query, SessionId)

    def outcomes(self, wanted: Collection[SessionId]) -> dict[SessionId, dict[Outcome, int]]:
        """The number of turns by outcome, for each of these sessions."""
        key = turns.c.session, stands.c.outcome
        query = (
            select(*key, func.count())
            .select_from(turns)
            .join(stands)
            .where(turns.c.session.in_(wanted))
            .group_by(*key)
        )
        found: dict[SessionId, dict[Outcome, int]] = {}
        for session, outcome, count in self._database.rows("counting verdicts", query):
            found.setdefault(session, {})[outcome] = count
        return found

    def failed(self, wanted: Collection[SessionId]) -> dict[SessionId, int]:
        """The number of main turns without an answer, for each of these sessions."""
        query = select(turns.c.session, func.count().label("times")).group_by(turns.c.session)
        is_failed = turns.c.outcome == TurnEnd.FAILED
        rows = self._database.rows(
            "counting failed turns", query.where(_is_main_in(wanted), is_failed)
        )
        return {row.session: row.times for row in rows}

    def openings(self, wanted: Collection[SessionId]) -> list[FirstRequest]:
        """The first main request of each of these sessions that has one."""
        firsts = select(func.min(turns.c.seq)).where(_is_main_in(wanted)).group_by(turns.c.session)
        query = select(*turns.c["session", "agent", "wire", "seq"]).where(turns.c.seq.in_(firsts))
        with self._database.reading("reading how sessions began") as connection:
            return [
                FirstRequest(
                    row.session,
                    row.agent,
                    row.wire,
                    rebuild_body(connection, payloads, row.seq) or b"",
                )
                for row in connection.execute(query).all()
            ]

    def places_of(self, wanted: Collection[TurnId]) -> dict[TurnId, TurnPlace]:
        """Session, agent, workspace, channel and time of these turns; deleted turns are left out."""
        columns = turns.c["id", "session", "agent", "workspace_id", "channel", "received_us"]
        query = select(*columns).where(turns.c.id.in_(wanted), self._of_user(turns))
        found = self._database.records("reading where turns belong", query, TurnPlace)
        return {place.turn: place for place in found}

    def newest_turn(self) -> int:
        """A number that grows with each turn; 0 if there is none."""
        newest = select(func.max(turns.c.seq))
        if self._user is not None:  # there is an index of turns neither by user nor by time
            newest = select(func.sum(sessions.c.turns)).where(self._of_user(sessions))
        return self._database.read_number("reading the newest turn", newest)

    def last_placed(self) -> dict[SkillName, LastPlaced]:
        """The last turn in which each rule and skill was placed, among the recent turns."""
        query = (
            select(*turns.c["skills", "id", "session", "agent", "received_us"])
            .where(turns.c.seq > _newest() - _RECENT_TURNS, turns.c.skills != "[]")
            .where(self._of_user(turns))
            .order_by(turns.c.seq.desc())
        )
        rows = self._database.rows("reading what was placed", query)
        placed = [(SkillName(name), row) for row in rows for name in unpack_placed(row.skills)[0]]
        times = Counter(name for name, _ in placed)
        # Of several turns the newest counts, which comes last here.
        return {
            name: LastPlaced(row.id, row.session, row.agent, row.received_us, times[name])
            for name, row in reversed(placed)
        }

    def calls(self, since: datetime) -> list[ProviderCall]:
        """The recent answers of providers, newest first."""
        query = (
            select(
                *turns.c[
                    "provider",
                    "model",
                    "received_us",
                    "outcome",
                    "status",
                    "error",
                    "first_byte_s",
                    "duration_s",
                ]
            )
            .where(turns.c.seq > _newest() - _RECENT_CALLS, turns.c.received_us >= since)
            .order_by(turns.c.seq.desc())
        )
        return self._database.records("reading how providers answered", query, ProviderCall)

    def versions_of(self, name: str, limit: int = 50) -> list[SkillVersion]:
        """The texts of a rule or skill, newest first."""
        query = (
            select_members(
                *memberships.c["since", "until"], *generations.c["published_us", "reason"]
            )
            .where(memberships.c.name == name)
            .order_by(memberships.c.since.desc())
            .limit(limit)
        )
        return self._database.read(
            "reading versions of a skill", query, lambda row: SkillVersion(skill_of(row), *row[:4])
        )

    def happened(
        self, kinds: Sequence[str], since: datetime, limit: int = 200
    ) -> list[LedgerEvent]:
        """Recent events of these kinds, newest first."""
        newest = select(func.coalesce(func.max(events.c.seq), 0)).scalar_subquery()
        query = (
            select(events)
            .where(
                events.c.seq > newest - _RECENT_EVENTS,
                events.c.kind.in_(kinds),
                events.c.at_us >= since,
            )
            .order_by(events.c.seq.desc())
            .limit(limit)
        )
        return self._database.read("reading what happened", query, event_of)


_LATEST_FIRST = sessions.c.last_us.desc(), sessions.c.id.desc()


def _is_main_in(wanted: Collection[SessionId]) -> ColumnElement[bool]:
    return and_(turns.c.session.in_(wanted), turns.c.kind == TurnKind.MAIN)


def _newest() -> ScalarSelect[int]:
    return select(func.coalesce(func.max(turns.c.seq), 0)).scalar_subquery()


def _conditions(wanted: SessionFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [] if wanted.with_side_only else [sessions.c.main_turns > 0]
    equal = (("agent", wanted.agent), ("workspace_id", wanted.project), ("user_id", wanted.person))
    found += [sessions.c[column] == value for column, value in equal if value]
    if wanted.model:
        found.append(
            sessions.c.id.in_(select(turns.c.session).where(turns.c.model == wanted.model))
        )
    if words := wanted.text.split():
        columns = sessions.c["id", "agent", "workspace_id", "user_id"]
        said = (
            or_(*(column.icontains(word, autoescape=True) for column in columns)) for word in words
        )
        found.append(or_(and_(*said), sessions.c.id.in_(wanted.titled)))
    if wanted.outcome is not None:
        judged = select(turns.c.session).join(stands).where(stands.c.outcome == wanted.outcome)
        found.append(sessions.c.id.in_(judged))
    return found
