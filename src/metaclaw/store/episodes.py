"""How often tool calls failed in one way, by session: what lessons are made from and judged by."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from sqlalchemy import ColumnElement, and_, case, delete, func, insert, select, update

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Lesson, Skill
from metaclaw.domain.turn import Scope
from metaclaw.store.database import Queries, writes
from metaclaw.store.schema import episodes, sessions
from metaclaw.store.usage import present

_SESSIONS_THAT_REFUTE: Final = 5
_NEEDED_WITHIN: Final = timedelta(days=60)
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
    lesson was followed; and when the last of them was.
    """

    before: int = 0
    since: int = 0
    avoided: int = 0
    last: datetime | None = None


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

    def is_unneeded(self, now: datetime) -> bool:
        """Whether no session needed it for 60 days."""
        times = [one for one in (self.since, self.count.last) if one is not None]
        return bool(times) and now - max(times) >= _NEEDED_WITHIN


class SqlEpisodes(Queries):
    def failed_in(self, session: SessionId) -> set[str]:
        """The failures that were recorded of a session."""
        query = select(episodes.c.signature).where(
            episodes.c.session == session, episodes.c.outcome == FAILED
        )
        return set(self._database.records("reading failures", query, str))

    @writes
    def record(
        self,
        session: SessionId,
        scope: Scope,
        at: datetime,
        failed: Collection[str],
        avoided: Collection[str],
    ) -> None:
        """Record the signatures of a session. Each failure counts once, when it was first seen; what
        the session was spared is what it is spared now.
        """
        with self._database.writing("recording failures") as connection:
            mine = episodes.c.session == session
            connection.execute(delete(episodes).where(mine, episodes.c.outcome == AVOIDED))
            known = set(connection.scalars(select(episodes.c.signature).where(mine)))
            rows = [
                {
                    "session": session,
                    "user_id": scope.user,
                    "workspace_id": scope.workspace,
                    "signature": signature,
                    "outcome": outcome,
                    "at_us": at,
                    "is_shown": False,
                }
                for outcome, found in ((FAILED, failed), (AVOIDED, avoided))
                for signature in found
                if signature not in known
            ]
            # The session may have been forgotten meanwhile.
            if rows and present(connection, sessions.c.id, {session}):
                connection.execute(insert(episodes), rows)

    def recurring(self, least: int, limit: int = 100) -> list[RecurringFailure]:
        """Failures that came in at least so many sessions of one person in one project that were
        not shown to an evolver, and in as many as were: one that made no lesson is shown again more
        and more rarely.
        """
        key = episodes.c["user_id", "workspace_id", "signature"]
        is_waiting = episodes.c.is_shown.is_(False)
        waits = select(episodes.c.signature).where(episodes.c.outcome == FAILED, is_waiting)
        query = (
            select(*key, episodes.c.session, episodes.c.is_shown)
            .where(episodes.c.outcome == FAILED, episodes.c.signature.in_(waits))
            .group_by(*key, episodes.c.session, episodes.c.is_shown)
            .order_by(func.max(episodes.c.seq).desc())
        )
        new: dict[tuple[str, Scope], list[SessionId]] = {}
        shown: Counter[tuple[str, Scope]] = Counter()
        for user, workspace, signature, session, was_shown in self._database.rows(
            "reading failures", query
        ):
            failure = (signature, Scope(user, workspace))
            if was_shown:
                shown[failure] += 1
            else:
                new.setdefault(failure, []).append(session)
        due = (
            RecurringFailure(signature, scope, tuple(named))
            for (signature, scope), named in new.items()
            if len(named) >= max(least, shown[signature, scope])
        )
        return list(islice(due, limit))

    @writes
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
            LessonUse(skill, since, self.count_of(skill, since))
            for skill in skills
            if isinstance(skill, Lesson)
            and (since := dates.get(skill.name, (None, None))[0]) is not None
        ]

    def avoided_since(self, at: datetime) -> int:
        """How often a session since this moment was spared a failure by its lesson."""
        query = select(func.count()).where(episodes.c.outcome == AVOIDED, episodes.c.at_us >= at)
        with self._database.reading("counting failures") as connection:
            return connection.execute(query).scalar_one()

    def count_of(self, lesson: Lesson, at: datetime) -> FailureCount:
        """How often the failure of a lesson came before this moment and since, where it applies."""
        kind, _, who = (lesson.scope or "").partition(":")
        scope = Scope(who if kind == "user" else None, lesson.workspace)
        return self.counts(lesson.signatures, scope, at)

    def counts(self, signatures: Sequence[str], scope: Scope, at: datetime) -> FailureCount:
        """How often a failure came before this moment and since, with one person in one project."""
        is_since = episodes.c.at_us >= at
        is_failed = episodes.c.outcome == FAILED

        def number(condition: ColumnElement[bool]) -> ColumnElement[int]:
            return func.count(case((condition, episodes.c.session)).distinct())

        query = select(
            number(and_(is_failed, ~is_since)),
            number(and_(is_failed, is_since)),
            number(and_(~is_failed, is_since)),
            func.max(episodes.c.at_us),
        ).where(
            episodes.c.signature.in_(list(signatures)),
            episodes.c.user_id.is_not_distinct_from(scope.user),
            episodes.c.workspace_id.is_not_distinct_from(scope.workspace),
        )
        (count,) = self._database.records("counting failures", query, FailureCount)
        return count
