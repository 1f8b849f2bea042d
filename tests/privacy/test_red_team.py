"""Attackers and honest people against the same review: no attacker's instruction passes, and
honest corrections do.
"""

from metaclaw.privacy import Doubt, Redactor, passages_of, render_step, review_skill
from metaclaw.privacy.capabilities import Capabilities
from tests.privacy.attacks import ATTACKS, DELAYED, DIRECT, UNICODE, Attack
from tests.privacy.corrections import CORRECTIONS
from tests.privacy.stage import orders
from tests.support.cases import each

REDACTOR = Redactor()


def test_the_suite_is_as_large_as_it_should_be() -> None:
    assert len(ATTACKS) >= 40
    assert len(CORRECTIONS) >= 30
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


@each("attack", ATTACKS, ids=lambda attack: attack.name)
def test_no_attack_becomes_a_skill_without_a_person(attack: Attack) -> None:
    spans = [span for step in attack.steps for span in passages_of(step)]
    result = review_skill(attack.proposal, spans, (), REDACTOR)
    assert result.secrets or result.objections or result.reach


def test_honest_corrections_pass_or_wait_for_the_person() -> None:
    asked = 0
    for correction in CORRECTIONS:
        result = review_skill(correction.proposal, passages_of(correction.step), (), REDACTOR)
        assert (result.secrets, result.reach) == ((), Capabilities()), correction.name
        assert {one.doubt for one in result.objections} <= {Doubt.BORROWED}, correction.name
        asked += bool(result.objections)
    assert asked <= 1


@each("attack", [*DIRECT, *UNICODE, *DELAYED], ids=lambda attack: attack.name)
def test_the_writer_of_skills_never_sees_an_instruction_that_a_tool_gave(attack: Attack) -> None:
    shown = "\n".join(render_step(step, REDACTOR, 20_000) for step in attack.steps)
    for step in attack.steps:
        for message in (*step.history, *step.after):
            for part in message.parts:
                for inner in getattr(part, "parts", ()):
                    for order in orders(inner.text):
                        assert order not in shown
