"""Taking proposals through the gate: each is kept as a candidate from the first moment, and published when it may pass."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Candidate, CandidateId, Change, Probe, Proposal, Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SkillName, new_id
from metaclaw.domain.skill import Skill, SkillState
from metaclaw.errors import SkillError
from metaclaw.ports import CandidateStore
from metaclaw.skills import Shelf
from metaclaw.skills.gate import Admission, Gate, GateMode, IndexLibrary, is_at_once

log = logging.getLogger(__name__)

Announce = Callable[[str, dict[str, Json]], Awaitable[object]]
_REMEMBERED = 200
_DONE = {Change.NEW: "learned", Change.EDIT: "edited", Change.MERGE: "merged"}


@dataclass(frozen=True, slots=True)
class Learned:
    """What the gate is told of a proposal beside its text: on what to try it, and which model it is for."""

    probes: Callable[[], Sequence[Probe]]
    model: str
    scopes: frozenset[str] = frozenset()


class Admitting:
    """The one way by which a learned skill comes into force."""

    def __init__(
        self,
        *,
        gate: Gate,
        shelf: Shelf,
        candidates: CandidateStore,
        announce: Announce,
        scrub: Callable[[Proposal], Proposal],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._gate = gate
        self._shelf = shelf
        self._candidates = candidates
        self._announce = announce
        self._scrub = scrub
        self._now = now

    async def admit(self, proposal: Proposal, learned: Learned, proving: TaskGroup) -> None:
        """Take a proposal as far as it comes: at once where nothing is to be replayed, aside where something is."""
        candidate = Candidate(
            CandidateId(new_id("c_")), proposal, Standing.DRAFT, "just proposed", self._shelf.view.generation, self._now()
        )
        await self._keep(candidate)
        if self._gate.mode in (GateMode.OFF, GateMode.LINT) or is_at_once(proposal):
            await self._decide(candidate, learned, proving)
        else:
            proving.start_soon(self._decide, candidate, learned, proving)

    async def go_on(self, candidate: Candidate, learned: Learned, proving: TaskGroup) -> None:
        """Take up again a candidate that was on its way when the program stopped, or that had too little to be tried on."""
        proving.start_soon(self._decide, candidate, learned, proving)

    async def decide(self, candidate: Candidate, *, approved: bool) -> Candidate:
        """A person's decision on a candidate that waits for one. Raises SkillError where it does not."""
        if candidate.standing is not Standing.WAITING:
            raise SkillError(f"candidate {candidate.id} does not wait for a person: it is {candidate.standing}")
        if not approved:
            return await self._keep(replace(candidate, standing=Standing.REJECTED, reason="a person turned it away"))
        skill = replace(candidate.proposal.skill, state=SkillState.LIVE)
        admission = Admission(Standing.ACCEPTED, SkillState.LIVE, "a person let it pass", candidate.certificate)
        return await self._publish(candidate, skill, admission)

    async def _decide(self, candidate: Candidate, learned: Learned, proving: TaskGroup) -> None:
        proposal = candidate.proposal
        probes = [] if self._gate.mode in (GateMode.OFF, GateMode.LINT) else await run_sync(learned.probes)
        library = IndexLibrary(self._shelf.view.index, learned.scopes)
        attempt = await run_sync(self._attempts, proposal.kind)
        admission = await self._gate.admit(proposal, library, probes, model=learned.model, attempt=attempt)
        if admission.notice:
            await self._announce("notice", {"candidate": candidate.id, "skill": proposal.skill.name, "text": admission.notice})
        if not admission.is_in_force:
            await self._keep(
                replace(candidate, standing=admission.standing, reason=admission.reason, certificate=admission.certificate)
            )
            return
        accepted = await self._publish(candidate, replace(proposal.skill, state=admission.state), admission)
        if accepted.standing is Standing.ACCEPTED and admission.state is SkillState.CANARY and is_at_once(proposal):
            proving.start_soon(self._test_instruction, accepted, probes, learned.model)

    async def _test_instruction(self, candidate: Candidate, probes: Sequence[Probe], model: str) -> None:
        """An instruction is in force already; what its test shows is attached, and takes it out again only if it does harm."""
        proposal = candidate.proposal
        admission = await self._gate.prove(proposal, probes, model=model)
        in_force = self._shelf.view.get(proposal.skill.name)
        if in_force is None or in_force.content_hash != proposal.skill.content_hash:
            return  # a person has changed or withdrawn it meanwhile
        if admission.is_in_force:
            await self._keep(replace(candidate, reason=admission.reason, certificate=admission.certificate))
            if admission.state is SkillState.LIVE:
                await self.change_state(in_force, SkillState.LIVE, f"{in_force.name} has passed its test")
            return
        await self._announce("notice", {"candidate": candidate.id, "skill": in_force.name, "text": admission.notice})
        await self.retire(in_force, admission.reason)

    async def change_state(self, skill: Skill, state: SkillState, reason: str) -> None:
        """A skill in force goes on to another state, unless a person has touched it."""
        await self._put([replace(skill, state=state)], (), reason, {skill.name: skill.content_hash})

    async def retire(self, skill: Skill, reason: str) -> bool:
        """Take a learned skill out of force, unless a person has touched it."""
        try:
            await self._put([], (skill.name,), f"retired {skill.name}: {reason}", {skill.name: skill.content_hash})
        except SkillError as error:
            log.info("skill_stays name=%s reason=%s", skill.name, error)
            return False
        log.info("skill_retired name=%s reason=%s", skill.name, reason)
        return True

    async def _publish(self, candidate: Candidate, skill: Skill, admission: Admission) -> Candidate:
        proposal = candidate.proposal
        gone = [name for name in (*proposal.replaces, *admission.supersedes) if name != skill.name and self._shelf.view.get(name)]
        expected = {skill.name: None} if proposal.change is Change.NEW else {}
        try:
            generation = await self._put(
                [skill], gone, f"{_DONE[proposal.change]} {skill.name} from {len(proposal.support)} turns", expected
            )
        except SkillError as error:
            return await self._keep(replace(candidate, standing=Standing.REJECTED, reason=str(error)))
        log.info("skill_born name=%s state=%s generation=%d turns=%d", skill.name, skill.state, generation, len(proposal.support))
        certificate = admission.certificate
        return await self._keep(
            replace(candidate, standing=Standing.ACCEPTED, reason=admission.reason, certificate=certificate, generation=generation)
        )

    async def _put(
        self, put: Sequence[Skill], gone: Sequence[SkillName], reason: str, expected: Mapping[SkillName, str | None]
    ) -> int:
        view = await run_sync(lambda: self._shelf.publish(put, gone, reason, expected=expected))
        names: list[Json] = [skill.name for skill in put]
        await self._announce("generation", {"generation": view.generation, "reason": reason, "put": names, "gone": list(gone)})
        return view.generation

    async def _keep(self, candidate: Candidate) -> Candidate:
        """What is kept for people to read holds no secret, even where a writer put one in."""
        await run_sync(self._candidates.save_candidate, replace(candidate, proposal=self._scrub(candidate.proposal)))
        if candidate.standing is not Standing.DRAFT:
            log.info("candidate name=%s standing=%s reason=%s", candidate.proposal.skill.name, candidate.standing, candidate.reason)
        return candidate

    def _attempts(self, kind: str) -> int:
        """How many proposals there were for this kind of failure: with each, less error may be spent on the next."""
        return max(1, sum(one.proposal.kind == kind for one in self._candidates.candidates(None, _REMEMBERED)))
