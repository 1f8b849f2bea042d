"""Training in the running program whose judge the learning budget does not pay for: everything that
tells of training says so.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.program import PATIENCE_S, Program
from tests.support.tiny import make_speaking_model

CONFIG = """
[[providers]]
name = "embedded"
kind = "embedded"

[[providers]]
name = "judging"
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = "none"
models = ["judge"]

[judge]
provider = "judging"
model = "judge"

[learning]
daily_tokens = 0

[policy]
base_model = "{model}"
max_new_tokens = 8
"""
_WAITS = (
    "the day's learning budget for judging is used up; it goes on at 00:00, or after a restart with"
    " a larger learning.daily_tokens"
)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    config = CONFIG.format(model=make_speaking_model(tmp_path / "miniature"))
    running = Program(tmp_path / "home", config).start("--mode", "rl")
    running.wait_for(
        "/api/status", lambda status: status["engine"]["state"] == "ready", within_s=120
    )
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


@pytest.mark.slow
def test_a_run_that_waits_for_the_learning_budget_is_told_of_by_status_page_events_and_log(
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
        said = {"turn": answer.headers["x-metaclaw-turn"], "outcome": "pass"}
        httpx.post(
            f"{program.url}/api/feedback", json=said, headers=program.auth, timeout=PATIENCE_S
        ).raise_for_status()
    begun = program.command("policy", "train", "--json")
    assert json.loads(begun.stdout)["started"], begun.stdout
    policy = program.wait_for(
        "/api/policy",
        lambda found: found["training"]["state"] == "waiting for the learning budget",
        within_s=10 * PATIENCE_S,
    )
    assert policy["training"]["paused_reason"] == _WAITS
    troubles = "\n".join(policy["training"]["troubles"])
    assert f"waits: {_WAITS}" in troubles
    assert "so the run makes at most 8 steps of 4 prompts" in troubles
    assert f"! Training: waits: {_WAITS}" in program.command("status").stdout
    assert "training_waits" in program.log.read_text()
    with httpx.stream(
        "GET", f"{program.url}/api/events?after=0", headers=program.auth, timeout=PATIENCE_S
    ) as events:
        assert any(f"training waits: {_WAITS}" in line for line in events.iter_lines())
    after = {
        "model": "any",
        "messages": [{"role": "user", "content": "Greet me."}],
        "max_tokens": 8,
    }
    answer = httpx.post(
        f"{program.url}/v1/chat/completions", json=after, headers=program.auth, timeout=PATIENCE_S
    )
    assert answer.status_code == 200, "serving goes on"
