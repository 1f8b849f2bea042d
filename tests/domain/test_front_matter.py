"""The stored form of skills, rules and facts."""

from dataclasses import replace
from datetime import date

import pytest

from metaclaw.domain.front_matter import SkillRecord, front_matter, record_of
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Fact, Rule, Skill

RECORD = SkillRecord(SkillName("uv"), "When installing", "Use uv.", scope="owner")
EVERYTHING: dict[str, object] = {
    "kind": "rule",
    "applies": "always",
    "workspace": "/home/ada/shop",
    "project": "unknown",
    "expires": "2027-01-31",
    "examples": ["Install numpy."],
    "overrides": ["pip"],
    "source": "t_1",
    "ask_hold": True,
    "check": "not in calls of shell: pip",
    "check_state": "proposed",
    "check_note": "it fails turns that were fine",
    "enforce": "hold",
    "on_error": "pass",
    "on_break": "call",
    "license": "MIT",
}


def test_a_rule_has_each_key_of_its_front_matter_as_a_field_and_keeps_those_of_others() -> None:
    rule = replace(RECORD, extra=EVERYTHING).read()
    assert isinstance(rule, Rule)
    assert (rule.expires, rule.overrides, rule.source) == (date(2027, 1, 31), ("pip",), "t_1")
    assert rule.applies_always
    assert rule.is_project_unknown
    assert rule.asks_to_hold
    assert rule.is_check_proposed
    assert (rule.enforcement, rule.error_handling, rule.on_break) == ("hold", "pass", "call")
    assert rule.other == {"license": "MIT"}
    assert list(front_matter(rule).items()) == list(EVERYTHING.items())
    assert record_of(rule).read() == rule


@pytest.mark.parametrize(
    "odd",
    [
        {"applies": "sometimes"},
        {"enforce": "maybe"},
        {"expires": "soon"},
        {"examples": []},
        {"workspace": None},
        {"kind": "skill"},
        {"kind": "poem"},
    ],
)
def test_a_value_that_the_program_does_not_know_is_kept_and_means_nothing(
    odd: dict[str, object],
) -> None:
    skill = replace(RECORD, extra=odd).read()
    assert replace(skill, other={}) == RECORD.read()
    assert front_matter(skill) == odd


@pytest.mark.parametrize(
    ("author", "kind", "made"),
    [
        (Authorship.PERSON, None, Skill),
        (Authorship.EVOLVER, "skill", Skill),
        (Authorship.PERSON, "rule", Rule),
        (Authorship.INSTRUCTION, None, Rule),
        (Authorship.INSTRUCTION, "fact", Fact),
    ],
)
def test_a_persons_words_are_a_rule_unless_they_are_a_fact(
    author: Authorship, kind: str | None, made: type[Skill]
) -> None:
    extra = {} if kind is None else {"kind": kind}
    read = replace(RECORD, author=author, extra=extra).read()
    assert type(read) is made
