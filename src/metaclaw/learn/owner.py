"""What a person may tell the learning part: their word on a turn, which skills are in force, what is to be forgotten."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Candidate, CandidateId, Certificate, Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.learn.admitting import Admitting, Announce
from metaclaw.learn.tending import Tending
from metaclaw.ports import CandidateStore, VerdictStore
from metaclaw.skills import Shelf
from metaclaw.skills.hygiene import Uplift
from metaclaw.store import LedgerReader, SqlForgetting

log = logging.getLogger(__name__)

_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class SkillFacts:
    """What is known of a skill beside its text; the certificate is None where nobody had to prove it."""

    certificate: Certificate | None = None
    learned_from: tuple[TurnId, ...] = ()
    uplift: Uplift | None = None


class Owner:
    """Carries out a person's wishes; each is an event."""

    def __init__(
        self,
        *,
        reader: LedgerReader,
        verdicts: VerdictStore,
        candidates: CandidateStore,
        forgetting: SqlForgetting,
        shelf: Shelf,
        admitting: Admitting,
        tending: Tending,
        announce: Announce,
        failed: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._verdicts = verdicts
        self._candidates = candidates
        self._forgetting = forgetting
        self._shelf = shelf
        self._admitting = admitting
        self._tending = tending
        self._announce = announce
        self._failed = failed

    async def feedback(self, turn: TurnId, outcome: Outcome, comment: str) -> Verdict | None:
        """Take a person's word on a turn; None where there is no such turn."""
        if await run_sync(self._reader.turn, turn) is None:
            return None
        is_fail = outcome is Outcome.FAIL
        verdict = Verdict(
            turn, outcome, Source.USER, 1.0 if is_fail else 0.0, fault=Fault.AGENT if is_fail else None, comment=comment.strip()
        )
        await run_sync(self._verdicts.record_verdict, verdict)
        await self._announce("feedback", {"turn": turn, "outcome": outcome.value})
        if is_fail:
            self._failed()
        return verdict

    async def retire(self, name: SkillName, reason: str | None = None) -> int:
        """Take a skill out of force, whoever wrote it; the generation without it."""
        view = await run_sync(self._shelf.retire, name, reason)
        why = reason or f"a person retired {name}"
        await self._announce("generation", {"generation": view.generation, "reason": why, "gone": [name]})
        return view.generation

    async def revert(self, generation: int) -> int:
        """Put an earlier generation's skills in force again; the new generation."""
        view = await run_sync(self._shelf.revert, generation)
        await self._announce("generation", {"generation": view.generation, "reason": f"reverted to {generation}"})
        return view.generation

    async def decide(self, candidate: CandidateId, *, approved: bool) -> Candidate | None:
        """A person's decision on a candidate that waits for one; None where there is no such candidate."""
        found = await run_sync(self._candidates.candidate, candidate)
        return None if found is None else await self._admitting.decide(found, approved=approved)

    async def forget(self, session: SessionId) -> Mapping[str, Json] | None:
        """Forget a session, and retire what was learned from it; None where there is no such session.

        What an earlier try left undone is done now: a session without turns may still have taught something.
        """
        is_known = await run_sync(self._reader.session, session) is not None
        gone = await run_sync(self._forgetting.forget_session, session)
        if not (is_known or gone.candidates or gone.skills or gone.batches):
            return None
        for name in gone.skills:
            if self._shelf.view.get(name) is not None:
                await self.retire(name, f"retired {name}: a session that taught it was forgotten")
        await self._announce("forgotten", {"session": session, "turns": gone.turns, "skills": list(gone.skills)})
        return {"turns": gone.turns, "skills": list(gone.skills), "batches": list(gone.batches)}

    async def skill_facts(self, name: SkillName) -> SkillFacts:
        """What is known of a skill beside its text: the certificate it came in with, and what it is worth."""
        return await run_sync(self._facts, name)

    def _facts(self, name: SkillName) -> SkillFacts:
        skill = self._shelf.view.get(name)
        if skill is None:
            return SkillFacts()
        accepted = self._candidates.candidates(Standing.ACCEPTED, _REMEMBERED)
        mine = next((one for one in accepted if one.proposal.skill.content_hash == skill.content_hash), None)
        if mine is None:
            return SkillFacts(uplift=self._tending.uplift(skill))
        return SkillFacts(mine.certificate, mine.proposal.support, self._tending.uplift(skill))
