"""The second loop: failures and a person's standing words become skills that take effect on the next request.

Failures are taken up by kind, within one generation and one scope. Whatever is shown to an evolver is support from that moment on,
in the database, and never shown again; so nothing is learned twice and nothing that taught a skill can train weights.
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

from metaclaw.domain.candidate import Candidate, Proposal, Standing
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Verdict
from metaclaw.errors import StoreError, UpstreamError
from metaclaw.learn.admitting import Admitting, Learned
from metaclaw.learn.bell import Bell
from metaclaw.learn.probes import Probes, tasks_in_words
from metaclaw.learn.steps import StepBuilder
from metaclaw.ports import CandidateStore, VerdictStore
from metaclaw.skills import Shelf
from metaclaw.skills.evolve import Failure, Kind, from_correction, from_words, group, ripe
from metaclaw.skills.scopes import Teams, applying
from metaclaw.store import LedgerReader, RefusedError

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 30.0
_NEAR: Final = 5
_REMEMBERED: Final = 200
_MOST_HEARD: Final = 1000
_PAUSES_S: Final = (5.0, 30.0, 120.0, 600.0)


class Writer(Protocol):
    """Who writes skills from failures."""

    async def propose(self, kind: Kind, near: Sequence[Skill], rejected: Sequence[Candidate]) -> tuple[Proposal, ...]:
        """Zero to three proposals. Raises UpstreamError where it cannot be asked now."""


@dataclass(frozen=True, slots=True)
class FastRules:
    """When failures are enough, and who is in which team."""

    min_failures: int
    teams: Teams


class Fast:
    """Learns as soon as there is something to learn from."""

    def __init__(
        self,
        *,
        reader: LedgerReader,
        verdicts: VerdictStore,
        candidates: CandidateStore,
        steps: StepBuilder,
        shelf: Shelf,
        admitting: Admitting,
        probes: Probes,
        writer_for: Callable[[str], Writer | None],
        rules: FastRules,
        pauses_s: Sequence[float] = _PAUSES_S,
    ) -> None:
        self.bell = Bell()
        self._reader = reader
        self._verdicts = verdicts
        self._candidates = candidates
        self._steps = steps
        self._shelf = shelf
        self._admitting = admitting
        self._probes = probes
        self._writer_for = writer_for
        self._rules = rules
        self._pauses_s = pauses_s
        self._heard: deque[Step] = deque(maxlen=_MOST_HEARD)
        self._known: dict[TurnId, Failure] = {}

    def hear(self, step: Step) -> None:
        """A person has said something new."""
        self._heard.append(step)
        self.bell.ring()

    async def run(self) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as aside:
            await self._take_up_again(aside)
            while True:
                await self.learn(aside)
                await self.bell.wait(_LOOK_EVERY_S)

    async def learn(self, aside: TaskGroup) -> None:
        """Take up whatever there is to learn from now."""
        heard = list(self._heard)
        self._heard.clear()
        failures = await run_sync(self._failures)
        for step in heard:
            failures = await self._from_words(step, failures, aside)
        for kind in await run_sync(group, failures):
            if ripe(kind, self._rules.min_failures):
                await self._from_failures(kind, aside)

    async def _from_words(self, step: Step, failures: list[Failure], aside: TaskGroup) -> list[Failure]:
        """A standing instruction; the failures it answers are its support too, and not left for anybody else."""
        proposals = await run_sync(from_words, step)
        if not proposals:
            return failures
        answered = [one for one in failures if one.step.session == step.session and one.step.said_after == step.task]
        turns = [*(one.step.turn for one in answered), step.turn]
        if await self._claim("a standing instruction", turns):
            for proposal in proposals:
                await self._admit(proposal, step, turns, aside)
        return [one for one in failures if one not in answered]

    async def _from_failures(self, kind: Kind, aside: TaskGroup) -> None:
        turns = [failure.step.turn for failure in kind.failures]
        if not await self._claim(kind.name, turns):
            return
        log.info("failures_of_one_kind cause=%s turns=%d", kind.cause, len(turns))
        writer = self._writer_for(kind.failures[-1].step.model)
        if writer is None:
            await self._from_corrections(kind, aside)
        else:
            aside.start_soon(self._write, writer, kind, aside)

    async def _write(self, writer: Writer, kind: Kind, aside: TaskGroup) -> None:
        """Ask for proposals; a writer that is down is asked again later, and at last the person's own words must do."""
        near = await run_sync(self._near, [failure.step for failure in kind.failures])
        rejected = await run_sync(self._rejected, kind.name)
        for pause_s in (*self._pauses_s, None):
            try:
                proposals = await writer.propose(kind, near, rejected)
            except UpstreamError as error:
                log.warning("evolver_unavailable cause=%s again_in_s=%s reason=%s", kind.cause, pause_s, error)
                if pause_s is not None:
                    await anyio.sleep(pause_s)
                continue
            for proposal in proposals:
                await self._admit(proposal, kind.failures[-1].step, proposal.support, aside)
            return
        await self._from_corrections(kind, aside)

    async def _from_corrections(self, kind: Kind, aside: TaskGroup) -> None:
        """Without anybody to write: the newest words that say what to do, as they were said."""
        for failure in reversed(kind.failures):
            proposal = await run_sync(from_correction, failure)
            if proposal is not None:
                await self._admit(proposal, failure.step, [one.step.turn for one in kind.failures], aside)
                return

    async def _admit(self, proposal: Proposal, step: Step, turns: Sequence[TurnId], aside: TaskGroup) -> None:
        """`turns` are all that taught it, which may be more than its writer names."""
        proposal = replace(proposal, support=tuple(dict.fromkeys((*proposal.support, *turns))))
        scopes = frozenset(applying(step.scope, self._rules.teams))
        learned = Learned(partial(self._probes.choose, proposal), step.model, scopes)
        await self._admitting.admit(proposal, learned, aside)

    async def _claim(self, kind: str, turns: Sequence[TurnId]) -> bool:
        """Make these turns support, or find that one of them has been used already."""
        try:
            await run_sync(self._candidates.begin_attempt, kind, self._shelf.view.generation, turns)
        except RefusedError as error:
            log.debug("attempt_refused kind=%s reason=%s", kind, error)
            return False
        return True

    async def _take_up_again(self, aside: TaskGroup) -> None:
        """Candidates that were on their way when the program stopped go on."""
        try:
            waiting = await run_sync(self._unfinished)
        except StoreError as error:
            log.warning("candidates_unread reason=%s", error)
            return
        for candidate in waiting:
            proposal = candidate.proposal
            learned = Learned(partial(self._probes.choose, proposal), "")
            await self._admitting.go_on(candidate, learned, aside)

    def _unfinished(self) -> list[Candidate]:
        return [one for standing in (Standing.DRAFT, Standing.SHADOW) for one in self._candidates.candidates(standing)]

    def _failures(self) -> list[Failure]:
        """The failures that nothing has been made of; one that was read before is not read again unless its verdict changed."""
        known, self._known = self._known, {}
        for turn in self._verdicts.open_failures(self._shelf.view.generation):
            verdict, before = self._verdicts.verdict_of(turn), known.get(turn)
            if verdict is None:
                continue
            failure = before if before is not None and before.verdict == verdict else self._read(turn, verdict)
            if failure is not None:
                self._known[turn] = failure
        return list(self._known.values())

    def _read(self, turn: TurnId, verdict: Verdict) -> Failure | None:
        recorded = self._reader.turn(turn)
        if recorded is None:
            return None
        row = self._reader.next_main_turn(recorded.turn.session, recorded.seq)
        following = None if row is None else self._reader.turn(row.id)
        step = self._steps.build(recorded, following, is_last=following is None)
        return None if step is None else Failure(step, verdict)

    def _near(self, steps: Sequence[Step]) -> tuple[Skill, ...]:
        return self._shelf.view.retrieve(tasks_in_words(steps), _NEAR, steps[-1].scope, self._rules.teams)

    def _rejected(self, kind: str) -> list[Candidate]:
        past = self._candidates.candidates(Standing.REJECTED, _REMEMBERED)
        return [candidate for candidate in past if candidate.proposal.kind == kind][:_NEAR]
