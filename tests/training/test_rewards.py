"""What a rollout is worth: by checks, else by the judge, and nothing where neither can say."""

import json
from dataclasses import replace

import pytest

from metaclaw.domain.chat import Text, Tool, ToolCall
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Rule, Skill
from metaclaw.domain.training import Rollout
from metaclaw.domain.turn import Scope, Stamp, Step, TurnEnd
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.outcome import Judge
from metaclaw.training.answers import parts_of
from metaclaw.training.rewards import Rewards
from tests.learn.learning import FAILED, PASSED, Speaker

pytestmark = pytest.mark.anyio
DATES = Skill(
    SkillName("dates"),
    "When writing dates",
    "Write them so.",
    check=r"pattern: \d{4}-\d\d-\d\d",
)
POLITE = Skill(SkillName("polite"), "Always", "Be polite.", check="pattern: please")
UNCHECKED = Skill(SkillName("short"), "Always", "Be short.")
ROSTER = Skill(
    SkillName("roster"),
    "Always",
    "Write it so.",
    check=r"pattern: ^(?P<time>\d\d:\d\d)(?P<zone>\+05:30)$",
)
ECHO = Skill(
    SkillName("echo"),
    "Always",
    "Repeat what was asked.",
    check="""program: |
  import json, sys
  seen = json.load(sys.stdin)
  part = 0.6 if seen["text"] in seen["task"] else 0.0
  print(json.dumps({"score": 1.0 if seen["text"] == seen["task"] else part, "reason": "echo"}))
""",
)
UV_RULE = Rule(
    SkillName("use-uv"),
    "always",
    "Use uv, never pip.",
    applies_always=True,
    check="not in calls: pip",
)
SIGNED_RULE = Rule(
    SkillName("signed"),
    "writing letters",
    "Sign it.",
    check="pattern: Yours",
)
PROPOSED_RULE = Rule(
    SkillName("proposed"),
    "always",
    "Be short.",
    check="pattern: short",
    check_state="proposed",
)
SKILLS = {
    skill.name: skill
    for skill in (DATES, POLITE, UNCHECKED, ROSTER, ECHO, UV_RULE, SIGNED_RULE, PROPOSED_RULE)
}
READ = Tool(
    "read_file", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}}
)


def step(*skills: Skill, tools: tuple[Tool, ...] = ()) -> Step:
    stamp = Stamp(1, 0, "", tuple(skill.name for skill in skills))
    return Step(
        TurnId("t"),
        SessionId("s"),
        Scope(),
        stamp,
        "m",
        "Write the date.",
        (),
        tools,
        (),
        TurnEnd.COMPLETED,
    )


def rewards(
    judge: Speaker | None = None,
    verdict: Verdict | None = None,
    reference: str | None = None,
    *,
    matching: str = "letter",
) -> Rewards:
    asked = None if judge is None else Judge(judge, 3, lambda one: "")
    return Rewards(
        judge_for=lambda model: asked,
        skill=SKILLS.get,
        redact=lambda text: text.replace("hunter2", "[secret]"),
        verdict=lambda turn: verdict,
        reference=lambda step: reference,
        matches=lambda rule, task, scope: rule is not SIGNED_RULE or matching in task,
    )


def said(*texts: str, is_whole: bool = True) -> list[Rollout]:
    return [Rollout((1,), (-0.5,), text, is_whole) for text in texts]


async def test_a_skills_check_decides_and_the_judge_is_not_asked() -> None:
    judge = Speaker("judge", lambda prompt: PASSED)
    assert await rewards(judge).score(step(DATES), said("on 2024-05-01", "on May 1")) == [1.0, 0.0]
    assert judge.asked == []


async def test_of_several_checks_the_mean_counts() -> None:
    assert await rewards().score(
        step(DATES, POLITE), said("2024-05-01, please", "2024-05-01", "no")
    ) == [1.0, 0.5, 0.0]


async def test_an_answer_that_is_partly_right_earns_a_part() -> None:
    assert await rewards().score(step(ROSTER), said("14:17+05:30", "at 14:17", "noon")) == [
        1.0,
        pytest.approx(1 / 5),
        0.0,
    ]


async def test_a_program_sees_the_task_and_its_score_is_the_reward() -> None:
    assert await rewards().score(step(ECHO), said("Write the date.", "Write the", "no")) == [
        1.0,
        0.6,
        0.0,
    ]


async def test_an_answer_without_end_earns_nothing_even_if_another_says_the_same() -> None:
    answers = [*said("on 2024-05-01"), *said("on 2024-05-01", is_whole=False)]
    assert await rewards().score(step(DATES), answers) == [1.0, 0.0]
    assert await rewards().score_strictly(step(DATES), answers) == [1.0, 0.0]


async def test_empty_and_repeated_answers_earn_nothing_and_are_not_judged() -> None:
    judge = Speaker("judge", lambda prompt: PASSED)
    answers = said(" \n", "2024-05-01" * 4)
    assert await rewards().score(step(DATES), answers) == [0.0, 0.0]
    assert await rewards(judge).score(step(), answers) == [0.0, 0.0]
    assert judge.asked == []


async def test_strictly_only_what_passes_every_check_as_a_whole_counts() -> None:
    answers = said("2024-05-01, please", "2024-05-01", "2024-05-0177 please", "no")
    assert await rewards().score(step(DATES, POLITE), answers) == [1.0, 0.5, 1.0, 0.0]
    assert await rewards().score_strictly(step(DATES, POLITE), answers) == [1.0, 0.0, 0.0, 0.0]
    assert await rewards().score_strictly(step(ECHO), said("Write the date.", "Write the")) == [
        1.0,
        0.0,
    ]


async def test_without_a_check_the_judges_votes_are_the_strict_score() -> None:
    votes = iter([{**PASSED, "score": 0.2}, FAILED, PASSED])
    judge = Speaker("judge", lambda prompt: next(votes))
    assert await rewards(judge).score_strictly(step(UNCHECKED), said("an answer")) == [
        pytest.approx(2 / 3)
    ]


async def test_without_a_check_the_judge_ranks_the_group_in_one_call() -> None:
    judge = Speaker("judge", lambda prompt: {"ranks": [2, 1, 3], "reason": "so"})
    answers = [*said("fair", "good", "bad", "good"), *said("cut", is_whole=False)]
    assert await rewards(judge).score(step(UNCHECKED), answers) == [0.5, 1.0, 0.0, 1.0, 0.0]
    assert len(judge.asked) == 1
    assert "cut" not in judge.asked[0]


async def test_equal_answers_are_judged_once() -> None:
    judge = Speaker("judge", lambda prompt: PASSED)
    assert await rewards(judge).score_strictly(step(), said(*["the same"] * 8)) == [1.0] * 8
    assert judge.questions == 1


async def test_a_judge_that_is_down_gives_no_reward() -> None:
    judge = Speaker("judge", lambda prompt: ValueError("down"))
    assert await rewards(judge).score(step(), said("an answer", "another")) == [None, None]
    assert await rewards(judge).score_strictly(step(), said("an answer")) == [None]


async def test_without_check_and_judge_there_is_no_reward() -> None:
    assert await rewards().score(step(UNCHECKED), said("an answer")) == [None]


async def test_the_judge_sees_no_secret() -> None:
    judge = Speaker("judge", lambda prompt: PASSED)
    await rewards(judge).score_strictly(step(), said("the password is hunter2"))
    assert judge.asked
    assert not any("hunter2" in prompt for prompt in judge.asked)


def user(outcome: Outcome, source: Source = Source.USER) -> Verdict:
    is_failed = outcome is Outcome.FAIL
    return Verdict(
        TurnId("t"), outcome, source, float(is_failed), fault=Fault.AGENT if is_failed else None
    )


async def test_a_persons_word_on_the_recorded_answer_is_its_reward_whatever_a_check_says() -> None:
    asked = replace(step(DATES), answer=(Text("2024-05-01"),))
    found = await rewards(verdict=user(Outcome.FAIL)).score(
        asked, said("2024-05-01\n", "2024-05-02", "no")
    )
    assert found == [0.0, 1.0, 0.0]


async def test_what_a_detector_saw_counts_where_no_check_says_anything() -> None:
    seen = user(Outcome.PASS, Source.DETECTOR)
    asked = replace(step(), answer=(Text("done"),))
    assert await rewards(verdict=seen).score(asked, said("done", "more")) == [1.0, None]
    checked = replace(step(DATES), answer=(Text("done"),))
    assert await rewards(verdict=seen).score(checked, said("done")) == [0.0]


def test_a_turn_can_be_scored_by_a_check_a_judge_or_a_verdict() -> None:
    assert rewards().can_score(step(DATES))
    assert rewards(Speaker("judge", lambda prompt: PASSED)).can_score(step())
    assert rewards(verdict=user(Outcome.PASS)).can_score(step())
    assert not rewards().can_score(step(UNCHECKED))
    assert not rewards(verdict=user(Outcome.PASS, Source.JUDGE)).can_score(step())
    assert not rewards(verdict=user(Outcome.UNKNOWN)).can_score(step())


async def test_what_the_person_wanted_before_counts_more_than_checks() -> None:
    wanted = rewards(reference="2024-05-01/nb")
    answers = said("2024-05-01/nb\n", "2024-05-01", "2024-05-01/nb" * 3)
    assert await wanted.score(step(DATES), answers) == [1.0, pytest.approx(10 / 13), 0.0]
    assert await wanted.score_strictly(step(DATES), answers) == [1.0, 0.0, 0.0]
    assert wanted.can_score(step())


def test_a_corrected_turn_is_scored_by_the_answer_that_the_correction_states() -> None:
    corrected = replace(step(DATES), answer=(Text("1 May"),), said_after="No, that's wrong.")
    assert not rewards(verdict=user(Outcome.FAIL)).can_score(corrected)
    assert rewards(verdict=user(Outcome.FAIL), reference="2024-05-01").can_score(corrected)


def test_an_answer_is_read_as_it_would_have_been_served() -> None:
    call = json.dumps({"name": "read_file", "arguments": {"path": "a.txt"}})
    (found,) = parts_of(f"<tool_call>{call}</tool_call>", (READ,))
    assert isinstance(found, ToolCall)
    assert (found.name, json.loads(found.arguments)) == ("read_file", {"path": "a.txt"})


async def test_rules_that_were_broken_and_followed_are_rewards_like_skills() -> None:
    run = Tool(
        "run", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}}}
    )
    pip, uv = (
        f'<tool_call>{{"name": "run", "arguments": {{"command": "{tool} install x"}}}}</tool_call>'
        for tool in ("pip", "uv")
    )
    assert await rewards().score(step(UV_RULE, tools=(run,)), said(pip, uv)) == [0.0, 1.0]
    assert await rewards().score_strictly(step(UV_RULE, tools=(run,)), said(pip, uv)) == [0.0, 1.0]


async def test_where_no_rule_has_anything_to_say_the_judge_is_asked() -> None:
    judge = Speaker("judge", lambda prompt: {"ranks": [1, 2], "reason": "the first is better"})
    assert await rewards(judge).score(step(UV_RULE), said("one", "two")) == [1.0, 0.0]
    assert await rewards().score(step(UV_RULE), said("one", "two")) == [None, None]


async def test_a_rule_for_another_situation_and_a_proposed_check_are_no_rewards() -> None:
    assert await rewards().score(step(SIGNED_RULE), said("Yours, Ann", "Bye")) == [None, None]
    assert await rewards(matching="date").score(step(SIGNED_RULE), said("Yours, Ann", "Bye")) == [
        1.0,
        0.0,
    ]
    assert await rewards().score(step(PROPOSED_RULE), said("short", "long")) == [None, None]


async def test_an_answer_rule_says_nothing_of_an_answer_that_calls_a_tool() -> None:
    calling = 'Yours <tool_call>{"name": "read_file", "arguments": {"path": "a"}}</tool_call>'
    assert await rewards(matching="date").score(
        step(SIGNED_RULE, tools=(READ,)), said(calling, "Bye")
    ) == [None, 0.0]
