"""Skill generations: every set of skills that was ever in force. Each text is stored once; each
publication is one transaction.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    true,
    update,
)

from metaclaw.domain.candidate import Standing
from metaclaw.domain.front_matter import SkillRecord, record_of
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import (
    Audience,
    ChangesSince,
    GenerationChange,
    LearnedFrom,
    RetiredSkill,
    Skill,
    SkillGeneration,
    audience_hashes,
    library_hash,
)
from metaclaw.errors import OvertakenError
from metaclaw.store.database import Queries, append_event
from metaclaw.store.deduplication import content_id
from metaclaw.store.dialects import RefusedError
from metaclaw.store.rows import (
    ResultRow,
    Values,
    pack_json,
    pack_texts,
    record,
    unpack_json,
)
from metaclaw.store.schema import (
    attempts,
    candidates,
    forgotten,
    generations,
    keys,
    memberships,
    scope_libraries,
    skill_texts,
    team_members,
)
from metaclaw.store.turn_writer import Insertion

_TEXTS_AT_ONCE = 64
_MOST_TOLD = 50


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A generation in a list, with the number of skills it added and removed; a changed skill
    counts as both. Generation 0, with which every store begins, has no time of publication."""

    number: int
    hash: str
    reason: str
    published_at: datetime | None
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class InForce:
    """Since when a skill has its present state (`generation`, at `since`) and its present text
    (generation `text_since`)."""

    generation: int
    since: datetime
    text_since: int


class SqlGenerations(Queries):
    """`ports.GenerationStore` on a database. The skills of a generation are sorted by name."""

    def latest(self) -> SkillGeneration:
        """The newest generation; number 0, without skills, if nothing was ever published."""
        with self._database.reading("reading the latest generation") as connection:
            found = _generation(connection, _latest_number(connection))
            assert found is not None
            return found

    def at(self, number: int) -> SkillGeneration | None:
        """The generation of this number, or None."""
        with self._database.reading("reading a generation") as connection:
            return _generation(connection, number)

    def publish(
        self,
        skills: Sequence[Skill],
        reason: str,
        *,
        after: int | None = None,
        learned: LearnedFrom | None = None,
        reverted_to: int | None = None,
    ) -> SkillGeneration:
        """Publish the next generation with exactly these skills, in one transaction. Raises
        StoreError.

        Raises OvertakenError if `after` is given and no longer the newest generation. With
        `learned`, triggers of the database refuse evidence that is older than the last revert, or
        than the removal of a skill it would bring back. Evidence from a forgotten session is
        refused here."""
        # First, because it refuses two skills of the same name before anything is written.
        draft = SkillGeneration(0, library_hash(skills), _sorted(skills))
        values = {skill.name: _text_values(skill) for skill in draft.skills}
        hashes = {
            name: content_id(b"skill", msgspec.json.encode(text)) for name, text in values.items()
        }
        libraries = audience_hashes(draft.skills)
        fresh = self._fresh_texts({hashes[name]: text for name, text in values.items()})
        if learned is None:
            for at in range(0, len(fresh), _TEXTS_AT_ONCE):  # the ledger never waits long
                with self._database.writing("storing skills") as connection:
                    self._keep_texts(connection, fresh[at : at + _TEXTS_AT_ONCE])
        with self._database.writing("publishing a generation") as connection:
            lock_generations(connection)
            number = _latest_number(connection) + 1
            if after is not None and number != after + 1:
                raise OvertakenError(
                    f"publishing a generation: the newest is {number - 1}, not {after}"
                )
            if learned is not None:
                if forgotten_turn(connection, learned.turns):
                    raise RefusedError(
                        "publishing a generation: a session that taught it was forgotten"
                    )
                self._keep_texts(connection, fresh)
            now = self._clock()
            row = {
                "number": number,
                "hash": draft.hash,
                "reason": reason,
                "published_us": now,
                "reverted_to": reverted_to,
                "learned_in": None if learned is None else learned.generation,
                "candidate": None if learned is None else learned.candidate,
            }
            connection.execute(insert(generations), row)
            if reverted_to is not None:
                _drop_learning_in_flight(connection, now)
            texts = {(name,): text_id for name, text_id in hashes.items()}
            put, gone = _change_rows(connection, memberships, ("name",), "skill", texts, number)
            _change_rows(connection, scope_libraries, Audience._fields, "hash", libraries, number)
            data = {
                "generation": number,
                "hash": draft.hash,
                "reason": reason,
                "put": [name for (name,) in put[:_MOST_TOLD]],
                "gone": [name for (name,) in gone if name not in hashes][:_MOST_TOLD],
            }
            append_event(connection, now, "generation", data)
        return SkillGeneration(number, draft.hash, draft.skills)

    def in_force(self, name: SkillName) -> InForce | None:
        """Since when a skill has its present text and state; None if it is not in force."""
        query = (
            select_members(*memberships.c["since", "until"], generations.c.published_us)
            .where(memberships.c.name == name)
            .order_by(memberships.c.since.desc())
        )
        rows = self._database.rows("reading since when a skill is in force", query)
        if not rows or rows[0].until is not None:
            return None
        text = itemgetter("trigger", "body", "category", "scope")
        said = rows[0]
        for row in rows[1:]:
            if row.until != said.since or text(row._mapping) != text(said._mapping):
                break
            said = row
        return InForce(rows[0].since, rows[0].published_us, said.since)

    def since(self, number: int) -> ChangesSince:
        """The changes from the generation of this number to the newest."""
        with self._database.reading("reading what changed since a generation") as connection:
            latest = select(*generations.c["number", "hash"]).order_by(generations.c.number.desc())
            newest, digest = connection.execute(latest.limit(1)).one()
            if newest == number:
                return ChangesSince(newest, digest, (), ())
            # Up to `newest` only: PostgreSQL shows each query what another process has published
            # meanwhile.
            began = memberships.c.since.between(number + 1, newest)
            came = connection.execute(select_members().where(began, _is_member(newest)))
            put = tuple(skill_of(row) for row in came)
            is_over = memberships.c.until.between(number + 1, newest)
            gone = {*connection.scalars(select(memberships.c.name).where(is_over))}
            gone -= {skill.name for skill in put}
            return ChangesSince(newest, digest, put, tuple(map(SkillName, sorted(gone))))

    def history(self, limit: int = 50) -> list[GenerationRow]:
        """Generations, newest first."""
        came, went = (
            select(func.count())
            .where(column == generations.c.number)
            .correlate(generations)
            .scalar_subquery()
            for column in (memberships.c.since, memberships.c.until)
        )
        columns = generations.c["number", "hash", "reason", "published_us"]
        query = select(*columns, came, went).order_by(generations.c.number.desc()).limit(limit)
        return self._database.records("listing generations", query, GenerationRow)

    def changes(
        self, before: int | None = None, limit: int = 50, *, skip: str | None = None
    ) -> list[GenerationChange]:
        """The changes of each generation, newest first; if given, only generations below `before`,
        and without those whose reason begins with `skip`."""
        rows = select(generations).where(
            generations.c.number > 0,
            true() if before is None else generations.c.number < before,
            true() if skip is None else generations.c.reason.not_like(f"{skip}%"),
        )
        rows = rows.order_by(generations.c.number.desc()).limit(limit)
        with self._database.reading("reading what generations changed") as connection:
            found = {
                row.number: GenerationChange(
                    row.number, row.published_us, row.reason, row.reverted_to is not None, {}, {}
                )
                for row in connection.execute(rows)
            }
            is_concerned = or_(memberships.c.since.in_(found), memberships.c.until.in_(found))
            members = select_members(*memberships.c["since", "until"])
            for row in connection.execute(members.where(is_concerned)):
                skill = skill_of(row)
                if row.since in found:
                    found[row.since].after[skill.name] = skill
                if row.until in found:
                    found[row.until].before[skill.name] = skill
        return list(found.values())

    def retired(self) -> list[RetiredSkill]:
        """Retired skills, rules and facts, the last retired first."""
        later = memberships.alias("later")
        is_last = ~exists().where(
            later.c.name == memberships.c.name, later.c.since > memberships.c.since
        )
        query = (
            select(*generations.c["published_us", "reason"], skill_texts)
            .select_from(memberships)
            .join(skill_texts)
            .join(generations, generations.c.number == memberships.c.until)
            .where(is_last)
            .order_by(memberships.c.until.desc(), memberships.c.name)
        )
        return self._database.read(
            "listing retired skills",
            query,
            lambda row: RetiredSkill(skill_of(row), row.published_us, row.reason),
        )

    def dates(self) -> dict[SkillName, tuple[datetime | None, datetime | None]]:
        """For each skill that is or was in force: when it first came into force, and when it last
        changed.
        """
        at = generations.c.published_us
        query = (
            select(memberships.c.name, func.min(at), func.max(at))
            .join(generations, generations.c.number == memberships.c.since)
            .group_by(memberships.c.name)
        )
        rows = self._database.rows("reading since when skills are in force", query)
        return {name: (first, last) for name, first, last in rows}

    def _fresh_texts(self, texts: Mapping[bytes, Values]) -> list[Values]:
        """The rows of those texts that are not in force."""
        query = select(memberships.c.skill).where(memberships.c.until.is_(None))
        live = set(self._database.records("reading the live skills", query, bytes))
        return [(found, *text) for found, text in texts.items() if found not in live]

    def _keep_texts(self, connection: Connection, rows: list[Values]) -> None:
        insertion = Insertion(self._database.dialect, skill_texts)
        insertion.run(connection.connection.cursor(), rows)


def lock_generations(connection: Connection) -> None:
    """Serialise publications and what must not run at the same time. On SQLite the write lock is
    held already.
    """
    connection.execute(
        select(generations.c.number).where(generations.c.number == 0).with_for_update()
    )


def last_revert() -> ScalarSelect[int]:
    """The number of the newest generation that is a revert, or 0."""
    newest = func.coalesce(func.max(generations.c.number), 0)
    return select(newest).where(generations.c.reverted_to.is_not(None)).scalar_subquery()


def _drop_learning_in_flight(connection: Connection, now: datetime) -> None:
    """End every attempt and reject every undecided candidate, except those that wait for a
    person.
    """
    connection.execute(update(attempts).where(attempts.c.ended_us.is_(None)), {"ended_us": now})
    is_undecided = candidates.c.standing == Standing.DRAFT
    rejected = {
        "standing": Standing.REJECTED,
        "reason": "skills were reverted after it was learned",
    }
    connection.execute(update(candidates).where(is_undecided), rejected)


def forgotten_turn(connection: Connection, wanted: Collection[TurnId]) -> TurnId | None:
    """One of these turns that was forgotten, or None."""
    query = select(forgotten.c.turn).where(forgotten.c.turn.in_(wanted)).limit(1)
    return connection.scalar(query)


def _latest_number(connection: Connection) -> int:
    newest: int = connection.execute(select(func.max(generations.c.number))).scalar_one()
    return newest


def _generation(connection: Connection, number: int) -> SkillGeneration | None:
    digest = connection.scalar(select(generations.c.hash).where(generations.c.number == number))
    if digest is None:
        return None
    members = connection.execute(select_members().where(_is_member(number)))
    return SkillGeneration(number, digest, _sorted(map(skill_of, members)))


def _is_member(number: int) -> ColumnElement[bool]:
    """Whether a skill is in force in the generation of this number."""
    return and_(
        memberships.c.since <= number,
        or_(memberships.c.until.is_(None), memberships.c.until > number),
    )


def _sorted(skills: Iterable[Skill]) -> tuple[Skill, ...]:
    # Not by the databases, which order text differently.
    return tuple(sorted(skills, key=lambda skill: skill.name))


def _change_rows(
    connection: Connection,
    table: Table,
    key: Sequence[str],
    value: str,
    wanted: Mapping[Any, object],
    number: int,
) -> tuple[list[Any], list[Any]]:
    """Make these the values in force, by their keys, from this generation on: only changes are
    written. Returns the keys that got a value, and those whose value ended.
    """
    is_live = table.c.until.is_(None)
    live = {
        tuple(found): was
        for *found, was in connection.execute(select(*table.c[*key, value]).where(is_live))
    }
    gone = [at for at, was in live.items() if wanted.get(at) != was]
    came = [at for at, now in wanted.items() if live.get(at) != now]
    if gone:
        mine = and_(*(table.c[name] == bindparam(f"old_{name}") for name in key), is_live)
        ended = [{f"old_{name}": part for name, part in zip(key, at, strict=True)} for at in gone]
        connection.execute(update(table).where(mine).values(until=number), ended)
    if came:
        begun = [
            {**dict(zip(key, at, strict=True)), "since": number, value: wanted[at]} for at in came
        ]
        connection.execute(insert(table), begun)
    return came, gone


def _text_values(skill: Skill) -> Values:
    record = record_of(skill)
    texts = (record.name, record.trigger, record.body, record.category, record.scope)
    return pack_texts((*texts, pack_json(record.extra), record.state, record.author, record.pinned))


def select_members(*columns: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """A query for these columns and the texts of skills, over all times each was in force and the
    generation with which that began.
    """
    return (
        select(*columns, skill_texts)
        .select_from(memberships)
        .join(skill_texts)
        .join(generations, generations.c.number == memberships.c.since)
    )


def skill_of(row: ResultRow) -> Skill:
    return record(SkillRecord, row, extra=unpack_json(row.extra)).read()


class SqlTeams(Queries):
    """The configured teams, and those of keys, in the database."""

    def replace(self, teams: Mapping[str, Collection[str]]) -> None:
        """Replace all teams by these, each with its users."""
        wanted = {(member, team) for team, members in teams.items() for member in members}
        with self._database.reading("reading the teams") as connection:
            of_keys = select(keys.c.name, keys.c.team).where(keys.c.team.is_not(None))
            wanted |= {(member, team) for member, team in connection.execute(of_keys)}
            stored = {(row.member, row.team) for row in connection.execute(select(team_members))}
        if wanted == stored:
            return
        with self._database.writing("storing the teams") as connection:
            connection.execute(delete(team_members))
            if wanted:
                connection.execute(
                    insert(team_members),
                    [{"member": member, "team": team} for member, team in sorted(wanted)],
                )
