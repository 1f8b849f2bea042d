"""Models that answer in a way that cannot be used, on the real program: `status`, `doctor` and the
page say so until they do.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_fast_loop import TASK, Talk, program_of, work
from tests.support.program import Program
from tests.support.teacher import HEARD_NOTHING, NOTHING, PASS, Teacher


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(work=work, listen=lambda prompt: HEARD_NOTHING)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def program(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def fail_once(program: Program, number: int) -> None:
    """A turn that a person says failed, and a session that ends, so that writer and judge are
    asked.
    """
    talk = Talk(program)
    talk.say(TASK.format(number))
    given = program.command(
        "feedback", "--last", "fail", "release dates must be written as YYYY-MM-DD"
    )
    assert given.returncode == 0, given.stderr
    other = Talk(program)
    for part in range(3):
        other.say(f"Count the boxes in hall {number}{part}.")
    other.end()


def test_unusable_answers_are_shown_until_they_are_usable_again(
    program: Program, teacher: Teacher
) -> None:
    teacher.judge = lambda prompt: {"thoughts": "it went well"}
    teacher.evolve = lambda prompt: {"lesson": "write dates properly"}
    fail_once(program, 1)
    program.wait_for("/api/status", lambda facts: len(facts["learning"]["unusable"]) == 2)
    shown = program.command("status").stdout
    assert "! The model that judges gives unusable answers: world/judge-model: " in shown
    assert "! The model that writes skills gives unusable answers: world/evolver-model: " in shown
    assert "metaclaw config set judge.model MODEL" in shown
    assert "metaclaw config set evolver.model MODEL" in shown
    examined = program.command("doctor").stdout
    assert "The model that judges gives unusable answers: world/judge-model: " in examined
    teacher.judge, teacher.evolve = lambda prompt: PASS, lambda prompt: NOTHING
    fail_once(program, 2)
    program.wait_for("/api/status", lambda facts: facts["learning"]["unusable"] == [])
    assert "gives unusable answers" not in program.command("status").stdout
