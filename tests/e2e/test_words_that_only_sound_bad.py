"""A wish to undo nothing, a changed mind, and an error whose name contains that of a network fault,
through the whole program.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_fast_loop import Talk, program_of
from tests.support.program import PATIENCE_S, Program
from tests.support.scripted_model import ScriptedModel, call, say
from tests.support.teacher import PASS, Teacher


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Program]:
    teacher = Teacher(work=lambda prompt: "I made the header blue.", judge=lambda prompt: PASS)
    teacher.start()
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]
    teacher.stop()


def test_a_wish_to_undo_nothing_is_no_failure_and_a_changed_mind_is_left_to_the_judge(
    learner: Program,
) -> None:
    sources = {}
    for said in (
        "Undo nothing, just tell me which files you touched.",
        "I changed my mind, it should be green.",
    ):
        talk = Talk(learner)
        talk.say("Make the header blue.")
        turn = talk.turn
        talk.say(said)
        verdict = learner.wait_for(f"/api/turns/{turn}", lambda facts: facts["verdict"], 30)[
            "verdict"
        ]
        assert verdict["outcome"] != "fail", said
        sources[said] = verdict["source"]
    assert sources["I changed my mind, it should be green."] != "detector"


def test_a_module_that_cannot_be_found_is_the_agents_fault_and_not_the_networks(
    tmp_path: Path,
) -> None:
    output = (
        "Exit code 1\nTraceback (most recent call last):\n  File 'a.py'\nModuleNotFoundError: No"
        " module named 'shop.cart'"
    )
    with ScriptedModel([call(("bash", {"command": "python a.py"})), say("{}")]) as model:
        provider = (
            f'[[providers]]\nname = "mine"\nkind = "openai"\nbase_url = "{model.url}"\napi_key ='
            ' "x"\n'
        )
        program = Program(tmp_path / "home", f"{provider}[judge]\nmax_share = 0\n").start()
        asked: list[Any] = [{"role": "user", "content": "Run a.py."}]
        first = post(program, asked)
        asked += [
            first.json()["choices"][0]["message"],
            {"role": "tool", "tool_call_id": "call_0", "content": output},
        ]
        post(program, asked)
        turn = first.headers["x-metaclaw-turn"]
        verdict = program.wait_for(f"/api/turns/{turn}", lambda facts: facts["verdict"])["verdict"]
        assert program.stop() == 0
    assert (verdict["outcome"], verdict["fault"]) == ("fail", "agent")
    assert [signal["detector"] for signal in verdict["signals"]] == ["exception.raised"]


def post(program: Program, messages: list[Any]) -> httpx.Response:
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
    body, headers = (
        {"model": "m", "messages": messages, "tools": tools},
        {**program.auth, "x-session-id": "imports"},
    )
    return httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
    )
