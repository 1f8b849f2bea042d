"""The gate: what a proposal must pass before it is in force, by mode.

| mode     | a skill the evolver wrote                                        | a person's rule or fact        |
|----------|------------------------------------------------------------------|--------------------------------|
| `off`    | goes live                                                        | goes live                      |
| `lint`   | draft checks, live                                               | draft checks, live             |
| `shadow` | draft checks, replays, live; on trial where replays do not tell  | draft checks, live             |
| `full`   | draft checks, replays, live trial                                | draft checks, live             |

A rule is what a person laid down: it is never replayed and never on trial. A newer rule takes the place of what it contradicts in
its scope, except of a file a person wrote: then a person decides.

The checks that are passed in (secrets, provenance, capabilities) are about safety, not quality: they run in every mode, `off` too.
Each may object, or ask to wait for a person. All checks of the text come before anything is paid for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from anyio import to_thread

from metaclaw.domain.candidate import Certificate, Change, Probe, Proposal, Standing
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, SkillState
from metaclaw.ports import Replayer
from metaclaw.skills.gate.duplicates import Clash, ClashKind, Library, find_clashes
from metaclaw.skills.gate.lint import lint
from metaclaw.skills.gate.proof import LIVE_LOSS, Decision, Paid, Proof, ReplayBudget, prove


class GateMode(StrEnum):
    """How much a proposal must show. Each includes those before it."""

    OFF = "off"
    LINT = "lint"
    SHADOW = "shadow"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a proposal may not go on, or, where it `waits`, may go on only if a person says so."""

    reason: str
    waits: bool = False


class DraftCheck(Protocol):
    """A safety check: the secret scan, where imperatives come from, what a skill could reach."""

    def __call__(self, proposal: Proposal) -> Sequence[Objection]: ...


@dataclass(frozen=True, slots=True)
class Admission:
    """The gate's decision on a proposal.

    `state` is the state its skill has now; `supersedes` are skills of the same scope that it takes the place of, beside those it
    replaces; `overrides` are skills of a wider scope that it contradicts, which must not be placed beside it; `notice` is what the
    person should be told, or empty.
    """

    standing: Standing
    state: SkillState
    reason: str
    certificate: Certificate | None = None
    supersedes: tuple[SkillName, ...] = ()
    notice: str = ""
    overrides: tuple[SkillName, ...] = ()

    @property
    def is_in_force(self) -> bool:
        """Whether the skill belongs to the next generation."""
        return self.standing is Standing.ACCEPTED


@dataclass(frozen=True, slots=True)
class Replaying:
    """On which turns a proposal may be replayed, and what was paid for earlier. `paid` is told after each replay and says whether
    the proposal is still wanted. Without a `budget`, replays may take a multiple of what the first turn took."""

    probes: Sequence[Probe]
    model: str = ""
    earlier: Certificate | None = None
    paid: Paid | None = None
    budget: ReplayBudget | None = None


class Gate:
    """Decides about proposals. Holds no state."""

    def __init__(self, mode: GateMode, replayer: Replayer | None = None, checks: Sequence[DraftCheck] = ()) -> None:
        self.mode = mode
        self._replayer = replayer
        self._checks = tuple(checks)

    def replays(self, proposal: Proposal) -> bool:
        """Whether this gate replays such a proposal."""
        return self.mode in (GateMode.SHADOW, GateMode.FULL) and not proposal.is_rule

    async def admit(self, proposal: Proposal, library: Library, replaying: Replaying | None = None) -> Admission:
        """Take a proposal as far as the mode asks."""
        # In a thread: the checks read turns and the whole library, while requests are served on this loop.
        clashes, refused = await to_thread.run_sync(self._draft, proposal, library)
        admission = refused or await self._tested(proposal, replaying)
        if not admission.is_in_force:
            return admission
        overrides = tuple(clash.other.name for clash in clashes if clash.kind is ClashKind.OVERRIDE)
        return replace(admission, supersedes=_superseded(proposal, clashes), overrides=overrides)

    def draft_objections(self, proposal: Proposal, library: Library) -> tuple[str, ...]:
        """What the draft checks say, for the next attempt."""
        clashes = () if self.mode is GateMode.OFF else find_clashes(proposal.skill, library, proposal.replaces)
        return tuple(objection.reason for objection in self._objections(proposal, library, clashes))

    def _draft(self, proposal: Proposal, library: Library) -> tuple[tuple[Clash, ...], Admission | None]:
        """What the proposal clashes with, and the refusal, if there is one."""
        clashes = () if self.mode is GateMode.OFF else find_clashes(proposal.skill, library, proposal.replaces)
        return clashes, self._refusal(proposal, library, clashes)

    async def _tested(self, proposal: Proposal, replaying: Replaying | None) -> Admission:
        if not self.replays(proposal):
            reason = "in your own words" if proposal.is_rule else "the draft has no faults"
            reason = "the gate is off" if self.mode is GateMode.OFF else reason
            model = "" if replaying is None else replaying.model
            return Admission(Standing.ACCEPTED, SkillState.LIVE, reason, untested(model, reason))
        if self._replayer is None or replaying is None:
            return Admission(Standing.SHADOW, SkillState.SHADOW, "there is nothing to replay it with", untested("", ""))
        proof = await prove(
            proposal,
            replaying.probes,
            self._replayer,
            replaying.budget,
            model=replaying.model,
            is_tried_live=self.mode is GateMode.FULL,
            earlier=replaying.earlier,
            paid=replaying.paid,
        )
        return self._after(proof)

    def _after(self, proof: Proof) -> Admission:
        match proof.decision:
            case Decision.PASS:
                loss = proof.certificate.expected_loss
                is_shown = loss is not None and loss <= LIVE_LOSS and self.mode is GateMode.SHADOW
                state = SkillState.LIVE if is_shown else SkillState.CANARY
                return Admission(Standing.ACCEPTED, state, proof.reason, proof.certificate)
            case Decision.REJECT:
                return Admission(Standing.REJECTED, SkillState.SHADOW, proof.reason, proof.certificate)
            case Decision.WAIT:
                return Admission(Standing.SHADOW, SkillState.SHADOW, proof.reason, proof.certificate)

    def _objections(self, proposal: Proposal, library: Library, clashes: Sequence[Clash]) -> list[Objection]:
        objections = [objection for check in self._checks for objection in check(proposal)]
        if self.mode is not GateMode.OFF:
            before = library.get(proposal.replaces[0]) if proposal.change is Change.EDIT and not proposal.is_rule else None
            objections += [Objection(reason) for reason in lint(proposal.skill, before)]
            objections += _clash_objections(proposal, clashes)
        return objections

    def _refusal(self, proposal: Proposal, library: Library, clashes: Sequence[Clash]) -> Admission | None:
        objections = self._objections(proposal, library, clashes)
        reason = "; ".join(objection.reason for objection in sorted(objections, key=lambda one: one.waits))
        if any(not objection.waits for objection in objections):
            return Admission(Standing.REJECTED, SkillState.DRAFT, reason)
        if objections:
            return Admission(Standing.WAITING, SkillState.DRAFT, reason, notice=f"{proposal.skill.name} waits for you: {reason}")
        return None


def _superseded(proposal: Proposal, clashes: Sequence[Clash]) -> tuple[SkillName, ...]:
    """What a newer rule takes the place of: what it contradicts, and what an evolver made of the same lesson."""
    if not proposal.is_rule:
        return ()
    scope = proposal.skill.scope
    own = (
        clash
        for clash in clashes
        if clash.other.scope == scope and clash.other.author is not Authorship.PERSON and not clash.other.pinned
    )
    return tuple(
        clash.other.name
        for clash in own
        if clash.kind is ClashKind.CONFLICT or (clash.kind is ClashKind.DUPLICATE and clash.other.author is Authorship.EVOLVER)
    )


def _clash_objections(proposal: Proposal, clashes: Sequence[Clash]) -> list[Objection]:
    supersedes = _superseded(proposal, clashes)
    return [
        Objection(clash.reason, waits=proposal.is_rule and clash.kind is ClashKind.CONFLICT)
        for clash in clashes
        if clash.kind is not ClashKind.OVERRIDE and clash.other.name not in supersedes
    ]


def untested(model: str, note: str) -> Certificate:
    """The certificate of what was not tried on anything."""
    return Certificate(SkillState.DRAFT, 0, 0, 0, 0, 0, 0, 0, model, (note,) if note else ())
