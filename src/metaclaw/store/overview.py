"""Queries over many sessions and turns, for the web pages. All block, and read a bounded number of
rows.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, ScalarSelect, and_, func, or_, select, tuple_

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.store.database import Database
from metaclaw.store.deduplication import rebuild_body
from metaclaw.store.generations import skill_of
from metaclaw.store.rows import (
    LedgerEvent,
    SessionRow,
    event_of,
    pack_instant,
    session_of,
    unpack_instant,
    unpack_placed,
)
from metaclaw.store.schema import (
    events,
    generations,
    memberships,
    payloads,
    sessions,
    skill_texts,
    stands,
    turns,
)

_RECENT_TURNS = 2000
_RECENT_CALLS = 1000
_RECENT_EVENTS = 5000


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """A filter for a list of sessions. `text` is searched in ids, agents, projects and users;
    `titled` are sessions whose titles contain it. One of a session's turns must have the `outcome`.
    Sessions without a main turn match only `with_side_only`."""

    text: str = ""
    agent: str = ""
    outcome: Outcome | None = None
    titled: Collection[SessionId] = ()
    with_side_only: bool = False


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """The request of a session's first main turn, for its title."""

    session: SessionId
    agent: str
    wire: Wire
    request: bytes


@dataclass(frozen=True, slots=True)
class TurnPlace:
    """The session, agent, workspace and time of a turn."""

    turn: TurnId
    session: SessionId
    agent: str
    workspace: str | None
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


class Overview:
    """Reads for the pages. Raises StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def sessions(
        self, wanted: SessionFilter, limit: int, before: SessionId | None = None
    ) -> list[SessionRow]:
        """The matching sessions, the one with the newest request first; only those behind the
        session `before`, if given.
        """
        query = (
            select(sessions)
            .where(*_conditions(wanted))
            .order_by(sessions.c.last_us.desc(), sessions.c.id.desc())
            .limit(limit)
        )
        if before is not None:
            mark = sessions.alias("mark")
            place = select(mark.c.last_us, mark.c.id).where(mark.c.id == before).scalar_subquery()
            query = query.where(tuple_(sessions.c.last_us, sessions.c.id) < place)
        return self._database.read("listing sessions", query, session_of)

    def count(self, wanted: SessionFilter) -> int:
        """The number of matching sessions."""
        query = select(func.count()).select_from(sessions).where(*_conditions(wanted))
        return self._database.read_number("counting sessions", query)

    def ids(self) -> list[SessionId]:
        """All sessions with a main turn, the one with the newest request first."""
        query = (
            select(sessions.c.id)
            .where(sessions.c.main_turns > 0)
            .order_by(sessions.c.last_us.desc(), sessions.c.id.desc())
        )
        return self._database.read("listing sessions", query, lambda row: SessionId(row.id))

    def agents(self) -> list[str]:
        """The agents of the recorded sessions, sorted by name."""
        return sorted(
            self._database.read(
                "listing agents",
                select(sessions.c.agent).distinct(),
                lambda row: row.agent,
            )
        )

    def outcomes(self, wanted: Collection[SessionId]) -> dict[SessionId, dict[Outcome, int]]:
        """The number of turns by outcome, for each of these sessions."""
        query = (
            select(turns.c.session, stands.c.outcome, func.count())
            .join(stands, stands.c.turn == turns.c.seq)
            .where(turns.c.session.in_(wanted))
            .group_by(turns.c.session, stands.c.outcome)
        )
        found: dict[SessionId, dict[Outcome, int]] = {}
        with self._database.reading("counting verdicts") as connection:
            for session, outcome, count in connection.execute(query):
                found.setdefault(SessionId(session), {})[Outcome(outcome)] = count
        return found

    def failed(self, wanted: Collection[SessionId]) -> dict[SessionId, int]:
        """The number of main turns without an answer, for each of these sessions."""
        mine = and_(
            turns.c.session.in_(wanted),
            turns.c.kind == TurnKind.MAIN.value,
        )
        query = (
            select(turns.c.session, func.count())
            .where(mine, turns.c.outcome == TurnEnd.FAILED.value)
            .group_by(turns.c.session)
        )
        with self._database.reading("counting failed turns") as connection:
            return {SessionId(session): count for session, count in connection.execute(query)}

    def openings(self, wanted: Collection[SessionId]) -> list[FirstRequest]:
        """The first main request of each of these sessions that has one."""
        mine = and_(
            turns.c.session.in_(wanted),
            turns.c.kind == TurnKind.MAIN.value,
        )
        firsts = (
            select(func.min(turns.c.seq).label("seq"))
            .where(mine)
            .group_by(turns.c.session)
            .subquery()
        )
        query = select(turns.c.seq, turns.c.session, turns.c.agent, turns.c.wire).join(
            firsts, firsts.c.seq == turns.c.seq
        )
        with self._database.reading("reading how sessions began") as connection:
            return [
                FirstRequest(
                    SessionId(row.session),
                    row.agent,
                    Wire(row.wire),
                    rebuild_body(connection, payloads, row.seq) or b"",
                )
                for row in connection.execute(query).all()
            ]

    def places_of(self, wanted: Collection[TurnId]) -> dict[TurnId, TurnPlace]:
        """Session, agent, workspace and time of these turns; deleted turns are left out."""
        columns = (
            turns.c.id,
            turns.c.session,
            turns.c.agent,
            turns.c.workspace_id,
            turns.c.received_us,
        )
        query = select(*columns).where(turns.c.id.in_(wanted))
        rows = self._database.rows("reading where turns belong", query)
        found = [
            TurnPlace(
                TurnId(row.id),
                SessionId(row.session),
                row.agent,
                row.workspace_id,
                unpack_instant(row.received_us),
            )
            for row in rows
        ]
        return {place.turn: place for place in found}

    def newest_turn(self) -> int:
        """The number of the newest turn; 0 if there is none."""
        return self._database.read_number("reading the newest turn", select(func.max(turns.c.seq)))

    def last_placed(self) -> dict[SkillName, LastPlaced]:
        """The last turn in which each rule and skill was placed, among the recent turns."""
        columns = (turns.c.id, turns.c.session, turns.c.agent, turns.c.skills, turns.c.received_us)
        query = (
            select(*columns)
            .where(turns.c.seq > _newest() - _RECENT_TURNS, turns.c.skills != "[]")
            .order_by(turns.c.seq.desc())
        )
        found: dict[SkillName, LastPlaced] = {}
        times: dict[SkillName, int] = {}
        with self._database.reading("reading what was placed") as connection:
            for row in connection.execute(query):
                for name in map(SkillName, unpack_placed(row.skills)[0]):
                    times[name] = times.get(name, 0) + 1
                    if name not in found:
                        at = unpack_instant(row.received_us)
                        session = SessionId(row.session)
                        found[name] = LastPlaced(TurnId(row.id), session, row.agent, at, 0)
        return {
            name: LastPlaced(one.turn, one.session, one.agent, one.at, times[name])
            for name, one in found.items()
        }

    def calls(self, since: datetime) -> list[ProviderCall]:
        """The recent answers of providers, newest first."""
        names = (
            "provider",
            "model",
            "received_us",
            "outcome",
            "status",
            "error",
            "first_byte_s",
            "duration_s",
        )
        is_recent = and_(
            turns.c.seq > _newest() - _RECENT_CALLS, turns.c.received_us >= pack_instant(since)
        )
        query = (
            select(*(turns.c[name] for name in names)).where(is_recent).order_by(turns.c.seq.desc())
        )
        return self._database.read(
            "reading how providers answered",
            query,
            lambda row: ProviderCall(
                row.provider,
                row.model,
                unpack_instant(row.received_us),
                TurnEnd(row.outcome),
                row.status,
                row.error,
                row.first_byte_s,
                row.duration_s,
            ),
        )

    def versions_of(self, name: str, limit: int = 50) -> list[SkillVersion]:
        """The texts of a rule or skill, newest first."""
        query = (
            select(
                memberships.c.since,
                memberships.c.until,
                generations.c.published_us,
                generations.c.reason,
                skill_texts,
            )
            .join(skill_texts, skill_texts.c.hash == memberships.c.skill)
            .join(generations, generations.c.number == memberships.c.since)
            .where(memberships.c.name == name)
            .order_by(memberships.c.since.desc())
            .limit(limit)
        )
        return self._database.read(
            "reading versions of a skill",
            query,
            lambda row: SkillVersion(
                skill_of(row),
                row.since,
                row.until,
                unpack_instant(row.published_us) if row.published_us else None,
                row.reason,
            ),
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
                events.c.at_us >= pack_instant(since),
            )
            .order_by(events.c.seq.desc())
            .limit(limit)
        )
        return self._database.read("reading what happened", query, event_of)


def _newest() -> ScalarSelect[int]:
    return select(func.coalesce(func.max(turns.c.seq), 0)).scalar_subquery()


def _conditions(wanted: SessionFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [] if wanted.with_side_only else [sessions.c.main_turns > 0]
    if wanted.agent:
        found.append(sessions.c.agent == wanted.agent)
    if words := wanted.text.split():
        columns = (sessions.c.id, sessions.c.agent, sessions.c.workspace_id, sessions.c.user_id)
        said = (
            or_(*(column.icontains(word, autoescape=True) for column in columns)) for word in words
        )
        found.append(or_(and_(*said), sessions.c.id.in_(wanted.titled)))
    if wanted.outcome is not None:
        judged = (
            select(turns.c.session)
            .join(stands, stands.c.turn == turns.c.seq)
            .where(stands.c.outcome == wanted.outcome.value)
        )
        found.append(sessions.c.id.in_(judged))
    return found
