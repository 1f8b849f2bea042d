"""Corrections alone train the running program: no check, no judge, and no model that listens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.program import PATIENCE_S, Program
from tests.support.tiny import make_speaking_model

pytestmark = pytest.mark.slow
CONFIG = """
[policy]
base_model = "{model}"
steps = 6
prompts_per_step = 2
group_size = 2
max_new_tokens = 12
rehearsal = 0.0
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    config = CONFIG.format(model=make_speaking_model(tmp_path / "miniature"))
    running = Program(tmp_path / "home", config).start("--mode", "rl")
    running.wait_for(
        "/api/status", lambda status: status["engine"]["state"] == "ready", within_s=120
    )
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def ask(program: Program, session: str, messages: list[Any], **headers: str) -> str:
    body = {"model": "any", "messages": messages, "max_tokens": 12}
    answer = httpx.post(
        f"{program.url}/v1/chat/completions",
        json=body,
        headers=program.auth | {"X-Session-Id": session, **headers},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_twelve_corrections_make_a_version(program: Program) -> None:
    for number in range(12):
        asked = {"role": "user", "content": f"Greet guest {number}."}
        said = {"role": "assistant", "content": ask(program, f"guest-{number}", [asked])}
        corrected = {
            "role": "user",
            "content": f"No, that is wrong. It should be abba-{number}.",
        }
        ask(program, f"guest-{number}", [asked, said, corrected], **{"X-Session-Done": "true"})
    program.wait_for(
        "/api/status",
        lambda status: not any((status["learning"]["pending"] or {"turns": 1}).values()),
    )

    begun = json.loads(program.command("policy", "train", "--json").stdout)
    assert begun["started"], begun
    assert begun["turns"] >= 5
    found = program.wait_for(
        "/api/policy", lambda found: bool(found["versions"]), within_s=10 * PATIENCE_S
    )
    assert found["versions"][0]["batch"] == 1
