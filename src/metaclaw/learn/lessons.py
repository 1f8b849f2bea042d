"""The lesson loop: calls that fail in one way in several sessions become one line for the next ones.

A session is read while it goes on, and once it has ended: its failed calls with what worked instead
(`episodes_of`), and the calls that a lesson spared. A failure that came in `least` sessions of one person in one project
is shown to the evolver, whose line is reviewed and published. A lesson that does not help is
retired by the counts alone. Nothing is run, and no reward is asked for."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Proposal, Standing
from metaclaw.domain.chat import Finish, Message, Part, ToolCall, ToolResult, text_of
from metaclaw.domain.episode import Episode
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.skill import Lesson, RetiredSkill, Skill
from metaclaw.domain.turn import ModelAt, Scope, Step, TurnEnd, TurnKind
from metaclaw.errors import MetaClawError, SkillError, StoreError
from metaclaw.learn.admission import CandidateAdmission, claimed, free_turns, is_by_person
from metaclaw.learn.steps import RecordedSteps
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import TURNS_CURSOR, AttemptLog, LoopWakeup, RetryGuard
from metaclaw.outcome import episodes_of, failures, followed, remedy_words
from metaclaw.skills import LessonCase, LessonWriter, Occurrence, Teams, applying, asks_the_same
from metaclaw.store import (
    LedgerReader,
    LessonUse,
    RecurringFailure,
    SqlCandidates,
    SqlCursors,
    SqlEpisodes,
    SqlGenerations,
)

log = logging.getLogger(__name__)

LESSONS_CURSOR: Final = "lessons"
OPEN_CURSOR: Final = "lessons of open sessions"
"""The cursor over turns: the sessions of all turns up to it have been read."""
LESSON_ATTEMPT: Final = "lesson"
"""The kind of an attempt of this loop."""
_POLL_S: Final = 1.0
_SESSIONS_AT_ONCE: Final = 64
_TURNS_AT_ONCE: Final = 256
_OPEN_EVERY: Final = timedelta(seconds=20)
_OPEN_SHARE: Final = 50
"""Reading a session that goes on takes at most about a fiftieth of the time."""
_MOST_SHOWN: Final = 3
_MOST_WAITING: Final = 200
_MOST_ASKED: Final = 2
"""How often a model is asked in one go, if its first line is refused, or cannot be read."""
_PAUSES: Final = (timedelta(minutes=10), timedelta(hours=1), timedelta(days=1))
"""After these a model is asked again that gave no usable answer."""
_OUTAGE_PAUSE: Final = timedelta(minutes=1)
_MOST_REFUSED: Final = 3
ASLEEP: Final = "no session needed it for 60 days"
"""Why a lesson that was not needed is retired; it comes back when its failure does."""
_DID_NOT_HELP: Final = "it was in force, and the failure came all the same: say something else"


@dataclass(frozen=True, slots=True)
class _Retry:
    """When a model is asked again about a failure, which it tried so often without a usable answer."""

    model: str
    at: datetime
    tries: int


@dataclass(eq=False, kw_only=True)
class LessonLoop:
    reader: LedgerReader
    cursors: SqlCursors
    episodes: SqlEpisodes
    recorded: RecordedSteps
    candidates: SqlCandidates
    generations: SqlGenerations
    library: AnyLibrary
    admission: CandidateAdmission
    writer_for: Callable[[ModelAt], LessonWriter | None]
    teams: Teams
    least: int
    redact: Callable[[str], str]
    now: Callable[[], datetime]
    attempt_log: AttemptLog

    def __post_init__(self) -> None:
        self.wakeup = LoopWakeup()
        self._guard = RetryGuard("lessons", self.attempt_log)
        self._is_looking = True
        self._is_first = True  # failures may be due from before the start
        self._reached: int | None = None
        self._kept = 0
        self._due: dict[SessionId, tuple[datetime, int]] = {}
        self._not_before: dict[SessionId, datetime] = {}
        self._again: dict[tuple[str, Scope], _Retry] = {}

    @property
    def pending(self) -> int:
        """1 while there are sessions or failures to examine, else 0."""
        return int(self._is_looking or self.wakeup.is_set)

    @property
    def unwritten(self) -> int:
        """The number of failures about which a model will be asked again."""
        return len(self._again)

    def prepare(self) -> None:
        """At the first start, skip the turns before it. Blocks; call it before any loop runs."""
        if not self.cursors.has_cursor(OPEN_CURSOR):
            self.cursors.move_cursor(OPEN_CURSOR, self.cursors.cursor(TURNS_CURSOR))

    async def run(self) -> None:
        """Run until cancelled."""
        await self.end_interrupted()
        while True:
            await self.look()
            await self.wakeup.wait(_POLL_S)

    async def end_interrupted(self) -> None:
        """End the attempts that were interrupted: they are made again, their failures are due."""
        for attempt in await run_sync(self.candidates.interrupted):
            if attempt.kind == LESSON_ATTEMPT:
                await run_sync(self.candidates.end_attempt, attempt.number)

    async def look(self) -> None:
        """Read the sessions that ended or went on, and have a lesson written for each failure that
        is due.
        """
        self._is_looking = True
        try:
            has_read = await self._read_sessions()
            has_read = await self._read_open() or has_read
            is_due = any(one.at <= self.now() for one in self._again.values())
            if not has_read and not self._is_first and not is_due:
                return
            self._is_first = False
            await run_sync(self.library.follow)
            await self._wake_what_is_needed()
            await self._retire_what_is_not()
            found = await run_sync(self.episodes.recurring, self.least)
            due = {(one.signature, one.scope) for one in found}
            self._again = {key: one for key, one in self._again.items() if key in due}
            for failure in found:
                async with self._guard.attempt(f"lesson {failure.signature}") as may:
                    if may:
                        await self._learn(failure)
        finally:
            self._is_looking = False

    async def _read_sessions(self) -> bool:
        """Record the failures of sessions that ended since the last look; whether there are such
        sessions.
        """
        after = await run_sync(self.cursors.cursor, LESSONS_CURSOR)
        ended = await run_sync(self.reader.sessions_ended, after, _SESSIONS_AT_ONCE)
        for session in ended:
            async with self._guard.attempt(session.id) as may:
                if may and not session.is_open:
                    await run_sync(self._record, session.id)
            await run_sync(self.cursors.move_cursor, LESSONS_CURSOR, session.seq)
        return bool(ended)

    async def _read_open(self) -> bool:
        """Record the failures of sessions that went on, each at most three times a minute, long ones
        more rarely; whether one has a new failure. The cursor stays before the first turn whose
        session is still to be read.
        """
        if self._reached is None:
            self._reached = self._kept = await run_sync(self.cursors.cursor, OPEN_CURSOR)
        rows = await run_sync(self.reader.turns_after, self._reached, _TURNS_AT_ONCE)
        now = self.now()
        for row in rows:
            self._reached = row.seq
            if row.kind is TurnKind.MAIN and row.session not in self._due:
                self._due[row.session] = self._not_before.get(row.session, now), row.seq
        self._not_before = {one: at for one, at in self._not_before.items() if at > now}
        has_new = False
        for session in [one for one, (at, _) in self._due.items() if at <= now]:
            began_s = time.monotonic()
            async with self._guard.attempt(session) as may:
                has_new = (may and await run_sync(self._record, session)) or has_new
            del self._due[session]
            took = timedelta(seconds=time.monotonic() - began_s)
            self._not_before[session] = now + max(_OPEN_EVERY, _OPEN_SHARE * took)
        settled = min((seq - 1 for _, seq in self._due.values()), default=self._reached)
        if settled != self._kept:
            await run_sync(self.cursors.move_cursor, OPEN_CURSOR, settled)
            self._kept = settled
        return has_new

    def _record(self, session: SessionId) -> bool:
        """Record the failures of a session; whether one of them is new. Blocks."""
        read = self.recorded.conversation(session)
        if read is None:
            return False
        step, messages = read
        row = self.reader.session(session)
        is_ended = row is None or row.ended_at is not None
        found = episodes_of(messages, is_ended=is_ended or _is_answered(step))
        lessons = self._lessons(step.scope)
        before, followed_before = self.episodes.recorded_of(session)
        failed = {name for one in found for name in self._signatures(one)} | before
        if lessons:  # a failure that has one needs no remedy to be counted
            with_lesson = {name for lesson in lessons for name in lesson.signatures}
            failed |= with_lesson.intersection(self.redact(str(one)) for one in failures(messages))
        is_new = failed != before
        repeated, avoided = self._heeded(session, messages, lessons, failed)
        if is_ended or is_new or avoided != followed_before:
            self.episodes.record(session, step.scope, self.now(), failed, repeated, avoided)
        return is_new

    def _heeded(
        self,
        session: SessionId,
        messages: Sequence[Message],
        lessons: Sequence[Lesson],
        failed: Set[str],
    ) -> tuple[set[str], set[str]]:
        """The names of the lessons in the session's first prompt whose failure came all the same,
        and of those that were followed: by calls that were made after that prompt. A session with
        the failure was not spared it."""
        first = self.reader.next_main_turn(session, 0)
        had = [one for one in lessons if first is not None and one.name in first.stamp.skills]
        began = self.recorded.session_of(first.id) if had and first is not None else None
        if began is None:
            return set(), set()
        since = _without_results(messages, began[1])
        came = {self.redact(str(one)) for one in failures(since)}
        repeated = {str(one.name) for one in had if not came.isdisjoint(one.signatures)}
        spared = (one for one in had if failed.isdisjoint(one.signatures))
        return repeated, set(followed(since, spared))

    def _signatures(self, episode: Episode) -> tuple[str, ...]:
        """The signatures as they are stored (an error line may hold a secret): not those of other
        programs that failed with other errors in between."""
        first = episode.signature
        mine = (
            one for one in episode.signatures if one.head == first.head or one.error == first.error
        )
        return tuple(dict.fromkeys(self.redact(str(one)) for one in mine))

    def _lessons(self, scope: Scope) -> list[Lesson]:
        return self._among(self.library.view.index.skills(), scope)

    def _among(self, skills: Iterable[Skill], scope: Scope) -> list[Lesson]:
        """The lessons for this person and project."""
        scopes = applying(scope, self.teams)
        return [
            skill
            for skill in skills
            if isinstance(skill, Lesson)
            and skill.scope in scopes
            and skill.is_for_workspace(scope.workspace)
        ]

    async def _learn(self, failure: RecurringFailure) -> None:
        """Have a lesson written for a failure, unless there is one, or was one that went: then its
        turns may train.
        """
        if await run_sync(self._is_known, failure):
            await run_sync(self.episodes.mark_shown, [failure.signature], failure.sessions)
            return
        found = await run_sync(self._case, failure)
        if found is None or (writer := self.writer_for(found[1])) is None:
            return
        case, key = found[0], (failure.signature, failure.scope)
        earlier = self._again.get(key)
        tries = earlier.tries if earlier and earlier.model == writer.model.name else 0
        if earlier and tries and earlier.at > self.now():
            return
        # Support before the evolver: these turns never train, whatever becomes of the lesson.
        generation = self.library.view.generation
        async with claimed(self.candidates, LESSON_ATTEMPT, generation, case.unclaimed) as may:
            error = await self._write(writer, case, failure) if may else None
        if error is not None:
            log.warning("lesson_not_written reason=%s", error)
            is_unusable = isinstance(error, SkillError)
            pause = _PAUSES[min(tries, len(_PAUSES) - 1)] if is_unusable else _OUTAGE_PAUSE
            at = self.now() + pause
            self._again[key] = _Retry(writer.model.name, at, tries + is_unusable)

    async def _write(
        self, writer: LessonWriter, case: LessonCase, failure: RecurringFailure
    ) -> MetaClawError | None:
        """Have a line written and admitted; the error after which the model is to be asked again."""
        line = ""
        for tries in range(1, _MOST_ASKED + 1):
            case = replace(case, refused=await run_sync(self._refused, failure))
            try:
                proposal = await writer.write(case)
            except StoreError:
                raise
            except MetaClawError as error:
                if isinstance(error, SkillError) and tries < _MOST_ASKED:
                    continue
                return error
            if proposal is None or proposal.skill.body == line:
                break
            line = proposal.skill.body
            withdrawn = await run_sync(self._withdrawn, failure.scope)
            if any(asks_the_same(one, proposal.skill) for one in withdrawn):
                break  # it did not help
            remedy = remedy_words(line, [one.episode for one in case.occurrences])
            lesson = replace(proposal.skill, remedy=remedy)
            await self._admit(replace(proposal, skill=lesson), failure.scope)
            if await run_sync(self._is_known, failure):
                break
        # Only now: after a crash, or while the model cannot be asked, the failure stays due.
        await run_sync(self.episodes.mark_shown, case.signatures, failure.sessions)
        self._again.pop((failure.signature, failure.scope), None)
        return None

    def _refused(self, failure: RecurringFailure) -> tuple[tuple[str, str], ...]:
        """The newest lines about a failure that were refused, and why. Blocks."""
        rejected = self.candidates.candidates(Standing.REJECTED, _MOST_WAITING)
        reasons = {one.proposal.skill.body: one.reason for one in reversed(rejected)}
        withdrawn = self._withdrawn(failure.scope)
        reasons |= dict.fromkeys((one.body for one in withdrawn), _DID_NOT_HELP)
        lines = self._among((one.proposal.skill for one in rejected), failure.scope)
        mine = (one.body for one in (*withdrawn, *lines) if failure.signature in one.signatures)
        return tuple((line, reasons[line]) for line in islice(dict.fromkeys(mine), _MOST_REFUSED))

    def _withdrawn(self, scope: Scope) -> list[Lesson]:
        """The lessons that did not help. Blocks."""
        gone = (one for one in self.generations.retired() if not is_by_person(one))
        return self._among((one.skill for one in gone if not _sleeps(one)), scope)

    async def _admit(self, proposal: Proposal, scope: Scope) -> None:
        """Admit a lesson; one that says what another one says widens that one."""
        lesson = proposal.skill
        twin = next((one for one in self._lessons(scope) if asks_the_same(one, lesson)), None)
        if twin is None:
            await self.admission.admit(proposal)
            return
        signatures = tuple(dict.fromkeys((*twin.signatures, *lesson.signatures)))
        await self.admission.change(
            replace(twin, signatures=signatures), f"{twin.name} is about one more failure"
        )

    def _is_known(self, failure: RecurringFailure) -> bool:
        """Whether a lesson about this failure is in force, sleeps, waits for a person, or is still
        to be decided about, after the program was killed in between. Of one that did not help, or
        that a person took back, new failures may speak again (`taken_back`).
        """
        retired = (one for one in self.generations.retired() if not is_by_person(one))
        gone = [one.skill for one in retired if _sleeps(one)]
        waiting = [
            one.proposal.skill
            for standing in (Standing.DRAFT, Standing.WAITING)
            for one in self.candidates.candidates(standing, _MOST_WAITING)
        ]
        theirs = self._among([*gone, *waiting], failure.scope)
        return any(
            failure.signature in lesson.signatures
            for lesson in (*self._lessons(failure.scope), *theirs)
        )

    def _case(self, failure: RecurringFailure) -> tuple[LessonCase, ModelAt] | None:
        """The newest occurrences of a failure whose turns have not trained weights, and the model
        that failed last; None without any.
        """
        shown: list[Occurrence] = []
        support: list[TurnId] = []
        unclaimed: list[TurnId] = []
        models: list[ModelAt] = []
        for session in failure.sessions:
            read = self.recorded.conversation(session)
            free = free_turns(self.reader, [session])
            found = None if read is None else self._episode(read[1], failure.signature)
            if read is None or found is None or free is None:
                continue
            step = read[0]
            shown.append(Occurrence(found, found.said or step.task))
            support.append(step.turn)  # its request holds the whole session
            unclaimed += free
            models.append(step.served_by)
            if len(shown) == _MOST_SHOWN:
                break
        if not shown:
            return None
        named = dict.fromkeys(name for one in shown for name in self._signatures(one.episode))
        worked = (other.remedy for one in shown for other in (one.episode, *one.episode.between))
        named |= dict.fromkeys(self.redact(str(remedy)) for remedy in worked if remedy)
        case = LessonCase(
            tuple(shown), tuple(named), failure.scope, tuple(support), tuple(unclaimed)
        )
        return case, models[0]

    def _episode(self, messages: Sequence[Message], signature: str) -> Episode | None:
        """The last episode of this signature."""
        for is_ended in (False, True):
            found = episodes_of(messages, is_ended=is_ended)
            if mine := [one for one in found if signature in self._signatures(one)]:
                return mine[-1]
        return None

    async def _retire_what_is_not(self) -> None:
        """Retire lessons that did not help, and put those that were not needed to sleep."""
        for use in await run_sync(self.uses):
            if use.lesson.pinned:
                continue
            if use.has_failed:
                came = use.count.since
                await self.admission.retire(
                    use.lesson, f"the failure came in {came} sessions since it is in force"
                )
            elif use.is_unneeded(self.now()):
                await self.admission.retire(use.lesson, ASLEEP)

    async def _wake_what_is_needed(self) -> None:
        """Put sleeping lessons in force again whose failure came back since."""
        for one in await run_sync(self.generations.retired):
            lesson, at = one.skill, one.retired_at
            if not isinstance(lesson, Lesson) or at is None or not _sleeps(one):
                continue
            if await run_sync(self.episodes.has_come, lesson, at):
                await self.admission.change(lesson, f"{lesson.name} is needed again")

    def uses(self) -> list[LessonUse]:
        """The lessons in force with their counts. Blocks."""
        return self.episodes.uses(self.library.view.skills, self.generations.dates())


def _sleeps(one: RetiredSkill) -> bool:
    return one.reason.endswith(ASLEEP)


def _without_results(
    messages: Sequence[Message], earlier: Sequence[Message]
) -> tuple[Message, ...]:
    """The messages without the results that stand in earlier ones."""
    known = {part.call_id for one in earlier for part in one.parts if isinstance(part, ToolResult)}

    def is_new(part: Part) -> bool:
        return not isinstance(part, ToolResult) or part.call_id not in known

    return tuple(replace(one, parts=tuple(filter(is_new, one.parts))) for one in messages)


def _is_answered(step: Step) -> bool:
    """Whether the agent has ended its task: with words, and without another call."""
    is_whole = step.end is TurnEnd.COMPLETED and step.finish is not Finish.LENGTH
    has_call = any(isinstance(part, ToolCall) for part in step.answer)
    return is_whole and not has_call and bool(text_of(step.answer).strip())
