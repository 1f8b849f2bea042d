"""Work that kills whoever learns, each time: it is set aside and told of, and everything else is
learned.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from metaclaw.store import LedgerReader, open_database
from tests.e2e.test_fast_loop import CORRECTION, SKILL, TASK, Talk, program_of, work
from tests.e2e.test_learner import learner_of
from tests.support.program import Program
from tests.support.provider import Json
from tests.support.teacher import PASS, Teacher

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="finds the learner by /proc, which only Linux has"
)
DEADLY = "Summarise the minutes of meeting {}."


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(work=work)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def program(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    running.kill()  # where a test has not ended it


class Killer:
    """Kills the learner whenever somebody is asked about these words; a judge is asked for several
    votes at once.
    """

    def __init__(self, program: Program, words: str, answer: Json) -> None:
        self._program = program
        self._words = words
        self._answer = answer
        self.killed: set[int] = set()

    def __call__(self, prompt: str) -> Json:
        if self._words in prompt:
            with suppress(ValueError):  # it is dead already, and there is no other yet
                self.killed.add(learner := learner_of(self._program))
                os.kill(learner, signal.SIGKILL)
        return self._answer


def events_of(home: Path, kind: str) -> list[Any]:
    database = open_database(f"sqlite:///{home / 'ledger.db'}")
    found = [
        event.data for event in LedgerReader(database).events(limit=10_000) if event.kind == kind
    ]
    database.close()
    return found


def say_and_end(program: Program, words: str) -> str:
    talk = Talk(program)
    talk.say(words)
    talk.end()
    return talk.turn


def learned(program: Program) -> Any:
    """Until nothing is left to learn from."""
    return program.wait_for(
        "/api/status", lambda facts: set(facts["learning"]["pending"].values()) == {0}, 90
    )


def test_a_turn_that_kills_the_learner_each_time_is_set_aside_and_all_others_are_judged(
    program: Program, teacher: Teacher
) -> None:
    teacher.judge = killer = Killer(program, DEADLY.format(13), PASS)
    turns = [say_and_end(program, DEADLY.format(number)) for number in (11, 12, 13, 14, 15)]
    status = learned(program)
    assert len(killer.killed) == 3
    verdicts = [program.get(f"/api/turns/{turn}")["verdict"] for turn in turns]
    assert [one["outcome"] for one in verdicts] == ["pass", "pass", "unknown", "pass", "pass"]
    assert "set aside" in verdicts[2]["comment"]
    (aside,) = status["learning"]["set_aside"]
    assert (aside["loop"], aside["item"], aside["tries"]) == ("judging", turns[2], 3)
    assert "learner" not in status["loops"] or status["loops"]["learner"] == "running"
    assert turns[2] in program.command("status", "--all").stdout
    assert turns[2] in program.command("doctor").stdout
    assert program.stop() == 0
    assert [one["item"] for one in events_of(program.home, "set_aside")] == [turns[2]]


def test_failures_of_which_nobody_survives_making_a_skill_are_set_aside_and_the_next_are_learned_from(
    program: Program, teacher: Teacher
) -> None:
    teacher.evolve = killer = Killer(program, DEADLY.format(13), {"skills": [SKILL]})
    deadly = Talk(program)
    deadly.say(DEADLY.format(13))
    deadly.say("No, that's wrong. Minutes must name everybody who was there.")
    status = learned(program)
    assert len(killer.killed) == 3
    assert [one["loop"] for one in status["learning"]["set_aside"]] == ["writing"]
    talk = Talk(program)
    talk.say(TASK.format(3))
    talk.say(CORRECTION)
    program.wait_for(
        "/api/skills",
        lambda facts: [skill["name"] for skill in facts["skills"]] == ["iso-release-dates"],
        60,
    )
    assert learned(program)["counts"]["candidates"]["accepted"] == 1
    assert len(killer.killed) == 3
    assert program.stop() == 0
