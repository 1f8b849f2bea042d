"""Forgetting while something is under way: an answer, or a call of the learner. What it comes to is
written nowhere.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_fast_loop import TASK, Talk, program_of, wait_until, work
from tests.e2e.test_forgotten import (
    CANARY,
    CORRECTION,
    WORDS,
    WRITTEN,
    forget,
    holding,
    session_of,
)
from tests.support.program import PATIENCE_S, Program
from tests.support.teacher import AGREED, FAIL, HEARD_NOTHING, Teacher, read_plainly


class Gate:
    """Lets an answer wait until what was asked is to be answered."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = threading.Event(), threading.Event()

    def late(self, answer: Callable[[str], Any]) -> Callable[[str], Any]:
        """The answer to what has the canary, once it may come."""

        async def wait(prompt: str) -> Any:
            if CANARY in prompt:
                self.is_asked.set()
                await asyncio.to_thread(self.may_answer.wait, PATIENCE_S)
            return answer(prompt)

        return wait


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(work=work, evolve=lambda prompt: {"skills": [WRITTEN]})
    running.start()
    yield running
    running.stop()


@pytest.fixture
def learner(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def is_idle(status: Any) -> bool:
    pending = status["learning"]["pending"]
    return pending is not None and not any(pending[kind] for kind in ("turns", "listening"))


def is_nowhere(program: Program) -> bool:
    return holding(program.home, CANARY) == {}


@pytest.mark.parametrize("purpose", ["listen", "confirm", "judge", "evolve"])
def test_what_a_call_of_the_learner_made_of_a_forgotten_session_is_written_nowhere(
    learner: Program, teacher: Teacher, purpose: str
) -> None:
    gate = Gate()
    answers: dict[str, Callable[[str], Any]] = {
        "listen": read_plainly,
        "confirm": lambda prompt: AGREED,
        "judge": lambda prompt: {**FAIL, "reason": f"the {CANARY} was wrong"},
        "evolve": lambda prompt: {"skills": [WRITTEN]},
    }
    if purpose == "confirm":
        teacher.listen = lambda prompt: HEARD_NOTHING if CANARY in prompt else read_plainly(prompt)
    setattr(teacher, purpose, gate.late(answers[purpose]))
    talk = Talk(learner)
    if purpose in ("listen", "confirm"):
        talk.say(WORDS)
    else:
        talk.say(TASK.format(3))
        talk.say(CORRECTION)
        talk.end()
    assert gate.is_asked.wait(PATIENCE_S), f"no call to {purpose}"
    forget(learner, session_of(talk))
    gate.may_answer.set()
    learner.wait_for("/api/status", is_idle)
    other = Talk(learner)  # read behind what was under way
    other.say("From now on, always end with applemark.")
    learner.wait_for("/api/rules", lambda found: "applemark" in json.dumps(found))
    assert holding(learner.home, CANARY) == {}
    assert len(learner.get("/api/skills")["skills"]) == 1
    assert learner.stop() == 0
    assert holding(learner.home, CANARY) == {}


@pytest.fixture
def ada(learner: Program) -> Talk:
    """A person with a key of their own."""
    url = f"{learner.url}/api/keys"
    made = httpx.post(url, json={"name": "ada"}, headers=learner.auth, timeout=PATIENCE_S)
    return Talk(learner, authorization=f"Bearer {made.raise_for_status().json()['key']}")


def forget_me(talk: Talk) -> None:
    url = f"{talk.program.url}/api/me/forget"
    httpx.post(url, headers=talk.headers, timeout=PATIENCE_S).raise_for_status()


def test_the_first_answer_of_a_session_under_way_when_a_person_is_forgotten_is_not_recorded(
    learner: Program, teacher: Teacher, ada: Talk
) -> None:
    gate = Gate()
    teacher.work = gate.late(lambda prompt: f"The {CANARY} report is done.")
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(ada.say, f"Write the {CANARY} report.")
        assert gate.is_asked.wait(PATIENCE_S)
        forget_me(ada)
        gate.may_answer.set()
        assert CANARY in answered.result(PATIENCE_S)
    assert learner.get("/api/sessions")["sessions"] == []
    assert holding(learner.home, CANARY) == {}
    later = Talk(learner, authorization=ada.headers["authorization"])
    later.say("Hello again.")
    assert len(learner.get("/api/sessions")["sessions"]) == 1


def test_what_a_person_said_is_not_learned_when_they_are_forgotten_meanwhile(
    learner: Program, teacher: Teacher, ada: Talk
) -> None:
    gate = Gate()
    teacher.listen = gate.late(read_plainly)
    ada.say(WORDS)
    assert gate.is_asked.wait(PATIENCE_S)
    forget_me(ada)
    gate.may_answer.set()
    learner.wait_for("/api/status", is_idle)
    Talk(learner).say("From now on, always end with applemark.")
    learner.wait_for("/api/rules", lambda found: "applemark" in json.dumps(found))
    wait_until(lambda: is_nowhere(learner))
    assert len(learner.get("/api/rules")["rules"]) == 1
