"""Failures that no further skill would mend stay turns to train on, in the real program; what an
evolver is shown does not.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from metaclaw.engine import MODEL_ID
from tests.support.program import PATIENCE_S, Program
from tests.support.teacher import FAIL, PASS, Teacher
from tests.support.tiny import make_speaking_model

pytestmark = pytest.mark.slow

SKILL = """---
name: animals
description: When asked to describe an animal
check: 'pattern: ^ANIMAL$'
---
Answer with the word ANIMAL and nothing else.
"""
CONFIG = """
[[providers]]
name = "embedded"
kind = "embedded"

[[providers]]
name = "world"
kind = "openai"
base_url = "{url}/v1"
api_key = "sk-world"
wires = ["chat"]
models = ["judge-model", "evolver-model"]

[judge]
provider = "world"
model = "judge-model"

[evolver]
provider = "world"
model = "evolver-model"
min_failures = 2

[policy]
base_model = "{model}"
held_out_share = 0.000001
"""
ANIMALS = ("cats", "dogs", "owls", "bats", "ants", "bees")
STONES = ("marble", "granite", "basalt", "slate", "flint", "chalk")


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(judge=lambda prompt: FAIL if "hardness" in prompt else PASS)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def program(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    home = tmp_path / "home"
    (home / "skills" / "animals").mkdir(parents=True)
    (home / "skills" / "animals" / "SKILL.md").write_text(SKILL)
    running = Program(
        home, CONFIG.format(url=teacher.url, model=make_speaking_model(tmp_path / "miniature"))
    ).start()
    running.wait_for(
        "/api/status", lambda status: status["engine"]["state"] == "ready", within_s=120
    )
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def ask(program: Program, words: str) -> str:
    """The turn."""
    said = [{"role": "user", "content": words}]
    body = {
        "model": f"embedded/{MODEL_ID}",
        "messages": said,
        "max_tokens": 8,
        "temperature": 1,
        "seed": 1,
    }
    headers = program.auth | {"X-Session-Id": words, "X-Session-Done": "true"}
    answer = httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
    )
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-metaclaw-turn"])


def settle(program: Program) -> None:
    """Until every turn has its verdict, and what there was to learn is learned."""
    program.wait_for(
        "/api/status",
        lambda status: not any((status["learning"]["pending"] or {"turns": 1}).values()),
    )


def test_only_failures_of_which_a_skill_may_come_are_shown_to_the_evolver(
    program: Program, teacher: Teacher
) -> None:
    for animal in ANIMALS:
        turn = ask(program, f"Describe the animal called {animal}.")
        program.wait_for(
            f"/api/turns/{turn}", lambda found: (found["verdict"] or {}).get("outcome") == "fail"
        )
    settle(program)
    assert teacher.asked("evolve") == []  # the skill was in the prompt, and its check was broken
    for stone in STONES:
        turn = ask(program, f"What is the hardness of the stone called {stone}?")
        program.wait_for(
            f"/api/turns/{turn}", lambda found: (found["verdict"] or {}).get("outcome") == "fail"
        )
        settle(program)
    # It had nothing to add, and is not asked about more of a kind. Answers that are empty, which this
    # model gives now and then, are a kind of their own.
    kinds = [
        asked.body.split(b" of one kind (")[1].split(b")")[0] for asked in teacher.asked("evolve")
    ]
    assert b"judged" in kinds
    assert len(set(kinds)) == len(kinds)
    done = program.command("policy", "train", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["turns"] == len(ANIMALS) + len(STONES) - 2 * len(kinds), said
