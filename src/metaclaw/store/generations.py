"""Skill generations: every set of skills that was ever in force. Each text is stored once; each
publication is one transaction.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import (
    Connection,
    ScalarSelect,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from metaclaw.domain.candidate import Standing
from metaclaw.domain.front_matter import SkillRecord, front_matter
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import (
    Audience,
    Authorship,
    ChangesSince,
    GenerationChange,
    LearnedFrom,
    RetiredSkill,
    Skill,
    SkillChange,
    SkillGeneration,
    SkillState,
    audience_hashes,
    audience_of,
    library_hash,
    placed_hash,
)
from metaclaw.errors import OvertakenError
from metaclaw.store.database import Database, utc_now
from metaclaw.store.deduplication import content_id
from metaclaw.store.dialects import RefusedError
from metaclaw.store.rows import (
    ResultRow,
    Value,
    Values,
    pack_instant,
    pack_json,
    pack_texts,
    unpack_instant,
    unpack_json,
)
from metaclaw.store.schema import (
    attempts,
    candidates,
    events,
    forgotten,
    generations,
    memberships,
    scope_libraries,
    skill_texts,
    team_members,
)
from metaclaw.store.turn_writer import Insertion, once

_TEXTS_AT_ONCE = 64
_MOST_TOLD = 50
_BY_HAND = (SkillState.LIVE, Authorship.PERSON, "")


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
    (generation `text_since`). `canaries` counts how often a skill of this name has been a
    canary."""

    generation: int
    since: datetime
    text_since: int
    canaries: int


class _Hashed(NamedTuple):
    skill: Skill
    text_id: bytes
    audience: Audience | None
    placed: str


class SqlGenerations:
    """`ports.GenerationStore` on a database. The skills of a generation are sorted by name."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock
        self._insert_texts = Insertion(database.dialect, skill_texts, once)
        self._hashed: dict[SkillName, _Hashed] = {}

    def latest(self) -> SkillGeneration:
        """The newest generation; number 0, without skills, if nothing was ever published."""
        with self._database.reading("reading the latest generation") as connection:
            number = _latest_number(connection)
            return _generation(connection, number)

    def at(self, number: int) -> SkillGeneration | None:
        """The generation of this number, or None."""
        with self._database.reading("reading a generation") as connection:
            found = connection.execute(
                select(generations.c.number).where(generations.c.number == number)
            ).scalar()
            return None if found is None else _generation(connection, number)

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
        draft = SkillGeneration(
            0, library_hash(skills), tuple(sorted(skills, key=lambda skill: skill.name))
        )
        hashes = self._hashes(draft.skills)
        libraries = audience_hashes(
            (hashed.audience, hashed.placed) for hashed in self._hashed.values()
        )
        self._keep_texts({skill.name: skill for skill in draft.skills}, hashes)
        with self._database.writing("publishing a generation") as connection:
            lock_generations(connection)
            number = _latest_number(connection) + 1
            if after is not None and number != after + 1:
                raise OvertakenError(
                    f"publishing a generation: the newest is {number - 1}, not {after}"
                )
            if learned is not None:
                _refuse_forgotten(connection, learned)
            now = pack_instant(self._clock())
            row: dict[str, Value] = {
                "number": number,
                "hash": draft.hash,
                "reason": reason,
                "published_us": now,
            }
            row |= {"reverted_to": reverted_to}
            row |= (
                {}
                if learned is None
                else {"learned_in": learned.generation, "candidate": learned.candidate}
            )
            connection.execute(insert(generations), row)
            if reverted_to is not None:
                _drop_learning_in_flight(connection, now)
            put, gone = _change_members(connection, number, hashes)
            _change_libraries(connection, number, libraries)
            data = {
                "generation": number,
                "hash": draft.hash,
                "reason": reason,
                "put": put,
                "gone": gone,
            }
            connection.execute(
                insert(events), {"at_us": now, "kind": "generation", "data": pack_json(data)}
            )
        return SkillGeneration(number, draft.hash, draft.skills)

    def in_force(self, name: SkillName) -> InForce | None:
        """Since when a skill has its present text and state; None if it is not in force."""
        what = (
            skill_texts.c.trigger,
            skill_texts.c.body,
            skill_texts.c.category,
            skill_texts.c.scope,
        )
        query = (
            select(
                memberships.c.since,
                memberships.c.until,
                generations.c.published_us,
                skill_texts.c.state,
                *what,
            )
            .join(skill_texts, skill_texts.c.hash == memberships.c.skill)
            .join(generations, generations.c.number == memberships.c.since)
            .where(memberships.c.name == name)
            .order_by(memberships.c.since.desc())
        )
        rows = self._database.rows("reading since when a skill is in force", query)
        if not rows or rows[0].until is not None:
            return None
        said = rows[0]
        for row in rows[1:]:
            if row.until != said.since or row[4:] != said[4:]:
                break
            said = row
        canaries = sum(row.state == SkillState.CANARY.value for row in rows)
        return InForce(rows[0].since, unpack_instant(rows[0].published_us), said.since, canaries)

    def since(self, number: int) -> ChangesSince:
        """The changes from the generation of this number to the newest."""
        texts = select(skill_texts).join(memberships, memberships.c.skill == skill_texts.c.hash)
        with self._database.reading("reading what changed since a generation") as connection:
            latest = (
                select(generations.c.number, generations.c.hash)
                .order_by(generations.c.number.desc())
                .limit(1)
            )
            newest, digest = connection.execute(latest).one()
            if newest == number:
                return ChangesSince(newest, digest, (), ())
            # Up to `newest` only: PostgreSQL shows each query what another process has published
            # meanwhile.
            is_member = or_(memberships.c.until.is_(None), memberships.c.until > newest)
            came = connection.execute(
                texts.where(memberships.c.since > number, memberships.c.since <= newest, is_member)
            )
            put = tuple(skill_of(row) for row in came)
            is_over = and_(memberships.c.until > number, memberships.c.until <= newest)
            went = connection.execute(select(memberships.c.name).where(is_over)).scalars()
            gone = {SkillName(name) for name in went} - {skill.name for skill in put}
            return ChangesSince(newest, digest, put, tuple(sorted(gone)))

    def history(self, limit: int = 50) -> list[GenerationRow]:
        """Generations, newest first."""
        came = (
            select(memberships.c.since.label("number"), func.count().label("count"))
            .group_by(memberships.c.since)
            .subquery()
        )
        went = (
            select(memberships.c.until.label("number"), func.count().label("count"))
            .group_by(memberships.c.until)
            .subquery()
        )
        query = (
            select(
                generations,
                func.coalesce(came.c.count, 0).label("added"),
                func.coalesce(went.c.count, 0).label("removed"),
            )
            .outerjoin(came, came.c.number == generations.c.number)
            .outerjoin(went, went.c.number == generations.c.number)
            .order_by(generations.c.number.desc())
            .limit(limit)
        )
        return self._database.read(
            "listing generations",
            query,
            lambda row: GenerationRow(
                row.number,
                row.hash,
                row.reason,
                _published(row.published_us),
                row.added,
                row.removed,
            ),
        )

    def changes(
        self, before: int | None = None, limit: int = 50, *, skip: str | None = None
    ) -> list[GenerationChange]:
        """The changes of each generation, newest first; if given, only generations below `before`,
        and without those whose reason begins with `skip`."""
        rows = select(generations).where(generations.c.number > 0)
        if before is not None:
            rows = rows.where(generations.c.number < before)
        if skip is not None:
            rows = rows.where(generations.c.reason.not_like(f"{skip}%"))
        texts = select(memberships.c.since, memberships.c.until, skill_texts).join(
            skill_texts, skill_texts.c.hash == memberships.c.skill
        )
        with self._database.reading("reading what generations changed") as connection:
            found = connection.execute(
                rows.order_by(generations.c.number.desc()).limit(limit)
            ).all()
            numbers = [row.number for row in found]
            put: dict[int, dict[SkillName, Skill]] = {number: {} for number in numbers}
            gone: dict[int, dict[SkillName, Skill]] = {number: {} for number in numbers}
            concerned = or_(memberships.c.since.in_(numbers), memberships.c.until.in_(numbers))
            for row in connection.execute(texts.where(concerned)):
                skill = skill_of(row)
                if row.since in put:
                    put[row.since][skill.name] = skill
                if row.until in gone:
                    gone[row.until][skill.name] = skill
        return [
            GenerationChange(
                row.number,
                _published(row.published_us),
                row.reason,
                row.reverted_to is not None,
                gone[row.number],
                put[row.number],
            )
            for row in found
        ]

    def skill_changes(self, after: int) -> list[SkillChange]:
        """Skills that came into force or got another text in generations newer than `after`, oldest
        first. Rules and facts are left out, and so are changes that do not affect the placed text
        (state, author or examples)."""
        newer = select(memberships.c.name).where(memberships.c.since > after)
        query = (
            select(
                memberships.c.since, memberships.c.until, generations.c.published_us, skill_texts
            )
            .join(skill_texts, skill_texts.c.hash == memberships.c.skill)
            .join(generations, generations.c.number == memberships.c.since)
            .where(
                memberships.c.name.in_(newer),
                or_(memberships.c.until.is_(None), memberships.c.until > after),
            )
            .order_by(memberships.c.name, memberships.c.since)
        )
        rows = self._database.rows("reading which skills changed", query)
        found: list[SkillChange] = []
        before: tuple[SkillName, int | None, object] | None = None
        for row in rows:
            skill = skill_of(row)
            placed = (audience_of(skill), placed_hash(skill))
            is_new = before != (skill.name, row.since, placed)
            if is_new and row.since > after and skill.is_skill and placed[0] is not None:
                found.append(SkillChange(row.since, unpack_instant(row.published_us), skill))
            before = (skill.name, row.until, placed)
        return sorted(found, key=lambda change: (change.number, change.skill.name))

    def retired(self) -> list[RetiredSkill]:
        """Retired skills, rules and facts, the last retired first."""
        last = (
            select(memberships.c.name, func.max(memberships.c.since).label("since"))
            .group_by(memberships.c.name)
            .subquery()
        )
        query = (
            select(generations.c.published_us, generations.c.reason, skill_texts)
            .join(memberships, memberships.c.until == generations.c.number)
            .join(
                last, and_(last.c.name == memberships.c.name, last.c.since == memberships.c.since)
            )
            .join(skill_texts, skill_texts.c.hash == memberships.c.skill)
            .order_by(memberships.c.until.desc(), memberships.c.name)
        )
        return self._database.read(
            "listing retired skills",
            query,
            lambda row: RetiredSkill(skill_of(row), _published(row.published_us), row.reason),
        )

    def dates(self) -> dict[SkillName, tuple[datetime | None, datetime | None]]:
        """For each skill in force: when it first came into force, and when it last changed."""
        live = select(memberships.c.name).where(memberships.c.until.is_(None))
        first, last = func.min(generations.c.published_us), func.max(generations.c.published_us)
        query = (
            select(memberships.c.name, first.label("first"), last.label("last"))
            .join(generations, generations.c.number == memberships.c.since)
            .where(memberships.c.name.in_(live))
            .group_by(memberships.c.name)
        )
        with self._database.reading("reading since when skills are in force") as connection:
            rows = connection.execute(query)
            return {
                SkillName(row.name): (_published(row.first), _published(row.last)) for row in rows
            }

    def _hashes(self, skills: Iterable[Skill]) -> dict[SkillName, bytes]:
        """The id of each skill's text. Skills that have not changed since the last publication are
        not hashed again.
        """
        before = self._hashed or self._stored()
        self._hashed = {}
        for skill in skills:
            known = before.get(skill.name)
            if known is None or known.skill != skill:
                known = _Hashed(skill, _text_id(skill), audience_of(skill), placed_hash(skill))
            self._hashed[skill.name] = known
        return {name: hashed.text_id for name, hashed in self._hashed.items()}

    def _stored(self) -> dict[SkillName, _Hashed]:
        """The skills in force with the ids they have. A text may have another id than it would get
        now: the keys of its front matter had no fixed order.
        """
        query = select(skill_texts).join(memberships, memberships.c.skill == skill_texts.c.hash)
        with self._database.reading("reading the live skills") as connection:
            rows = connection.execute(query.where(memberships.c.until.is_(None))).all()
        live = ((skill_of(row), row.hash) for row in rows)
        return {
            skill.name: _Hashed(skill, text_id, audience_of(skill), placed_hash(skill))
            for skill, text_id in live
        }

    def _keep_texts(self, skills: dict[SkillName, Skill], hashes: dict[SkillName, bytes]) -> None:
        """Store the new texts, a few at a time, so that the ledger never waits long for the write
        lock.
        """
        with self._database.reading("reading the live skills") as connection:
            live = set(_live(connection).values())
        fresh = [
            _text_row(found, skills[name]) for name, found in hashes.items() if found not in live
        ]
        for at in range(0, len(fresh), _TEXTS_AT_ONCE):
            with self._database.writing("storing skills") as connection:
                self._insert_texts.run(
                    connection.connection.cursor(), fresh[at : at + _TEXTS_AT_ONCE]
                )


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


def _drop_learning_in_flight(connection: Connection, now_us: int) -> None:
    """End every attempt and reject every undecided candidate, except those that wait for a
    person.
    """
    connection.execute(update(attempts).where(attempts.c.ended_us.is_(None)), {"ended_us": now_us})
    is_undecided = candidates.c.standing.in_((Standing.DRAFT.value, Standing.SHADOW.value))
    rejected = {
        "standing": Standing.REJECTED.value,
        "reason": "skills were reverted after it was learned",
    }
    connection.execute(update(candidates).where(is_undecided), rejected)


def _refuse_forgotten(connection: Connection, learned: LearnedFrom) -> None:
    turns = learned.turns
    if (
        turns
        and connection.execute(
            select(forgotten.c.turn).where(forgotten.c.turn.in_(turns)).limit(1)
        ).first()
        is not None
    ):
        raise RefusedError("publishing a generation: a session that taught it was forgotten")


def _published(instant_us: int | None) -> datetime | None:
    """When a generation was published; None for generation 0."""
    return unpack_instant(instant_us) if instant_us else None


def _latest_number(connection: Connection) -> int:
    newest: int = connection.execute(select(func.max(generations.c.number))).scalar_one()
    return newest


def _generation(connection: Connection, number: int) -> SkillGeneration:
    digest = connection.execute(
        select(generations.c.hash).where(generations.c.number == number)
    ).scalar_one()
    is_member = and_(
        memberships.c.since <= number,
        or_(memberships.c.until.is_(None), memberships.c.until > number),
    )
    query = (
        select(skill_texts)
        .join(memberships, memberships.c.skill == skill_texts.c.hash)
        .where(is_member)
    )
    skills = [skill_of(row) for row in connection.execute(query)]
    # Sorted here, because databases order text differently.
    return SkillGeneration(number, digest, tuple(sorted(skills, key=lambda skill: skill.name)))


def _live(connection: Connection) -> dict[SkillName, bytes]:
    query = select(memberships.c.name, memberships.c.skill).where(memberships.c.until.is_(None))
    return {SkillName(name): found for name, found in connection.execute(query)}


def _change_members(
    connection: Connection, number: int, hashes: dict[SkillName, bytes]
) -> tuple[list[str], list[str]]:
    """Write the changes. Return the names of skills that were added or changed, and of those
    removed, at most `_MOST_TOLD` each.
    """
    live = _live(connection)
    gone = [{"gone": name} for name, found in live.items() if hashes.get(name) != found]
    came = [
        {"name": name, "since": number, "skill": found}
        for name, found in hashes.items()
        if live.get(name) != found
    ]
    if gone:
        mine = and_(memberships.c.name == bindparam("gone"), memberships.c.until.is_(None))
        connection.execute(update(memberships).where(mine).values(until=number), gone)
    if came:
        connection.execute(insert(memberships), came)
    put = [str(row["name"]) for row in came]
    return put[:_MOST_TOLD], [str(row["gone"]) for row in gone if row["gone"] not in hashes][
        :_MOST_TOLD
    ]


def _change_libraries(connection: Connection, number: int, libraries: dict[Audience, str]) -> None:
    """Write the hashes of the audiences whose rules and skills have changed."""
    is_live = scope_libraries.c.until.is_(None)
    live = {
        (row.scope, row.workspace): row.hash
        for row in connection.execute(select(scope_libraries).where(is_live))
    }
    now = {(audience.scope, audience.workspace): digest for audience, digest in libraries.items()}
    gone = [
        {"whose": scope, "where": workspace}
        for (scope, workspace), digest in live.items()
        if now.get((scope, workspace)) != digest
    ]
    came = [
        {"scope": at[0], "workspace": at[1], "since": number, "hash": digest}
        for at, digest in now.items()
        if live.get(at) != digest
    ]
    if gone:
        mine = and_(
            scope_libraries.c.scope == bindparam("whose"),
            scope_libraries.c.workspace == bindparam("where"),
            is_live,
        )
        connection.execute(update(scope_libraries).where(mine).values(until=number), gone)
    if came:
        connection.execute(insert(scope_libraries), came)


def _text_id(skill: Skill) -> bytes:
    optional = (
        b"\0" if text is None else b"\1" + _bytes(text) for text in (skill.category, skill.scope)
    )
    extra = pack_json(front_matter(skill))
    # Skills that a person wrote keep the id they had before skills had states, so that they are not
    # stored again.
    lifecycle = (skill.state, skill.author, "pinned" if skill.pinned else "")
    more = () if lifecycle == _BY_HAND else tuple(_bytes(text) for text in lifecycle)
    return content_id(
        b"skill",
        _bytes(skill.name),
        _bytes(skill.trigger),
        _bytes(skill.body),
        *optional,
        extra.encode(),
        *more,
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text_row(digest: bytes, skill: Skill) -> Values:
    texts: Values = (
        skill.name,
        skill.trigger,
        skill.body,
        skill.category,
        skill.scope,
        pack_json(front_matter(skill)),
    )
    return pack_texts((digest, *texts, skill.state.value, skill.author.value, skill.pinned))


def skill_of(row: ResultRow) -> Skill:
    return SkillRecord(
        name=SkillName(row.name),
        trigger=row.trigger,
        body=row.body,
        category=row.category,
        scope=row.scope,
        extra=unpack_json(row.extra),
        state=SkillState(row.state),
        author=Authorship(row.author),
        pinned=bool(row.pinned),
    ).read()


class SqlTeams:
    """The configured teams in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def replace(self, teams: Mapping[str, Collection[str]]) -> None:
        """Replace all teams by these, each with its users."""
        wanted = {(member, team) for team, members in teams.items() for member in members}
        with self._database.reading("reading the teams") as connection:
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
