"""The built-in agents against a scripted model behind real HTTP: tools, limits, failures, headers,
what is remembered.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from metaclaw.plugin import ConfigError
from metaclaw_bench.agent import (
    Agent,
    Answered,
    BuiltinAgent,
    DirectAgent,
    Endpoint,
    Failed,
    RoundLimits,
    Why,
    persona_of,
)
from metaclaw_bench.agent.chat import Usage
from metaclaw_bench.questions import Day, Said
from metaclaw_bench.sandbox import Limits, Strength
from tests.support.scripted_model import (
    PROXY_HEADERS,
    ScriptedModel,
    Step,
    call,
    drop,
    garble,
    refuse,
    say,
)

pytestmark = pytest.mark.anyio
OPENING = (Said("user", "Today is Monday, March 16, 2026."), Said("assistant", "Good morning."))
DAY = Day("day01", "A day", "day01_ae8c", OPENING, (), None)
LIMITS = RoundLimits(steps=6, seconds=20)
Begun = Callable[..., AbstractAsyncContextManager[tuple[BuiltinAgent, ScriptedModel]]]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "notes.md").write_text("# Notes\n")
    return folder


@asynccontextmanager
async def working(agent: Agent, workspace: Path, day: Day = DAY) -> AsyncIterator[None]:
    await agent.begin(day, workspace)
    try:
        yield
    finally:
        await agent.end()


@pytest.fixture
def begun(workspace: Path) -> Begun:
    @asynccontextmanager
    async def begin(
        *script: Step,
        limits: RoundLimits = LIMITS,
        persona: str = "You are Ada.",
        command_s: float = 10,
    ) -> AsyncIterator[tuple[BuiltinAgent, ScriptedModel]]:
        with ScriptedModel(script, PROXY_HEADERS) as model:
            endpoint = Endpoint(model.url, "key-1", "scripted", pause_s=0.01)
            agent = BuiltinAgent(
                endpoint, persona, limits=limits, command_limits=Limits(seconds=command_s)
            )
            async with working(agent, workspace):
                yield agent, model

    return begin


def _results(model: ScriptedModel) -> list[str]:
    return model.asked[-1].texts("tool")


async def test_a_model_reads_lists_writes_and_runs_and_then_answers(
    begun: Begun, workspace: Path
) -> None:
    script = (
        call(("read", {"path": "notes.md"}), ("list", {})),
        call(("write", {"path": "out/ä.json", "content": "{}\n"})),
        call(("run", {"command": "cat out/*.json; exit 2"}), ("exec", {"command": "true"})),
        say("It is done."),
    )
    async with begun(*script) as (agent, model):
        asked = await agent.ask("Make a file.")
        assert isinstance(asked, Answered)
        assert (asked.text, asked.steps, asked.usage) == ("It is done.", 4, Usage(40, 20))
        assert _results(model) == [
            "# Notes\n",
            "notes.md",
            "out/ä.json: 3 bytes written",
            "{}\n\n[exit status 2]",
            "(no output)",
        ]
    assert (workspace / "out" / "ä.json").read_text() == "{}\n"


async def test_what_the_proxy_says_of_each_step_is_handed_on(begun: Begun) -> None:
    async with begun(say("Yes.")) as (agent, _):
        asked = await agent.ask("?")
    assert isinstance(asked, Answered)
    served = asked.served[0]
    assert (served.turn, served.generation, served.policy_version) == ("t_1", 3, 2)
    assert served.skills == ("dates", "names")


async def test_the_model_is_told_who_it_is_the_opening_and_every_turn_of_the_day(
    begun: Begun,
) -> None:
    async with begun(say("One."), call(("list", {})), say("Two.")) as (agent, model):
        await agent.ask("First?")
        await agent.ask("Second?")
        roles = [message["role"] for message in model.asked[-1].body["messages"]]
        assert roles == [
            "system",
            "user",
            "assistant",
            "user",
            "assistant",
            "user",
            "assistant",
            "tool",
        ]
        system = model.asked[-1].texts("system")[0]
        assert system.startswith("You are Ada.\n\n# How you work")
        assert model.asked[-1].texts("user") == [OPENING[0].text, "First?", "Second?"]
        assert model.asked[0].body["messages"] == model.asked[-1].body["messages"][:4]


async def test_every_request_names_session_and_key_and_only_the_closing_one_ends_it(
    begun: Begun,
) -> None:
    async with begun(call(("list", {})), say("A."), call(("list", {}), text="Bye.")) as (
        agent,
        model,
    ):
        await agent.ask("Work.")
        closing = await agent.ask("Thank you.", closing=True)
        assert isinstance(closing, Answered)
        assert (closing.text, closing.steps) == ("Bye.", 1)
        assert [request.headers["x-session-id"] for request in model.asked] == ["day01_ae8c"] * 3
        assert [request.headers["x-turn-type"] for request in model.asked] == ["main"] * 3
        assert [request.headers.get("x-session-done") for request in model.asked] == [
            None,
            None,
            "true",
        ]
        assert {request.headers["authorization"] for request in model.asked} == {"Bearer key-1"}
        assert [request.body.get("tool_choice") for request in model.asked] == [None, None, "none"]
        assert model.asked[0].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("write", '{"path": "a", "content"', "the arguments are no JSON"),
        ("write", "[1]", "no JSON object"),
        ("write", {"path": "a"}, "`content` is missing"),
        ("read", {"path": 3}, "`path` is missing or no text"),
        ("read", {"path": "notes.md", "offset": "2"}, "`offset` is no whole number"),
        ("read", {"path": "../answers"}, "leads out of the workspace"),
        ("read", {"path": "x" * 5000}, "Error: "),
        ("write", {"path": "notes.md/under", "content": ""}, "Error: "),
        ("run", {"command": "a\0b"}, "zero byte"),
        ("fetch", {}, "there is no tool 'fetch'; the tools are read, write, list, run"),
        ("read", "", "`path` is missing"),
    ],
)
async def test_a_call_that_cannot_be_done_is_told_and_the_round_goes_on(
    begun: Begun, name: str, arguments: object, told: str
) -> None:
    async with begun(call((name, arguments)), say("Well.")) as (agent, model):
        asked = await agent.ask("Try.")
        assert isinstance(asked, Answered)
        assert asked.text == "Well."
        assert _results(model)[0].startswith("Error: ")
        assert told in _results(model)[0]


async def test_a_command_that_hangs_is_stopped_and_told(begun: Begun) -> None:
    async with begun(call(("run", {"command": "sleep 999"})), say("Well."), command_s=0.3) as (
        agent,
        model,
    ):
        assert isinstance(await agent.ask("Try."), Answered)
        assert _results(model) == ["[stopped: it took longer than 0.3 s]"]


async def test_a_model_that_never_answers_fails_the_round_by_steps_and_the_next_round_goes_on(
    begun: Begun,
) -> None:
    script: Sequence[Step] = [call(("list", {}))] * 3 + [say("Now.")]
    async with begun(*script, limits=RoundLimits(steps=3, seconds=20)) as (agent, model):
        failed = await agent.ask("Loop.")
        assert isinstance(failed, Failed)
        assert (failed.why, failed.steps, failed.usage) == (Why.STEPS, 3, Usage(30, 15))
        assert isinstance(await agent.ask("Again."), Answered)
        assert model.asked[-1].texts("user")[-2:] == ["Loop.", "Again."]


async def test_a_round_that_takes_too_long_fails_by_seconds(begun: Begun) -> None:
    script = (call(("run", {"command": "sleep 999"})), say("Next."))
    async with begun(*script, limits=RoundLimits(seconds=1.5), command_s=60) as (agent, model):
        failed = await agent.ask("Wait.")
        assert isinstance(failed, Failed)
        assert (failed.why, failed.steps) == (Why.SECONDS, 1)
        await agent.ask("And now?")
        assert "tool_calls" not in json.dumps(model.asked[-1].body["messages"])


@pytest.mark.parametrize("trouble", [refuse(429), refuse(503), drop()])
async def test_trouble_that_passes_is_waited_out(begun: Begun, trouble: Step) -> None:
    async with begun(trouble, trouble, say("There.")) as (agent, model):
        asked = await agent.ask("?")
        assert isinstance(asked, Answered)
        assert asked.steps == 1
        assert len(model.asked) >= 3


@pytest.mark.parametrize(("trouble", "tries"), [(refuse(500), 4), (refuse(400), 1), (garble(), 4)])
async def test_trouble_that_stays_fails_the_round_with_its_reason(
    begun: Begun, trouble: Step, tries: int
) -> None:
    async with begun(trouble) as (agent, model):
        failed = await agent.ask("?")
        assert isinstance(failed, Failed)
        assert failed.why is Why.UPSTREAM
        assert failed.detail
        assert len(model.asked) == tries


async def test_a_model_that_is_not_there_fails_the_round(workspace: Path) -> None:
    agent = BuiltinAgent(Endpoint("http://127.0.0.1:9/v1", "k", "m", tries=2, pause_s=0.01))
    async with working(agent, workspace):
        failed = await agent.ask("?")
    assert isinstance(failed, Failed)
    assert failed.why is Why.UPSTREAM


async def test_an_uncounted_step_leaves_the_usage_unknown(begun: Begun) -> None:
    async with begun(call(("list", {})), say("A.", usage=None)) as (agent, _):
        asked = await agent.ask("?")
    assert isinstance(asked, Answered)
    assert asked.usage is None


async def test_a_long_day_is_cut_to_its_budget(begun: Begun) -> None:
    async with begun(say("x" * 2000), limits=RoundLimits(history_tokens=3000)) as (agent, model):
        for number in range(12):
            assert isinstance(await agent.ask(f"Question {number}? " + "y" * 400), Answered)
        last = model.asked[-1]
        assert last.texts("system")[0].startswith("You are Ada.")
        assert last.texts("user")[-1].startswith("Question 11?")
        assert not any(text.startswith("Question 0?") for text in last.texts("user"))
        assert len(json.dumps(last.body["messages"])) < 3000 * 3.4 * 1.1


async def test_a_question_beyond_the_budget_is_not_sent(begun: Begun) -> None:
    async with begun(say("A."), limits=RoundLimits(history_tokens=1000)) as (agent, model):
        failed = await agent.ask("long " * 2000)
        assert isinstance(failed, Failed)
        assert (failed.why, failed.steps) == (Why.TOO_LONG, 0)
        assert model.asked == []


async def test_many_results_at_once_are_cut_together(begun: Begun, workspace: Path) -> None:
    (workspace / "big").write_text("z" * 19_000)
    async with begun(call(*[("read", {"path": "big"})] * 4), say("A.")) as (agent, model):
        await agent.ask("?")
        assert sum(len(text) for text in _results(model)) < 40_500
        assert "too much at once" in _results(model)[3]


async def test_a_day_begins_with_nothing_of_the_one_before(begun: Begun, workspace: Path) -> None:
    async with begun(say("A.")) as (agent, model):
        await agent.ask("Yesterday's question.")
        await agent.end()
        await agent.begin(Day("day02", "", "day02", (), (), None), workspace)
        await agent.ask("Today's question.")
        assert [message["role"] for message in model.asked[-1].body["messages"]] == [
            "system",
            "user",
        ]
        assert model.asked[-1].headers["x-session-id"] == "day02"


async def test_the_direct_agent_asks_once_and_writes_the_files_in_the_answer(
    workspace: Path,
) -> None:
    answer = "Done.\nFILE a/b.json\n```json\n{}\n```\nFILE ../../escape\nx\nFILE /etc/escape\nx\n"
    with ScriptedModel([say(answer)], PROXY_HEADERS) as model:
        agent = DirectAgent(Endpoint(model.url, "k", "m"), "You are Ada.")
        async with working(agent, workspace):
            asked = await agent.ask("Make a file.")
            await agent.ask("Bye.", closing=True)
    assert isinstance(asked, Answered)
    assert (asked.text, asked.steps) == (answer, 1)
    assert sorted(str(path.relative_to(workspace)) for path in workspace.rglob("*")) == [
        "a",
        "a/b.json",
        "notes.md",
    ]
    assert "tools" not in model.asked[0].body
    assert [request.headers.get("x-session-done") for request in model.asked] == [None, "true"]
    assert model.asked[1].texts("assistant")[-1] == answer


def test_a_persona_is_the_shared_markdown_in_its_order(tmp_path: Path) -> None:
    names = ("USER.md", "IDENTITY.md", "extra.md", "data.csv", "AGENTS.md")
    for name in names:
        (tmp_path / name).write_text(f"# {name}\n")
    assert (
        persona_of({name: tmp_path / name for name in names})
        == "# IDENTITY.md\n\n# AGENTS.md\n\n# USER.md\n\n# extra.md"
    )


async def test_keys_and_sessions_that_cannot_be_sent_are_refused(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="api key"):
        BuiltinAgent(Endpoint("http://127.0.0.1:9/v1", "k\r\nX: y", "m"), strength=Strength.LIMITS)
    agent = DirectAgent(Endpoint("http://127.0.0.1:9/v1", "k", "m"))
    async with working(agent, workspace, Day("d", "", "a\r\nb", (), (), None)):
        with pytest.raises(ConfigError, match="session id"):
            await agent.ask("?")


async def test_asking_before_a_day_is_begun_is_a_mistake_of_ours() -> None:
    with pytest.raises(RuntimeError, match="no day"):
        await DirectAgent(Endpoint("http://127.0.0.1:9/v1", "k", "m")).ask("?")
