"""How often tool calls failed in one way, by session: what lessons are made from and judged by."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, and_, case, delete, func, insert, select, update

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Lesson, Skill
from metaclaw.domain.turn import Scope
from metaclaw.store.database import Database
from metaclaw.store.rows import pack_instant
from metaclaw.store.schema import episodes, sessions

_SESSIONS_THAT_REFUTE: Final = 5
FAILED, AVOIDED = "failed", "avoided"


@dataclass(frozen=True, slots=True)
class RecurringFailure:
    """A failure that no evolver has seen, and the newest sessions in which it came."""

    signature: str
    scope: Scope
    sessions: tuple[SessionId, ...]


@dataclass(frozen=True, slots=True)
class FailureCount:
    """The sessions in which a failure came before a moment and since, and those since in which its
    lesson was followed.
    """

    before: int = 0
    since: int = 0
    avoided: int = 0


@dataclass(frozen=True, slots=True)
class LessonUse:
    """A lesson, when it came into force (None: it waits for a person), and how often its failure
    came before and since.
    """

    lesson: Lesson
    since: datetime | None
    count: FailureCount = FailureCount()

    @property
    def has_failed(self) -> bool:
        """Whether the failure went on: it came in five sessions since, and in no fewer than were
        spared it.
        """
        came = self.count.since
        return came >= _SESSIONS_THAT_REFUTE and came >= self.count.avoided


class SqlEpisodes:
    def __init__(self, database: Database) -> None:
        self._database = database

    def record(
        self,
        session: SessionId,
        scope: Scope,
        at: datetime,
        failed: Collection[str],
        avoided: Collection[str],
    ) -> None:
        """Record the signatures of a session that ended, in the place of those that were recorded
        when it ended before.
        """
        with self._database.writing("recording failures") as connection:
            mine = episodes.c.session == session
            is_known = connection.execute(
                select(sessions.c.id).where(sessions.c.id == session)
            ).first()
            shown = set(
                connection.execute(
                    select(episodes.c.signature).where(mine, episodes.c.is_shown)
                ).scalars()
            )
            connection.execute(delete(episodes).where(mine))
            rows = [
                {
                    "session": session,
                    "user_id": scope.user,
                    "workspace_id": scope.workspace,
                    "signature": signature,
                    "outcome": outcome,
                    "at_us": pack_instant(at),
                    "is_shown": signature in shown,
                }
                for outcome, found in ((FAILED, failed), (AVOIDED, avoided))
                for signature in found
            ]
            if rows and is_known is not None:  # it may have been forgotten meanwhile
                connection.execute(insert(episodes), rows)

    def recurring(self, least: int, limit: int = 100) -> list[RecurringFailure]:
        """Failures that came in at least so many sessions of one person in one project and were not
        shown to an evolver.
        """
        key = (episodes.c.user_id, episodes.c.workspace_id, episodes.c.signature)
        waiting = and_(episodes.c.outcome == FAILED, episodes.c.is_shown.is_(False))
        often = (
            select(*key)
            .where(waiting)
            .group_by(*key)
            .having(func.count(episodes.c.session.distinct()) >= least)
            .limit(limit)
        )
        with self._database.reading("reading failures") as connection:
            found = []
            for user, workspace, signature in connection.execute(often).all():
                same = and_(
                    waiting,
                    episodes.c.user_id.is_not_distinct_from(user),
                    episodes.c.workspace_id.is_not_distinct_from(workspace),
                    episodes.c.signature == signature,
                )
                newest = select(episodes.c.session).where(same).order_by(episodes.c.seq.desc())
                named = tuple(SessionId(one) for one in connection.execute(newest).scalars())
                scope = Scope(user, workspace)
                found.append(RecurringFailure(signature, scope, named))
            return found

    def mark_shown(self, signatures: Sequence[str], named: Sequence[SessionId]) -> None:
        """Record that an evolver was shown these failures of these sessions."""
        with self._database.writing("recording failures") as connection:
            connection.execute(
                update(episodes)
                .where(
                    episodes.c.signature.in_(list(signatures)),
                    episodes.c.session.in_(list(named)),
                )
                .values(is_shown=True)
            )

    def uses(
        self, skills: Iterable[Skill], dates: Mapping[SkillName, tuple[datetime | None, object]]
    ) -> list[LessonUse]:
        """The lessons among the skills in force, with their counts."""
        return [
            LessonUse(skill, since, self.counts(skill.signatures, _scope_of(skill), since))
            for skill in skills
            if isinstance(skill, Lesson)
            and (since := dates.get(skill.name, (None, None))[0]) is not None
        ]

    def avoided_since(self, at: datetime) -> int:
        """How often a session since this moment was spared a failure by its lesson."""
        query = select(func.count()).where(
            episodes.c.outcome == AVOIDED, episodes.c.at_us >= pack_instant(at)
        )
        with self._database.reading("counting failures") as connection:
            return connection.execute(query).scalar_one()

    def counts(self, signatures: Sequence[str], scope: Scope, at: datetime) -> FailureCount:
        """How often a failure came before this moment and since, with one person in one project."""
        is_since = episodes.c.at_us >= pack_instant(at)
        is_failed = episodes.c.outcome == FAILED

        def number(condition: ColumnElement[bool]) -> ColumnElement[int]:
            return func.count(case((condition, episodes.c.session)).distinct())

        query = select(
            number(and_(is_failed, ~is_since)),
            number(and_(is_failed, is_since)),
            number(and_(~is_failed, is_since)),
        ).where(
            episodes.c.signature.in_(list(signatures)),
            episodes.c.user_id.is_not_distinct_from(scope.user),
            episodes.c.workspace_id.is_not_distinct_from(scope.workspace),
        )
        with self._database.reading("counting failures") as connection:
            return FailureCount(*connection.execute(query).one())


def _scope_of(lesson: Lesson) -> Scope:
    """The person and project of a lesson."""
    kind, _, who = (lesson.scope or "").partition(":")
    return Scope(who if kind == "user" else None, lesson.workspace)
