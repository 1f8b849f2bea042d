"""A training run that comes to nothing, in the running program: it is given up, a person is told
why, and its turns train again.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.program import PATIENCE_S, Program
from tests.support.tiny import make_speaking_model

SKILL = """---
name: greetings
description: When greeting anybody.
examples: ["Greet Ada."]
check: "pattern: ^(?!x)x"
---

Greet in one word.
"""
"""No answer passes the check, so that all of them earn the same and there is nothing to learn
from.
"""
CONFIG = """
[policy]
base_model = "{model}"
steps = 6
prompts_per_step = 1
group_size = 2
max_new_tokens = 8
rehearsal = 0.0
hindsight = false
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    folder = tmp_path / "home" / "skills" / "greetings"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    config = CONFIG.format(model=make_speaking_model(tmp_path / "miniature"))
    running = Program(tmp_path / "home", config).start("--mode", "rl")
    running.wait_for(
        "/api/status", lambda status: status["engine"]["state"] == "ready", within_s=120
    )
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def data_of(program: Program, kind: str) -> Any:
    """What the first event of a kind says, once there is one."""
    after = f"{program.url}/api/events?after=0"
    with httpx.stream("GET", after, headers=program.auth, timeout=10 * PATIENCE_S) as events:
        is_next = False
        for line in events.iter_lines():
            is_next = line == f"event: {kind}" or (is_next and not line.startswith("event:"))
            if is_next and line.startswith("data:"):
                return json.loads(line.removeprefix("data:"))
    raise AssertionError(f"no event {kind}")


@pytest.mark.slow
def test_a_run_that_can_learn_nothing_is_given_up_with_its_reason_and_its_turns_train_again(
    program: Program,
) -> None:
    for number in range(12):
        body = {
            "model": "any",
            "messages": [{"role": "user", "content": f"Greet guest {number}."}],
            "max_tokens": 8,
        }
        headers = program.auth | {"X-Session-Id": f"guest-{number}", "X-Session-Done": "true"}
        answer = httpx.post(
            f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
        )
        assert answer.status_code == 200, answer.text
    program.wait_for(
        "/api/status",
        lambda status: not any((status["learning"]["pending"] or {"turns": 1}).values()),
    )
    first = json.loads(program.command("policy", "train", "--json").stdout)
    assert first["started"], first
    assert (first["turns"] > 0, first["given_back"]) == (True, 0)
    dropped = data_of(program, "batch.dropped")
    assert dropped["turns"] == first["turns"]
    assert "nothing in it could be learned from" in dropped["reason"]
    program.wait_for("/api/policy", lambda found: found["training"]["state"] == "waiting for turns")
    again = json.loads(program.command("policy", "train", "--json").stdout)
    assert (again["started"], again["turns"], again["given_back"]) == (
        True,
        first["turns"],
        first["turns"],
    )
