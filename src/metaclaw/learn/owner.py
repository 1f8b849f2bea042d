"""What a person may tell the learning part: their word on a turn, which skills are in force, what is to be forgotten."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Candidate, CandidateId, Certificate
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.learn.admitting import Admitting, Announce, accepted_candidate
from metaclaw.learn.worth import Worth
from metaclaw.ports import VerdictStore
from metaclaw.skills import Shelf
from metaclaw.skills.hygiene import Uplift
from metaclaw.store import LedgerReader, RefusedError, SqlCandidates, SqlForgetting

log = logging.getLogger(__name__)

_P_FAIL: Final = {Outcome.PASS: 0.0, Outcome.FAIL: 1.0, Outcome.UNKNOWN: None}


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
        candidates: SqlCandidates,
        forgetting: SqlForgetting,
        shelf: Shelf,
        admitting: Admitting,
        worth: Worth,
        announce: Announce,
        failed: Callable[[], None],
        let_go: Callable[[SessionId], None] = lambda session: None,
    ) -> None:
        """`failed` is called when there is something new to learn from, `let_go` when nothing of a session may be remembered."""
        self._reader = reader
        self._verdicts = verdicts
        self._candidates = candidates
        self._forgetting = forgetting
        self._shelf = shelf
        self._admitting = admitting
        self._worth = worth
        self._announce = announce
        self._failed = failed
        self._let_go = let_go

    async def feedback(self, turn: TurnId, outcome: Outcome, comment: str) -> Verdict | None:
        """Take a person's word on a turn; None where there is no such turn."""
        if await run_sync(self._reader.turn, turn) is None:
            return None
        fault = Fault.AGENT if outcome is Outcome.FAIL else None
        verdict = Verdict(turn, outcome, Source.USER, _P_FAIL[outcome], fault=fault, comment=comment.strip())
        try:
            await run_sync(self._verdicts.record_verdict, verdict)
        except RefusedError:
            return None  # it was forgotten this moment
        await self._announce("feedback", {"turn": turn, "outcome": outcome.value})
        if verdict.teaches:
            self._failed()
        return verdict

    async def retire(self, name: SkillName, reason: str | None = None) -> int:
        """Take a skill out of force, whoever wrote it; the generation without it."""
        skill = self._shelf.view.get(name)
        why = reason or f"a person retired {name}"
        view = await run_sync(self._shelf.retire, name, why)
        if skill is not None:
            await self._admitting.tell(skill, why)
        return view.generation

    async def revert(self, generation: int) -> int:
        """Put an earlier generation's skills in force again; the new generation."""
        view = await run_sync(self._shelf.revert, generation)
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
        self._let_go(session)
        if not (is_known or gone.candidates or gone.skills or gone.batches):
            return None
        for name in gone.skills:
            if self._shelf.view.get(name) is not None:
                await self.retire(name, f"retired {name}: a session that taught it was forgotten")
        await self._announce("forgotten", {"session": session, "turns": gone.turns, "skills": list(gone.skills)})
        trained: dict[str, Json] = {"batches": list(gone.batches), "versions": list(gone.versions)}
        return {"turns": gone.turns, "skills": list(gone.skills), **trained}

    async def skill_facts(self, name: SkillName) -> SkillFacts:
        """What is known of a skill beside its text: the certificate it came in with, and what it is worth."""
        return await run_sync(self._facts, name)

    def _facts(self, name: SkillName) -> SkillFacts:
        skill = self._shelf.view.get(name)
        if skill is None:
            return SkillFacts()
        mine = accepted_candidate(self._candidates, skill)
        if mine is None:
            return SkillFacts(uplift=self._worth.uplift(skill))
        return SkillFacts(mine.certificate, mine.proposal.support, self._worth.uplift(skill))
