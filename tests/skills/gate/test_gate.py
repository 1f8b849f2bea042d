"""The gate as a whole: the decision in each mode, and the rights of a person's rule."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from metaclaw.domain.candidate import Proposal, Standing
from metaclaw.domain.front_matter import record_of
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Rule, Skill, SkillState
from metaclaw.skills import Gate, GateMode, GateResult, IndexLibrary, Objection, Replaying
from metaclaw.skills.index import SkillIndex
from tests.skills.gate.replays import (
    Replays,
    U,
    breaks,
    changes_nothing,
    fixes,
    probes,
    proposal,
    skill,
)
from tests.support.cases import each

pytestmark = pytest.mark.anyio
YAML = "When writing YAML files for the deployment of a service"
SPACES = (
    "1. Open the YAML file.\n2. Never use tabs for the indentation of YAML files.\n\nDo not use"
    " tabs."
)


def library(*known: Skill) -> IndexLibrary:
    return IndexLibrary(SkillIndex().changed(known))


def said(text: str, name: str = "said", scope: str | None = "user:anna") -> Proposal:
    trigger = "A standing instruction of the user for everything they ask"
    return proposal(
        Rule(SkillName(name), trigger, text, scope=scope, author=Authorship.INSTRUCTION), said=True
    )


async def admitted(
    mode: GateMode, of: Proposal | None = None, *known: Skill, answer: object = fixes
) -> tuple[GateResult, Replays]:
    replays = Replays(answer)  # type: ignore[arg-type]
    return (
        await Gate(mode, replays).admit(
            of or proposal(), library(*known), Replaying(probes(4, 6), "m")
        ),
        replays,
    )


@each(
    ("mode", "state", "is_replayed"),
    [
        (GateMode.OFF, SkillState.LIVE, False),
        (GateMode.LINT, SkillState.LIVE, False),
        (GateMode.SHADOW, SkillState.LIVE, True),
        (GateMode.FULL, SkillState.CANARY, True),
    ],
)
async def test_a_good_proposal_gets_as_far_as_the_mode_says(
    mode: GateMode, state: SkillState, is_replayed: bool
) -> None:
    admission, replays = await admitted(mode)
    assert (admission.standing, admission.state) == (Standing.ACCEPTED, state)
    assert admission.is_in_force
    assert bool(replays.asked) is is_replayed
    assert admission.certificate is not None
    assert admission.certificate.model == "m"


@pytest.mark.parametrize("mode", [GateMode.LINT, GateMode.SHADOW, GateMode.FULL])
async def test_a_bad_draft_is_rejected_before_anything_is_replayed(mode: GateMode) -> None:
    admission, replays = await admitted(mode, proposal(skill(body="Just read it.")))
    assert admission.standing is Standing.REJECTED
    assert "no steps" in admission.reason
    assert replays.asked == []


async def test_a_gate_that_is_off_does_not_look_at_the_draft() -> None:
    admission, _ = await admitted(GateMode.OFF, proposal(skill(body="Just read it.")))
    assert admission.is_in_force


async def test_a_duplicate_is_rejected_by_name() -> None:
    admission, _ = await admitted(GateMode.LINT, proposal(skill("another-name")), skill())
    assert admission.standing is Standing.REJECTED
    assert "csv-decimal-comma" in admission.reason


async def test_an_edit_is_measured_against_what_it_replaces() -> None:
    long = skill(
        body="\n".join(f"{number}. Look at column {number}." for number in range(20))
        + "\nDo not guess."
    )
    admission, _ = await admitted(GateMode.LINT, proposal(replaces=("csv-decimal-comma",)), long)
    assert "lines at once" in admission.reason


async def test_harm_and_lack_of_effect_reject_and_what_cannot_be_replayed_is_tried_live() -> None:
    harmful, _ = await admitted(GateMode.SHADOW, answer=breaks)
    assert harmful.standing is Standing.REJECTED
    assert harmful.certificate is not None
    assert harmful.certificate.wins == 0
    useless, _ = await admitted(GateMode.FULL, answer=changes_nothing)
    assert (useless.standing, useless.is_in_force) == (Standing.REJECTED, False)
    for mode in (GateMode.SHADOW, GateMode.FULL):
        unknown, _ = await admitted(mode, answer=lambda probe, seed: U)
        assert (unknown.standing, unknown.state) == (Standing.ACCEPTED, SkillState.CANARY)


async def test_without_anything_to_replay_with_it_waits() -> None:
    admission = await Gate(GateMode.SHADOW).admit(proposal(), library(), Replaying(probes(4, 6)))
    assert admission.standing is Standing.SHADOW
    assert "nothing to replay" in admission.reason


@each("mode", list(GateMode))
async def test_safety_checks_are_asked_in_every_mode(mode: GateMode) -> None:
    def refuses(proposal: Proposal) -> Sequence[Objection]:
        return (Objection("it holds a secret"),)

    def waits(proposal: Proposal) -> Sequence[Objection]:
        return (Objection("it names a new host", waits=True),)

    waiting = await Gate(mode, checks=(waits,)).admit(proposal(), library())
    assert (waiting.standing, waiting.state) == (Standing.WAITING, SkillState.DRAFT)
    assert "new host" in waiting.notice
    refused = await Gate(mode, checks=(waits, refuses)).admit(proposal(), library())
    assert refused.standing is Standing.REJECTED
    assert "secret" in refused.reason


@each("mode", list(GateMode))
async def test_what_a_model_wrote_takes_the_place_of_no_rule_and_is_none(mode: GateMode) -> None:
    rule = said("Never use emojis in CSV exports.", "no-emojis").skill
    edit, _ = await admitted(mode, proposal(replaces=("no-emojis",)), rule)
    assert edit.standing is Standing.REJECTED
    assert "no-emojis is what a person stated" in edit.reason
    as_rule, _ = await admitted(
        mode, proposal(replace(record_of(skill()), extra={"kind": "rule"}).read())
    )
    assert as_rule.standing is Standing.REJECTED
    assert "only what a person says" in as_rule.reason


async def test_a_skill_that_contradicts_a_rule_of_a_wider_scope_waits_for_a_person() -> None:
    rule = replace(
        said("Always use tabs for the indentation of YAML files.", "everyones", None).skill,
        trigger=YAML,
    )
    spaces = Skill(SkillName("spaces"), YAML, SPACES, scope="user:anna", author=Authorship.EVOLVER)
    admission, replays = await admitted(GateMode.FULL, proposal(spaces), rule)
    assert (admission.standing, admission.overrides, replays.asked) == (Standing.WAITING, (), [])
    assert "everyones" in admission.notice
