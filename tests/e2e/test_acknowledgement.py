"""The line at the end of the next answer that says what was noted: in every wire, and only behind
plain words.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Rule
from metaclaw.proxy import Acknowledgements
from metaclaw.wires import Footer
from tests.support.program import KEY, NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.provider import STREAMS, Provider

LINE = "Noted: Use uv instead of pip. — undo with `metaclaw undo`"
WIRES = ("chat", "responses", "messages")


@pytest.fixture(scope="module")
def told(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A program that acknowledges what it noted."""
    config = f"{providers_toml(provider.url)}\n[learning]\nacknowledge = true\n"
    running = Program(tmp_path_factory.mktemp("told") / "home", config, env=NOT_LEARNING).start()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def nothing_noted(told: Program) -> Iterator[None]:
    yield
    for rule in told.get("/api/rules")["rules"]:
        httpx.delete(
            f"{told.url}/api/rules/{rule['name']}", headers=told.auth, timeout=PATIENCE_S
        ).raise_for_status()


def ask(
    program: Program, session: str, wire: str, model: str, *, stream: bool = False, **more: Any
) -> str:
    """The whole text of an answer, as the vendor's own SDK reads it."""
    import anthropic  # only who asks waits for an SDK
    import openai

    headers = {"x-session-id": session}
    if wire == "messages":
        client = anthropic.Anthropic(
            api_key=KEY, base_url=program.url, default_headers=headers, timeout=PATIENCE_S
        )
        said: Any = {
            "model": model,
            "max_tokens": 50,
            "messages": [{"role": "user", "content": "hello"}],
            **more,
        }
        if stream:
            with client.messages.stream(**said) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**said)
        return "".join(part.text for part in message.content if part.type == "text")
    openai_client = openai.OpenAI(
        api_key=KEY, base_url=f"{program.url}/v1", default_headers=headers, timeout=PATIENCE_S
    )
    if wire == "chat":
        asked: Any = {"model": model, "messages": [{"role": "user", "content": "hello"}], **more}
        if stream:
            chunks = openai_client.chat.completions.create(stream=True, **asked)
            return "".join(
                choice.delta.content or "" for chunk in chunks for choice in chunk.choices
            )
        return openai_client.chat.completions.create(**asked).choices[0].message.content or ""
    asked = {"model": model, "input": "hello", **more}
    if stream:
        with openai_client.responses.stream(**asked) as stream_:
            deltas = "".join(
                event.delta for event in stream_ if event.type == "response.output_text.delta"
            )
            assert deltas == stream_.get_final_response().output_text
            return deltas
    return str(openai_client.responses.create(**asked).output_text)


def note(program: Program, session: str) -> None:
    """Lay down a rule in a session, as if it had been said there."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "Use uv instead of pip."}]}
    headers = {**program.auth, "x-session-id": session}
    answer = httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
    )
    rule = {"text": "Use uv instead of pip.", "source": answer.headers["x-metaclaw-turn"]}
    httpx.post(
        f"{program.url}/api/rules", json=rule, headers=program.auth, timeout=PATIENCE_S
    ).raise_for_status()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("wire", "model"),
    [
        ("chat", "echo"),
        ("responses", "echo"),
        ("messages", "claude-model"),
        ("chat", "claude-model"),
        ("responses", "chat-model"),
        ("messages", "chat-model"),
    ],
)
def test_what_was_noted_is_told_once_behind_the_next_answer(
    told: Program, wire: str, model: str, stream: bool
) -> None:
    session = f"{wire}-{model}-{stream}"
    note(told, session)
    text = ask(told, session, wire, model, stream=stream)
    assert text.startswith("echo: hello")
    assert text.endswith(f"\n\n{LINE}")
    assert LINE not in ask(told, session, wire, model, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", WIRES)
def test_nothing_is_put_behind_tool_calls_and_the_line_waits_for_words(
    told: Program, wire: str, stream: bool
) -> None:
    session = f"tools-{wire}-{stream}"
    note(told, session)
    asked = "anthropic/tools" if wire == "messages" else "tools"
    assert LINE not in ask(told, session, wire, asked, stream=stream)
    assert LINE in ask(
        told, session, wire, "claude-model" if wire == "messages" else "echo", stream=stream
    )


def test_nothing_is_put_behind_an_answer_in_json(told: Program) -> None:
    note(told, "schema")
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert LINE not in ask(told, "schema", "chat", "echo", response_format=schema)
    formed = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    assert LINE not in ask(told, "schema", "responses", "echo", text=formed)
    assert LINE in ask(told, "schema", "chat", "echo")


def test_another_session_is_told_nothing(told: Program) -> None:
    note(told, "mine")
    assert LINE not in ask(told, "theirs", "chat", "echo")
    assert LINE in ask(told, "mine", "chat", "echo")


@pytest.mark.parametrize("stream", [False, True])
def test_the_ledger_keeps_what_the_model_said_apart_from_what_was_added(
    told: Program, stream: bool
) -> None:
    note(told, f"ledger-{stream}")
    ask(told, f"ledger-{stream}", "chat", "echo", stream=stream)
    newest = told.get("/api/sessions?limit=1")["sessions"][0]["id"]
    turn = told.get(f"/api/turns/{told.get(f'/api/sessions/{newest}')['turns'][-1]['id']}")
    assert ("Noted:" in json.dumps(turn["said"]), "Noted:" in json.dumps(turn["answer"])) == (
        False,
        True,
    )


def test_the_session_goes_on_when_the_client_sends_the_line_back(told: Program) -> None:
    note(told, "goes-on")
    first = {"role": "user", "content": "hello"}
    url, patience = f"{told.url}/v1/chat/completions", PATIENCE_S
    headers = {**told.auth, "x-session-id": "goes-on"}
    one = httpx.post(
        url, json={"model": "echo", "messages": [first]}, headers=headers, timeout=patience
    )
    answer = one.json()["choices"][0]["message"]
    assert LINE in answer["content"]
    later = {"model": "echo", "messages": [first, answer, {"role": "user", "content": "and now?"}]}
    two = httpx.post(url, json=later, headers=headers, timeout=patience)
    assert two.headers["x-metaclaw-session"] == one.headers["x-metaclaw-session"]
    assert LINE not in two.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("agent", "is_told"),
    [
        ("claude-cli/2.1.325 (external, cli)", True),
        ("claude-cli/2.1.325 (external, sdk-cli)", False),
        ("codex_cli_rs/0.60", True),
        ("codex_exec/0.166.0", False),
        ("curl/8.0", False),
    ],
)
def test_unless_it_is_set_only_interactive_clients_are_told(
    program: Program, agent: str, is_told: bool
) -> None:
    session = f"by-default-{agent}"
    note(program, session)
    for rule in program.get("/api/rules")["rules"]:
        httpx.delete(f"{program.url}/api/rules/{rule['name']}", headers=program.auth)
    text = ask(program, session, "chat", "echo", extra_headers={"user-agent": agent})
    assert (LINE in text) is is_told


def test_the_first_ten_lessons_are_told_unless_it_is_set() -> None:
    rule = Rule(SkillName("use-uv"), "always", "Use uv.")
    for setting, lessons, is_noted in (
        (None, 9, True),
        (None, 10, False),
        (True, 10, True),
        (False, 0, False),
    ):
        notes = Acknowledgements(lambda turn: SessionId("s"), setting, lambda: lessons)  # noqa: B023
        notes.noted([rule], (), [TurnId("t")])
        assert bool(notes.notes) is is_noted


@pytest.mark.parametrize("wire", WIRES)
def test_a_line_is_added_however_the_stream_is_cut(wire: str) -> None:
    whole = b"".join(
        STREAMS[wire](
            {"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": "hi"}
        )
    )
    lengths = set()
    for size in (1, 7, 64, len(whole)):
        footer = Footer(Wire(wire), "\n\nLINE")
        shown = (
            b"".join(footer.feed(whole[at : at + size]) for at in range(0, len(whole), size))
            + footer.close()
        )
        assert footer.is_added
        lengths.add(len(shown))
    assert len(lengths) == 1
