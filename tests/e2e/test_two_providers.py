"""Learning with two providers on the real program: no provider is asked for a model of the other,
and a model that is refused is said, and another one asked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_lessons import FAILED, LESSON, WORKED, evolve, lessons, session
from tests.support.program import PATIENCE_S, Program
from tests.support.provider import Seen, _json
from tests.support.teacher import Teacher


@dataclass
class OneModel(Teacher):
    """A teacher that has one model and refuses all others, as providers do."""

    model: str = "m"

    async def _answer(self, seen: Seen, receive: Any, send: Any) -> None:
        if seen.json.get("model") == self.model:
            await super()._answer(seen, receive, send)
            return
        why = (
            f"The model `{seen.json.get('model')}` does not exist or you do not have access to it."
        )
        error = {"message": why, "type": "invalid_request_error", "code": "model_not_found"}
        await _json(send, 404, {"error": {**error, "param": None}})


@pytest.fixture
def teachers() -> Iterator[tuple[OneModel, OneModel]]:
    first, second = OneModel(model="other", evolve=evolve), OneModel(model="m", evolve=evolve)
    first.start()
    second.start()
    yield first, second
    first.stop()
    second.stop()


@pytest.fixture
def start(
    teachers: tuple[OneModel, OneModel], tmp_path: Path
) -> Iterator[Callable[[str], Program]]:
    running: list[Program] = []

    def start(config: str) -> Program:
        tables = (
            f'[[providers]]\nname = "{name}"\nkind = "openai"\nbase_url = "{teacher.url}/v1"\n'
            'api_key = "sk-x"\nwires = ["chat"]\n'
            for name, teacher in zip(("first", "second"), teachers, strict=True)
        )
        running.append(Program(tmp_path / "home", "".join(tables) + config).start())
        return running[-1]

    yield start
    for program in running:
        assert program.stop() == 0, program.log.read_text()[-4000:]


def fail_twice(program: Program) -> None:
    for task in ("fix the rounding", "rename the mail"):
        session(program, f"Always be kind. Now {task}", FAILED, WORKED, model="second/m")
    program.wait_for("/api/lessons", lambda facts: LESSON in str(facts), 3 * PATIENCE_S)


def test_each_model_is_asked_at_the_provider_that_served_it(
    start: Callable[[str], Program], teachers: tuple[OneModel, OneModel]
) -> None:
    program = start("")
    fail_twice(program)
    assert [one["text"] for one in lessons(program, "live")] == [LESSON]
    first, second = teachers
    assert first.requests == []
    assert second.asked("evolve")
    assert "No problems" in program.command("status").stdout


def test_a_refused_model_is_a_problem_that_status_tells_and_another_one_is_asked(
    start: Callable[[str], Program], teachers: tuple[OneModel, OneModel]
) -> None:
    program = start('[evolver]\nprovider = "first"\nmodel = "gone"\n')
    fail_twice(program)
    assert len(teachers[0].asked("evolve")) == 1
    shown = " ".join(program.command("status").stdout.split())
    assert "Learning cannot ask the model first/gone" in shown
    assert "The model `gone` does not exist" in shown
    assert "second/m is asked instead" in shown
    assert "metaclaw config set evolver.provider PROVIDER" in shown
