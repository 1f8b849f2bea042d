"""The gate: the decision about a draft, and the rights of a person's rule."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from metaclaw.domain.candidate import Objection, Proposal, Standing
from metaclaw.domain.front_matter import record_of
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Rule, Skill
from metaclaw.skills import Gate, GateMode, GateResult, IndexLibrary
from metaclaw.skills.index import SkillIndex
from tests.skills.gate.proposals import proposal, skill

YAML = "When writing YAML files for the deployment of a service"
SPACES = (
    "1. Open the YAML file.\n2. Never use tabs for the indentation of YAML files.\n\nDo not use"
    " tabs."
)


def library(*known: Skill) -> IndexLibrary:
    return IndexLibrary(SkillIndex().changed(known))


def rule(text: str, name: str, scope: str | None = "user:anna", trigger: str = "Always") -> Rule:
    return Rule(SkillName(name), trigger, text, scope=scope, author=Authorship.INSTRUCTION)


def reviewed(mode: GateMode, of: Proposal | None = None, *known: Skill) -> GateResult:
    return Gate(mode).review(of or proposal(), library(*known))


@pytest.mark.parametrize("mode", list(GateMode))
def test_a_sound_draft_passes_in_every_mode(mode: GateMode) -> None:
    assert reviewed(mode).standing is Standing.ACCEPTED


def test_a_bad_draft_is_rejected_unless_the_gate_is_off() -> None:
    bad = proposal(skill(body="Just read it."))
    assert reviewed(GateMode.LINT, bad).standing is Standing.REJECTED
    assert "no steps" in reviewed(GateMode.LINT, bad).reason
    assert reviewed(GateMode.OFF, bad).standing is Standing.ACCEPTED


def test_a_duplicate_is_rejected_by_name() -> None:
    result = reviewed(GateMode.LINT, proposal(skill("another-name")), skill())
    assert result.standing is Standing.REJECTED
    assert "csv-decimal-comma" in result.reason


def test_an_edit_is_measured_against_what_it_replaces() -> None:
    lines = "\n".join(f"{number}. Look at column {number}." for number in range(20))
    result = reviewed(
        GateMode.LINT,
        proposal(replaces=("csv-decimal-comma",)),
        skill(body=f"{lines}\nDo not guess."),
    )
    assert "lines at once" in result.reason


@pytest.mark.parametrize("mode", list(GateMode))
def test_safety_checks_are_asked_in_every_mode(mode: GateMode) -> None:
    def refuses(proposal: Proposal) -> Sequence[Objection]:
        return (Objection("it holds a secret"),)

    def waits(proposal: Proposal) -> Sequence[Objection]:
        return (Objection("it names a new host", waits=True),)

    waiting = Gate(mode, (waits,)).review(proposal(), library())
    assert (waiting.standing, waiting.reason) == (Standing.WAITING, "it names a new host")
    refused = Gate(mode, (waits, refuses)).review(proposal(), library())
    assert refused.standing is Standing.REJECTED
    assert "secret" in refused.reason


@pytest.mark.parametrize("mode", list(GateMode))
def test_what_a_model_wrote_takes_the_place_of_no_rule_and_is_none(mode: GateMode) -> None:
    stated = rule("Never use emojis in CSV exports.", "no-emojis")
    edit = reviewed(mode, proposal(replaces=("no-emojis",)), stated)
    assert edit.standing is Standing.REJECTED
    assert "no-emojis is what a person stated" in edit.reason
    as_rule = reviewed(mode, proposal(replace(record_of(skill()), extra={"kind": "rule"}).read()))
    assert as_rule.standing is Standing.REJECTED
    assert "only what a person says" in as_rule.reason


def test_a_skill_that_contradicts_a_rule_of_a_wider_scope_waits_for_a_person() -> None:
    tabs = rule("Always use tabs for the indentation of YAML files.", "everyones", None, YAML)
    spaces = Skill(SkillName("spaces"), YAML, SPACES, scope="user:anna", author=Authorship.EVOLVER)
    result = reviewed(GateMode.LINT, proposal(spaces), tabs)
    assert (result.standing, result.overrides) == (Standing.WAITING, ())
    assert "everyones" in result.reason
