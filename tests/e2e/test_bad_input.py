"""Whatever is sent, the answer is a clear error in the wire's own shape, and the program goes
on.
"""

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from metaclaw.proxy.http.body import FREE_KEYS
from tests.support.cases import each
from tests.support.program import NOT_LEARNING, Program, providers_toml
from tests.support.provider import Provider

PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages"]


@pytest.fixture(autouse=True)
def still_alive(program: Program) -> Iterator[None]:
    yield
    assert httpx.get(f"{program.url}/healthz").status_code == 200
    assert program.process is not None
    assert program.process.poll() is None


def assert_error_shape(path: str, answer: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    if path.endswith("/messages"):
        assert body["type"] == "error"
        assert isinstance(body["error"]["type"], str)
    else:
        assert {"message", "type", "param", "code"} <= body["error"].keys()
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    return body


@each("path", PATHS)
@each(
    "body",
    [
        b"",
        b"not json",
        b"{",
        b"[1,2]",
        b'"text"',
        b"null",
        b'{"model": "echo", "messages": \xff}',
        b"\x00\x01\x02",
        b'{"a":' * 100_000,
        b"[" * 300_000,
    ],
    ids=["empty", "words", "open", "array", "string", "null", "utf8", "nul", "deep", "deep-array"],
)
def test_what_is_not_a_json_object_is_a_400(program: Program, path: str, body: bytes) -> None:
    answer = httpx.post(program.url + path, content=body, headers=program.auth)
    assert answer.status_code == 400
    assert_error_shape(path, answer)


@each("path", PATHS)
@each(
    "field",
    [
        {"messages": [], "input": []},
        {"messages": "hi", "input": 7},
        {"messages": [1, None], "input": [1, None]},
        {
            "messages": [{"role": "martian", "content": "x"}],
            "input": [{"role": "martian", "content": "x"}],
        },
        {"messages": [{"role": 5}], "input": [{"type": {}}]},
        {"messages": None, "input": None},
        {"messages": [{"role": "user", "content": {"a": 1}}], "input": {"a": 1}},
    ],
    ids=["empty", "wrong-type", "no-objects", "unknown-role", "odd-role", "null", "odd-content"],
)
@each("model", ["chatonly/echo", "anthropic/echo", ""])
def test_wrong_shapes_are_refused_where_we_must_understand_them_and_never_break_us(
    program: Program, path: str, field: dict[str, Any], model: str
) -> None:
    answer = httpx.post(
        program.url + path, json={"model": model, "max_tokens": 5, **field}, headers=program.auth
    )
    native = (
        (path == "/v1/chat/completions" and model == "chatonly/echo")
        or (path == "/v1/messages" and model == "anthropic/echo")
        or model == ""
    )
    if native:
        # The provider speaks this wire itself: what it makes of the request is its own affair,
        # relayed.
        assert answer.status_code in (200, 400, 500, 502)
    else:
        assert answer.status_code == 400
        assert_error_shape(path, answer)


@pytest.mark.parametrize("path", PATHS)
def test_a_body_over_the_limit_is_a_413(program: Program, path: str) -> None:
    huge = (
        b'{"model":"echo","messages":[{"role":"user","content":"'
        + b"x" * (100 * 1024 * 1024)
        + b'"}]}'
    )
    with httpx.Client(timeout=60) as client:
        try:
            answer = client.post(program.url + path, content=huge, headers=program.auth)
        except httpx.WriteError:
            return  # refused while it was still being sent
    assert answer.status_code == 413
    assert_error_shape(path, answer)


def test_nuls_and_lone_surrogates_in_text_are_passed_on_as_they_are(
    program: Program, provider: Provider
) -> None:
    body = b'{"model":"echo","messages":[{"role":"user","content":"a\\u0000b \\ud800 c"}]}'
    assert (
        httpx.post(
            f"{program.url}/v1/chat/completions", content=body, headers=program.auth
        ).status_code
        == 200
    )
    assert provider.requests[-1].body == body


@each("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_the_wrong_method_is_a_405(program: Program, method: str) -> None:
    answer = httpx.request(method, f"{program.url}/v1/chat/completions", headers=program.auth)
    assert answer.status_code == 405
    assert_error_shape("/v1/chat/completions", answer)


@each(
    "path",
    [
        "/nowhere",
        "/api/nowhere",
        "/api/turns/none",
        "/api/sessions/none",
        "/api/skills/none",
        "/api/sessions?limit=abc",
        "/api/sessions?limit=-1",
    ],
)
def test_unknown_pages_and_odd_queries_are_clear_errors(program: Program, path: str) -> None:
    answer = httpx.get(program.url + path, headers=program.auth)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"]


@each(
    "path", ["/api/status", "/metrics", "/readyz", "/", "/v1/models", "/api/sessions", "/nowhere"]
)
def test_every_route_but_healthz_needs_the_key(program: Program, path: str) -> None:
    assert httpx.get(program.url + path).status_code == 401
    assert httpx.get(program.url + path, headers={"x-api-key": "wrong"}).status_code == 401


@each(
    ("prefix", "headers", "words"),
    [
        ("", {}, "this request carries no MetaClaw key"),
        ("", {"authorization": "Bearer"}, "this request carries no MetaClaw key"),
        (
            "",
            {"authorization": "Bearer wrong"},
            "the key in this request (authorization) is not the MetaClaw key",
        ),
        (
            "/k/wrong",
            {"x-api-key": "own"},
            "the key in this request (x-api-key, /k/<key>) is not the MetaClaw key",
        ),
    ],
)
def test_a_missing_key_is_told_from_a_wrong_one(
    program: Program, prefix: str, headers: dict[str, str], words: str
) -> None:
    answer = httpx.get(f"{program.url}{prefix}/v1/models", headers=headers)
    assert answer.status_code == 401
    message = answer.json()["error"]["message"]
    assert message.startswith(f"{words}; `metaclaw key` prints it")
    assert "wrong" not in message


def test_training_with_hosted_providers_only_is_not_told_to_start_in_a_mode_that_is_refused(
    program: Program,
) -> None:
    refused = program.command("policy", "train")
    assert refused.returncode == 1
    assert "cannot be trained. Write in config.toml what to train" in refused.stderr
    assert "--mode" not in refused.stderr


@each(
    "raw",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc",
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_harm_nobody(program: Program, raw: bytes) -> None:
    address = urlsplit(program.url)
    with socket.create_connection(
        (address.hostname or "", address.port or 0), timeout=60
    ) as connection:
        connection.settimeout(5)
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
        except (
            OSError
        ):  # the program hung up before it had read everything, or said nothing: both are its right
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert httpx.get(f"{program.url}/healthz").status_code == 200


def test_no_secret_is_in_the_log_or_in_any_error(program: Program) -> None:
    text = program.log.read_text()
    for secret in ("mc-test-key", "sk-openai", "sk-anthropic", "sk-chatonly"):
        shown = text.count(secret)
        assert shown == 0 or secret == "mc-test-key", f"{secret} is in the log"
    refused = httpx.post(
        f"{program.url}/v1/chat/completions",
        json={"model": "status-401", "messages": []},
        headers=program.auth,
    )
    assert "sk-openai" not in refused.text
    assert json.dumps(program.get("/api/status")).count("sk-") == 0


MAX_ITEMS = 200
WIRES = {"/v1/chat/completions": "messages", "/v1/responses": "input", "/v1/messages": "messages"}


@pytest.fixture(scope="module")
def strict(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program with a low limit of items, before which bad requests have come."""
    home = tmp_path_factory.mktemp("strict") / "home"
    running = Program(
        home, providers_toml(provider.url), proxy=f"max_items = {MAX_ITEMS}", env=NOT_LEARNING
    ).start()
    yield running
    assert running.stop() == 0


def test_a_refused_request_leaves_no_session_and_no_turn(strict: Program) -> None:
    running = strict
    wrong = {
        "model": "chatonly/echo",
        "max_tokens": 5,
        "messages": [{"role": "martian", "content": "x"}],
    }
    for headers in ({}, {"x-session-id": "named-by-its-client"}):
        refused = httpx.post(
            f"{running.url}/v1/messages", json=wrong, headers={**running.auth, **headers}
        )
        assert refused.status_code == 400
        assert "x-metaclaw-session" not in refused.headers
    status = running.get("/api/status")
    assert (running.get("/api/sessions")["sessions"], status["counts"]["active_sessions"]) == (
        [],
        0,
    )
    right = {**wrong, "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(
        f"{running.url}/v1/messages",
        json=right,
        headers={**running.auth, "x-session-id": "named-by-its-client"},
    )
    assert answer.headers["x-metaclaw-session"] == "named-by-its-client"
    httpx.post(
        f"{running.url}/v1/messages",
        json=wrong,
        headers={**running.auth, "x-session-id": "named-by-its-client"},
    )
    (session,) = running.get("/api/sessions")["sessions"]
    assert (session["id"], session["turn_count"]) == ("named-by-its-client", 1)


def many(path: str, what: str, count: int) -> dict[str, Any]:
    """A request with so many items of one kind, beside one message."""
    part = {"type": "input_text" if "responses" in path else "text", "text": "a"}
    message: dict[str, Any] = {"role": "user", "content": "hello"}
    body: dict[str, Any] = {"model": "echo", "max_tokens": 5, WIRES[path]: [message]}
    match what:
        case "messages":
            body[WIRES[path]] = [message] * count
        case "parts":
            message["content"] = [part] * (count - 1)
        case "parts of many messages":
            body[WIRES[path]] = [{"role": "user", "content": [part] * 99}] * (count // 100) + [
                message
            ] * (count % 100)
        case "nested parts":
            message["content"] = [
                {"type": "tool_result", "tool_use_id": "t", "content": [part] * (count - 2)}
            ]
        case "tools":
            body["tools"] = [{"type": "function", "name": "t", "function": {"name": "t"}}] * (
                count - 1
            )
        case "keys":
            body |= {f"k{number}": 1 for number in range(count + FREE_KEYS - len(body))}
    return body


@each("path", WIRES)
@each("what", ["messages", "parts", "parts of many messages", "nested parts", "tools", "keys"])
def test_a_request_with_more_items_than_allowed_is_a_413_that_names_the_key(
    strict: Program, path: str, what: str
) -> None:
    for _ in range(2):  # what is remembered of the first must not let the second pass
        answer = httpx.post(
            strict.url + path, json=many(path, what, MAX_ITEMS + 1), headers=strict.auth
        )
        assert answer.status_code == 413, answer.text
        assert "proxy.max_items" in answer.text
        assert_error_shape(path, answer)
    assert (
        httpx.post(
            strict.url + path, json=many(path, what, MAX_ITEMS), headers=strict.auth
        ).status_code
        != 413
    )


def test_twenty_thousand_items_are_allowed_by_default(program: Program) -> None:
    for count, status in ((20_000, 418), (20_001, 413)):
        body = {**many(PATHS[0], "messages", count), "model": "status-418"}
        assert (
            httpx.post(
                program.url + PATHS[0], json=body, headers=program.auth, timeout=60
            ).status_code
            == status
        )


@each("item", [b"{}", b'""', b"1", b"[]", b'{"a":",","b":1}'])
def test_a_body_of_millions_of_values_is_refused_before_they_are_read(
    strict: Program, item: bytes
) -> None:
    body = (
        b'{"model":"echo","messages":['
        + (item + b",") * (4_000_000 // (len(item) + 1))
        + item
        + b"]}"
    )
    answer = httpx.post(
        f"{strict.url}/v1/chat/completions", content=body, headers=strict.auth, timeout=60
    )
    assert answer.status_code == 413
    assert "proxy.max_items" in answer.text


def test_commas_in_a_long_text_are_no_items(strict: Program) -> None:
    body = {"model": "status-418", "messages": [{"role": "user", "content": 'a,"b",\\' * 100_000}]}
    assert (
        httpx.post(
            f"{strict.url}/v1/chat/completions", json=body, headers=strict.auth, timeout=60
        ).status_code
        == 418
    )


def test_counting_tokens_takes_no_more_items_than_answering(strict: Program) -> None:
    tokens = {
        "model": "chatonly/echo",
        "messages": [{"role": "user", "content": "a"}] * (MAX_ITEMS + 1),
    }
    refused = httpx.post(f"{strict.url}/v1/messages/count_tokens", json=tokens, headers=strict.auth)
    assert (refused.status_code, "proxy.max_items" in refused.text) == (413, True)
