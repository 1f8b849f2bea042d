"""Training batches: which turns may train now, and which have."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from sqlalchemy import Row, func, insert, select

from metaclaw.domain.eligibility import Rejection, rejection
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.turn import Stamp, TurnEnd, TurnKind
from metaclaw.store.database import Database
from metaclaw.store.guard import RefusedError
from metaclaw.store.learning import batch_turns, batches
from metaclaw.store.packing import pack_instant, pack_text, unpack_names, unpack_text
from metaclaw.store.records import Selection, TurnFacts
from metaclaw.store.schema import tokens, turns
from metaclaw.store.standings import STANDING, standing_of, with_standing

_FACTS = [turns.c[name] for name in ("seq", "id", "kind", "outcome", "generation", "policy_version", "library_hash", "skills")]

_PAGE = 512


def _now() -> datetime:
    return datetime.now(UTC)


class SqlBatches:
    """Batches on a database, which itself refuses a turn that may not train."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = _now) -> None:
        self._database = database
        self._clock = clock

    def eligible(self, generation: int, policy_version: int, max_lag: int, limit: int, within: int = 20_000) -> Selection:
        """Up to `limit` turns that may train this policy now, found among the newest `within` turns, newest first."""
        found: list[TurnId] = []
        rejections: Counter[Rejection] = Counter()
        for row in self._newest(within):
            if len(found) == limit:
                break
            turn = TurnId(unpack_text(row.id))
            reason = rejection(_facts(row), standing_of(turn, row), generation, policy_version, max_lag)
            if reason is None:
                found.append(turn)
            else:
                rejections[reason] += 1
        return Selection(tuple(found), dict(rejections))

    def _newest(self, within: int) -> Iterator[Row[*tuple[object, ...]]]:
        """The newest turns with what is known of them, a page at a time."""
        sampled_bytes = func.length(tokens.c.sampled_ids).label("sampled_bytes")
        query = select(*_FACTS, sampled_bytes, *STANDING).outerjoin(tokens, tokens.c.turn == turns.c.seq)
        query = with_standing(query, turns.c.seq).order_by(turns.c.seq.desc())
        before: int | None = None
        for left in range(within, 0, -_PAGE):
            page = query.limit(min(left, _PAGE))
            with self._database.reading("choosing turns to train on") as connection:
                rows = connection.execute(page if before is None else page.where(turns.c.seq < before)).all()
            yield from rows
            if not rows:
                return
            before = rows[-1].seq

    def open_batch(self, policy_version: int, turns_taught: Sequence[TurnId]) -> int:
        """The number of a new batch with these turns, which are query turns from now on and teach no other batch.

        Raises RefusedError, and changes nothing, if one of them may not train.
        """
        wanted = [pack_text(turn) for turn in turns_taught]
        with self._database.writing("opening a batch") as connection:
            numbers = list(connection.execute(select(turns.c.seq).where(turns.c.id.in_(wanted))).scalars())
            if not numbers or len(numbers) < len(wanted):
                raise RefusedError(f"opening a batch: of {len(wanted)} turns {len(numbers)} are in the ledger")
            batch = {"at_us": pack_instant(self._clock()), "policy_version": policy_version}
            number: int = connection.execute(insert(batches).returning(batches.c.seq), batch).scalar_one()
            connection.execute(insert(batch_turns), [{"turn": turn, "batch": number} for turn in sorted(numbers)])
            return number

    def turns_of(self, batch: int) -> list[TurnId]:
        """The turns of a batch that are still there, in the order they were recorded."""
        query = select(turns.c.id).join(batch_turns, batch_turns.c.turn == turns.c.seq).where(batch_turns.c.batch == batch)
        with self._database.reading("reading a batch") as connection:
            return [TurnId(unpack_text(found)) for found in connection.execute(query.order_by(turns.c.seq)).scalars()]


def _facts(row: Row[*tuple[object, ...]]) -> TurnFacts:
    skills = tuple(SkillName(name) for name in unpack_names(row.skills))
    stamp = Stamp(row.generation, row.policy_version, unpack_text(row.library_hash), skills)
    sampled = None if row.sampled_bytes is None else row.sampled_bytes // 4
    return TurnFacts(TurnKind(row.kind), TurnEnd(row.outcome), stamp, sampled)
