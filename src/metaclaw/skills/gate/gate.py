"""The gate: what a proposal must pass before it is in force, by mode.

| mode     | a proposal of the evolver                              | a person's standing instruction, in their own scope      |
|----------|--------------------------------------------------------|----------------------------------------------------------|
| `off`    | goes live                                              | goes live                                                |
| `lint`   | draft checks, live                                     | draft checks, live                                       |
| `shadow` | draft checks, shadow, live                             | draft checks, canary at once, live if shadow shows no harm |
| `full`   | draft checks, shadow, canary, live when it is promoted | draft checks, canary at once, shadow, live when promoted |

An instruction in force is placed on every matching turn. When its shadow test proves harm it is demoted, with a notice; a test that
proves nothing changes nothing, since the person said so. A newer instruction takes the place of what it contradicts in its scope,
except of a file a person wrote: then a person decides. An instruction for a team or everyone is a proposal like any other.

The checks that are passed in (secrets, provenance, capabilities) are about safety, not quality: they run in every mode, `off` too.
Each may object, or ask to wait for a person.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from anyio import to_thread

from metaclaw.domain.candidate import Certificate, Change, Probe, Proposal, Standing
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, SkillState
from metaclaw.ports import Replayer
from metaclaw.skills.gate.duplicates import WORKSPACE, Clash, ClashKind, Library, find_clashes, width
from metaclaw.skills.gate.lint import lint
from metaclaw.skills.gate.shadow import Budget, Decision, Rules, ShadowReport, shadow


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
    """A check from another room: the secret scan, where imperatives come from, what a skill could reach."""

    def __call__(self, proposal: Proposal) -> Sequence[Objection]: ...


@dataclass(frozen=True, slots=True)
class Admission:
    """What the gate says of a proposal.

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


class Gate:
    """Decides about proposals. Holds no state: what it is told, it decides on."""

    def __init__(
        self,
        mode: GateMode,
        replayer: Replayer | None = None,
        checks: Sequence[DraftCheck] = (),
        *,
        rules: Rules | None = None,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mode = mode
        self._replayer = replayer
        self._checks = tuple(checks)
        self._rules = rules or Rules()
        self._budget = budget or Budget()
        self._clock = clock

    async def admit(
        self, proposal: Proposal, library: Library, probes: Sequence[Probe] = (), *, model: str = "", attempt: int = 1
    ) -> Admission:
        """Take a proposal as far as the mode asks. `attempt` counts the proposals for its kind of failure, from 1."""
        # In a thread: the checks read turns and the whole library, and whoever is served meanwhile must not wait for that.
        clashes, refused = await to_thread.run_sync(self._draft, proposal, library)
        admission = refused or await self._tested(proposal, probes, model, attempt)
        if not admission.is_in_force:
            return admission
        overrides = tuple(clash.other.name for clash in clashes if clash.kind is ClashKind.OVERRIDE)
        return replace(admission, supersedes=_superseded(proposal, clashes), overrides=overrides)

    def _draft(self, proposal: Proposal, library: Library) -> tuple[tuple[Clash, ...], Admission | None]:
        """What the proposal clashes with, and why it may not go on, if it may not."""
        clashes = () if self.mode is GateMode.OFF else find_clashes(proposal.skill, library, proposal.replaces)
        return clashes, self._refusal(proposal, library, clashes)

    async def _tested(self, proposal: Proposal, probes: Sequence[Probe], model: str, attempt: int) -> Admission:
        if self.mode in (GateMode.OFF, GateMode.LINT):
            reason = "the gate is off" if self.mode is GateMode.OFF else "no objection to the draft"
            return Admission(Standing.ACCEPTED, SkillState.LIVE, reason, _untested(model, reason))
        if is_at_once(proposal):
            reason = "the person's own standing instruction, in force at once for them; its test is still to come"
            return Admission(Standing.ACCEPTED, SkillState.CANARY, reason, _untested(model, reason))
        return await self.prove(proposal, probes, model=model, attempt=attempt)

    async def prove(self, proposal: Proposal, probes: Sequence[Probe], *, model: str = "", attempt: int = 1) -> Admission:
        """The shadow test alone: of a proposal, of an instruction that is in force already, or of a skill under another model."""
        if self._replayer is None:
            reason = "there is nothing to replay it with"
            certificate = _untested(model, reason)
            report = ShadowReport(Decision.UNDECIDED, reason, certificate, ())
        else:
            report = await shadow(
                proposal, probes, self._replayer, self._budget, self._clock, rules=self._rules, model=model, attempt=attempt
            )
        return self._after_instruction(proposal, report) if is_at_once(proposal) else self._after_shadow(report)

    def draft_objections(self, proposal: Proposal, library: Library) -> tuple[str, ...]:
        """What the draft checks say, for whoever writes the next attempt."""
        clashes = () if self.mode is GateMode.OFF else find_clashes(proposal.skill, library, proposal.replaces)
        return tuple(objection.reason for objection in self._objections(proposal, library, clashes))

    def _objections(self, proposal: Proposal, library: Library, clashes: Sequence[Clash]) -> list[Objection]:
        objections = [objection for check in self._checks for objection in check(proposal)]
        if self.mode is not GateMode.OFF:
            before = library.get(proposal.replaces[0]) if proposal.change is Change.EDIT else None
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

    def _after_shadow(self, report: ShadowReport) -> Admission:
        match report.decision:
            case Decision.PASS:
                state = SkillState.CANARY if self.mode is GateMode.FULL else SkillState.LIVE
                return Admission(Standing.ACCEPTED, state, report.reason, report.certificate)
            case Decision.REJECT:
                return Admission(Standing.REJECTED, SkillState.SHADOW, report.reason, report.certificate)
            case Decision.UNDECIDED:
                return Admission(Standing.SHADOW, SkillState.SHADOW, report.reason, report.certificate)

    def _after_instruction(self, proposal: Proposal, report: ShadowReport) -> Admission:
        name, certificate = proposal.skill.name, report.certificate
        if report.is_harmful:
            notice = f"your instruction {name} is no longer in force: {report.reason}. To keep it, write the skill yourself."
            return Admission(Standing.REJECTED, SkillState.RETIRED, report.reason, certificate, notice=notice)
        state = SkillState.CANARY if self.mode is GateMode.FULL else SkillState.LIVE
        return Admission(Standing.ACCEPTED, state, f"no harm shown: {report.reason}", certificate)


def is_at_once(proposal: Proposal) -> bool:
    """Whether a proposal takes effect before it is tested: a person's own instruction, for the narrowest scope known of that person
    (their user id, the owner, or, where they have no id, their workspace)."""
    return proposal.is_instruction and width(proposal.skill.scope) <= WORKSPACE


def _superseded(proposal: Proposal, clashes: Sequence[Clash]) -> tuple[SkillName, ...]:
    """What a newer instruction takes the place of: what it contradicts, and what an evolver made of the same lesson."""
    if not is_at_once(proposal):
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
        Objection(clash.reason, waits=is_at_once(proposal) and clash.kind is ClashKind.CONFLICT)
        for clash in clashes
        if clash.kind is not ClashKind.OVERRIDE and clash.other.name not in supersedes
    ]


def _untested(model: str, note: str) -> Certificate:
    """The certificate of what was not tried on anything."""
    return Certificate(SkillState.DRAFT, 0, 0, 0, 0, 0, 0, 1.0, 0, model, (note,))
