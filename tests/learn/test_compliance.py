"""Rules without a check are judged on a sample that the budget allows; rules that weights have
absorbed are still measured.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import pytest

from metaclaw.domain.chat import Json
from metaclaw.domain.compliance import Compliance, RuleResult, measured_hash
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Rule, Skill
from metaclaw.errors import BudgetError
from metaclaw.learn.compliance import ComplianceLoop
from metaclaw.store import SqlSpending
from tests.learn.learning import ScriptedLearning, Speaker, Talk

pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]
KIND = Rule(SkillName("be-kind"), "always", "Be kind.", applies_always=True)
DATES = Rule(
    SkillName("iso-dates"),
    "When a release date is asked for",
    "Write dates as YYYY-MM-DD.",
    check=r"pattern: \d{4}-\d\d-\d\d",
)
ASK = "On which date was the release?"


def loop_of(learning: ScriptedLearning, **fields: object) -> ComplianceLoop:
    loop = learning.compliance
    loop.prepare(0)
    return replace(loop, **fields)  # type: ignore[arg-type]  # any field of a loop


async def measured(loop: ComplianceLoop, rule: Skill) -> Compliance:
    """Count every turn, wait for the judge, and tell how the rule is followed."""
    async with anyio.create_task_group() as judging:
        while await loop.poll(judging):
            pass
    return Compliance.of(
        Counter(
            {
                result: sum(
                    one.times
                    for one in loop.compliance.counted([rule.name])
                    if one.result is result
                )
                for result in RuleResult
            }
        )
    )


async def forty_turns(learning: ScriptedLearning) -> None:
    learning.write_by_hand(KIND)
    talk = Talk(learning)
    for number in range(40):
        await talk.say(
            f"Question {number}",
            "Rude!" if number % 20 == 9 else "Dear friend.",
            skills=[KIND.name],
        )


def judge(rule: Callable[[str], Json]) -> Speaker:
    return Speaker("world/judge", rule)


def vote(prompt: str) -> Json:
    return {
        "outcome": "fail" if "Rude!" in prompt else "pass",
        "score": -1.0 if "Rude!" in prompt else 1.0,
        "reason": "its tone",
    }


async def test_a_judge_is_asked_about_every_tenth_turn_of_a_rule_without_a_check(
    new_learning: NewLearning,
) -> None:
    speaker = judge(vote)
    learning = await new_learning(judge=speaker)
    await forty_turns(learning)
    assert await measured(loop_of(learning), KIND) == Compliance(followed=2, broken=2, unknown=36)
    assert len(speaker.asked) == 4
    assert all("Be kind." in prompt for prompt in speaker.asked)


async def test_no_judge_is_asked_about_rules_if_its_share_of_the_turns_is_zero(
    new_learning: NewLearning,
) -> None:
    speaker = judge(vote)
    learning = await new_learning(judge=speaker, share=0.0)
    await forty_turns(learning)
    assert await measured(loop_of(learning), KIND) == Compliance(unknown=40)
    assert speaker.asked == []


async def test_questions_about_rules_are_counted_as_turns_that_the_judge_was_asked_about(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(judge=judge(vote))
    await forty_turns(learning)
    await measured(loop_of(learning), KIND)
    assert learning.allowance.questions == 4
    sums = SqlSpending(learning.database).sums()
    assert sum(spent.turns for key, spent in sums.items() if key.purpose == "judge") == 4


async def test_many_rules_without_a_check_cost_no_more_questions_than_one(
    new_learning: NewLearning,
) -> None:
    speaker = judge(vote)
    learning = await new_learning(judge=speaker)
    rules = [replace(KIND, name=SkillName(f"be-{word}"), body=f"Be {word}.") for word in "abcd"]
    for rule in rules:
        learning.write_by_hand(rule)
    talk = Talk(learning)
    for number in range(40):
        await talk.say(f"Question {number}", "Dear.", skills=[rule.name for rule in rules])
    await measured(loop_of(learning), rules[0])
    asked = [next(rule.name for rule in rules if rule.body in one) for one in speaker.asked]
    assert sorted(asked) == [rule.name for rule in rules]


async def test_a_rule_with_a_check_costs_no_question(new_learning: NewLearning) -> None:
    speaker = judge(vote)
    learning = await new_learning(judge=speaker)
    checked = replace(KIND, check="not: Rude")
    learning.write_by_hand(checked)
    talk = Talk(learning)
    for number in range(20):
        await talk.say(f"Question {number}", "Dear friend.", skills=[KIND.name])
    assert await measured(loop_of(learning), checked) == Compliance(followed=20)
    assert speaker.asked == []


async def test_no_question_is_asked_that_the_budget_has_no_room_for(
    new_learning: NewLearning,
) -> None:
    speaker = judge(vote)
    learning = await new_learning(judge=speaker, can_pay=False)
    await forty_turns(learning)
    assert await measured(loop_of(learning), KIND) == Compliance(unknown=40)
    assert speaker.asked == []


async def test_a_question_that_the_budget_refuses_leaves_the_rule_unknown_and_the_loop_alive(
    new_learning: NewLearning,
) -> None:
    def refuse(prompt: str) -> Json:
        raise BudgetError("today's learning budget is used up")

    speaker = judge(refuse)
    learning = await new_learning(judge=speaker)
    await forty_turns(learning)
    loop = loop_of(learning)
    assert await measured(loop, KIND) == Compliance(unknown=40)
    assert speaker.asked
    speaker.rule = vote
    talk = Talk(learning)
    for number in range(10):
        await talk.say(f"And {number}?", "Dear friend.", skills=[KIND.name])
    assert await measured(loop, KIND) == Compliance(followed=1, unknown=49)


async def test_a_rule_that_a_version_has_absorbed_is_measured_although_it_stands_in_no_prompt(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    learning.write_by_hand(DATES)
    talk = Talk(learning)
    for answer in ("Released on 2026-02-01.", "Released on 2026-02-02.", "Released on 03/02/2026."):
        await talk.say(ASK, answer, version=7)
    await talk.say(
        ASK, "Released on 04/02/2026.", version=6
    )  # this version has not absorbed it, and it was not placed
    loop = loop_of(learning, absorbed=lambda version: {DATES.name} if version == 7 else set())
    assert await measured(loop, DATES) == Compliance(followed=2, broken=1)
    record = loop.compliance.of_rule(DATES.name, measured_hash(DATES))
    assert [one.reason for one in record.violations] != []
