"""Providers that give no answer: the next one is asked before the first byte, and the last error is
told in the client's wire.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.support.cases import each
from tests.support.program import KEY, NOT_LEARNING, PATIENCE_S, Program
from tests.support.provider import Provider
from tests.support.raw import CLOSE, LINGER, RawProvider, http

SSE = "text/event-stream"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
GOOD = json.dumps(
    {
        "id": "c",
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        ],
    }
).encode()
FIRST = (
    b"data:"
    b' {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
)
ERROR = b'{"error": {"message": "no capacity", "type": "overloaded_error", "code": null}}'

DEAD = "http://127.0.0.1:9"


def redirect(to: str) -> bytes:
    return (
        f"HTTP/1.1 307 Temporary Redirect\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n".encode()
    )


NO_ANSWERS = {
    "error": http(ERROR),
    "empty": http(b""),
    "no-choices": http(b'{"id": "c", "choices": []}'),
    "page": http(b"<html>please log in</html>", "text/html"),
    "broken-off": (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    ),
    "redirect": redirect("https://user:secret@elsewhere.example/v1/chat/completions?token=secret"),
}
NO_STREAMS = {
    "error-event": http(b"data: " + ERROR + b"\n\n", SSE),
    "error-after-comment": http(b": wait\n\nevent: error\ndata: " + ERROR + b"\n\n", SSE),
    "error-not-stream": http(ERROR, "text/plain"),
    "empty-stream": http(b"", SSE),
    "only-done": http(b"data: [DONE]\n\n", SSE),
    "page-stream": http(b"<html>please log in</html>", "text/html"),
}
OTHERS = {
    "refuses-key": http(b'{"error": {"message": "bad key"}}', status="401 Unauthorized"),
    "recovers": http(ERROR),
    "passes-openai": http(GOOD),
    "passes-anthropic": http(GOOD),
}
LINGERING = {
    "slow": http(FIRST, SSE, chunked=True),
    "keep-alives": http(b": wait\n\n: wait\n\n", SSE, chunked=True),
}


class Providers:
    """A raw provider for each case, chosen by the model's name."""

    def __init__(self, stack: ExitStack) -> None:
        scripts = {**NO_ANSWERS, **NO_STREAMS, **OTHERS}
        self.of = {
            name: stack.enter_context(RawProvider((script,), CLOSE))
            for name, script in scripts.items()
        }
        self.of |= {
            name: stack.enter_context(RawProvider((script,), LINGER))
            for name, script in LINGERING.items()
        }

    def toml(self) -> str:
        entries = [self._entry(name, one.url) for name, one in self.of.items()]
        return "".join([*entries, self._entry("dead", DEAD)])

    def _entry(self, name: str, url: str) -> str:
        kind = "anthropic" if "anthropic" in name else "openai"
        base, key = (
            url + ("/v1" if kind == "openai" else ""),
            "passthrough" if "passes" in name else "sk-own",
        )
        settings = (
            f'kind = "{kind}"\nbase_url = "{base}"\napi_key = "{key}"\nmodels ='
            f' ["{name}"]\ntimeout_s = 60\n'
        )
        return f'[[providers]]\nname = "{name}"\n{settings}'


@pytest.fixture(scope="module")
def providers() -> Iterator[Providers]:
    with ExitStack() as stack:
        yield Providers(stack)


@pytest.fixture(scope="module")
def alone(providers: Providers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Each model has one provider."""
    running = Program(
        tmp_path_factory.mktemp("alone") / "home", providers.toml(), env=NOT_LEARNING
    ).start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def with_fallback(
    providers: Providers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    """Each model has its provider, and a good one that takes any model."""
    good = Provider().start()
    config = (
        providers.toml()
        + f'[[providers]]\nname = "good"\nkind = "openai"\nbase_url = "{good.url}/v1"\nwires ='
        ' ["chat"]\n'
    )
    running = Program(
        tmp_path_factory.mktemp("fallback") / "home", config, env=NOT_LEARNING
    ).start()
    yield running
    running.stop()
    good.stop()


def body(model: str, wire: str = "chat", *, stream: bool = False) -> dict[str, Any]:
    said = (
        {"input": "hello"}
        if wire == "responses"
        else {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
    )
    return {"model": model, "stream": stream, **said}


def ask(
    program: Program, model: str, wire: str = "chat", *, stream: bool = False
) -> httpx.Response:
    return httpx.post(
        program.url + PATHS[wire],
        json=body(model, wire, stream=stream),
        headers=program.auth,
        timeout=PATIENCE_S,
    )


def shown(program: Program, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in program.get("/api/status")["providers"] if one["name"] == name
    )
    return found


@each("wire", ["chat", "messages"])
@each("bad", NO_ANSWERS)
def test_a_provider_that_gives_no_answer_is_followed_by_the_next(
    with_fallback: Program, providers: Providers, bad: str, wire: str
) -> None:
    asked = len(providers.of[bad].heads)
    answer = ask(with_fallback, bad, wire)
    assert answer.status_code == 200
    assert "echo: hello" in answer.text
    assert len(providers.of[bad].heads) == asked + 1
    turn = with_fallback.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")
    assert (turn["provider"], turn["end"]) == ("good", "completed")


@each("wire", ["chat", "messages"])
@each("bad", NO_STREAMS)
def test_a_stream_that_begins_with_no_answer_is_followed_by_the_next_providers(
    with_fallback: Program, bad: str, wire: str
) -> None:
    answer = ask(with_fallback, bad, wire, stream=True)
    assert answer.status_code == 200
    assert "hello" in answer.text
    assert "no capacity" not in answer.text
    assert (
        answer.text.count(
            '"id": "chatcmpl-scripted"' if wire == "chat" else "event: message_start\n"
        )
        >= 1
    )


@each("stream", [False, True])
@each("wire", ["chat", "responses", "messages"])
def test_without_another_provider_the_reported_error_is_told_in_the_clients_wire(
    alone: Program, wire: str, stream: bool
) -> None:
    bad = "error-event" if stream else "error"
    answer = ask(alone, bad, wire, stream=stream)
    assert answer.status_code == 529
    error = answer.json()["error"]
    assert error["message"] == f"provider {bad} gave no answer: no capacity"
    assert error["type"] == ("overloaded_error" if wire == "messages" else "server_error")
    turn = alone.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")
    assert (turn["provider"], turn["end"]) == (bad, "failed")


@each("bad", [*NO_ANSWERS, *NO_STREAMS])
def test_without_another_provider_no_answer_is_an_error_and_never_looks_like_one(
    alone: Program, bad: str
) -> None:
    answer = ask(alone, bad, stream=bad in NO_STREAMS)
    assert answer.status_code == (529 if "error" in bad else 502)
    assert f"provider {bad}" in answer.json()["error"]["message"]


@pytest.mark.parametrize("wire", ["chat", "messages"])
def test_a_redirect_is_not_followed_and_says_what_base_url_is_wrong(
    alone: Program, wire: str
) -> None:
    answer = ask(alone, "redirect", wire)
    assert answer.status_code == 502
    assert "location" not in answer.headers
    message = answer.json()["error"]["message"]
    assert "redirect to https://elsewhere.example/v1;" in message
    assert "set base_url of provider redirect" in message
    assert "secret" not in message
    relayed = httpx.post(
        f"{alone.url}/v1/embeddings", json={"model": "redirect", "input": "x"}, headers=alone.auth
    )
    assert (relayed.status_code, "set base_url of provider redirect" in relayed.text) == (502, True)


@pytest.mark.parametrize(
    ("model", "sent"), [("slow", FIRST), ("keep-alives", b": wait\n\n: wait\n\n")]
)
def test_a_first_event_and_keep_alives_go_out_before_anything_else_has_come(
    alone: Program, model: str, sent: bytes
) -> None:
    asked = body(model, stream=True)
    with httpx.stream(
        "POST", alone.url + PATHS["chat"], json=asked, headers=alone.auth, timeout=PATIENCE_S
    ) as answer:
        assert next(answer.iter_raw()) == sent


@pytest.mark.parametrize(
    ("kind", "wire", "base"), [("anthropic", "messages", ""), ("openai", "chat", "/v1")]
)
def test_a_request_without_credentials_for_a_passthrough_provider_is_told_what_to_set(
    with_fallback: Program, providers: Providers, kind: str, wire: str, base: str
) -> None:
    name = f"passes-{kind}"
    answer = ask(with_fallback, name, wire)
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert error["type"] == "authentication_error"
    assert f"provider {name} has api_key = " in error["message"]
    assert f"/k/<MetaClaw key>{base} " in error["message"]
    assert (
        httpx.get(f"{with_fallback.url}/v1/models", headers=with_fallback.auth).status_code == 200
    )
    assert not providers.of[name].heads
    own = {"authorization": "Bearer sk-mine"}
    httpx.post(f"{with_fallback.url}/k/{KEY}{PATHS[wire]}", json=body(name, wire), headers=own)
    assert b"authorization: Bearer sk-mine" in providers.of[name].heads[0]


def test_status_and_doctor_tell_of_a_provider_that_refuses_every_connection(alone: Program) -> None:
    unasked = shown(alone, "dead")
    assert (unasked["state"], "connection refused" in unasked["last_failure"]["reason"]) == (
        "failing",
        True,
    )
    assert [ask(alone, "dead").status_code for _ in range(3)] == [502] * 3
    dead = shown(alone, "dead")
    assert (dead["state"], dead["last_failure"]["in_a_row"]) == ("failing", 3)
    assert "connection refused" in dead["last_failure"]["reason"]
    assert dead["last_failure"]["at"].startswith("20")
    told = alone.command("status").stdout
    assert "! Provider dead does not answer: " in told.split("\n  ")[0]
    assert "3 times in a row (at 20" in told.split("\n  ")[0]
    examined = alone.command("doctor", "--timeout", "0.5")
    assert examined.returncode == 1
    assert "Provider dead does not answer: " in examined.stdout


def test_a_provider_that_answers_again_is_not_failing_any_more(
    alone: Program, providers: Providers
) -> None:
    ask(alone, "recovers")
    assert shown(alone, "recovers")["state"] == "failing"
    assert "! Provider recovers does not answer: " in alone.command("status").stdout
    providers.of["recovers"].script = (http(GOOD),)
    assert ask(alone, "recovers").status_code == 200
    now = shown(alone, "recovers")
    assert now["state"] != "failing"
    assert (now["last_failure"]["in_a_row"], "no capacity" in now["last_failure"]["reason"]) == (
        0,
        True,
    )


def test_a_provider_that_refuses_our_key_is_failing(alone: Program) -> None:
    assert ask(alone, "refuses-key").status_code == 401
    refusing = shown(alone, "refuses-key")
    assert (refusing["state"], "401" in refusing["last_failure"]["reason"]) == ("failing", True)
