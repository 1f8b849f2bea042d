"""Relaying as a client sees it: bytes as they come, cancellation, fallback, credentials, degraded
stores.
"""

import json
import signal
import sqlite3
import threading
import time
from pathlib import Path

import httpx
import pytest

from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import TurnEnd
from metaclaw.store import LedgerReader, open_database
from tests.support.program import KEY, NOT_LEARNING, Program, providers_toml
from tests.support.provider import STREAMS, WHOLES, Provider

ROUTES = [
    ("/v1/chat/completions", "chat"),
    ("/v1/responses", "responses"),
    ("/v1/messages", "messages"),
]


def body_for(wire: str, model: str, text: str = "hello", **more: object) -> dict[str, object]:
    if wire == "responses":
        return {"model": model, "input": [{"role": "user", "content": text}], **more}
    return {
        "model": model,
        "max_tokens": 50,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


def target(wire: str) -> str:
    return "claude-model" if wire == "messages" else "echo"


@pytest.mark.parametrize(("path", "wire"), ROUTES)
def test_where_wires_match_the_providers_bytes_are_relayed_to_the_letter(
    program: Program, path: str, wire: str
) -> None:
    asked = body_for(wire, target(wire), stream=True)
    answer = httpx.post(program.url + path, json=asked, headers=program.auth)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"] == "req-scripted"
    assert answer.content == b"".join(STREAMS[wire](asked))
    whole = httpx.post(program.url + path, json=body_for(wire, target(wire)), headers=program.auth)
    assert whole.content == json.dumps(WHOLES[wire](body_for(wire, target(wire)))).encode()


def test_the_providers_request_is_the_clients_bytes_and_its_own_key(
    program: Program, provider: Provider
) -> None:
    odd = (
        b'{ "messages" : [ {"content":"caf\\u00e9 \\ud83d", "role":"user"} ],"model":"echo",'
        b' "unknown": [1.0, 1e3, {"z":1,"a":2}] }'
    )
    headers = {
        **program.auth,
        "content-type": "application/json",
        "x-session-id": "s",
        "x-custom": "kept",
        "user-agent": "mine/1",
    }
    assert (
        httpx.post(
            f"{program.url}/v1/chat/completions?a=b", content=odd, headers=headers
        ).status_code
        == 200
    )
    seen = provider.requests[-1]
    assert seen.body == odd
    assert seen.query == "a=b"
    assert seen.header("authorization") == "Bearer sk-openai"
    assert seen.header("x-custom") == "kept"
    assert seen.header("user-agent") == "mine/1"
    assert seen.header("x-session-id") is None
    assert KEY not in str(seen.headers)


@pytest.mark.parametrize(("path", "wire"), ROUTES)
def test_every_piece_of_a_stream_is_relayed_before_the_next_is_made(
    program: Program, provider: Provider, path: str, wire: str
) -> None:
    provider.chunk_delay_s = 0.03
    try:
        arrived: list[float] = []
        with httpx.stream(
            "POST",
            program.url + path,
            json=body_for(wire, target(wire), "a b c d e f", stream=True),
            headers=program.auth,
        ) as answer:
            arrived = [time.monotonic() for _ in answer.iter_raw()]
    finally:
        provider.chunk_delay_s = 0.0
    assert len(arrived) >= 8
    assert arrived[-1] - arrived[0] > 0.03 * 5


def test_answers_tell_about_their_turn_and_the_ledger_has_it(program: Program) -> None:
    answer = httpx.post(
        f"{program.url}/v1/chat/completions",
        json=body_for("chat", "echo", "remember me"),
        headers={**program.auth, "x-session-id": "tell-1", "x-user-id": "ann"},
    )
    assert answer.headers["x-metaclaw-session"] == "tell-1"
    assert answer.headers["x-metaclaw-skills"] == ""
    turn = program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")
    assert turn["session"] == "tell-1"
    assert turn["kind"] == "main"
    assert turn["generation"] == int(answer.headers["x-metaclaw-generation"])
    assert turn["policy_version"] == int(answer.headers["x-metaclaw-policy"]) == 0
    assert turn["provider"] == "openai"
    assert turn["request"]["messages"][0]["content"] == "remember me"
    assert turn["answer"]["choices"][0]["message"]["content"].strip() == "echo: remember me"
    assert turn["usage"]["input_tokens"] == 11
    assert turn["scope"]["user"] == "ann"


@pytest.mark.parametrize(("path", "wire"), ROUTES)
@pytest.mark.parametrize("via", ["", "chatonly/", "anthropic/"])
def test_a_client_that_leaves_cancels_the_providers_call(
    program: Program, provider: Provider, path: str, wire: str, via: str
) -> None:
    provider.disconnected.clear()
    headers = {**program.auth, "x-session-id": f"leave-{wire}-{via.strip('/')}"}
    with httpx.stream(
        "POST",
        program.url + path,
        json=body_for(wire, f"{via}endless", stream=True),
        headers=headers,
    ) as answer:
        turn = answer.headers["x-metaclaw-turn"]
        next(answer.iter_raw())
    assert provider.disconnected.wait(60)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = httpx.get(f"{program.url}/api/turns/{turn}", headers=program.auth)
        if found.status_code == 200:
            break
    assert found.json()["end"] == "cancelled"


@pytest.mark.parametrize(("path", "wire"), ROUTES)
@pytest.mark.parametrize("via", ["", "chatonly/", "anthropic/"])
def test_a_provider_that_dies_mid_stream_is_told_to_the_client_as_an_error_never_as_an_end(
    program: Program, path: str, wire: str, via: str
) -> None:
    answer = httpx.post(
        program.url + path,
        json=body_for(wire, f"{via}die", "some words to say here", stream=True),
        headers=program.auth,
    )
    text = answer.text
    assert answer.status_code == 200
    assert "error" in text
    for sign in ("[DONE]", "message_stop", "response.completed"):
        assert sign not in text
    turn = program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")
    assert turn["end"] == "failed"


@pytest.mark.parametrize(("path", "wire"), ROUTES)
@pytest.mark.parametrize("via", ["", "chatonly/", "anthropic/"])
@pytest.mark.parametrize("streamed", [False, True])
def test_garbage_from_a_provider_is_an_error_not_an_answer(
    program: Program, path: str, wire: str, via: str, streamed: bool
) -> None:
    answer = httpx.post(
        program.url + path,
        json=body_for(wire, f"{via}garbage", stream=streamed),
        headers=program.auth,
    )
    if not streamed:
        assert answer.status_code == 502
        assert "error" in answer.json()
    assert "error" in answer.text


def test_a_dead_first_provider_is_passed_over_before_the_first_byte(
    provider: Provider, tmp_path: Path
) -> None:
    dead = (
        '[[providers]]\nname = "dead"\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\napi_key'
        ' = "sk-dead"\n'
    )
    running = Program(
        tmp_path / "home", dead + providers_toml(provider.url), env=NOT_LEARNING
    ).start()
    try:
        answer = httpx.post(
            f"{running.url}/v1/chat/completions",
            json=body_for("chat", "echo"),
            headers=running.auth,
        )
        assert answer.status_code == 200
        assert (
            running.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")["provider"] == "openai"
        )
        last = httpx.post(
            f"{running.url}/v1/chat/completions",
            json=body_for("chat", "status-503"),
            headers=running.auth,
        )
        assert last.status_code == 503
        assert last.json()["error"]["message"] == "scripted 503"
    finally:
        assert running.stop() == 0


def test_passthrough_forwards_the_callers_own_credentials_and_nothing_of_ours(
    provider: Provider, tmp_path: Path
) -> None:
    config = "".join(
        f'[[providers]]\nname = "{kind}"\nkind = "{kind}"\nbase_url ='
        f' "{provider.url}{suffix}"\napi_key = "passthrough"\n'
        for kind, suffix in (("openai", "/v1"), ("anthropic", ""))
    )
    running = Program(tmp_path / "home", config).start()
    try:
        own = {"authorization": "Bearer sk-my-own", "anthropic-beta": "oauth-1"}
        by_path = httpx.post(
            f"{running.url}/k/{KEY}/v1/messages?beta=true",
            json=body_for("messages", "echo"),
            headers=own,
        )
        assert by_path.status_code == 200
        seen = provider.requests[-1]
        assert (seen.path, seen.query) == ("/v1/messages", "beta=true")
        assert seen.header("authorization") == "Bearer sk-my-own"
        assert seen.header("anthropic-beta") == "oauth-1"
        assert KEY not in str(seen.headers) + seen.path
        by_header = httpx.post(
            f"{running.url}/v1/chat/completions",
            json=body_for("chat", "echo"),
            headers={**own, "x-metaclaw-key": KEY},
        )
        assert by_header.status_code == 200
        assert provider.requests[-1].header("x-metaclaw-key") is None
        assert (
            httpx.post(
                f"{running.url}/v1/messages", json=body_for("messages", "echo"), headers=own
            ).status_code
            == 401
        )
    finally:
        assert running.stop() == 0


def test_a_locked_store_never_stops_serving_and_is_shown_everywhere(
    provider: Provider, tmp_path: Path
) -> None:
    running = Program(tmp_path / "home", providers_toml(provider.url), env=NOT_LEARNING).start()
    try:
        assert httpx.get(f"{running.url}/readyz", headers=running.auth).status_code == 200
        locker = sqlite3.connect(running.home / "ledger.db", isolation_level=None)
        locker.execute("BEGIN EXCLUSIVE")
        during = httpx.post(
            f"{running.url}/v1/chat/completions",
            json=body_for("chat", "echo"),
            headers=running.auth,
            timeout=60,
        )
        assert during.status_code == 200
        status = running.get("/api/status")
        assert status["degraded"] is True
        assert "lock" in status["store"]["reason"]
        assert httpx.get(f"{running.url}/readyz", headers=running.auth).status_code == 503
        told = running.command("status", "--json")
        assert json.loads(told.stdout)["degraded"] is True
        assert "degraded" in running.log.read_text()
        locker.execute("ROLLBACK")
        locker.close()
        deadline = time.monotonic() + 20
        while running.get("/api/status")["degraded"] and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        assert running.get("/api/status")["degraded"] is False
        assert running.get(f"/api/turns/{during.headers['x-metaclaw-turn']}")["end"] == "completed"
    finally:
        assert running.stop() == 0


def test_sigterm_lets_a_running_answer_finish_and_exits_zero(
    provider: Provider, tmp_path: Path
) -> None:
    running = Program(tmp_path / "home", providers_toml(provider.url), env=NOT_LEARNING).start()
    provider.chunk_delay_s = 0.1
    try:
        with httpx.stream(
            "POST",
            f"{running.url}/v1/chat/completions",
            json=body_for("chat", "echo", "a b c d e f g h", stream=True),
            headers=running.auth,
        ) as answer:
            pieces = answer.iter_raw()
            first = next(pieces)
            assert running.process is not None
            running.process.terminate()
            rest = b"".join(pieces)
    finally:
        provider.chunk_delay_s = 0.0
    assert (first + rest).endswith(b"data: [DONE]\n\n")
    assert running.process.wait(60) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_repeated_signals_while_it_stops_lose_no_answer(
    provider: Provider, tmp_path: Path, number: signal.Signals
) -> None:
    """A repeated SIGTERM changes nothing; a second Ctrl-C ends the answer, which is recorded as it
    is shown.
    """
    running = Program(tmp_path / "home", providers_toml(provider.url), env=NOT_LEARNING).start()
    process = running.process
    assert process is not None
    provider.chunk_delay_s = 0.1
    try:
        with httpx.stream(
            "POST",
            f"{running.url}/v1/chat/completions",
            json=body_for("chat", "echo", "a b c d e f g h", stream=True),
            headers=running.auth,
            timeout=20,
        ) as answer:
            turn = answer.headers["x-metaclaw-turn"]
            pieces = answer.iter_raw()
            next(pieces)
            for _ in range(3):
                process.send_signal(number)
                rest = next(pieces, b"")
            rest += b"".join(pieces)
    finally:
        provider.chunk_delay_s = 0.0
    while process.poll() is None:  # also while it closes
        process.send_signal(number)
        time.sleep(0.001)
    assert process.returncode == 0
    database = open_database(f"sqlite:///{running.home}/ledger.db")
    try:
        found = LedgerReader(database).turn(TurnId(turn))
    finally:
        database.close()
    assert found is not None
    is_whole = number is signal.SIGTERM
    assert found.turn.end is (TurnEnd.COMPLETED if is_whole else TurnEnd.FAILED)
    assert rest.endswith(b"data: [DONE]\n\n") is is_whole
