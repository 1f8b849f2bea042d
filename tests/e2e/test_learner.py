"""The process that learns is killed at work: serving does not notice, and what it was about is
learned all the same, once.
"""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaclaw.domain.ids import new_session_id
from metaclaw.store import LedgerLimits, SqlLedger, open_database
from tests.e2e.test_fast_loop import CORRECTION, SKILL, TASK, Talk, program_of, wait_until, work
from tests.store.recorder import make_turn
from tests.support import forks
from tests.support.program import Program
from tests.support.provider import Json
from tests.support.teacher import Teacher


def learner_of(program: Program) -> int:
    """The number of the process in which the program learns."""
    assert program.process is not None
    return forks.learner_of(program.process.pid)


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(work=work)
    running.start()
    yield running
    running.stop()


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="finds the learner by /proc, which only Linux has"
)
def test_a_learner_that_is_killed_while_it_learns_is_replaced_and_the_lesson_is_learned_once(
    teacher: Teacher, tmp_path: Path
) -> None:
    program = program_of(teacher, tmp_path / "home").start()
    killed: list[int] = []

    def write(prompt: str) -> Json | int:
        if not killed:
            killed.append(learner_of(program))
            os.kill(killed[0], signal.SIGKILL)
        return {"skills": [SKILL]}

    teacher.evolve = write
    talk = Talk(program)
    talk.say(TASK.format(3))
    talk.say(CORRECTION)
    program.wait_for(
        "/api/skills",
        lambda facts: [skill["name"] for skill in facts["skills"]] == ["iso-release-dates"],
    )
    fresh = Talk(program)
    assert fresh.say(TASK.format(4)) == "Released on 2026-02-01."
    assert fresh.placed == ["iso-release-dates"]
    status = program.wait_for(
        "/api/status", lambda facts: set(facts["learning"]["pending"].values()) == {0}
    )
    assert learner_of(program) not in killed
    assert status["counts"]["support"] == 1
    assert status["counts"]["candidates"]["accepted"] == 1
    assert status["generation"] == 1
    assert len(teacher.asked("evolve")) == 2  # the first answer found nobody
    assert program.stop() == 0, program.log.read_text()[-4000:]


def test_status_tells_how_far_the_learner_is_behind_however_far_that_is(
    teacher: Teacher, tmp_path: Path
) -> None:
    program = program_of(teacher, tmp_path / "home")
    recorded = 3_000

    async def record() -> None:
        database = open_database(f"sqlite:///{program.home / 'ledger.db'}")
        ledger = SqlLedger(database, LedgerLimits(patience_s=60))
        await ledger.start()
        for _ in range(3):
            await asyncio.gather(
                *(ledger.record(make_turn(new_session_id(), b"{}")) for _ in range(recorded // 3))
            )
        await ledger.aclose()
        database.close()

    asyncio.run(record())
    program.start()
    try:
        pending = program.get("/api/status")["learning"]["pending"]
        assert recorded / 2 < pending["turns"] <= recorded
    finally:
        program.kill()


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="finds the learner by /proc, which only Linux has"
)
def test_a_learner_that_dies_after_it_has_learned_is_started_again_at_once_each_time(
    teacher: Teacher, tmp_path: Path
) -> None:
    program = program_of(teacher, tmp_path / "home").start()

    def pauses() -> list[str]:
        return re.findall(r"loop_failed loop=learner again_in_s=(\S+)", program.log.read_text())

    for number in range(4):
        talk = Talk(program)
        talk.say(TASK.format(number))
        talk.end()
        program.wait_for(
            "/api/status",
            lambda facts: sum(facts["counts"]["verdicts"].values()) > number,  # noqa: B023
            60,
        )
        os.kill(learner_of(program), signal.SIGKILL)
        wait_until(lambda: len(pauses()) > number)  # noqa: B023
    assert pauses() == ["0.5"] * 4
    assert program.stop() == 0, program.log.read_text()[-4000:]
