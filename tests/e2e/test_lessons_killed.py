"""The program is killed while it learns a lesson: the lesson is written all the same, and once."""

import json
import time
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import anyio

from tests.e2e.test_lessons import FAILED, LESSON, WORKED, program_of, seen_by_model, session
from tests.support.clock import FakeClock
from tests.support.program import PATIENCE_S, Program
from tests.support.teacher import Teacher

AFTER_S = (0.0, 0.005, 0.02, 0.06)
"""So long after the evolver's answer the program is killed: before the candidate is saved, before
it is published, and before the failure is marked as shown."""


class Evolver:
    """Answers with the lesson once it may."""

    def __init__(self) -> None:
        self.may_answer = Event()
        self.answered = Event()

    async def __call__(self, prompt: str) -> dict[str, Any]:
        while not self.may_answer.is_set():
            await anyio.sleep(0.002)
        self.answered.set()
        line = {"name": "learned", "kind": "lesson", "trigger": "Always", "text": LESSON}
        return {"skills": [line]}


def fail_twice(program: Program, project: str) -> None:
    for task in ("fix the rounding", "rename the mail"):
        session(program, task, FAILED, WORKED, project=project)


def wait_for_question(teacher: Teacher, asked: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(teacher.asked("evolve")) <= asked:
        assert time.monotonic() < deadline, "the evolver was not asked"
        time.sleep(0.002)


def lessons_of(program: Program, project: str) -> list[str]:
    """The lines of a project in every state, when learning has come to rest."""
    program.wait_for("/api/lessons", lambda facts: project in json.dumps(facts))
    program.wait_for(
        "/api/status", lambda facts: not any((facts["learning"]["pending"] or {"": 1}).values())
    )
    known = program.get("/api/lessons")["lessons"]
    return [one["text"] for one in known if one["workspace"] == project]


def states(facts: dict[str, Any]) -> list[str]:
    return [one["state"] for one in facts["lessons"]]


def test_a_lesson_is_neither_lost_nor_written_twice_by_a_kill(tmp_path: Path) -> None:
    evolver = Evolver()
    teacher = Teacher(evolve=evolver)
    teacher.start()
    program = program_of(teacher, tmp_path / "home").start()
    try:
        fail_twice(program, "unanswered")
        wait_for_question(teacher, 0)
        program.kill()
        evolver.may_answer.set()
        program.start()
        assert lessons_of(program, "unanswered") == [LESSON]
        for number, after in enumerate(AFTER_S):
            project = f"answered-{number}"
            evolver.may_answer.clear()
            evolver.answered.clear()
            asked = len(teacher.asked("evolve"))
            fail_twice(program, project)
            wait_for_question(teacher, asked)
            evolver.may_answer.set()
            assert evolver.answered.wait(PATIENCE_S)
            time.sleep(after)
            program.kill()
            program.start()
            assert lessons_of(program, project) == [LESSON], after
            assert len(teacher.asked("evolve")) <= asked + 2
            session(program, f"work on {project}", project=project)
            assert seen_by_model(teacher, f"work on {project}").count(LESSON) == 1
        assert program.stop() == 0
    finally:
        program.kill()
        teacher.stop()


def test_a_session_that_did_not_end_before_a_kill_is_read_after_it(tmp_path: Path) -> None:
    evolver = Evolver()
    evolver.may_answer.set()
    teacher = Teacher(evolve=evolver)
    teacher.start()
    program = program_of(teacher, tmp_path / "home").start()
    try:
        for number, after in enumerate((0.3, 1.0, 2.5)):
            for task in ("fix the rounding", "rename the mail"):
                session(program, task, FAILED, WORKED, project=f"open-{number}", ends=False)
                time.sleep(after)
                program.kill()
                program.start()
            assert lessons_of(program, f"open-{number}") == [LESSON], after
        assert len(teacher.asked("evolve")) <= 6
        assert program.stop() == 0
    finally:
        program.kill()
        teacher.stop()


def test_a_sleeping_lesson_whose_failure_came_back_wakes_after_a_kill(tmp_path: Path) -> None:
    evolver = Evolver()
    evolver.may_answer.set()
    teacher = Teacher(evolve=evolver)
    teacher.start()
    clock = FakeClock(tmp_path / "clock")
    program = program_of(teacher, tmp_path / "home", clock.env).start()
    try:
        fail_twice(program, "shop")
        assert lessons_of(program, "shop") == [LESSON]
        for number, after in enumerate(AFTER_S):
            clock.set_ahead(timedelta(days=61 * (number + 1)))
            session(program, f"look around {number}", ("ls", "a.py"), project="shop")
            program.wait_for("/api/lessons", lambda facts: states(facts) == ["withdrawn"])
            session(program, f"failing again {number}", FAILED, WORKED, project="shop")
            time.sleep(after)
            program.kill()
            program.start()
            program.wait_for("/api/lessons", lambda facts: states(facts) == ["live"])
        assert len(teacher.asked("evolve")) == 1
        assert program.stop() == 0
    finally:
        program.kill()
        teacher.stop()
