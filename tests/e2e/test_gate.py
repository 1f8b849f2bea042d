"""The whole gate on the real program: replayed, tried on a share of real tasks, promoted by what
came of them; harm turned away.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_fast_loop import CORRECTION, SKILL, TASK, Talk, program_of, work
from tests.support.program import PATIENCE_S, Program
from tests.support.provider import Json
from tests.support.teacher import FAIL, PASS, Teacher

MISLEADING = {
    "name": "american-release-dates",
    "trigger": "When writing a changelog entry or release notes that contain a release date",
    "body": (
        "1. Find every release date in the entry.\n2. Write each in the shortest form.\n3. Read the"
        " entry once more.\n\nDo not write long dates."
    ),
    "category": "writing",
}


def judge(prompt: str) -> Json:
    """A *simulated* judge that is always right: the date is in the wanted form, or it is not."""
    answer = prompt.split("== The answer")[-1]
    return PASS if "2026-02-01" in answer else FAIL


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(work=work, judge=judge)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def learner(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    running = program_of(teacher, tmp_path / "home", gate="full").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def feedback(program: Program, turn: str, outcome: str) -> None:
    said = {"turn": turn, "outcome": outcome}
    httpx.post(
        f"{program.url}/api/feedback", json=said, headers=program.auth, timeout=PATIENCE_S
    ).raise_for_status()


def candidates(program: Program) -> list[Any]:
    found: list[Any] = program.get("/api/candidates")["candidates"]
    return found


@pytest.mark.slow
def test_a_helpful_skill_is_proven_by_replay_tried_by_chance_and_promoted_by_live_evidence(
    learner: Program, teacher: Teacher
) -> None:
    teacher.evolve = lambda prompt: {"skills": [SKILL]}
    first = Talk(learner)
    first.say(TASK.format(3))
    first.say(CORRECTION)
    facts = learner.wait_for("/api/skills", lambda facts: facts["skills"] != [])
    assert facts["skills"][0]["state"] == "canary"
    assert teacher.asked("replay") != []
    # The certificate is saved a moment after the skill is in force.
    skill = learner.wait_for(
        "/api/skills/iso-release-dates", lambda facts: facts["certificate"] is not None
    )
    certificate = skill["certificate"]
    assert certificate["wins"] >= 1
    assert certificate["losses"] == certificate["regressions"] == 0
    assert certificate["expected_loss"] < 0.04

    shares = {True: 0, False: 0}
    uplifts: list[float] = []
    for number in range(60):
        if learner.get("/api/skills")["skills"][0]["state"] == "live":
            break
        talk = Talk(learner)
        talk.say(TASK.format(number))
        is_placed = talk.placed == ["iso-release-dates"]
        (draw,) = learner.get(f"/api/turns/{talk.turn}")["draws"]
        assert (draw["skill"], draw["placed"]) == ("iso-release-dates", is_placed)
        shares[is_placed] += draw["propensity"] == 0.67
        feedback(learner, talk.turn, "pass" if is_placed else "fail")
        uplift = learner.get("/api/skills/iso-release-dates")["uplift"]["estimate"]
        uplifts += [uplift] if uplift is not None else []
        time.sleep(0.2)
    learner.wait_for("/api/skills", lambda facts: facts["skills"][0]["state"] == "live", 90)
    assert min(shares.values()) >= 1
    assert max(uplifts) > 0.5


@pytest.mark.slow
def test_a_skill_that_mends_nothing_never_reaches_a_prompt(
    learner: Program, teacher: Teacher
) -> None:
    teacher.evolve = lambda prompt: {"skills": [MISLEADING]}
    first = Talk(learner)
    first.say(TASK.format(3))
    first.say(CORRECTION)
    learner.wait_for(
        "/api/candidates",
        lambda facts: [one["standing"] for one in facts["candidates"]] == ["rejected"],
        90,
    )
    assert learner.get("/api/skills")["skills"] == []
    assert candidates(learner)[0]["certificate"]["wins"] == 0


def test_a_standing_instruction_is_in_force_at_once_for_its_person_under_the_full_gate(
    learner: Program,
) -> None:
    Talk(learner, **{"x-user-id": "ada"}).say(
        "From now on, always write changelog release dates as YYYY-MM-DD."
    )
    facts = learner.wait_for("/api/skills", lambda facts: facts["skills"] != [])
    assert (facts["skills"][0]["author"], facts["skills"][0]["scope"]) == (
        "instruction",
        "user:ada",
    )
    for number in range(6):
        talk = Talk(learner, **{"x-user-id": "ada"})
        assert talk.say(TASK.format(number)) == "Released on 2026-02-01."
    other = Talk(learner, **{"x-user-id": "bob"})
    assert other.say(TASK.format(1)) == "Released on 01/02/2026."
