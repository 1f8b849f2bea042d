"""The slow loop on the real program and the real model: turns become weights, which are proven, served, and taken back."""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from metaclaw.engine import MODEL_ID
from metaclaw.engine.convert import ensure_model
from tests.support.program import Program

pytestmark = pytest.mark.slow

POLICY = """
[policy]
mode = "rl"
lora_rank = 8
learning_rate = 0.002
batch_turns = 8
group_size = 8
steps = 3
max_new_tokens = 8
held_out_share = 0.3
canary_share = 0.0
golden_margin = 1.0
kl_limit = 20.0
"""
SKILL = """---
name: animals
description: When asked to describe an animal
check: "pattern: ^\\\\W*[A-Z][a-z]+ are\\\\b"
---
Begin every answer with the animal and the word are.
"""
ANIMALS = [
    *("cats", "dogs", "owls", "bats", "ants", "bees", "cows", "pigs", "hens", "rats", "elks"),
    *("newts", "toads", "frogs", "crabs", "mules", "goats", "swans", "storks", "geese", "ducks"),
]


RULE = re.compile(r"^\W*[A-Z][a-z]+ are\b")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    root = Path(os.environ.get("METACLAW_TEST_CACHE") or Path(__file__).resolve().parents[2] / ".cache")
    converted = ensure_model(root / "engine" / MODEL_ID, lambda share: None)
    home = tmp_path_factory.mktemp("slow") / "home"
    shutil.copytree(converted, home / "models" / MODEL_ID, copy_function=os.link)
    folder = home / "skills" / "animals"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    running = Program(home, POLICY).start()
    running.wait_for("/api/status", lambda status: status["engine"]["state"] == "ready", within_s=120)
    yield running
    assert running.stop() == 0


def ask(program: Program, animal: str, seed: int) -> httpx.Response:
    body = {
        "model": "any",
        "messages": [{"role": "user", "content": f"Describe the animal called {animal}."}],
        "max_tokens": 8,
        "temperature": 1,
    }
    headers = program.auth | {"X-Session-Id": f"{animal}-{seed}", "X-Session-Done": "true"}
    answer = httpx.post(f"{program.url}/v1/chat/completions", json=body | {"seed": seed}, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer


def said(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def share(program: Program, seed: int) -> float:
    """How many answers follow the rule."""
    texts = [said(ask(program, animal, seed)) for animal in ANIMALS]
    return sum(RULE.match(text) is not None for text in texts) / len(texts)


def serving(program: Program) -> Any:
    return program.get("/api/policy")


def wait_until_judged(program: Program, within_s: float) -> None:
    """Until something was trained and the gate has ruled on it. Asked seldom: on two cores every question costs the trainer."""
    deadline = time.monotonic() + within_s
    while not any(version["state"] != "candidate" for version in serving(program)["versions"]):
        assert time.monotonic() < deadline, program.get("/api/status")["training"]
        time.sleep(1)


def commanded(program: Program, *arguments: str) -> Any:
    done = program.command("policy", *arguments, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_turns_become_weights_that_serve_and_can_be_taken_back(program: Program) -> None:
    before = share(program, 1)
    wait_until_judged(program, 600)
    version = serving(program)["versions"][0]
    assert version["state"] == "serving", version
    answer = ask(program, "mice", 2)
    assert answer.headers["x-metaclaw-policy"] == "1"
    assert program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")["policy_version"] == 1
    after = share(program, 3)
    assert after >= before + 0.2

    assert commanded(program, "rollback")["policy_version"] == 0
    assert ask(program, "moles", 4).headers["x-metaclaw-policy"] == "0"
    assert commanded(program, "promote", "1")["policy_version"] == 1
    assert ask(program, "moles", 5).headers["x-metaclaw-policy"] == "1"


def test_after_a_kill_the_program_serves_what_it_served(program: Program) -> None:
    program.kill()
    program.start()
    program.wait_for("/api/policy", lambda policy: policy["policy_version"] == 1, within_s=120)
    assert ask(program, "wolves", 6).headers["x-metaclaw-policy"] == "1"
