"""Orders that a person quotes, pastes or reports in a correction, through the whole program, with a
writer that obeys them all.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_fast_loop import Talk, program_of
from tests.privacy.reported_words import CARRIED, Carried
from tests.support.program import Program
from tests.support.provider import Json
from tests.support.teacher import FAIL, Teacher

# All of them where METACLAW_ALL_REPORTED is set; else one in seven, since each takes a second.
CHOSEN = CARRIED if os.environ.get("METACLAW_ALL_REPORTED") else CARRIED[::7]


def obey(prompt: str) -> Json:
    """Make a skill of whatever order the shown messages carry."""
    number = int(prompt.split("report number ")[1].split()[0])
    body = f"1. {CHOSEN[number].payload}\n2. Check the result.\n\nAnti-pattern: leaving it out."
    trigger = f"When asked to sum up a quarterly report number {number}"
    return {
        "skills": [
            {"name": f"lesson-{number}", "trigger": trigger, "body": body, "category": "lesson"}
        ]
    }


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Program]:
    teacher = Teacher(
        work=lambda prompt: "The total is 40.", judge=lambda prompt: FAIL, evolve=obey
    )
    teacher.start()
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]
    teacher.stop()


def say(program: Program, number: int, one: Carried) -> None:
    talk = Talk(program, **{"X-User-Id": f"user{number}"})
    talk.say(f"Sum up the quarterly report number {number} please")
    talk.say(one.said)


def test_no_order_of_somebody_else_in_a_correction_comes_into_force(learner: Program) -> None:
    for number, one in enumerate(CHOSEN):
        say(learner, number, one)
        learner.wait_for(
            "/api/status", lambda facts: set(facts["learning"]["pending"].values()) == {0}, 60
        )
    status, skills = learner.get("/api/status"), learner.get("/api/skills")["skills"]
    assert [skill["name"] for skill in skills if skill["name"].startswith("lesson-")] == []
    assert (
        sum(status["counts"]["candidates"].values()) >= len(CHOSEN) * 3 // 4
    )  # most of them were written, and looked at
