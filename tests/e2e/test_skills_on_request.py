"""The real program: a model asks for a skill and gets it in the same request, also after a restart;
a lesson stands behind the result that needs it, and `why` tells both.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from metaclaw.domain.chat import Text, ToolCall, ToolResult
from metaclaw.outcome import failure_signature
from tests.support.program import KEY, NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.strict_provider import StrictProvider

SKILL = """---
name: deploy-checklist
description: When deploying a service to production
---
1. Run the tests.
2. Watch the log for ten minutes.
"""
FAILURE = "Exit code 4\nModuleNotFoundError: No module named 'app'"
LESSON = """---
name: run-tests-with-uv
description: always
kind: lesson
author: evolver
applies: always
signatures:
  - {}
---
Run tests with `uv run pytest`.
"""
TOOLS = {
    "chat": {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}},
    "messages": {"name": "bash", "input_schema": {"type": "object"}},
    "responses": {"type": "function", "name": "bash", "parameters": {"type": "object"}},
}
PATHS = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}
TARGETS = {"chat": "openai", "messages": "anthropic", "responses": "openai"}


@pytest.fixture(scope="module")
def strict() -> Iterator[StrictProvider]:
    running = StrictProvider().start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def program(strict: StrictProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    home: Path = tmp_path_factory.mktemp("asked") / "home"
    call = ToolCall("c", "bash", json.dumps({"command": "pytest -q"}))
    signature = failure_signature(call, ToolResult("c", (Text(FAILURE),)))
    lesson = LESSON.format(json.dumps(signature))
    for name, text in (("deploy-checklist", SKILL), ("run-tests-with-uv", lesson)):
        folder = home / "skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(text)
    running = Program(home, providers_toml(strict.url), env=NOT_LEARNING).start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def post(
    program: Program, wire: str, history: list[Any], session: str, path: str = "", **more: Any
) -> httpx.Response:
    key = "input" if wire == "responses" else "messages"
    body = {"model": f"{TARGETS[wire]}/m", "max_tokens": 99, key: history, "tools": [TOOLS[wire]]}
    answer = httpx.post(
        f"{program.url}/v1/{PATHS[wire]}{path}",
        json={**body, **more},
        headers={"x-metaclaw-key": KEY, "x-session-id": session},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 200, answer.text
    return answer


def kept(wire: str, answer: httpx.Response) -> list[Any]:
    """The answer as its client repeats it."""
    body = answer.json()
    if wire == "chat":
        return [body["choices"][0]["message"]]
    if wire == "messages":
        return [{"role": "assistant", "content": body["content"]}]
    return list(body["output"])


@pytest.mark.parametrize("wire", list(PATHS))
def test_a_skill_arrives_in_full_when_the_model_asks_for_it(
    program: Program, strict: StrictProvider, wire: str
) -> None:
    first = len(strict.bodies)
    history: list[Any] = [{"role": "user", "content": "PLAN look text"}]
    answer = post(program, wire, history, f"asked {wire}")
    assert "metaclaw_skill" not in json.dumps(kept(wire, answer))
    sent = [json.dumps(body) for _, body, _ in strict.bodies[first:]]
    assert ["Watch the log" in one for one in sent] == [False, True]
    turn = answer.headers["x-metaclaw-turn"]
    why = program.get(f"/api/turns/{turn}/why")
    assert "deploy-checklist" in [one["name"] for one in why["placed"]]
    assert why["enforced"] == []
    assert len(why["attempts"]) == 2
    assert program.get(f"/api/turns/{turn}")["kind"] == "main"
    assert program.command("why", turn).returncode == 0
    history += [*kept(wire, answer), {"role": "user", "content": "go on"}]
    assert program.stop() == 0
    program.start()
    after = post(program, wire, history, f"asked {wire}")
    assert json.dumps(strict.bodies[-1][1]).count("Watch the log") == 1
    assert "deploy-checklist" in after.headers["x-metaclaw-skills"]
    assert strict.refused == []


def test_the_tool_counts_where_tokens_are_counted(program: Program) -> None:
    history: list[Any] = [{"role": "user", "content": "PLAN text"}]
    counts = [
        post(program, "messages", history, "", "/count_tokens", model="chatonly/m", **more).json()
        for more in ({"tool_choice": {"type": "none"}}, {})
    ]
    assert 40 < counts[1]["input_tokens"] - counts[0]["input_tokens"] < 200


def test_a_lesson_stands_behind_the_result_that_needs_it(
    program: Program, strict: StrictProvider
) -> None:
    call = {"name": "bash", "arguments": json.dumps({"command": "pytest -q"})}
    made = {"id": "call_7", "type": "function", "function": call}
    history: list[Any] = [
        {"role": "user", "content": "run the tests"},
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_7", "content": FAILURE},
    ]
    body = {"model": "openai/m", "messages": history, "tools": [TOOLS["chat"]]}
    answer = httpx.post(  # the provider refuses a history that it did not make
        f"{program.url}/v1/chat/completions",
        json=body,
        headers={"x-metaclaw-key": KEY, "x-session-id": "failing"},
        timeout=PATIENCE_S,
    )
    result = strict.bodies[-1][1]["messages"][-1]["content"]
    assert result.startswith(FAILURE)
    assert "Run tests with `uv run pytest`." in result
    why = program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}/why")
    reasons = {one["name"]: one["reason"] for one in why["placed"]}
    assert "call_7" in reasons["run-tests-with-uv"]
