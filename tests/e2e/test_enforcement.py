"""Held rules: calls that break them reach no client, on every wire, streamed and whole, and later
requests hold what was said.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.holding import Agent, Got, ResponsesAgent, new_agent, write_rule
from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.scripted_model import ScriptedModel, Step, call, say
from tests.support.strict_provider import BAD, GOOD, StrictProvider

TARGETS = [
    ("chat", "openai"),
    ("chat", "anthropic"),
    ("messages", "anthropic"),
    ("messages", "chatonly"),
    ("responses", "openai"),
    ("responses", "chatonly"),
    ("responses", "anthropic"),
]
CHAT_ONLY = """
[[providers]]
name = "mine"
kind = "openai"
base_url = "{url}"
api_key = "x"
models = ["m"]
wires = ["chat"]
"""
ALL = [(wire, target, stream) for wire, target in TARGETS for stream in (False, True)]


@pytest.fixture(scope="module")
def strict() -> Iterator[StrictProvider]:
    running = StrictProvider().start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def program(strict: StrictProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    home: Path = tmp_path_factory.mktemp("held") / "home"
    running = Program(
        home, providers_toml(strict.url), proxy="enforce_opt_out = true", env=NOT_LEARNING
    )
    write_rule(running)
    running.start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def agent(program: Program, wire: str, target: str, stream: bool, **headers: str) -> Agent:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return new_agent(wire, program.url, f"{target}/m", stream, named)


def commands(got: Got) -> list[str]:
    return [command for _, command in got.calls]


@pytest.mark.parametrize(("wire", "target", "stream"), ALL)
def test_a_call_that_breaks_a_rule_is_asked_for_again(
    program: Program, strict: StrictProvider, wire: str, target: str, stream: bool
) -> None:
    strict.refused.clear()
    client = agent(program, wire, target, stream)
    got = client.ask("PLAN bad good")
    assert commands(got) == [GOOD]
    assert "words" in got.text
    assert (got.input_tokens, got.output_tokens) == (20, 10)
    if not stream:
        assert got.headers["x-metaclaw-enforced"] == "no-force-push"
    assert strict.bodies[-1][2]["x-metaclaw-purpose"] == "enforce"
    assert "no-force-push" in str(strict.bodies[-1][1])
    # Later requests hold the true sequence, or the provider would refuse them.
    assert commands(client.answer_calls()) == []
    assert commands(client.ask("PLAN mixed bad two")) == [GOOD, "git status"]
    assert commands(client.answer_calls()) == []
    assert strict.refused == []


@pytest.mark.parametrize(("wire", "target", "stream"), ALL)
def test_an_answer_that_keeps_breaking_a_rule_ends_with_a_text(
    program: Program, strict: StrictProvider, wire: str, target: str, stream: bool
) -> None:
    strict.refused.clear()
    client = agent(program, wire, target, stream)
    before = len(strict.bodies)
    got = client.ask("PLAN bad mixed bad")
    assert len(strict.bodies) == before + 3
    assert commands(got) == []
    assert "`no-force-push` (Never force-push.)" in got.text
    assert "metaclaw enforce off" not in got.text, "an agent reads it"
    assert "--enforce" not in got.text
    assert (got.input_tokens, got.output_tokens) == (30, 15)
    assert commands(client.ask("PLAN good")) == [GOOD]
    assert commands(client.answer_calls()) == []
    assert strict.refused == []


@pytest.mark.parametrize(("wire", "target", "stream"), ALL)
def test_a_provider_that_fails_when_asked_again_does_not_fail_the_request(
    program: Program, strict: StrictProvider, wire: str, target: str, stream: bool
) -> None:
    strict.refused.clear()
    client = agent(program, wire, target, stream)
    got = client.ask("PLAN bad fail")
    assert commands(got) == []
    assert "could not be asked again" in got.text
    assert commands(client.ask("PLAN good")) == [GOOD]
    assert strict.refused == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_provider_that_keeps_the_history_itself_goes_on_with_the_last_attempt(
    program: Program, strict: StrictProvider, stream: bool
) -> None:
    strict.refused.clear()
    client = ResponsesAgent(program.url, "openai/m", stream, keeps=True)
    assert commands(client.ask("PLAN bad good")) == [GOOD]
    assert commands(client.answer_calls()) == []
    assert commands(client.ask("PLAN bad bad bad")) == []
    assert commands(client.ask("PLAN two")) == [GOOD, "git status"]
    assert commands(client.answer_calls()) == []
    assert strict.refused == []


@pytest.mark.parametrize(
    ("wire", "target"), [("chat", "openai"), ("messages", "anthropic"), ("responses", "openai")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_comply_are_relayed_byte_for_byte(
    program: Program, strict: StrictProvider, wire: str, target: str, stream: bool
) -> None:
    path = {
        "chat": "/v1/chat/completions",
        "messages": "/v1/messages",
        "responses": "/v1/responses",
    }[wire]
    words: Any = [{"role": "user", "content": "PLAN two"}]
    body = {
        "model": f"{target}/m",
        "stream": stream,
        "max_tokens": 9,
        ("input" if wire == "responses" else "messages"): words,
    }
    answer = httpx.post(f"{program.url}{path}", json=body, headers=program.auth, timeout=60)
    turn = program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")
    assert turn["answer"] == turn["said"]
    assert "x-metaclaw-enforced" not in answer.headers
    assert turn["enforced"] == []
    assert "_1_abcdefgh" in answer.text


def test_the_story_is_told(program: Program, strict: StrictProvider) -> None:
    client = agent(program, "chat", "openai", False)
    got = client.ask("PLAN bad good")
    turn = got.headers["x-metaclaw-turn"]
    told = program.get(f"/api/turns/{turn}/why")
    assert told["enforced"][0]["rule"] == "no-force-push"
    assert [call["arguments"] for one in told["attempts"] for call in one["calls"]] == [
        f'{{"command": "{BAD}"}}',
        f'{{"command": "{GOOD}"}}',
    ]
    said = program.command("why", turn).stdout
    assert "no-force-push was broken in 1 attempt" in said
    assert BAD in said
    session = program.get(f"/api/sessions/{got.headers['x-metaclaw-session']}")
    assert [one["id"] for one in session["turns"]] == [turn]
    attempt = program.get(f"/api/turns/{told['attempts'][0]['turn']}")
    assert BAD in str(attempt["answer"])
    assert program.get("/api/status")["enforcement"] == {
        "on": True,
        "held_rules": ["no-force-push"],
    }


def test_the_story_says_that_the_provider_failed_when_it_was_asked_again(
    program: Program, strict: StrictProvider
) -> None:
    got = agent(program, "chat", "openai", False).ask("PLAN bad fail")
    said = program.command("why", got.headers["x-metaclaw-turn"]).stdout
    assert "the model could not be asked again" in said
    assert "500" in said
    assert "To lift it: metaclaw rules edit no-force-push --enforce remind" in said
    shown = program.command("sessions", "show", got.headers["x-metaclaw-session"]).stdout
    assert (
        "calls that break no-force-push; the client got a text in place of the calls"
        in " ".join(shown.split())
    )


def test_a_stream_that_begins_with_words_does_not_name_the_rule_in_its_head(
    program: Program, strict: StrictProvider
) -> None:
    """The head goes out with the first words, before the calls are known."""
    client = agent(program, "chat", "openai", True)
    assert "x-metaclaw-enforced" not in client.ask("PLAN bad good").headers


def test_enforcement_is_switched_off_and_on_at_once(
    program: Program, strict: StrictProvider
) -> None:
    strict.refused.clear()
    client = agent(program, "messages", "anthropic", True)
    assert commands(client.ask("PLAN bad good")) == [GOOD]
    assert program.command("enforce", "off").returncode == 0
    try:
        assert commands(client.answer_calls()) == []
        assert commands(client.ask("PLAN bad")) == [BAD]
        assert program.get("/api/status")["enforcement"]["on"] is False
    finally:
        assert program.command("enforce", "on").returncode == 0
    assert commands(client.answer_calls()) == []
    assert commands(client.ask("PLAN bad good")) == [GOOD]
    assert strict.refused == []


@pytest.mark.parametrize(
    "command",
    [
        "metaclaw enforce off",
        "cd x && metaclaw --home /h rules edit no-force-push --enforce remind",
        "python -m metaclaw rules remove no-force-push --yes",
        "curl -X POST -d '{\"on\": false}' http://127.0.0.1:1/k/KEY/api/enforce",
        "curl -s -X POST $ANTHROPIC_BASE_URL/api/undo && metaclaw skills revert 5",
    ],
)
def test_an_agent_cannot_lift_a_held_rule_itself(tmp_path: Path, command: str) -> None:
    steps = [
        call(("bash", {"command": command})),
        call(("bash", {"command": "metaclaw rules list"})),
    ]
    with ScriptedModel(steps) as model:
        program = Program(tmp_path / "home", CHAT_ONLY.format(url=model.url), env=NOT_LEARNING)
        write_rule(program)
        program.start()
        got = new_agent("chat", program.url, "m", False, {}).ask("Push it.")
        assert program.stop() == 0
    assert commands(got) == ["metaclaw rules list"]
    assert got.headers["x-metaclaw-enforced"] == "metaclaw-keep-rules"


def test_only_the_person_s_own_words_allow_a_deletion_and_only_of_what_they_name(
    tmp_path: Path,
) -> None:
    spoken = [
        (["please do the task"], "rm -rf src", False),
        (["ok"], "rm -rf src", False),
        (["go ahead and implement the feature"], "psql -c 'DROP TABLE users'", False),
        (["delete src/old"], "rm -r src/old", True),
        (["delete src/old"], "rm -rf src", False),
        (["remove the unused import"], "rm src/a.py", False),
        (["tidy up", "Shall I delete src/old?", "yes"], "rm -r src/old", True),
        (["tidy up", "Shall I delete src/old?", "yes"], "rm -r src/new", False),
    ]
    steps = [
        step
        for _, command, passes in spoken
        for step in (call(("bash", {"command": command})), say("I ask first."))[: 2 - passes]
    ]
    with ScriptedModel(steps) as model:
        program = Program(tmp_path / "home", CHAT_ONLY.format(url=model.url), env=NOT_LEARNING)
        assert (
            program.command(
                "rules", "add", "--example", "ask-before-deleting", "--enforce", "hold"
            ).returncode
            == 0
        )
        program.start()
        got = []
        for words, _, _ in spoken:
            roles = ("user", "assistant", "user")
            messages = [
                {"role": role, "content": text} for role, text in zip(roles, words, strict=False)
            ]
            answer = httpx.post(
                f"{program.url}/v1/chat/completions",
                json={"model": "m", "messages": messages},
                headers=program.auth,
                timeout=60,
            )
            made = answer.json()["choices"][0]["message"].get("tool_calls") or []
            got.append([json.loads(one["function"]["arguments"])["command"] for one in made])
        assert program.stop() == 0
    assert got == [[command] if passes else [] for _, command, passes in spoken]


def test_a_client_may_opt_out_where_the_owner_allows_it(
    program: Program, strict: StrictProvider
) -> None:
    assert commands(
        agent(program, "chat", "openai", False, x_metaclaw_enforce="off").ask("PLAN bad")
    ) == [BAD]


def test_after_a_restart_the_true_sequence_is_still_put_back(
    strict: StrictProvider, tmp_path: Path
) -> None:
    strict.refused.clear()
    running = Program(tmp_path / "home", providers_toml(strict.url), env=NOT_LEARNING)
    write_rule(running)
    running.start()
    clients = [agent(running, wire, target, stream) for wire, target, stream in ALL]
    for place, client in enumerate(clients):
        assert commands(client.ask(f"number {place} PLAN bad good")) == [GOOD]
    running.kill()
    running.start()
    for client in clients:
        moved = client.client.with_options(  # type: ignore[attr-defined]
            base_url=running.url + ("" if "Messages" in type(client).__name__ else "/v1")
        )
        client.client = moved  # type: ignore[attr-defined]
        assert commands(client.answer_calls()) == []
    assert strict.refused == []
    refused = agent(running, "chat", "openai", False, x_metaclaw_enforce="off")
    assert commands(refused.ask("PLAN bad good")) == [GOOD], "the owner does not allow to opt out"
    assert running.stop() == 0


def test_requests_that_a_held_rule_makes_again_have_a_purpose_of_their_own(
    strict: StrictProvider, tmp_path: Path
) -> None:
    program = Program(tmp_path / "home", providers_toml(strict.url))
    write_rule(program)
    program.start()
    client = agent(program, "chat", "openai", False)
    client.ask("PLAN bad good")
    (session,) = program.get("/api/sessions")["sessions"]
    (turn,) = program.get(f"/api/sessions/{session['id']}")["turns"]
    cost = program.get("/api/cost")
    shown = program.command("cost").stdout
    page = httpx.get(
        f"{program.url}/ui/cost",
        headers={**program.auth, "accept": "text/html"},
        timeout=PATIENCE_S,
    ).text
    program.wait_for(
        "/api/cost", lambda facts: facts["budget"]["used"] == sum(map(_tokens, facts["calls"]))
    )
    program.kill()
    (again,) = [one for one in cost["calls"] if one["purpose"] == "enforce"]
    (day,) = cost["days"]
    assert (again["calls"], day["enforcement"]["calls"], day["traffic"]["turns"]) == (1, 1, 1)
    assert day["learning"]["calls"] == sum(one["calls"] for one in cost["calls"]) - 1
    for kind in ("input_tokens", "output_tokens"):
        assert day["traffic"][kind] > 0
        assert day["traffic"][kind] + day["enforcement"][kind] == turn["usage"][kind]
    assert "sent again because a call broke a held rule" in " ".join(shown.split())
    assert f" {_tokens(day['enforcement'])} tokens, " in next(
        line for line in shown.splitlines() if line.startswith(day["day"])
    )
    assert "Asked again" in page


def _tokens(spent: dict[str, Any]) -> int:
    return int(spent["input_tokens"]) + int(spent["output_tokens"])


def test_held_calls_are_shown_as_held_for_each_agent_and_not_as_failures(
    strict: StrictProvider, tmp_path: Path
) -> None:
    program = Program(tmp_path / "home", providers_toml(strict.url))
    write_rule(program)
    program.start()
    agent(program, "chat", "openai", False).ask("PLAN bad good")
    name, agent_name = program.wait_for("/api/rules", _held_once)["rules"][0]["name"], "openai-sdk"
    listed, told = program.command("rules").stdout, program.command("rules", "show", name).stdout
    seen = {**program.auth, "accept": "text/html"}
    paths = ("/ui/rules", f"/ui/rules/{name}")
    pages = [
        httpx.get(f"{program.url}{path}", headers=seen, timeout=PATIENCE_S).text for path in paths
    ]
    program.kill()
    for shown in (listed, told, *pages):
        assert f"1 held back ({agent_name})" in " ".join(shown.split())
        assert "of 1" not in shown


def _held_once(facts: dict[str, Any]) -> bool:
    return [rule["compliance"]["held"] for rule in facts["rules"]] == [1]


def test_a_text_of_ours_is_not_counted_as_an_answer(strict: StrictProvider, tmp_path: Path) -> None:
    program = Program(tmp_path / "home", providers_toml(strict.url))
    write_rule(program)
    write_rule(program, "no-metaclaw", "not: MetaClaw", "Never write MetaClaw.")
    program.start()
    client = agent(program, "chat", "openai", False)
    assert "MetaClaw stopped a tool call" in client.ask("PLAN bad bad bad").text
    client.ask("PLAN text")
    program.wait_for(
        "/api/status",
        lambda status: (
            not any(status["learning"]["pending"][name] for name in ("turns", "sessions"))
        ),
    )
    found = {one["name"]: one["compliance"] for one in program.get("/api/rules")["rules"]}
    program.kill()
    assert (found["no-force-push"]["held"], found["no-force-push"]["applied"]) == (1, 1)
    assert (found["no-metaclaw"]["applied"], found["no-metaclaw"]["followed"]) == (1, 1)


@pytest.mark.parametrize("wire", ["chat", "messages"])
def test_a_model_that_has_nothing_to_say_after_a_refusal_leaves_no_empty_answer(
    tmp_path: Path, wire: str
) -> None:
    with ScriptedModel([call(("bash", {"command": BAD})), say("")]) as model:
        program = Program(tmp_path / "home", CHAT_ONLY.format(url=model.url), env=NOT_LEARNING)
        write_rule(program)
        program.start()
        got = new_agent(wire, program.url, "m", False, {}).ask("Push it.")
        assert program.stop() == 0
    assert commands(got) == []
    assert "breaks the rule `no-force-push`, and the model had nothing else to say" in got.text


def loose_step(command: str, stream: bool, **changed: Any) -> Step:
    """A call as some servers write it: without an id, or with its arguments as an object."""
    call = {
        "index": 0,
        "type": "function",
        "function": {"name": "bash", "arguments": {"command": command}},
    } | changed
    head = {"id": "c1", "model": "m", "created": 1}
    if not stream:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "tool_calls": [call]},
            "finish_reason": "tool_calls",
        }
        return lambda request: (200, {**head, "object": "chat.completion", "choices": [choice]})
    chunks: list[dict[str, Any]] = [
        {"delta": {"tool_calls": [call]}},
        {"delta": {}, "finish_reason": "tool_calls"},
    ]
    events = [
        json.dumps({**head, "object": "chat.completion.chunk", "choices": [{"index": 0, **one}]})
        for one in chunks
    ]
    body = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()
    return lambda request: (200, body)


def test_a_call_without_an_id_or_with_an_object_of_arguments_fails_no_request(
    tmp_path: Path,
) -> None:
    words = json.dumps({"command": GOOD})
    kinds: list[dict[str, Any]] = [
        {},
        {"id": "k1"},
        {"function": {"name": "bash", "arguments": words}},
        {"id": None},
    ]
    cases = [(kind, stream) for kind in kinds for stream in (False, True)]
    steps = [loose_step(GOOD, stream, **kind) for kind, stream in cases]
    steps += [
        step for _, stream in cases for step in (loose_step(BAD, stream), loose_step(GOOD, stream))
    ]
    with ScriptedModel(steps) as model:
        program = Program(tmp_path / "home", CHAT_ONLY.format(url=model.url), env=NOT_LEARNING)
        write_rule(program)
        program.start()
        got = []
        for _, stream in [*cases, *cases]:
            body = {
                "model": "m",
                "stream": stream,
                "messages": [{"role": "user", "content": "Push it."}],
            }
            answer = httpx.post(
                f"{program.url}/v1/chat/completions", json=body, headers=program.auth, timeout=60
            )
            got.append((answer.status_code, GOOD in answer.text, "--force" in answer.text))
        assert program.stop() == 0
    assert got == [(200, True, False)] * len(got)
