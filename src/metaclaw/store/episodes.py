"""How often tool calls failed in one way, by session: what lessons are made from and judged by."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from sqlalchemy import ColumnElement, and_, case, delete, func, insert, or_, select, true, update

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Lesson, Skill
from metaclaw.domain.turn import Scope
from metaclaw.store.database import Queries, writes
from metaclaw.store.schema import episodes, sessions
from metaclaw.store.usage import present

_SESSIONS_THAT_REFUTE: Final = 5
_NEEDED_WITHIN: Final = timedelta(days=60)
FAILED, REPEATED, AVOIDED = "failed", "repeated", "avoided"
"""A failure came; it came although its lesson was in the prompt; a lesson was followed. The first has
the signature of the failure, the others have the name of the lesson."""


@dataclass(frozen=True, slots=True)
class RecurringFailure:
    """A failure that no evolver has seen, and the newest sessions in which it came."""

    signature: str
    scope: Scope
    sessions: tuple[SessionId, ...]


@dataclass(frozen=True, slots=True)
class FailureCount:
    """The sessions with a failure that began before its lesson was in force; those that had the
    lesson from their first prompt on and failed, or followed it; and when the last of them was.
    """

    before: int = 0
    since: int = 0
    avoided: int = 0
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class LessonUse:
    """A lesson, when it first came into force (None: it waits for a person), and how often its
    failure came before and since.
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
    def recorded_of(self, session: SessionId) -> tuple[set[str], set[str]]:
        """The failures that were recorded of a session, and the lessons that it followed."""
        query = select(*episodes.c["outcome", "signature"]).where(episodes.c.session == session)
        rows = self._database.rows("reading failures", query)
        failed, avoided = (
            {name for outcome, name in rows if outcome == wanted} for wanted in (FAILED, AVOIDED)
        )
        return failed, avoided

    @writes
    def record(
        self,
        session: SessionId,
        scope: Scope,
        at: datetime,
        failed: Collection[str],
        repeated: Collection[str] = (),
        avoided: Collection[str] = (),
    ) -> None:
        """Record the failures of a session, and the lessons that it had and did not follow or
        followed. Each counts once, when it was first seen; what it followed is what it follows now.
        """
        with self._database.writing("recording failures") as connection:
            mine = episodes.c.session == session
            connection.execute(delete(episodes).where(mine, episodes.c.outcome == AVOIDED))
            stored = select(*episodes.c["outcome", "signature"]).where(mine)
            known = {tuple(row) for row in connection.execute(stored)}
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
                for outcome, found in ((FAILED, failed), (REPEATED, repeated), (AVOIDED, avoided))
                for signature in found
                if (outcome, signature) not in known
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
        """The lessons among these skills, with their counts."""
        return [self.use(one, dates) for one in skills if isinstance(one, Lesson)]

    def use(
        self, lesson: Lesson, dates: Mapping[SkillName, tuple[datetime | None, object]]
    ) -> LessonUse:
        """A lesson with its counts since it came into force, if it ever did."""
        since = dates.get(lesson.name, (None, None))[0]
        is_before = true() if since is None else sessions.c.began_us < since
        mine = episodes.c.signature == lesson.name
        if since is not None:
            mine = and_(mine, episodes.c.at_us >= since)
        is_mine = _is_failure_of(lesson)

        def number(condition: ColumnElement[bool]) -> ColumnElement[int]:
            return func.count(case((condition, episodes.c.session)).distinct())

        query = (
            select(
                number(and_(is_mine, is_before)),
                number(and_(mine, episodes.c.outcome == REPEATED)),
                number(and_(mine, episodes.c.outcome == AVOIDED)),
                func.max(episodes.c.at_us),
            )
            .join(sessions)
            .where(or_(is_mine, mine))
        )
        (count,) = self._database.records("counting failures", query, FailureCount)
        return LessonUse(lesson, since, count)

    def has_come(self, lesson: Lesson, after: datetime) -> bool:
        """Whether the failure of a lesson came at this moment or later."""
        query = select(episodes.c.seq).where(_is_failure_of(lesson), episodes.c.at_us >= after)
        return bool(self._database.rows("looking for a failure", query.limit(1)))

    def avoided_since(self, at: datetime) -> int:
        """How often a session since this moment was spared a failure by its lesson."""
        query = select(func.count()).where(episodes.c.outcome == AVOIDED, episodes.c.at_us >= at)
        with self._database.reading("counting failures") as connection:
            return connection.execute(query).scalar_one()


def _is_failure_of(lesson: Lesson) -> ColumnElement[bool]:
    """Whether a row is a failure that a lesson is about, with its person in its project."""
    kind, _, who = (lesson.scope or "").partition(":")
    return and_(
        episodes.c.outcome == FAILED,
        episodes.c.signature.in_(lesson.signatures),
        episodes.c.user_id.is_not_distinct_from(who if kind == "user" else None),
        episodes.c.workspace_id.is_not_distinct_from(lesson.workspace),
    )
