"""Skill uses: when each skill last matched a task, so that unused ones can be retired."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select, true, update

from metaclaw.domain.ids import SkillName
from metaclaw.domain.turn import TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.store.cursors import present, read_cursor, write_cursor
from metaclaw.store.database import Database
from metaclaw.store.records import SkillUse, TurnRow
from metaclaw.store.rows import Value, pack_instant, pack_text, unpack_instant, unpack_names, unpack_text
from metaclaw.store.schema import draws, memberships, sessions, stands, turns, uses

_CURSOR = "uses"


class SqlUses:
    """Counts by skill. One reader feeds it, in order; what it was told before is not counted again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def cursor(self) -> int:
        """Up to which turn everything is counted."""
        with self._database.reading("reading a cursor") as connection:
            return read_cursor(connection, _CURSOR) or 0

    def note(self, rows: Sequence[TurnRow]) -> None:
        """Count the skills that matched in these turns, side turns left out, and move the cursor behind them; all or nothing."""
        if not rows:
            return
        with self._database.writing("noting uses of skills") as connection:
            counted = read_cursor(connection, _CURSOR) or 0
            fresh = {row.seq: row for row in rows if row.seq > counted and row.kind is TurnKind.MAIN}
            _add(connection, _matched(connection, fresh))
            write_cursor(connection, _CURSOR, max(counted, rows[-1].seq))

    def begin(self, names: Iterable[SkillName], at: datetime) -> None:
        """These skills count as used at this moment, since they are new."""
        wanted = {pack_text(name) for name in names}
        if not wanted:
            return
        with self._database.writing("noting new skills") as connection:
            rows: list[dict[str, Value]] = [
                {"skill": name, "last_us": pack_instant(at), "times": 0} for name in sorted(_known(connection, wanted))
            ]
            if not rows:
                return
            connection.execute(delete(uses).where(uses.c.skill.in_([row["skill"] for row in rows])))
            connection.execute(insert(uses), rows)

    def uses_of(self, names: Collection[SkillName]) -> dict[SkillName, SkillUse]:
        """How these skills were used; who was never counted is not in the answer."""
        query = select(uses).where(uses.c.skill.in_([pack_text(name) for name in names]))
        with self._database.reading("reading uses of skills") as connection:
            return {
                SkillName(unpack_text(row.skill)): SkillUse(unpack_instant(row.last_us), row.times)
                for row in connection.execute(query)
            }

    def tasks_since(
        self,
        instant: datetime,
        most: int,
        *,
        users: Collection[str] | None = None,
        workspaces: Collection[str] | None = None,
        nobody: bool = False,
    ) -> int:
        """How many tasks were worked on after that, counted up to `most`: those of these users, in these workspaces, or of whoever
        has no user id; everyone's where none of the three is given."""
        since = pack_instant(instant)
        is_wanted = _speaks(users, workspaces, nobody=nobody)
        tasks = (
            select(turns.c.session, turns.c.segment)
            .join(sessions, sessions.c.id == turns.c.session)
            .where(sessions.c.last_us > since, turns.c.received_us > since, turns.c.kind == TurnKind.MAIN.value, is_wanted)
            .distinct()
            .limit(most)
            .subquery()
        )
        with self._database.reading("counting tasks") as connection:
            found: int = connection.execute(select(func.count()).select_from(tasks)).scalar_one()
            return found

    def outcomes(
        self,
        generation: int,
        most: int,
        *,
        placed: SkillName | None = None,
        users: Collection[str] | None = None,
        workspaces: Collection[str] | None = None,
        nobody: bool = False,
    ) -> list[Outcome]:
        """The newest known outcomes of main turns of these people: with a skill `placed`, of this generation and later ones;
        without one, of earlier generations."""
        is_known = stands.c.outcome.in_((Outcome.PASS.value, Outcome.FAIL.value))
        is_then = turns.c.generation < generation if placed is None else turns.c.generation >= generation
        query = (
            select(stands.c.outcome, turns.c.skills)
            .join(turns, turns.c.seq == stands.c.turn)
            .join(sessions, sessions.c.id == turns.c.session)
            .where(is_known, is_then, turns.c.kind == TurnKind.MAIN.value, _speaks(users, workspaces, nobody=nobody))
            .order_by(stands.c.turn.desc())
            .limit(most)
        )
        with self._database.reading("reading outcomes") as connection:
            rows = connection.execute(query).all()
        return [Outcome(row.outcome) for row in rows if placed is None or placed in unpack_names(row.skills)]


def _speaks(users: Collection[str] | None, workspaces: Collection[str] | None, *, nobody: bool) -> ColumnElement[bool]:
    wanted: list[ColumnElement[bool]] = []
    if users is not None:
        wanted.append(sessions.c.user_id.in_([pack_text(user) for user in users]))
    if workspaces is not None:
        wanted.append(sessions.c.workspace_id.in_([pack_text(workspace) for workspace in workspaces]))
    if nobody:
        wanted.append(sessions.c.user_id.is_(None))
    return or_(*wanted) if wanted else true()


def _known(connection: Connection, names: Collection[str]) -> set[str]:
    """Of these skills those that a generation has: not even the name of a forgotten one is kept."""
    return present(connection, memberships.c.name, names)


def _matched(connection: Connection, fresh: dict[int, TurnRow]) -> dict[str, SkillUse]:
    """The skills that stood in these prompts or were withheld from them by chance."""
    found: set[tuple[str, int]] = {(pack_text(name), row.seq) for row in fresh.values() for name in row.stamp.skills}
    withheld = select(draws.c.skill, draws.c.turn).where(draws.c.turn.in_(fresh), draws.c.placed.is_(False))
    found |= {(skill, seq) for skill, seq in connection.execute(withheld)}
    matched: dict[str, SkillUse] = {}
    for skill, seq in found:
        at, before = fresh[seq].times.received_at, matched.get(skill)
        matched[skill] = SkillUse(at, 1) if before is None else SkillUse(max(at, before.last_at), before.times + 1)
    return matched


def _add(connection: Connection, matched: dict[str, SkillUse]) -> None:
    matched = {
        name: matched[name] for name in present(connection, memberships.c.name, matched)
    }  # no name of a forgotten skill is kept
    known = {row.skill: row for row in connection.execute(select(uses).where(uses.c.skill.in_(matched)))}
    for skill, use in matched.items():
        last_us, before = pack_instant(use.last_at), known.get(skill)
        if before is None:
            connection.execute(insert(uses), {"skill": skill, "last_us": last_us, "times": use.times})
        else:
            counted = {"last_us": max(before.last_us, last_us), "times": before.times + use.times}
            connection.execute(update(uses).where(uses.c.skill == skill), counted)
