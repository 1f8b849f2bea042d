"""The second loop: failures and a person's standing words become skills that take effect on the next request.

Failures are taken up by kind, within one generation and one scope. Whatever is shown to an evolver is support from that moment on,
in the database, and never shown again; so nothing is learned twice and nothing that taught a skill can train weights. An attempt
that was interrupted before anything came of it is taken up again.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Candidate, Proposal
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.errors import MetaClawError, StoreError
from metaclaw.learn.admitting import Admitting, Learned
from metaclaw.learn.bell import Bell
from metaclaw.learn.lessons import Lessons
from metaclaw.learn.probes import Probes, tasks_in_words
from metaclaw.learn.shelf import SkillShelf, stay
from metaclaw.learn.stumbles import Stumbles, Workbook
from metaclaw.privacy import own_words
from metaclaw.skills.evolve import Failure, Kind, from_correction, group, named_apart, ripe
from metaclaw.skills.scopes import Teams, applying
from metaclaw.store import Attempt, RefusedError, SqlCandidates

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 30.0
_NEAR: Final = 5
_MOST_HEARD: Final = 1000
_WRITTEN_AT_ONCE: Final = 2
_PAUSES_S: Final = (5.0, 30.0, 120.0, 600.0)
_INSTRUCTION: Final = "a standing instruction"


class Writer(Protocol):
    """Who writes skills from failures."""

    async def propose(self, kind: Kind, near: Sequence[Skill], rejected: Sequence[Candidate]) -> tuple[Proposal, ...]:
        """Zero to three proposals. Raises UpstreamError where it cannot be asked now."""


@dataclass(frozen=True, slots=True)
class FastRules:
    """When failures are enough, and who is in which team."""

    min_failures: int
    teams: Teams


@dataclass(frozen=True, slots=True)
class _Heard:
    step: Step
    done: Callable[[], None]


class Fast:
    """Learns as soon as there is something to learn from."""

    def __init__(
        self,
        *,
        lessons: Lessons,
        candidates: SqlCandidates,
        shelf: SkillShelf,
        admitting: Admitting,
        probes: Probes,
        writer_for: Callable[[str], Writer | None],
        rules: FastRules,
        pauses_s: Sequence[float] = _PAUSES_S,
        catch_up: Callable[[], object] = stay,
        book: Workbook | None = None,
    ) -> None:
        """`catch_up` brings the shelf up to date, where it is not always so; it blocks."""
        self.bell = Bell()
        self._lessons = lessons
        self._candidates = candidates
        self._shelf = shelf
        self._admitting = admitting
        self._probes = probes
        self._writer_for = writer_for
        self._rules = rules
        self._pauses_s = pauses_s
        self._catch_up = catch_up
        self._heard: deque[_Heard] = deque()
        self._limiter = anyio.CapacityLimiter(_WRITTEN_AT_ONCE)
        book = book or Workbook()
        self._stumbles, self._attempts = Stumbles("fast", book), Stumbles("writing", book)
        self._repeats: set[TurnId] = set()
        self._repeats_of = -1
        self._is_looking = False
        self._writing = 0
        self._counted: tuple[tuple[str, int], ...] = ()

    @property
    def counted(self) -> list[dict[str, object]]:
        """Kinds of failure that have not happened often enough to make a skill of: how often, of how many."""
        needed = self._rules.min_failures
        return [{"kind": kind, "failures": failures, "needed": needed} for kind, failures in self._counted]

    @property
    def lessons(self) -> int:
        """How much there is to look at: words that were heard, and one for failures that nobody has looked at, or just does."""
        return len(self._heard) + (self._is_looking or self.bell.is_rung)

    @property
    def writing(self) -> int:
        """Kinds of failure of which somebody is being asked to make a skill."""
        return self._writing

    def hear(self, step: Step, done: Callable[[], None] = lambda: None) -> None:
        """A person has said something new. `done` is called once everything has been made of it that can be."""
        if len(self._heard) == _MOST_HEARD:
            log.warning("words_not_taken_up turn=%s", self._heard[0].step.turn)
            self._heard.popleft().done()
        self._heard.append(_Heard(step, done))
        self.bell.ring()

    async def run(self) -> None:
        """Until cancelled."""
        self._is_looking = True  # until the first look is over
        async with anyio.create_task_group() as aside:
            await run_sync(self._catch_up)
            await self.take_up_again(aside)
            while True:
                await self.learn(aside)
                await self.bell.wait(_LOOK_EVERY_S)

    async def learn(self, aside: TaskGroup) -> None:
        """Take up whatever there is to learn from now."""
        self._is_looking = True
        try:
            await self._look(aside)
        finally:
            self._is_looking = False

    async def _look(self, aside: TaskGroup) -> None:
        await run_sync(self._catch_up)
        heard = list(self._heard)
        self._heard.clear()
        failures = await run_sync(self._lessons.open_failures, self._shelf.view.generation)
        for one in heard:
            async with self._stumbles.taking(one.step.turn) as may:
                failures = await self._from_words(one.step, failures, aside) if may else failures
            one.done()
        kinds = await run_sync(group, await run_sync(self._without_repeats, failures))
        self._counted = tuple((one.name, len(one.failures)) for one in kinds if not ripe(one, self._rules.min_failures))
        for kind in kinds:
            if ripe(kind, self._rules.min_failures):
                async with self._stumbles.taking(f"failures since {kind.turns[0]}") as may:
                    if may:
                        await self._from_failures(kind, aside)

    async def take_up_again(self, aside: TaskGroup) -> None:
        """What was under way when the program stopped goes on: candidates on their way, attempts of which nothing has come yet."""
        try:
            waiting = await run_sync(self._lessons.unfinished)
            interrupted = await run_sync(self._candidates.interrupted)
        except StoreError as error:
            log.warning("unfinished_learning_unread reason=%s", error)
            return
        for candidate in filter(self._admitting.is_unfinished, waiting):
            async with self._stumbles.taking(candidate.id) as may:
                if may:
                    await self._admitting.go_on(candidate, await run_sync(self._learned_again, candidate), aside)
                else:
                    await self._admitting.set_aside(candidate)
        for attempt in interrupted:
            async with self._stumbles.taking(f"attempt {attempt.number}") as may:
                if may:
                    await self._resume(attempt, aside)
                else:
                    await run_sync(self._candidates.end_attempt, attempt.number)

    async def _from_words(self, step: Step, failures: list[Failure], aside: TaskGroup) -> list[Failure]:
        """A standing instruction; the failures it answers are its support too, and not left for anybody else."""
        proposals = await run_sync(self._lessons.instructions, step)
        if not proposals:
            return failures
        answered = [one for one in failures if self._lessons.answers(step, one)]
        if all(map(self._is_in_force, proposals)) and step.stamp.generation == self._shelf.view.generation:
            # Said again, and in force already: nothing is learned from it, so nothing of it is support.
            return [one for one in failures if one not in answered]
        taught_by = [*(one.step.turn for one in answered), step.turn]
        attempt = await self._claim(_INSTRUCTION, taught_by)
        if attempt is None and answered:
            taught_by = [step.turn]
            attempt = await self._claim(_INSTRUCTION, taught_by)
        if attempt is not None:
            await self._admit_words(proposals, step, taught_by, attempt, aside)
        return [one for one in failures if one not in answered]

    def _without_repeats(self, failures: Sequence[Failure]) -> list[Failure]:
        """Failures somebody may make something of. Blocks; what was found to be a repetition is not looked at again."""
        generation = self._shelf.view.generation
        if self._repeats_of != generation:
            self._repeats_of, self._repeats = generation, set()
        self._repeats |= {
            one.step.turn
            for one in failures
            if one.step.turn not in self._repeats and self._lessons.is_repeated(one, self._is_in_force)
        }
        return [one for one in failures if one.step.turn not in self._repeats]

    def _is_in_force(self, proposal: Proposal) -> bool:
        """Whether these very words of this person are a skill already, under this name or a numbered one."""
        return self._shelf.view.get(named_apart(proposal.skill, self._shelf.view.get).name) is not None

    async def _admit_words(
        self, proposals: Sequence[Proposal], step: Step, taught_by: Sequence[TurnId], attempt: int, aside: TaskGroup
    ) -> None:
        for proposal in proposals:
            await self._admit(proposal, step, taught_by, aside)
        await run_sync(self._candidates.end_attempt, attempt)

    async def _from_failures(self, kind: Kind, aside: TaskGroup) -> None:
        if self._writer_for(kind.failures[-1].step.model) is None and await run_sync(_corrected, kind) is None:
            return  # nothing can be made of them: they feed no skill, and stay free to train the weights
        attempt = await self._claim(kind.name, kind.turns)
        if attempt is None:
            return
        log.info("failures_of_one_kind cause=%s turns=%d", kind.cause, len(kind.failures))
        if await run_sync(lambda: all(map(self._lessons.is_spoken_for, kind.failures))):
            # The words that answered them were heard before anybody knew that these are failures: there is a skill of them already.
            await run_sync(self._candidates.end_attempt, attempt)
            return
        await self._write(kind, attempt, aside)

    async def _write(self, kind: Kind, attempt: int, aside: TaskGroup) -> None:
        writer = self._writer_for(kind.failures[-1].step.model)
        if writer is None:
            await self._from_corrections(kind, attempt, aside)
        else:
            self._writing += 1
            aside.start_soon(self._ask_aside, writer, kind, attempt, aside)

    async def _ask_aside(self, writer: Writer, kind: Kind, attempt: int, aside: TaskGroup) -> None:
        try:
            await self._ask(writer, kind, attempt, aside)
        finally:
            self._writing -= 1

    async def _ask(self, writer: Writer, kind: Kind, attempt: int, aside: TaskGroup) -> None:
        """Ask for proposals; a writer that is down is asked again later, and at last the person's own words must do."""
        for pause_s in (*self._pauses_s, None):
            async with self._limiter, self._attempts.taking(attempt) as may:
                if not may:
                    await run_sync(self._candidates.end_attempt, attempt)
                    return
                try:
                    written = await self._written(writer, kind)
                except StoreError:
                    raise
                except MetaClawError as error:
                    log.warning("evolver_unavailable cause=%s again_in_s=%s reason=%s", kind.cause, pause_s, error)
                else:
                    for proposal, learned in written:
                        await self._admitting.admit(proposal, learned, aside)
                    await run_sync(self._candidates.end_attempt, attempt)
                    return
            if pause_s is not None:
                await anyio.sleep(pause_s)
        await self._from_corrections(kind, attempt, aside)

    async def _written(self, writer: Writer, kind: Kind) -> list[tuple[Proposal, Learned]]:
        """What the writer proposes, and what the gate is to be told of it."""
        whole = await run_sync(self._lessons.in_full, kind)
        near = await run_sync(self._near, whole)
        rejected = await run_sync(self._lessons.turned_away, whole)
        proposals = await writer.propose(whole, near, rejected[:_NEAR])
        seen = {skill.name: skill.content_hash for skill in near}
        step = kind.failures[-1].step
        return [(one, replace(self._learned(one, step), seen=seen, attempt=1 + len(rejected))) for one in proposals]

    async def _from_corrections(self, kind: Kind, attempt: int, aside: TaskGroup) -> None:
        """Without anybody to write: the newest words that say what to do, as they were said."""
        if (found := await run_sync(_corrected, kind)) is not None:
            proposal, failure = found
            await self._admit(proposal, failure.step, kind.turns, aside)
        await run_sync(self._candidates.end_attempt, attempt)

    async def _admit(self, proposal: Proposal, step: Step, taught_by: Sequence[TurnId], aside: TaskGroup) -> None:
        """`taught_by` are all that taught it, which may be more than its writer names."""
        proposal = replace(proposal, support=tuple(dict.fromkeys((*proposal.support, *taught_by))))
        await self._admitting.admit(proposal, self._learned(proposal, step), aside)

    def _learned(self, proposal: Proposal, step: Step) -> Learned:
        scopes = frozenset(applying(step.scope, self._rules.teams))
        return Learned(partial(self._probes.choose, proposal), step.model, scopes, generation=step.stamp.generation)

    def _learned_again(self, candidate: Candidate) -> Learned:
        proposal = candidate.proposal
        teacher = self._lessons.newest(proposal.support)
        return Learned(partial(self._probes.choose, proposal), "") if teacher is None else self._learned(proposal, teacher)

    async def _resume(self, attempt: Attempt, aside: TaskGroup) -> None:
        if attempt.kind == _INSTRUCTION:
            step = await run_sync(self._lessons.words, attempt.turns[-1])
            proposals = () if step is None else await run_sync(self._lessons.instructions, step)
            if step is not None and proposals:
                await self._admit_words(proposals, step, attempt.turns, attempt.number, aside)
                return
        kind = await run_sync(self._lessons.kind_of, attempt)
        if kind is None:
            await run_sync(self._candidates.end_attempt, attempt.number)
        else:
            await self._write(kind, attempt.number, aside)

    async def _claim(self, kind: str, turns: Sequence[TurnId]) -> int | None:
        """Make these turns support; None where one of them has been used already, or is forgotten."""
        try:
            return await run_sync(self._candidates.begin_attempt, kind, self._shelf.view.generation, turns)
        except RefusedError as error:
            log.debug("attempt_refused kind=%s reason=%s", kind, error)
            return None

    def _near(self, kind: Kind) -> tuple[Skill, ...]:
        steps = [failure.step for failure in kind.failures]
        return self._shelf.view.retrieve(tasks_in_words(steps), _NEAR, steps[-1].scope, self._rules.teams)


def _corrected(kind: Kind) -> tuple[Proposal, Failure] | None:
    """The newest words about these failures that say what to do, as a skill, and the failure they are about. Blocks."""
    found = ((from_correction(_in_own_words(failure)), failure) for failure in reversed(kind.failures))
    return next(((proposal, failure) for proposal, failure in found if proposal is not None), None)


def _in_own_words(failure: Failure) -> Failure:
    """The failure without what the person only quoted, pasted or reported."""
    said = failure.step.said_after
    return failure if said is None else replace(failure, step=replace(failure.step, said_after=own_words(said)))
