"""What a person takes back stays away: learning in flight does not bring it back, not even across
`kill -9`.
"""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.test_fast_loop import (
    CORRECTION,
    SKILL,
    TASK,
    Talk,
    program_of,
    skills_in_force,
    work,
)
from tests.support.program import Program
from tests.support.teacher import Teacher

WORDS = "From now on, always end the weekly report with a table of open risks."
LATER_WORDS = "From now on, always sign meeting minutes with the name of the keeper."


class HeldEvolver:
    """An evolver that answers only once it is let go."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    async def __call__(self, prompt: str) -> dict[str, object]:
        self.is_asked.set()
        while not self.may_answer.is_set():
            await asyncio.sleep(0.01)
        return {"skills": [SKILL]}


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(work=work)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def learner(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def has_learned(program: Program, *, skills: int) -> set[str]:
    """The skills in force once there are so many and nothing is left to learn from."""
    program.wait_for("/api/skills", lambda facts: len(facts["skills"]) >= skills, 20)
    program.wait_for(
        "/api/status", lambda facts: not any(facts["learning"]["pending"].values()), 20
    )
    return skills_in_force(program)


def say_and_kill(program: Program, words: str) -> None:
    """End the program before its learner has taken up the words."""
    Talk(program).say(words)
    program.kill()


@pytest.mark.parametrize("is_killed", [False, True], ids=["running", "killed"])
def test_what_an_evolver_writes_from_failures_before_a_revert_is_dropped(
    learner: Program, teacher: Teacher, is_killed: bool
) -> None:
    evolver = HeldEvolver()
    teacher.evolve = evolver
    talk = Talk(learner)
    talk.say(TASK.format(3))
    talk.say(CORRECTION)
    assert evolver.is_asked.wait(60)
    assert learner.command("skills", "revert", "0").returncode == 0
    if is_killed:
        learner.kill()
        learner.start()
    evolver.may_answer.set()
    Talk(learner).say(LATER_WORDS)
    learned = has_learned(learner, skills=1)
    assert len(learned) == 1, learned
    assert SKILL["name"] not in learned


def test_words_that_were_said_before_a_revert_are_not_taken_up_after_it(learner: Program) -> None:
    say_and_kill(learner, WORDS)
    before = learner.command("skills", "revert", "0")
    assert before.returncode == 0, before.stderr
    learner.start()
    Talk(learner).say(LATER_WORDS)
    learned = has_learned(learner, skills=1)
    assert len(learned) == 1, learned
    assert "keeper" in learner.get("/api/rules")["rules"][0]["text"]


def test_the_same_words_teach_again_when_they_are_said_after_a_revert(learner: Program) -> None:
    Talk(learner).say(WORDS)
    learned = has_learned(learner, skills=1)
    assert learner.command("skills", "revert", "0").returncode == 0
    assert skills_in_force(learner) == set()
    Talk(learner).say(WORDS)
    assert has_learned(learner, skills=1) == learned


def test_a_retired_skill_is_not_learned_again_from_what_taught_it(
    learner: Program, teacher: Teacher
) -> None:
    """The skill is published and its candidate not yet marked as accepted when the program is
    killed.
    """
    Talk(learner).say(WORDS)
    (name,) = has_learned(learner, skills=1)
    learner.kill()
    as_before_it_was_noted = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        "c.execute(\"UPDATE candidates SET standing = 'draft'\"); c.commit(); c.close()"
    )
    run_python(learner, as_before_it_was_noted)
    assert learner.command("skills", "retire", name).returncode == 0
    learner.start()
    Talk(learner).say(LATER_WORDS)
    assert name not in has_learned(learner, skills=1)
    candidates = httpx.get(f"{learner.url}/api/candidates", headers=learner.auth).json()[
        "candidates"
    ]
    (again,) = [one for one in candidates if one["skill"] == name]
    assert again["standing"] == "rejected"


def run_python(program: Program, code: str) -> None:
    subprocess.run(
        [sys.executable, "-c", code, str(program.home / "ledger.db")], check=True, timeout=30
    )
