"""The fast loop: failures become skills that take effect on the next request.

Failures of one kind in one project of one person are shown to the evolver together, also if a
person stated a rule or fact in between (docs/decisions/0007). Turns that the evolver was shown are
marked as support in the database: they are never shown again and never train weights. An
interrupted attempt without a result is resumed.

A turn that weights can learn from, and against which the person did not speak, is not shown if the
check of a skill in its prompt failed (the rule was there already), or if failures of its kind were
shown since the start: it may train."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import ModelAt
from metaclaw.domain.verdict import Source
from metaclaw.errors import MetaClawError, StoreError
from metaclaw.learn.admission import CandidateAdmission, claim_turns
from metaclaw.learn.lessons import LESSON_ATTEMPT
from metaclaw.learn.open_failures import FailureReader
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import LISTENED, AttemptLog, LoopWakeup, RetryGuard
from metaclaw.skills import MOST_SHOWN, Evolver, Failure, FailureGroup, Teams, group_failures
from metaclaw.store import SkillAttempt, SqlCandidates

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 30.0
_NEAR: Final = 5
_WRITTEN_AT_ONCE: Final = 2
_PAUSES_S: Final = (5.0, 30.0, 120.0, 600.0)


@dataclass(eq=False, kw_only=True)
class FastLoop:
    """Turns open failures into proposals and passes them to admission. `is_unread` says whether the
    message of a turn has not been read yet: the message may make a rule of the failure. `may_train`
    says whether weights could learn from a turn; it blocks."""

    failures: FailureReader
    candidates: SqlCandidates
    library: AnyLibrary
    admission: CandidateAdmission
    writer_for: Callable[[ModelAt], Evolver | None]
    min_failures: int
    teams: Teams
    pauses_s: Sequence[float] = _PAUSES_S
    attempt_log: AttemptLog
    is_unread: Callable[[TurnId], bool]
    may_train: Callable[[TurnId], bool]

    def __post_init__(self) -> None:
        self.wakeup = LoopWakeup()
        self._shown: set[tuple[str, str | None, str]] = set()
        self._limiter = anyio.CapacityLimiter(_WRITTEN_AT_ONCE)
        self._guard = RetryGuard("fast", self.attempt_log)
        self._writing_guard = RetryGuard("writing", self.attempt_log)
        self._is_looking = False
        self.writing = 0
        """Groups of failures for which a model is writing a skill."""
        self._counted: list[FailureGroup] = []

    @property
    def counted(self) -> list[dict[str, object]]:
        """Kinds of failure that have not happened often enough for a skill: their number, and the
        number needed.
        """
        return [
            {
                "kind": kind.cause,
                "words": kind.in_words,
                "failures": len(kind.failures),
                "needed": self.min_failures,
            }
            for kind in self._counted
        ]

    @property
    def lessons(self) -> int:
        """1 while there are failures to examine, else 0."""
        return int(self._is_looking or self.wakeup.is_set)

    async def run(self) -> None:
        """Run until cancelled."""
        self._is_looking = True  # until the first look has ended
        async with anyio.create_task_group() as background:
            await run_sync(self.library.follow)
            await self.take_up_again(background)
            while True:
                await self.learn(background)
                await self.wakeup.wait(_LOOK_EVERY_S)

    async def learn(self, background: TaskGroup) -> None:
        """Have skills written for every kind of failure that has happened often enough."""
        self._is_looking = True
        try:
            await run_sync(self.library.follow)
            failures = await run_sync(self.failures.open_failures, self.library.view.generation)
            settled = [failure for failure in failures if not self._has_unread_reply(failure)]
            kinds = await run_sync(self._kinds_to_show, settled)
            self._counted = [kind for kind in kinds if not kind.is_learnable(self.min_failures)]
            for kind in kinds:
                if kind.is_learnable(self.min_failures):
                    async with self._guard.attempt(f"failures since {kind.turns[0]}") as may:
                        if may:
                            await self._from_failures(kind, background)
        finally:
            self._is_looking = False

    def _kinds_to_show(self, failures: Sequence[Failure]) -> list[FailureGroup]:
        """The failures by kind, without those that are kept for training. Blocks."""
        kinds = []
        for kind in group_failures(failures):
            may_train = {
                one.step.turn
                for one in kind.failures
                if not one.is_spoken_against and self.may_train(one.step.turn)
            }
            shown = [one for one in kind.failures if one.step.turn not in may_train]
            if kind.key not in self._shown:
                new = [
                    one
                    for one in kind.failures
                    if one.step.turn in may_train and one.verdict.source is not Source.CHECK
                ]
                shown += new[:MOST_SHOWN]
            if shown:
                shown.sort(key=lambda one: one.step.turn)
                kinds.append(replace(kind, failures=tuple(shown)))
        return kinds

    async def take_up_again(self, background: TaskGroup) -> None:
        """Resume after a stop: undecided candidates, and attempts without a result."""
        try:
            undecided = await run_sync(self.failures.undecided)
            interrupted = await run_sync(self.candidates.interrupted)
        except StoreError as error:
            log.warning("unfinished_learning_unread reason=%s", error)
            return
        for candidate in undecided:
            async with self._guard.attempt(candidate.id) as may:
                await (self.admission.decide_again if may else self.admission.set_aside)(candidate)
        own = (one for one in interrupted if one.kind not in (LISTENED, LESSON_ATTEMPT))
        for attempt in own:
            async with self._guard.attempt(f"attempt {attempt.number}") as may:
                if may:
                    await self._resume(attempt, background)
                else:
                    await run_sync(self.candidates.end_attempt, attempt.number)

    def _has_unread_reply(self, failure: Failure) -> bool:
        """Whether the person's reply to a failure has not been read yet; the reply may make a
        rule.
        """
        answer = self.failures.answer_to(failure)
        return answer is not None and self.is_unread(answer)

    async def _from_failures(self, kind: FailureGroup, background: TaskGroup) -> None:
        if self.writer_for(kind.failures[-1].step.served_by) is None:
            return  # no model can write a skill: the failures may train the weights
        attempt = await claim_turns(
            self.candidates, kind.cause, self.library.view.generation, kind.turns
        )
        if attempt is None:
            return
        log.info("failures_of_one_kind cause=%s turns=%d", kind.cause, len(kind.failures))
        await self._write(kind, attempt, background)

    async def _write(self, kind: FailureGroup, attempt: int, background: TaskGroup) -> None:
        writer = self.writer_for(kind.failures[-1].step.served_by)
        if writer is None:
            await run_sync(self.candidates.end_attempt, attempt)
        else:
            self._shown.add(kind.key)
            self.writing += 1
            background.start_soon(self._ask, writer, kind, attempt)

    async def _ask(self, writer: Evolver, kind: FailureGroup, attempt: int) -> None:
        try:
            if not await self._was_asked(writer, kind, attempt):
                self._shown.discard(kind.key)  # no evolver has read its failures
            await run_sync(self.candidates.end_attempt, attempt)
        finally:
            self.writing -= 1

    async def _was_asked(self, writer: Evolver, kind: FailureGroup, attempt: int) -> bool:
        """Ask for proposals. If the model cannot be reached, ask again after each of the pauses,
        then give up.
        """
        for pause_s in (*self.pauses_s, None):
            async with self._limiter, self._writing_guard.attempt(attempt) as may:
                if not may:
                    return True
                try:
                    await self._propose(writer, kind)
                except StoreError:
                    raise
                except MetaClawError as error:
                    log.warning(
                        "evolver_unavailable cause=%s again_in_s=%s reason=%s",
                        kind.cause,
                        pause_s,
                        error,
                    )
                else:
                    return True
            if pause_s is not None:
                await anyio.sleep(pause_s)
        return False

    async def _propose(self, writer: Evolver, kind: FailureGroup) -> None:
        whole = await run_sync(self.failures.in_full, kind)
        near = await run_sync(self._near, whole)
        rejected = await run_sync(self.failures.turned_away, whole)
        seen = {skill.name: skill.content_hash for skill in near}
        generation = kind.failures[-1].step.stamp.generation
        for proposal in await writer.propose(whole, near, rejected[:_NEAR]):
            await self.admission.admit(proposal, seen=seen, generation=generation)

    async def _resume(self, attempt: SkillAttempt, background: TaskGroup) -> None:
        kind = await run_sync(self.failures.kind_of, attempt)
        if kind is None:
            await run_sync(self.candidates.end_attempt, attempt.number)
        else:
            await self._write(kind, attempt.number, background)

    def _near(self, kind: FailureGroup) -> tuple[Skill, ...]:
        steps = [failure.step for failure in kind.failures]
        tasks = "\n".join(dict.fromkeys(step.task for step in steps))
        return self.library.view.retrieve(tasks, _NEAR, steps[-1].scope, self.teams)
