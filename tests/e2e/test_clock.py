"""A wall clock that is set ahead and back while the program is used: no turn is deleted for it, and
every session is judged.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.e2e.test_fast_loop import TASK, Talk, program_of, work
from tests.support.clock import FakeClock
from tests.support.program import Program
from tests.support.teacher import Teacher

AHEAD = timedelta(days=400)


@pytest.fixture
def clock(tmp_path: Path) -> FakeClock:
    return FakeClock(tmp_path / "clock")


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(work=work)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def program(teacher: Teacher, tmp_path: Path, clock: FakeClock) -> Iterator[Program]:
    stopped = program_of(teacher, tmp_path / "home", more="[privacy]\nretention_days = 30")
    stopped.env |= clock.env
    yield stopped
    stopped.kill()


def test_retention_deletes_nothing_on_the_word_of_a_clock_that_jumped_ahead(
    program: Program, clock: FakeClock
) -> None:
    program.start()
    turn = Talk(program)
    turn.say(TASK.format(1))
    assert program.stop() == 0
    clock.set_ahead(AHEAD)
    program.start()
    status = program.wait_for(
        "/api/status", lambda facts: facts["loops"]["retention"] != "running", 60
    )
    assert "the clock is 400 days ahead of when retention last ran" in status["loops"]["retention"]
    assert program.get(f"/api/turns/{turn.turn}")["id"] == turn.turn
    told = program.command("status", "--all")
    assert "400 days ahead" in told.stdout, told.stdout + told.stderr
    assert program.stop() == 0
    clock.set_ahead(timedelta(0))
    program.start()
    program.wait_for("/api/status", lambda facts: facts["loops"]["retention"] == "running", 60)
    assert program.get(f"/api/turns/{turn.turn}")["id"] == turn.turn
    assert program.stop() == 0, program.log.read_text()[-4000:]


def test_a_session_that_fell_silent_while_the_program_was_stopped_is_judged(
    program: Program, clock: FakeClock
) -> None:
    program.start()
    talk = Talk(program)
    talk.say(TASK.format(1))
    assert program.stop() == 0
    clock.set_ahead(timedelta(hours=2))
    program.start()
    program.wait_for(f"/api/turns/{talk.turn}", lambda turn: turn["verdict"] is not None, 60)
    assert program.stop() == 0, program.log.read_text()[-4000:]


def test_a_session_that_ends_after_the_clock_was_ahead_is_judged(
    program: Program, clock: FakeClock
) -> None:
    clock.set_ahead(AHEAD)
    program.start()
    judged: list[bool] = []
    for number, ahead in enumerate((AHEAD, timedelta(0))):
        clock.set_ahead(ahead)
        talk = Talk(program)
        talk.say(TASK.format(number))
        talk.end()
        program.wait_for(
            "/api/status", lambda facts: set(facts["learning"]["pending"].values()) == {0}, 60
        )
        judged.append(program.get(f"/api/turns/{talk.turn}")["verdict"] is not None)
    assert judged == [True, True]
    assert program.stop() == 0, program.log.read_text()[-4000:]
