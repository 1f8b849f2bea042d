"""Held rules whose checks wait for their turn, or cannot be run: no call passes that a check has
not seen.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.depth import tries
from tests.support.holding import write_rule
from tests.support.program import NOT_LEARNING, Program, providers_toml
from tests.support.strict_provider import BAD, GOOD, StrictProvider

SLOW = "|\n  program: |\n    import time\n    time.sleep(0.3)"
BROKEN = "|\n  program: |\n    raise RuntimeError('no such thing')"
TOGETHER = tries(40, nightly=400)
"""More calls at once than the checks of all held rules together can see within seconds."""


@pytest.fixture(scope="module")
def strict() -> Iterator[StrictProvider]:
    running = StrictProvider().start()
    yield running
    running.stop()


def write_program_rule(program: Program, name: str, check: str, **more: str) -> None:
    """A held rule whose check is a program: a block of YAML, not a quoted text."""
    write_rule(program, name, "CHECK", "Be slow.", **more)
    file = program.home / "skills" / name / "SKILL.md"
    file.write_text(file.read_text().replace('"CHECK"', check))


def ask(program: Program, plan: str) -> httpx.Response:
    body = {"model": "openai/m", "messages": [{"role": "user", "content": f"PLAN {plan}"}]}
    return httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=program.auth, timeout=300
    )


def commands(response: httpx.Response) -> list[str]:
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return [
        json.loads(call["function"]["arguments"])["command"]
        for call in message.get("tool_calls") or []
    ]


def test_a_call_that_waits_for_its_check_is_checked_and_not_let_through(
    strict: StrictProvider, tmp_path: Path
) -> None:
    program = Program(tmp_path / "home", providers_toml(strict.url), env=NOT_LEARNING)
    write_rule(program)
    write_program_rule(program, "be-slow", SLOW)
    program.start()
    with ThreadPoolExecutor(TOGETHER) as clients:
        answers = list(
            clients.map(
                lambda number: ask(program, "bad good" if number % 2 else "good"), range(TOGETHER)
            )
        )
    log = program.log.read_text()
    assert program.stop() == 0
    assert [answer.status_code for answer in answers] == [200] * TOGETHER
    assert [commands(answer) for answer in answers] == [[GOOD]] * TOGETHER
    assert {answer.headers.get("x-metaclaw-enforced") for answer in answers} == {
        None,
        "no-force-push",
    }
    assert "check_failed" not in log, "all checks could be run; they only had to wait"


def test_a_call_whose_check_cannot_be_run_is_held_and_counts_as_unknown(
    strict: StrictProvider, tmp_path: Path
) -> None:
    program = Program(tmp_path / "home", providers_toml(strict.url))
    write_program_rule(program, "broken-check", BROKEN)
    program.start()
    answer = ask(program, "good good good")
    assert commands(answer) == []
    assert answer.headers["x-metaclaw-enforced"] == "broken-check"
    assert "could not be checked" in answer.json()["choices"][0]["message"]["content"]
    assert "could not be checked" in str(strict.bodies[-1][1]), "the model is told, too"
    turn = answer.headers["x-metaclaw-turn"]
    (held,) = program.get(f"/api/turns/{turn}")["enforced"]
    assert (held["rule"], held["attempts"], held["checked"]) == ("broken-check", 0, False)
    assert "no such thing" in held["reason"]
    why = program.command("why", turn).stdout
    assert "broken-check could not be checked" in why
    assert "--on-error pass" in why
    counted = program.wait_for(
        "/api/rules/broken-check", lambda rule: rule["compliance"]["applied"] == 1
    )["compliance"]
    assert program.stop() == 0
    assert counted == {
        "applied": 1,
        "followed": 0,
        "broken": 0,
        "held": 0,
        "not_held": 0,
        "unknown": 1,
    }


@pytest.mark.parametrize("choice", ["pass", "hold"])
def test_a_person_says_what_happens_when_a_check_cannot_be_run(
    strict: StrictProvider, tmp_path: Path, choice: str
) -> None:
    program = Program(tmp_path / "home", providers_toml(strict.url), env=NOT_LEARNING)
    write_program_rule(program, "broken-check", BROKEN, on_error=choice)
    program.start()
    got = commands(ask(program, "bad bad bad"))
    assert program.stop() == 0
    assert got == ([BAD] if choice == "pass" else [])
