"""Actions of a person: give feedback on a turn, retire or revert skills, decide on candidates,
forget a session.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Candidate, CandidateId, Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.learn.admission import Announce, CandidateAdmission, accepted_candidate
from metaclaw.learn.maintenance import SkillCounts, SkillTally
from metaclaw.learn.retention import SessionErasure
from metaclaw.skills import SkillLibrary, write_script
from metaclaw.store import LedgerReader, RefusedError, SqlCandidates, SqlVerdicts

log = logging.getLogger(__name__)

_P_FAIL: Final = {Outcome.PASS: 0.0, Outcome.FAIL: 1.0, Outcome.UNKNOWN: None}


@dataclass(frozen=True, slots=True)
class SkillFacts:
    """The turns that a skill was learned from, and the outcomes of turns with it."""

    learned_from: tuple[TurnId, ...] = ()
    tally: SkillTally = field(default_factory=SkillTally)


@dataclass(eq=False, kw_only=True)
class OwnerActions:
    """Carries out a person's commands and announces each. `on_failure` is called when a turn was
    marked as failed, `on_forget` when caches must drop a session, `serve` with the batches that
    were dropped, because other weights may have to serve."""

    reader: LedgerReader
    verdicts: SqlVerdicts
    candidates: SqlCandidates
    erasure: SessionErasure
    library: SkillLibrary
    admission: CandidateAdmission
    counts: SkillCounts
    announce: Announce
    on_failure: Callable[[], None]
    on_forget: Callable[[SessionId], None]
    serve: Callable[[Sequence[int]], Awaitable[None]]

    def __post_init__(self) -> None:
        self._forgetting = anyio.Lock()

    async def feedback(self, turn: TurnId, outcome: Outcome, comment: str) -> Verdict | None:
        """Record a person's verdict on a turn; None if there is no such turn."""
        if await run_sync(self.reader.turn, turn) is None:
            return None
        fault = Fault.AGENT if outcome is Outcome.FAIL else None
        verdict = Verdict(
            turn, outcome, Source.USER, _P_FAIL[outcome], fault=fault, comment=comment.strip()
        )
        try:
            await run_sync(self.verdicts.record_verdict, verdict)
        except RefusedError:
            return None  # the turn was forgotten meanwhile
        await self.announce("feedback", {"turn": turn, "outcome": outcome.value})
        if verdict.teaches:
            self.on_failure()
        return verdict

    async def retire(self, name: SkillName, reason: str | None = None) -> int:
        """Retire any skill; return the generation without it."""
        skill = self.library.view.get(name)
        why = reason or f"a person retired {name}"
        view = await run_sync(self.library.retire, name, why)
        if skill is not None:
            await self.admission.record_reason(skill, why)
        return view.generation

    async def revert(self, generation: int) -> int:
        """Put the skills of an earlier generation in force again; return the new generation."""
        view = await run_sync(self.library.revert, generation)
        return view.generation

    async def decide(self, candidate: CandidateId, *, approved: bool) -> Candidate | None:
        """Apply a person's decision to a waiting candidate; None if there is no such candidate."""
        found = await run_sync(self.candidates.candidate, candidate)
        if found is None:
            return None
        decided = await self.admission.decide(found, approved=approved)
        if decided.standing is Standing.ACCEPTED and (script := found.proposal.script):
            name = found.proposal.skill.name
            await run_sync(write_script, self.library.folder, name, script)
        return decided

    async def forget(self, session: SessionId) -> Mapping[str, Json] | None:
        """Forget a session with everything derived from it, and report what was deleted; None if
        there is no such session.

        This also finishes an earlier attempt that was interrupted.
        """
        async with self._forgetting:
            self.on_forget(session)
            report = await run_sync(self.erasure.forget, session)
            if report is None:
                return None
            await self._finish(report.found.batches)
            # Again, for a turn that was being answered: by now it, and what was learned from it,
            # has been written.
            report = await run_sync(self.erasure.forget_again, report)
            self.on_forget(session)
            report = await run_sync(self.erasure.purge, report)
            await self.announce(
                "forgotten",
                {"session": session, "turns": report.turns, "skills": len(report.found.skills)},
            )
            return report.as_json()

    async def finish_forgetting(self) -> None:
        """Finish what was being forgotten when the program last ended."""
        async with self._forgetting:
            if await run_sync(self.erasure.finish):
                await self._finish(())

    async def _finish(self, batches: Sequence[int]) -> None:
        await self.serve(batches)
        await run_sync(self.erasure.remove_weights)

    async def skill_facts(self, name: SkillName) -> SkillFacts:
        """The turns that a skill was learned from, and the outcomes of turns with it."""
        return await run_sync(self._facts, name)

    def _facts(self, name: SkillName) -> SkillFacts:
        skill = self.library.view.get(name)
        if skill is None:
            return SkillFacts()
        candidate = accepted_candidate(self.candidates, skill)
        learned_from = () if candidate is None else candidate.proposal.support
        return SkillFacts(learned_from, self.counts.tally(skill))
