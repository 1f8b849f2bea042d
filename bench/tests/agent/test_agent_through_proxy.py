"""The built-in agent through the real program: one day is one session of main turns, and its
closing message ends it.
"""

from pathlib import Path

import pytest

from metaclaw_bench.agent import Answered, BuiltinAgent, Endpoint
from metaclaw_bench.questions import Day, Said
from tests.support.program import KEY, NOT_LEARNING, Program
from tests.support.scripted_model import ScriptedModel, call, say

DAY = Day(
    "day01",
    "",
    "day01_e2e",
    (Said("user", "Today is Monday."), Said("assistant", "Good morning.")),
    (),
    None,
)


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_day_through_the_proxy_is_one_session_that_ends_with_its_closing_message(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    script = (
        call(("write", {"path": "a.txt", "content": "1"})),
        say("Made."),
        say("Seen."),
        say("Good night."),
    )
    with ScriptedModel(script) as model:
        provider = (
            f'[[providers]]\nname = "p"\nkind = "openai"\nbase_url = "{model.url}"\napi_key ='
            ' "sk-x"\nwires = ["chat"]\n'
        )
        program = Program(tmp_path / "proxied", provider, env=NOT_LEARNING).start()
        try:
            agent = BuiltinAgent(Endpoint(f"{program.url}/v1", KEY, "scripted"), "You are Ada.")
            await agent.begin(DAY, workspace)
            asked = [await agent.ask("Make a file."), await agent.ask("Look.")]
            before = program.get("/api/sessions/day01_e2e")
            asked.append(await agent.ask("Thanks.", closing=True))
            await agent.end()
            after = program.wait_for(
                "/api/sessions/day01_e2e", lambda found: found["ended_at"] is not None
            )
        finally:
            program.stop()
    assert [answer.text for answer in asked if isinstance(answer, Answered)] == [
        "Made.",
        "Seen.",
        "Good night.",
    ]
    assert before["ended_at"] is None
    assert [turn["kind"] for turn in after["turns"]] == ["main"] * 4
    assert {turn["id"] for turn in after["turns"]} == {
        served.turn for answer in asked for served in answer.served
    }
    assert {"x-session-id", "x-session-done", "x-turn-type"}.isdisjoint(model.asked[-1].headers)
