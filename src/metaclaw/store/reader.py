"""Read the ledger. All functions block: call them from a thread, not from the event loop."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    exists,
    func,
    literal,
    literal_column,
    select,
    true,
)

from metaclaw.domain.candidate import Standing
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.training import RoleKind, TurnRole, TurnStanding
from metaclaw.domain.turn import (
    ATTEMPT,
    Exchange,
    ModelAt,
    Scope,
    SessionTrace,
    Splice,
    Turn,
    TurnKind,
)
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import StoreError
from metaclaw.store.compliance import IS_ATTEMPT, SqlCompliance, enforcement_of
from metaclaw.store.database import Queries
from metaclaw.store.deduplication import rebuild_body
from metaclaw.store.dialects import committed
from metaclaw.store.learning import select_with_standing, standing_of
from metaclaw.store.overview import ALL_SESSIONS, Overview
from metaclaw.store.rows import (
    LedgerEvent,
    ResultRow,
    SessionRow,
    TurnRow,
    event_of,
    placement_of,
    record,
    scope_of,
    session_of,
    tokens_of,
    turn_of,
    turn_row_of,
)
from metaclaw.store.schema import (
    candidates,
    events,
    payloads,
    placements,
    roles,
    session_ends,
    sessions,
    snippets,
    splices,
    stands,
    tokens,
    translations,
    turns,
)


@dataclass(frozen=True, slots=True)
class EndedSession:
    """The end of a session. `seq` is the cursor to read on from; `is_open` if the session has been
    opened again since.
    """

    seq: int
    id: SessionId
    is_open: bool


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A whole turn, equal to the one that was recorded, and its cursor."""

    seq: int
    turn: Turn


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """The number of sessions and turns in the ledger."""

    sessions: int
    turns: int
    main_turns: int


@dataclass(frozen=True, slots=True)
class LearningCounts:
    """Turns by current verdict, turns by role, and candidates by standing."""

    verdicts: dict[Outcome, int]
    support: int
    query: int
    candidates: dict[Standing, int]


T = TypeVar("T")

# Built once: building a statement takes longer than running it, and a turn is read for every turn
# that is made.
_TURN = select(turns).where(turns.c.id == bindparam("turn"))
_TOKENS = select(tokens).where(tokens.c.turn == bindparam("seq"))
_SAID = select(*payloads.c["splices", "said", "seen"]).where(payloads.c.turn == bindparam("seq"))


class LedgerReader(Queries):
    """Queries of the ledger, each a consistent snapshot. Raises StoreError. For a `user` there are
    no sessions, turns and events of others in what the API reads."""

    def sessions(self, limit: int = 50, before: SessionId | None = None) -> list[SessionRow]:
        """Sessions, the one with the newest request first; only those behind the session `before`,
        if given.
        """
        return Overview(self._database).sessions(ALL_SESSIONS, limit, before)

    def attempts_in(self, wanted: Sequence[SessionId]) -> dict[SessionId, int]:
        """The number of turns in these sessions that are attempts at answers of other turns."""
        query = select(turns.c.session, func.count().label("times")).group_by(turns.c.session)
        rows = self._database.rows(
            "counting attempts", query.where(turns.c.session.in_(wanted), IS_ATTEMPT)
        )
        return {row.session: row.times for row in rows}

    def broken_rules(self, turn: TurnId) -> list[tuple[SkillName, str]]:
        """The rules that a turn broke and that were not held, with the reasons."""
        return SqlCompliance(self._database).broken_in(turn)

    def workspaces(self) -> list[str]:
        """The projects of the recorded sessions, sorted by name."""
        query = select(sessions.c.workspace_id).distinct()
        return sorted(
            self._database.records(
                "listing projects",
                query.where(sessions.c.workspace_id.is_not(None), self._of_user(sessions)),
                str,
            )
        )

    def session(self, session: SessionId) -> SessionRow | None:
        query = select(sessions).where(sessions.c.id == session, self._of_user(sessions))
        return self._database.read_one("reading a session", query, session_of)

    def find_sessions(self, prefix: str, limit: int = 2) -> list[SessionId]:
        """Ids of sessions that begin with `prefix`, in order."""
        return self._database.ids(sessions, prefix, limit, SessionId, self._of_user(sessions))

    def find_turns(self, prefix: str, limit: int = 2) -> list[TurnId]:
        """Ids of turns that begin with `prefix`, in order."""
        return self._database.ids(turns, prefix, limit, TurnId, self._of_user(turns))

    def turns_of(self, session: SessionId, limit: int = 100, after: int = 0) -> list[TurnRow]:
        """A session's turns behind the cursor `after`, in the order they were recorded; without
        attempts.
        """
        is_mine = and_(turns.c.session == session, self._of_user(turns))
        return self._turns(is_mine, turns.c.seq > after, ~IS_ATTEMPT, limit=limit)

    def turns_after(self, after: int, limit: int = 100) -> list[TurnRow]:
        """Turns of all sessions, main and side, behind the cursor `after`. Reading on from the last
        one misses none.
        """
        is_committed = committed(self._database.kind, turns)
        return self._turns(turns.c.seq > after, ~IS_ATTEMPT, is_committed, limit=limit)

    def next_main_turn(self, session: SessionId, after: int) -> TurnRow | None:
        """The first main turn of a session behind the cursor `after`."""
        found = self._turns(_is_main_of(session), turns.c.seq > after, limit=1)
        return next(iter(found), None)

    def main_turns_before(self, session: SessionId, before: int, limit: int) -> list[TurnRow]:
        """The main turns of a session before the cursor `before`, newest first."""
        is_before = turns.c.seq < before
        return self._turns(_is_main_of(session), is_before, limit=limit, newest_first=True)

    def main_turns_of(
        self, user: str | None, before: int, limit: int, within: int = 5_000
    ) -> list[TurnRow]:
        """The main turns of a user (None: of requests without a user id) before the cursor
        `before`, newest first, among the last `within` turns of all sessions."""
        is_mine = turns.c.user_id.is_(None) if user is None else turns.c.user_id == user
        is_recent = turns.c.seq.between(before - within, before - 1)
        is_main = turns.c.kind == TurnKind.MAIN
        return self._turns(is_mine, is_recent, is_main, limit=limit, newest_first=True)

    def main_turns_since(self, since: datetime, before: int | None, limit: int) -> list[TurnRow]:
        """The main turns since then before the cursor `before`, newest first."""
        is_mine = and_(turns.c.kind == TurnKind.MAIN, self._of_user(turns))
        is_before = turns.c.seq < before if before is not None else true()
        is_recent = turns.c.received_us >= since
        return self._turns(is_mine, is_recent, is_before, limit=limit, newest_first=True)

    def last_main_turn(self, session: SessionId) -> TurnRow | None:
        return next(iter(self._turns(_is_main_of(session), limit=1, newest_first=True)), None)

    def _turns(
        self, *conditions: ColumnElement[bool], limit: int, newest_first: bool = False
    ) -> list[TurnRow]:
        order = turns.c.seq.desc() if newest_first else turns.c.seq
        query = select(turns).where(*conditions).order_by(order).limit(limit)
        return self._database.read("reading turns", query, turn_row_of)

    def newest_main_turn(self) -> TurnRow | None:
        """The main turn whose request came last, of the hundred that were recorded last."""
        is_mine = and_(turns.c.kind == TurnKind.MAIN, self._of_user(turns))
        recent = self._turns(is_mine, limit=100, newest_first=True)
        return max(recent, key=lambda turn: turn.times.received_at, default=None)

    def served_lately(self) -> list[ModelAt]:
        """The models that answered the two hundred newest requests of agents, the last one
        first.
        """
        recent = self._turns(turns.c.kind == TurnKind.MAIN, limit=200, newest_first=True)
        answered = (turn for turn in recent if turn.status < 400)
        return list(dict.fromkeys(ModelAt(turn.provider, turn.model) for turn in answered))

    def sessions_ended(self, after: int, limit: int = 100) -> list[EndedSession]:
        """Session ends behind the cursor `after`, in the order they were recorded. One session may
        end several times.
        """
        query = (
            select(session_ends, sessions.c.ended_us.is_(None))
            .select_from(session_ends)
            .join(sessions, sessions.c.id == session_ends.c.session)
            .where(session_ends.c.seq > after, committed(self._database.kind, session_ends))
            .order_by(session_ends.c.seq)
            .limit(limit)
        )
        return self._database.records("listing ended sessions", query, EndedSession)

    def turns_behind(self, cursor: int) -> int:
        """The number of turns behind this cursor, including deleted ones."""
        return self._behind(turns, cursor)

    def ends_behind(self, cursor: int) -> int:
        """The number of session ends behind this cursor, including those of deleted sessions."""
        return self._behind(session_ends, cursor)

    def _behind(self, table: Table, cursor: int) -> int:
        # Computed from the numbers, because a reader may be a million rows behind.
        newest = self._database.read_number("measuring a lag", select(func.max(table.c.seq)))
        return max(0, newest - cursor)

    def silent_sessions(self, since: datetime) -> list[SessionId]:
        """Sessions that have not ended and whose last request came before `since`."""
        query = select(sessions.c.id).where(
            sessions.c.ended_us.is_(None), sessions.c.last_us < since
        )
        return self._database.records("looking for silent sessions", query, SessionId)

    def last_received(self) -> datetime | None:
        """The time of the request of the last recorded turn."""
        query = select(turns.c.received_us).order_by(turns.c.seq.desc()).limit(1)
        return self._database.read_one(
            "reading the time of the last turn", query, lambda row: row.received_us
        )

    def has_channel(self, scope: Scope) -> bool:
        """Whether this person ever reached an agent by this channel."""
        query = (
            select(turns.c.seq)
            .where(
                turns.c.channel == scope.channel, turns.c.user_id.is_not_distinct_from(scope.user)
            )
            .limit(1)
        )
        return bool(self._database.rows("looking for a channel", query))

    def role_of(self, turn: TurnId) -> TurnRole | None:
        """The role of a turn, or None if it has none."""
        standing = self.standing_of(turn)
        return None if standing is None else standing.role

    def standing_of(self, turn: TurnId) -> TurnStanding | None:
        """Verdict, role and use in training of a turn; None if there is no such turn."""
        return self.standings_of([turn]).get(turn)

    def standings_of(self, wanted: Sequence[TurnId]) -> dict[TurnId, TurnStanding]:
        """Verdict, role and use in training of these turns; turns that are not in the ledger are
        left out.
        """
        query = select_with_standing(turns.c.id).where(turns.c.id.in_(wanted))
        rows = self._database.rows("reading what turns came to", query)
        found = {row.id: standing_of(row.id, row) for row in rows}
        return {turn: found[turn] for turn in wanted if turn in found}

    def learning_counts(self) -> LearningCounts:
        """Counts of verdicts, roles and candidates."""
        with self._database.reading("counting what was learned") as connection:
            verdicts, given, proposed = (
                dict(connection.execute(_counts_of(column)).all())
                for column in (stands.c.outcome, roles.c.kind, candidates.c.standing)
            )
        return LearningCounts(
            verdicts={outcome: verdicts.get(outcome, 0) for outcome in Outcome},
            support=given.get(RoleKind.SUPPORT, 0),
            query=given.get(RoleKind.QUERY, 0),
            candidates={standing: proposed.get(standing, 0) for standing in Standing},
        )

    def turn(self, turn: TurnId) -> RecordedTurn | None:
        """A whole turn, with its bytes and tokens."""
        with self._database.reading("reading a turn") as connection:
            row = connection.execute(_TURN, {"turn": turn}).one_or_none()
            if row is not None and self._user not in (None, row.user_id):
                return None
            return None if row is None else RecordedTurn(row.seq, _whole_turn(connection, row))

    def counts(self) -> LedgerCounts:
        """Counts of sessions and turns."""
        query = select(
            func.count(),
            func.coalesce(func.sum(sessions.c.turns), 0),
            func.coalesce(func.sum(sessions.c.main_turns), 0),
        ).select_from(sessions)
        (found,) = self._database.rows("counting", query)
        return LedgerCounts(*map(int, found))

    def recent_traces(self, since: datetime, limit: int = 1000) -> list[SessionTrace]:
        """The data by which to recognise the sessions that have not ended and were active since
        then, newest first. It comes from the last main turn of each, because a side turn has
        another conversation."""
        newest = (
            select(func.max(turns.c.seq))
            .where(turns.c.session == sessions.c.id)
            .correlate(sessions)
        )
        last = func.coalesce(
            newest.where(turns.c.kind == TurnKind.MAIN).scalar_subquery(),
            newest.scalar_subquery(),
        )
        order = sessions.c.last_us.desc(), sessions.c.id.desc()
        query = (
            select(sessions, turns.c.id.label("turn"), *turns.c["head", "segment", "channel"])
            .select_from(sessions)
            .join(turns, turns.c.seq == last)
            .where(sessions.c.ended_us.is_(None), sessions.c.last_us >= since)
            .order_by(*order)
            .limit(limit)
        )
        return self._database.read("remembering sessions", query, _trace)

    def trace_of(
        self, session: SessionId | None, heads: Collection[bytes], *, is_known: bool = False
    ) -> SessionTrace | None:
        """The data by which to recognise a session: the one of this name, else the newest whose
        last main turn had one of these digests. For one that is known, where a conversation in it
        was last.
        """
        is_main = turns.c.kind == literal_column("'main'")  # as in the index
        later = turns.alias("later")
        is_last = ~exists().where(
            later.c.session == turns.c.session,
            later.c.seq > turns.c.seq,
            later.c.kind == TurnKind.MAIN,
        )
        by_name = turns.c.session == session
        by_head = turns.c.head.in_(heads) & is_last
        wanted = ([by_name] if session else []) + ([by_head] if heads else [])
        if is_known:
            wanted = [by_name & turns.c.head.in_(heads)]
        for is_wanted in wanted:
            query = (
                select(sessions, turns.c.id.label("turn"), *turns.c["head", "segment", "channel"])
                .join_from(turns, sessions, sessions.c.id == turns.c.session)
                .where(is_main, is_wanted)
                .order_by(turns.c.seq.desc())
                .limit(1)
            )
            found = self._database.read_one("looking for a session", query, _trace)
            if found is not None:
                return found
        return None

    def events(self, after: int = 0, limit: int = 100) -> list[LedgerEvent]:
        """Events behind the cursor `after`."""
        query = select(events).where(events.c.seq > after).order_by(events.c.seq).limit(limit)
        return self._database.read("reading events", query, event_of)

    def own_events(self, found: Sequence[LedgerEvent]) -> list[LedgerEvent]:
        """Those of these events that are about turns and sessions of the user; all for no user."""
        if self._user is None:
            return list(found)
        with self._database.reading("reading whose events these are") as connection:
            named = [{event.data.get(name) for event in found} for name in ("turn", "session")]
            own = {
                key
                for table, keys in zip((turns, sessions), named, strict=True)
                for key in connection.scalars(
                    select(table.c.id).where(
                        table.c.id.in_([key for key in keys if isinstance(key, str)]),
                        self._of_user(table),
                    )
                )
            }
        about = ((event, event.data.get("turn") or event.data.get("session")) for event in found)
        return [event for event, thing in about if thing in own]

    def last_event(self) -> int:
        """The cursor of the newest event; 0 if there is none."""
        return self._database.read_number("reading events", select(func.max(events.c.seq)))

    def events_of(self, kind: str, limit: int = 100) -> list[LedgerEvent]:
        """Events of one kind, newest first."""
        query = select(events).where(events.c.kind == kind).order_by(events.c.seq.desc())
        return self._database.read("reading events of a kind", query.limit(limit), event_of)


def _is_main_of(session: SessionId) -> ColumnElement[bool]:
    return and_(turns.c.session == session, turns.c.kind == TurnKind.MAIN)


def _counts_of(column: ColumnElement[str]) -> Select[str, int]:
    return select(column, func.count()).group_by(column)


def _trace(row: ResultRow) -> SessionTrace:
    seen = {"session": row.id, "last_turn": row.turn, "last_at": row.last_us}
    return record(SessionTrace, row, scope=scope_of(row), **seen)


def _whole_turn(connection: Connection, row: ResultRow) -> Turn:
    sampled = connection.execute(_TOKENS, {"seq": row.seq}).one_or_none()
    exchange = _exchange(connection, row.seq)
    placed = tuple(placement_of(link) for link in _chain(connection, placements, row.placements))
    turn = turn_of(row, exchange, None if sampled is None else tokens_of(sampled), placed)
    if turn.kind_reason == ATTEMPT:
        return turn
    enforcement = enforcement_of(
        connection, row.seq, lambda attempt: _whole_turn(connection, attempt)
    )
    return turn if enforcement is None else replace(turn, enforcement=enforcement)


def _exchange(connection: Connection, seq: int) -> Exchange:
    said = connection.execute(_SAID, {"seq": seq}).one()
    request = rebuild_body(connection, payloads, seq)
    if request is None:
        raise StoreError(f"reading a turn: number {seq} has no request")
    spliced = tuple(
        Splice(row.at_byte, row.body) for row in _chain(connection, splices, said.splices)
    )
    return Exchange(
        request, spliced, rebuild_body(connection, translations, seq), said.said, said.seen
    )


def _chain(connection: Connection, table: Table, last: bytes | None) -> list[ResultRow]:
    """The rows of a tuple, first to last, each with its snippet's body; `last` is the id of the
    tuple.
    """
    if last is None:
        return []
    return list(connection.execute(_chain_in(table), {"last": last}))


@cache
def _chain_in(table: Table) -> Select[*tuple[object, ...]]:
    chain = (
        select(table, literal(0).label("place"))
        .where(table.c.hash == bindparam("last"))
        .cte("chain", recursive=True)
    )
    chain = chain.union_all(
        select(table, chain.c.place + 1).join(chain, table.c.hash == chain.c.previous)
    )
    query = select(chain, snippets.c.body).join(snippets, snippets.c.hash == chain.c.snippet)
    return query.order_by(chain.c.place.desc())
