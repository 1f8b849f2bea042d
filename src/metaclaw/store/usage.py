"""Sums kept by background loops: the cost of calls to models, and when each skill last matched a
task; and the loops' cursors.

Spending is summed by local day, purpose, model and learned item. A cursor is the number of the last
turn that a loop has read, from which it continues after a restart."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    case,
    delete,
    exists,
    false,
    func,
    or_,
    select,
    true,
)

from metaclaw.domain.chat import Usage
from metaclaw.domain.ids import SkillName
from metaclaw.domain.status import ENFORCED, SERVED, Spending, SpendingKey
from metaclaw.domain.turn import TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.store.database import Queries, writes
from metaclaw.store.dialects import committed, insert_into
from metaclaw.store.rows import TurnRow, record, unpack_names
from metaclaw.store.schema import (
    cursors,
    memberships,
    sessions,
    spending,
    stands,
    turn_attempts,
    turns,
    uses,
)

_T = TypeVar("_T")
ENFORCEMENT_OFF = "enforcement:off"
"""1 while held rules are switched off."""


class SqlCursors(Queries):
    """Cursors by name. Each has one reader that moves it."""

    def cursor(self, name: str) -> int:
        """The cursor of this name; 0 if there is none."""
        return self._database.read_number("reading a cursor", _cursor(name))

    def has_cursor(self, name: str) -> bool:
        """Whether there is a cursor of this name."""
        return bool(self._database.rows("reading a cursor", _cursor(name)))

    @writes
    def move_cursor(self, name: str, seq: int) -> None:
        """Record that the reader of this name has read everything up to `seq`."""
        with self._database.writing("moving a cursor") as connection:
            write_cursor(connection, name, seq)

    def count_up(self, name: str) -> None:
        """Move a cursor by one, which programs on the same store notice (`shared_state`)."""
        with self._database.writing("counting up") as connection:
            count_up(connection, name)

    @writes
    def drop_cursor(self, name: str) -> None:
        """Remove the cursor of this name, if there is one."""
        with self._database.writing("dropping a cursor") as connection:
            connection.execute(delete(cursors).where(cursors.c.name == name))

    def cursor_names(self, prefix: str) -> list[str]:
        """The names of the cursors that begin so."""
        query = select(cursors.c.name).where(cursors.c.name.startswith(prefix, autoescape=True))
        return sorted(row.name for row in self._database.rows("listing cursors", query))


def _cursor(name: str) -> Select[int]:
    return select(cursors.c.seq).where(cursors.c.name == name)


def read_cursor(connection: Connection, name: str) -> int | None:
    """The cursor of this name; None if there is none."""
    return connection.scalar(_cursor(name))


def write_cursor(connection: Connection, name: str, seq: int) -> None:
    """Set a cursor in the caller's transaction."""
    row = insert_into(cursors, connection.dialect.name).values(name=name, seq=seq)
    connection.execute(row.on_conflict_do_update(index_elements=["name"], set_={"seq": seq}))


def count_up(connection: Connection, name: str) -> None:
    """Move a cursor by one in the caller's transaction, as the only one at a time."""
    row = insert_into(cursors, connection.dialect.name).values(name=name, seq=1)
    more = {"seq": cursors.c.seq + 1}
    connection.execute(row.on_conflict_do_update(index_elements=["name"], set_=more))


def present(connection: Connection, column: Column[_T], wanted: Collection[_T]) -> set[_T]:
    """The values that the column contains, of those wanted."""
    if not wanted:
        return set()
    return set(connection.scalars(select(column).where(column.in_(wanted)).distinct()))


_SPENDING_CURSOR = "spending of turns"
_TURNS_AT_ONCE = 2000
_SUMS = tuple(field.name for field in fields(Spending))  # `cost` is the last
_TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
_KEYS = ("day", "purpose", "model")

Sums = Mapping[SpendingKey, Spending]
PriceServed = Callable[[str, datetime, str, Usage], tuple[SpendingKey, Spending]]
"""Computes the cost of a request of an agent from its purpose, its time, `provider/model`, and its
tokens.
"""
_parent, _attempt = turns.alias("parent"), turn_attempts.alias("attempt")
_HAS_ATTEMPTS = exists().where(_attempt.c.parent == turns.c.seq)


class SqlSpending(Queries):
    """Sums of calls. Several processes may add to them at once."""

    @writes
    def add(self, sums: Sums) -> None:
        """Add to the sums, all or nothing."""
        if not sums:
            return
        with self._database.writing("counting calls to models") as connection:
            for key, more in sums.items():
                _add_spending(connection, key, more)

    def add_served(self, price: PriceServed) -> int:
        """Count the main turns of agents that were recorded since the last call; return the number
        of rows read. Blocks. Instead of a turn with held calls, its attempts are counted: the first
        as the turn, the later ones as `enforce`."""
        newest = select(func.max(turns.c.seq))
        with self._database.reading("looking for new turns") as connection:
            counted = read_cursor(connection, _SPENDING_CURSOR) or 0
            if (connection.scalar(newest) or 0) <= counted:
                return 0
        with self._database.writing("counting turns") as connection:
            # Lock the cursor, because several programs may count on PostgreSQL; SQLite has one
            # writer at a time.
            begun = insert_into(cursors, connection.dialect.name).on_conflict_do_nothing()
            connection.execute(begun, {"name": _SPENDING_CURSOR, "seq": 0})
            after = connection.scalar(_cursor(_SPENDING_CURSOR).with_for_update()) or 0
            rows = connection.execute(self._unread(after)).all()
            sums: dict[SpendingKey, Spending] = {}
            for row in rows:
                if (row.parent_kind or row.kind) == TurnKind.MAIN and not row.has_attempts:
                    model = f"{row.provider}/{row.model}"
                    usage = Usage(*(getattr(row, name) or 0 for name in _TOKENS))
                    purpose = ENFORCED if row.place else SERVED
                    key, more = price(purpose, row.received_us, model, usage)
                    sums[key] = sums.get(key, Spending()) + more
            for key, more in sums.items():
                _add_spending(connection, key, more)
            if rows:
                write_cursor(connection, _SPENDING_CURSOR, rows[-1].seq)
        return len(rows)

    def sums(self, since: str = "") -> dict[SpendingKey, Spending]:
        """The sums of the days from `since` on, oldest first."""
        query = select(spending).where(spending.c.day >= since).order_by(*spending.c[*_KEYS])
        rows = self._database.rows("reading what calls to models cost", query)
        return {record(SpendingKey, row): record(Spending, row) for row in rows}

    def _unread(self, after: int) -> Select[*tuple[Any, ...]]:
        return (
            select(
                *turns.c["seq", "kind", "provider", "model", "received_us", *_TOKENS],
                turn_attempts.c.place,
                _parent.c.kind.label("parent_kind"),
                _HAS_ATTEMPTS.label("has_attempts"),
            )
            .select_from(turns)
            .outerjoin(turn_attempts, turn_attempts.c.turn == turns.c.seq)
            .outerjoin(_parent, _parent.c.seq == turn_attempts.c.parent)
            .where(turns.c.seq > after, committed(self._database.kind, turns))
            .order_by(turns.c.seq)
            .limit(_TURNS_AT_ONCE)
        )


def _add_spending(connection: Connection, key: SpendingKey, more: Spending) -> None:
    added = insert_into(spending, connection.dialect.name)
    sums = {name: spending.c[name] + added.excluded[name] for name in _SUMS}
    row = {"day": key.day, "purpose": key.purpose, "model": key.model}
    connection.execute(
        added.on_conflict_do_update(index_elements=_KEYS, set_=sums),
        row | {name: getattr(more, name) for name in _SUMS},
    )


_USES_CURSOR = "uses"


@dataclass(frozen=True, slots=True)
class SkillUse:
    """When a skill last matched a task, and in how many turns it has."""

    last_at: datetime
    times: int


class SqlUses(Queries):
    """Uses by skill. One reader calls `note`, in order; turns are not counted twice."""

    def cursor(self) -> int:
        """The last turn that was counted."""
        return self._database.read_number("reading a cursor", _cursor(_USES_CURSOR))

    @writes
    def note(self, rows: Sequence[TurnRow]) -> None:
        """Count the skills that matched in the main turns among these, and move the cursor behind
        them; all or nothing.
        """
        if not rows:
            return
        with self._database.writing("noting uses of skills") as connection:
            counted = read_cursor(connection, _USES_CURSOR) or 0
            _add_uses(
                connection, (row for row in rows if row.seq > counted and row.kind is TurnKind.MAIN)
            )
            write_cursor(connection, _USES_CURSOR, max(counted, rows[-1].seq))

    def uses_of(self, names: Collection[SkillName]) -> dict[SkillName, SkillUse]:
        """The uses of these skills; skills that were never counted are left out."""
        rows = self._database.rows(
            "reading uses of skills", select(uses).where(uses.c.skill.in_(names))
        )
        return {SkillName(row.skill): SkillUse(row.last_us, row.times) for row in rows}

    def tasks_since(
        self,
        instant: datetime,
        most: int,
        *,
        users: Collection[str | None] | None = None,
        workspaces: Collection[str] | None = None,
    ) -> int:
        """The number of tasks after `instant`, at most `most`: those of these users (None: of
        requests without a user id) or in these workspaces; all tasks if neither is given."""
        tasks = (
            select(*turns.c["session", "segment"])
            .join(sessions)
            .where(
                sessions.c.last_us > instant,
                turns.c.received_us > instant,
                turns.c.kind == TurnKind.MAIN,
                _speaks(users, workspaces),
            )
            .distinct()
            .limit(most)
            .subquery()
        )
        return self._database.read_number("counting tasks", select(func.count()).select_from(tasks))

    def outcomes(
        self,
        skill: SkillName,
        generation: int,
        most: int,
        *,
        users: Collection[str | None] | None = None,
        workspaces: Collection[str] | None = None,
    ) -> list[Outcome]:
        """The outcomes of main turns with a skill, among the newest `most` turns of these people
        whose outcome is known; of this generation and later ones."""
        query = (
            select(stands.c.outcome, turns.c.skills)
            .select_from(stands)
            .join(turns)
            .join(sessions)
            .where(
                stands.c.outcome.in_((Outcome.PASS, Outcome.FAIL)),
                turns.c.generation >= generation,
                turns.c.kind == TurnKind.MAIN,
                _speaks(users, workspaces),
            )
            .order_by(stands.c.turn.desc())
            .limit(most)
        )
        rows = self._database.rows("reading outcomes", query)
        return [outcome for outcome, skills in rows if skill in unpack_names(skills)]


def _speaks(
    users: Collection[str | None] | None, workspaces: Collection[str] | None
) -> ColumnElement[bool]:
    if users is None and workspaces is None:
        return true()
    is_unnamed = sessions.c.user_id.is_(None) if None in (users or ()) else false()
    return or_(
        sessions.c.user_id.in_([user for user in users or () if user is not None]),
        is_unnamed,
        sessions.c.workspace_id.in_(workspaces or ()),
    )


def _add_uses(connection: Connection, rows: Iterable[TurnRow]) -> None:
    """Count the skills that were in these prompts."""
    found: dict[SkillName, list[datetime]] = {}
    for row in rows:
        for name in set(row.stamp.skills):
            found.setdefault(name, []).append(row.times.received_at)
    added = insert_into(uses, connection.dialect.name)
    last, new = uses.c.last_us, added.excluded.last_us
    sums = {
        "last_us": case((new > last, new), else_=last),
        "times": uses.c.times + added.excluded.times,
    }
    # No name of a forgotten skill is kept.
    for skill in sorted(present(connection, memberships.c.name, found)):
        connection.execute(
            added.on_conflict_do_update(index_elements=["skill"], set_=sums),
            {"skill": skill, "last_us": max(found[skill]), "times": len(found[skill])},
        )
