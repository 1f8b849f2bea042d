"""The fast loop: failures become skills that take effect on the next request.

Failures of one kind, within one scope, are shown to the evolver together, also if a person stated a
rule or fact in between (docs/decisions/0009). Turns that the evolver was shown are marked as
support in the database: they are never shown again and never train weights. An interrupted attempt
without a result is resumed. Failures that no skill can fix are not shown, and may train the weights
(`EvolverFilter`)."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Candidate, Proposal
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Step
from metaclaw.errors import MetaClawError, StoreError
from metaclaw.learn.admission import CandidateAdmission, ProposalFacts, claim_turns
from metaclaw.learn.lessons import LESSON_ATTEMPT
from metaclaw.learn.open_failures import EvolverFilter, FailureReader, Probes, tasks_in_words
from metaclaw.learn.rules import LISTENED
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import AttemptLog, LoopWakeup, RetryGuard
from metaclaw.skills import Evolver, Failure, FailureGroup, Teams, applying, is_learnable
from metaclaw.store import SkillAttempt, SqlCandidates

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 30.0
_CONTINUE_EVERY_S: Final = 600.0
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
    probes: Probes
    writer_for: Callable[[str], Evolver | None]
    min_failures: int
    teams: Teams
    pauses_s: Sequence[float] = _PAUSES_S
    attempt_log: AttemptLog = field(default_factory=AttemptLog)
    clock: Callable[[], float] = time.monotonic
    is_unread: Callable[[TurnId], bool] = lambda turn: False
    may_train: Callable[[TurnId], bool] = lambda turn: False

    def __post_init__(self) -> None:
        self.wakeup = LoopWakeup()
        self._filter = EvolverFilter(lambda turn: self.may_train(turn), self._is_skill)
        self._limiter = anyio.CapacityLimiter(_WRITTEN_AT_ONCE)
        self._guard, self._writing_guard = (
            RetryGuard("fast", self.attempt_log),
            RetryGuard("writing", self.attempt_log),
        )
        self._is_looking = False
        self.writing = 0
        """Groups of failures for which a model is writing a skill."""
        self._counted: tuple[tuple[str, str, int], ...] = ()

    @property
    def counted(self) -> list[dict[str, object]]:
        """Kinds of failure that have not happened often enough for a skill: their number, and the
        number needed.
        """
        return [
            {"kind": kind, "words": words, "failures": failures, "needed": self.min_failures}
            for kind, words, failures in self._counted
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
            continued = self.clock()
            while True:
                await self.learn(background)
                if self.clock() - continued >= _CONTINUE_EVERY_S:
                    await self.take_up_candidates(background)
                    continued = self.clock()
                await self.wakeup.wait(_LOOK_EVERY_S)

    async def learn(self, background: TaskGroup) -> None:
        """Have skills written for every kind of failure that has happened often enough."""
        self._is_looking = True
        try:
            await self._look(background)
        finally:
            self._is_looking = False

    def forget_session(self, session: SessionId) -> None:
        """Drop a session that is to be forgotten from memory."""
        self._filter.forget(session)

    async def _look(self, background: TaskGroup) -> None:
        await run_sync(self.library.follow)
        failures = await run_sync(self.failures.open_failures, self.library.view.generation)
        settled = [failure for failure in failures if not self._has_unread_reply(failure)]
        shown = await run_sync(
            self.failures.not_overtaken, self._filter.shown, self.library.view.generation
        )
        self._filter.keep(shown)
        kinds = await run_sync(self._filter.kinds_to_show, settled, shown)
        too_few = (kind for kind in kinds if not is_learnable(kind, self.min_failures))
        self._counted = tuple((kind.name, kind.in_words, len(kind.failures)) for kind in too_few)
        for kind in kinds:
            if is_learnable(kind, self.min_failures):
                async with self._guard.attempt(f"failures since {kind.turns[0]}") as may:
                    if may:
                        await self._from_failures(kind, background)

    async def take_up_again(self, background: TaskGroup) -> None:
        """Resume after a stop: undecided candidates, and attempts without a result."""
        await self.take_up_candidates(background)
        try:
            interrupted = await run_sync(self.candidates.interrupted)
        except StoreError as error:
            log.warning("unfinished_learning_unread reason=%s", error)
            return
        own = (one for one in interrupted if one.kind not in (LISTENED, LESSON_ATTEMPT))
        for attempt in own:
            async with self._guard.attempt(f"attempt {attempt.number}") as may:
                if may:
                    await self._resume(attempt, background)
                else:
                    await run_sync(self.candidates.end_attempt, attempt.number)

    async def take_up_candidates(self, background: TaskGroup) -> None:
        """Continue undecided candidates, whose replays were interrupted or not possible."""
        try:
            waiting = await run_sync(self.failures.unfinished)
        except StoreError as error:
            log.warning("unfinished_learning_unread reason=%s", error)
            return
        for candidate in filter(self.admission.is_unfinished, waiting):
            async with self._guard.attempt(candidate.id) as may:
                if may:
                    await self.admission.decide_or_resume(
                        candidate, await run_sync(self._facts_again, candidate), background
                    )
                else:
                    await self.admission.set_aside(candidate)

    def _is_skill(self, name: SkillName) -> bool:
        found = self.library.view.get(name)
        return found is not None and found.is_skill

    def _has_unread_reply(self, failure: Failure) -> bool:
        """Whether the person's reply to a failure has not been read yet; the reply may make a
        rule.
        """
        answer = self.failures.answer_to(failure)
        return answer is not None and self.is_unread(answer)

    async def _from_failures(self, kind: FailureGroup, background: TaskGroup) -> None:
        if self.writer_for(kind.failures[-1].step.model) is None:
            return  # no model can write a skill: the failures may train the weights
        attempt = await claim_turns(
            self.candidates, kind.name, self.library.view.generation, kind.turns
        )
        if attempt is None:
            return
        log.info("failures_of_one_kind cause=%s turns=%d", kind.cause, len(kind.failures))
        self._filter.add(attempt, kind.failures, self.library.view.generation)
        await self._write(kind, attempt, background)

    async def _write(self, kind: FailureGroup, attempt: int, background: TaskGroup) -> None:
        writer = self.writer_for(kind.failures[-1].step.model)
        if writer is None:
            await run_sync(self.candidates.end_attempt, attempt)
        else:
            self.writing += 1
            background.start_soon(self._ask_in_background, writer, kind, attempt, background)

    async def _ask_in_background(
        self, writer: Evolver, kind: FailureGroup, attempt: int, background: TaskGroup
    ) -> None:
        try:
            await self._ask(writer, kind, attempt, background)
        finally:
            self.writing -= 1

    async def _ask(
        self, writer: Evolver, kind: FailureGroup, attempt: int, background: TaskGroup
    ) -> None:
        """Ask for proposals. If the model cannot be reached, ask again after each of the pauses,
        then give up.
        """
        for pause_s in (*self.pauses_s, None):
            async with self._limiter, self._writing_guard.attempt(attempt) as may:
                if not may:
                    await run_sync(self.candidates.end_attempt, attempt)
                    return
                try:
                    written = await self._written(writer, kind)
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
                    for proposal, facts in written:
                        await self.admission.admit(proposal, facts, background)
                    await run_sync(self.candidates.end_attempt, attempt)
                    return
            if pause_s is not None:
                await anyio.sleep(pause_s)
        self._filter.remove(attempt)  # no evolver has read its failures
        await run_sync(self.candidates.end_attempt, attempt)

    async def _written(
        self, writer: Evolver, kind: FailureGroup
    ) -> list[tuple[Proposal, ProposalFacts]]:
        """The writer's proposals, each with the facts for the gate."""
        whole = await run_sync(self.failures.in_full, kind)
        near = await run_sync(self._near, whole)
        rejected = await run_sync(self.failures.turned_away, whole)
        proposals = await writer.propose(whole, near, rejected[:_NEAR])
        seen = {skill.name: skill.content_hash for skill in near}
        step = kind.failures[-1].step
        return [
            (proposal, replace(self._facts(proposal, step), seen=seen)) for proposal in proposals
        ]

    def _facts(self, proposal: Proposal, step: Step) -> ProposalFacts:
        scopes = frozenset(applying(step.scope, self.teams))
        return ProposalFacts(
            partial(self.probes.choose, proposal),
            step.model,
            scopes,
            generation=step.stamp.generation,
        )

    def _facts_again(self, candidate: Candidate) -> ProposalFacts:
        proposal = candidate.proposal
        teacher = self.failures.newest(proposal.support)
        return (
            ProposalFacts(partial(self.probes.choose, proposal), "")
            if teacher is None
            else self._facts(proposal, teacher)
        )

    async def _resume(self, attempt: SkillAttempt, background: TaskGroup) -> None:
        kind = await run_sync(self.failures.kind_of, attempt)
        if kind is None:
            await run_sync(self.candidates.end_attempt, attempt.number)
        else:
            self._filter.add(attempt.number, kind.failures, attempt.generation)
            await self._write(kind, attempt.number, background)

    def _near(self, kind: FailureGroup) -> tuple[Skill, ...]:
        steps = [failure.step for failure in kind.failures]
        return self.library.view.retrieve(tasks_in_words(steps), _NEAR, steps[-1].scope, self.teams)
