"""What a rollout is worth: by checks, else by the judge, and nothing where nobody can say."""

import json

import pytest

from metaclaw.domain.chat import Tool, ToolCall
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Scope, Stamp, TurnEnd
from metaclaw.learn.slow.rewarding import Rewarding, parts_of
from metaclaw.outcome import Judge
from tests.learn.house import FAILED, PASSED, Speaker

pytestmark = pytest.mark.anyio
DATES = Skill(SkillName("dates"), "When writing dates", "Write them so.", extra={"check": r"pattern: \d{4}-\d\d-\d\d"})
POLITE = Skill(SkillName("polite"), "Always", "Be polite.", extra={"check": "pattern: please"})
UNCHECKED = Skill(SkillName("short"), "Always", "Be short.")
SKILLS = {skill.name: skill for skill in (DATES, POLITE, UNCHECKED)}
READ = Tool("read_file", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


def step(*skills: Skill, tools: tuple[Tool, ...] = ()) -> Step:
    stamp = Stamp(1, 0, "", tuple(skill.name for skill in skills))
    return Step(TurnId("t"), SessionId("s"), Scope(), stamp, "m", "Write the date.", (), tools, (), TurnEnd.COMPLETED)


def rewarding(judge: Speaker | None = None) -> Rewarding:
    asked = None if judge is None else Judge(judge, 3, lambda one: "")
    return Rewarding(judge_for=lambda model: asked, skill=SKILLS.get, redact=lambda text: text.replace("hunter2", "[secret]"))


async def test_a_skills_check_decides_and_nobody_is_asked() -> None:
    judge = Speaker("judge", lambda prompt: PASSED)
    assert await rewarding(judge).score(step(DATES), ["on 2024-05-01", "on May 1"]) == [1.0, 0.0]
    assert judge.asked == []


async def test_of_several_checks_the_share_that_passes_counts() -> None:
    assert await rewarding().score(step(DATES, POLITE), ["2024-05-01, please", "2024-05-01", "no"]) == [1.0, 0.5, 0.0]


async def test_without_a_check_the_judges_votes_are_the_reward() -> None:
    votes = iter([{**PASSED, "score": 0.2}, FAILED, PASSED])
    judge = Speaker("judge", lambda prompt: next(votes))
    assert await rewarding(judge).score(step(UNCHECKED), ["an answer"]) == [pytest.approx(2 / 3)]


async def test_equal_answers_are_judged_once() -> None:
    judge = Speaker("judge", lambda prompt: PASSED)
    assert await rewarding(judge).score(step(), ["the same"] * 8) == [1.0] * 8
    assert judge.questions == 1


async def test_a_judge_that_is_down_gives_no_reward() -> None:
    judge = Speaker("judge", lambda prompt: ValueError("down"))
    assert await rewarding(judge).score(step(), ["an answer"]) == [None]


async def test_without_check_and_judge_there_is_no_reward() -> None:
    assert await rewarding().score(step(UNCHECKED), ["an answer"]) == [None]


async def test_the_judge_sees_no_secret() -> None:
    judge = Speaker("judge", lambda prompt: PASSED)
    await rewarding(judge).score(step(), ["the password is hunter2"])
    assert judge.asked
    assert not any("hunter2" in prompt for prompt in judge.asked)


def test_an_answer_is_read_as_it_would_have_been_served() -> None:
    call = json.dumps({"name": "read_file", "arguments": {"path": "a.txt"}})
    (found,) = parts_of(f"<tool_call>{call}</tool_call>", (READ,))
    assert isinstance(found, ToolCall)
    assert (found.name, json.loads(found.arguments)) == ("read_file", {"path": "a.txt"})
