"""Training batches: the turns that may train now, and the state of each batch."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, insert, select, update

from metaclaw.clock import utc_now
from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import BatchState, Rejection, RoleKind, TurnFacts, rejection
from metaclaw.domain.turn import TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.store.database import Database, append_event
from metaclaw.store.dialects import RefusedError
from metaclaw.store.learning import (
    HAS_TAUGHT,
    IS_CURRENT,
    WAS_TRIED,
    select_with_standing,
    standing_of,
    turn_numbers,
)
from metaclaw.store.rows import ResultRow, record, stamp_of
from metaclaw.store.schema import (
    batch_turns,
    batches,
    generations,
    roles,
    stands,
    tokens,
    turns,
)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """The turns that train one version, which starts from `policy_version`. `turns` are those not
    deleted since, in the order they were recorded; `size` is the number it was opened with. For
    `stale` of them the speaker's rules or skills have changed since. `generation` was the newest
    when the batch was opened. `note` says why it was dropped."""

    number: int
    state: BatchState
    policy_version: int
    generation: int
    seed: int
    size: int
    turns: tuple[TurnId, ...]
    stale: int
    note: str = ""


_FACTS = turns.c[
    "seq",
    "id",
    "kind",
    "outcome",
    "generation",
    "policy_version",
    "library_hash",
    "skills",
    "provider",
    "truncated",
]
_CHOOSING = "choosing turns to train on"
_PAGE = 512
_COUNTED = 2_000
_FRESH = timedelta(seconds=30)

HeldOut = Callable[[TurnId], bool]
"""Whether a turn is kept for the gate, and so never trains."""


def _nothing(turn: TurnId) -> bool:
    return False


class SqlBatches:
    """Batches in a database. Triggers refuse a turn that may not train."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock
        self._counted: tuple[object, datetime, dict[Rejection, int]] | None = None

    def ready(
        self,
        generation: int,
        policy_version: int,
        max_lag: int,
        limit: int,
        within: int = 20_000,
        *,
        held_out: HeldOut = _nothing,
        policy_provider: str | None = None,
        again: bool = False,
    ) -> tuple[TurnId, ...]:
        """At most `limit` turns that may train this policy now, among the newest `within` turns,
        newest first. With `policy_provider`, only turns that it answered. This is cheap enough to
        call often: the database leaves most of them out before `rejection` decides. With `again`,
        turns that might train if they had not trained a version already."""
        clocks = generation, policy_version, max_lag, policy_provider
        likely = self.newest(within, _likely(*clocks, again=again))
        found = judged(likely, held_out, *clocks, is_again=again)
        return tuple(islice((turn for turn, reason in found if reason is None), limit))

    def untried(self, among: Collection[TurnId]) -> int:
        """The number of these turns that were never in a batch."""
        query = select(func.count()).select_from(turns).where(turns.c.id.in_(among), ~WAS_TRIED)
        return self._database.read_number("counting new turns", query)

    def rejections(
        self,
        generation: int,
        policy_version: int,
        max_lag: int,
        *,
        held_out: HeldOut = _nothing,
        policy_provider: str | None = None,
        is_fresh: bool = False,
    ) -> dict[Rejection, int]:
        """The number of newest turns that may not train now, by reason. Unless `is_fresh`, they may
        have been counted up to half a minute ago."""
        clocks = generation, policy_version, max_lag, policy_provider
        now, known = self._clock(), self._counted
        if not is_fresh and known is not None and known[0] == clocks and now - known[1] < _FRESH:
            return known[2]
        reasons = (reason for _, reason in judged(self.newest(_COUNTED), held_out, *clocks))
        found = dict(Counter(reason for reason in reasons if reason is not None))
        self._counted = (clocks, now, found)
        return found

    def newest(self, within: int, likely: ColumnElement[bool] | None = None) -> Iterator[ResultRow]:
        """The newest `within` turns with their facts, read page by page; with `likely`, only those
        that meet this condition.
        """
        query = (
            select_with_standing(*_FACTS, func.length(tokens.c.sampled_ids).label("sampled_bytes"))
            .outerjoin(tokens, tokens.c.turn == turns.c.seq)
            .order_by(turns.c.seq.desc())
        )
        query = query if likely is None else query.where(likely)
        oldest = select(turns.c.seq).order_by(turns.c.seq.desc()).offset(within - 1).limit(1)
        query = query.where(turns.c.seq >= self._database.read_number(_CHOOSING, oldest))
        rows = self._page(query)
        while rows:
            yield from rows
            rows = self._page(query.where(turns.c.seq < rows[-1].seq)) if len(rows) == _PAGE else []

    def _page(self, query: Select[*tuple[Any, ...]]) -> Sequence[ResultRow]:
        return self._database.rows(_CHOOSING, query.limit(_PAGE))

    def open_batch(self, policy_version: int, turns_taught: Sequence[TurnId], seed: int = 0) -> int:
        """Open a batch with these turns and return its number. The turns are query turns from now
        on. Raises RefusedError, and changes nothing, if one of them may not train."""
        with self._database.writing("opening a batch") as connection:
            numbers, _ = turn_numbers(connection, turns_taught, "opening a batch")
            batch = {
                "at_us": self._clock(),
                "policy_version": policy_version,
                "generation": connection.scalar(select(func.max(generations.c.number))),
                "seed": seed,
                "size": len(numbers),
            }
            number: int = connection.execute(
                insert(batches).returning(batches.c.seq), batch
            ).scalar_one()
            connection.execute(
                insert(batch_turns), [{"turn": turn, "batch": number} for turn in numbers]
            )
            return number

    def open_batch_now(self) -> TrainingBatch | None:
        """The oldest open batch, or None."""
        is_open = batches.c.ended_us.is_(None)
        return self._batch("looking for an open batch", is_open)

    def batch(self, number: int) -> TrainingBatch | None:
        return self._batch("reading a batch", batches.c.seq == number)

    def _batch(self, doing: str, wanted: ColumnElement[bool]) -> TrainingBatch | None:
        query = select(batches).where(wanted).order_by(batches.c.seq).limit(1)
        with self._database.reading(doing) as connection:
            row = connection.execute(query).one_or_none()
            if row is None:
                return None
            members = _members(connection, row.seq)
        stale = sum(not is_current for is_current in members.values())
        return record(TrainingBatch, row, number=row.seq, turns=tuple(members), stale=stale)

    def drop_batch(self, number: int, reason: str) -> None:
        """Drop a batch that makes no version. Its turns may train again, unless they are too old by
        then. Raises RefusedError if it has ended already."""
        with self._database.writing("dropping a batch") as connection:
            batch, now = opened(connection, number, "dropping a batch"), self._clock()
            ended = {"state": BatchState.DROPPED, "note": reason, "ended_us": now}
            connection.execute(update(batches).where(batches.c.seq == number), ended)
            data = {"batch": number, "turns": batch.size, "reason": reason}
            append_event(connection, now, "batch.dropped", data)

    def turns_of(self, batch: int) -> list[TurnId]:
        """The turns of a batch that were not deleted since, in the order they were recorded."""
        with self._database.reading("reading a batch") as connection:
            return list(_members(connection, batch))


def _likely(
    generation: int, policy_version: int, max_lag: int, provider: str | None, *, again: bool
) -> ColumnElement[bool]:
    """The part of `rejection` that the database can decide."""
    conditions = [
        turns.c.kind == TurnKind.MAIN,
        turns.c.outcome == TurnEnd.COMPLETED,
        turns.c.truncated.is_(False),
        turns.c.generation <= generation,
        IS_CURRENT,
        turns.c.policy_version.between(policy_version - max_lag, policy_version),
        stands.c.outcome != Outcome.UNKNOWN,
        HAS_TAUGHT if again else ~HAS_TAUGHT,
        roles.c.kind.is_(None) | (roles.c.kind != RoleKind.SUPPORT),
    ]
    return and_(*conditions, *([] if provider is None else [turns.c.provider == provider]))


def opened(connection: Connection, number: int, doing: str) -> ResultRow:
    """The row of a batch that has not ended, locked. Raises RefusedError."""
    row = connection.execute(
        select(batches).where(batches.c.seq == number).with_for_update()
    ).one_or_none()
    if row is None:
        raise RefusedError(f"{doing}: there is no batch {number}")
    if row.state != BatchState.OPEN:
        why = f" ({row.note})" if row.note else ""
        raise RefusedError(f"{doing}: batch {number} is {row.state} already{why}")
    return row


def _members(connection: Connection, batch: int) -> dict[TurnId, bool]:
    """The turns of a batch, and whether each is current."""
    query = select(turns.c.id, IS_CURRENT).join(batch_turns).where(batch_turns.c.batch == batch)
    return {turn: bool(is_it) for turn, is_it in connection.execute(query.order_by(turns.c.seq))}


def judged(
    rows: Iterable[ResultRow],
    held_out: HeldOut,
    generation: int,
    policy_version: int,
    max_lag: int,
    policy_provider: str | None,
    *,
    is_again: bool = False,
) -> Iterator[tuple[TurnId, Rejection | None]]:
    """These turns, and why each may not train; with `is_again`, what it trained before is no reason."""
    for row in rows:
        standing = standing_of(row.id, row, held_out=held_out(row.id))
        standing = replace(standing, taught=standing.taught and not is_again)
        sampled = None if row.sampled_bytes is None else row.sampled_bytes // 4
        stamp, end = stamp_of(row), row.outcome
        facts = TurnFacts(row.kind, end, stamp, row.provider, sampled, row.truncated)
        reason = rejection(facts, standing, generation, policy_version, max_lag, policy_provider)
        yield row.id, reason
