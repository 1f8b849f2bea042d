"""Providers that linger, forget, contradict themselves or hang up: what the client sees and what is
recorded agree.
"""

import gzip
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.program import KEY, NOT_LEARNING, Program
from tests.support.raw import CLOSE, LINGER, RESET, RawProvider, http

CHAT_EVENTS = (
    b"data:"
    b' {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\ndata:'
    b' {"id":"c","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata:'
    b" [DONE]\n\n"
)
CHAT_WHOLE = json.dumps(
    {
        "id": "c",
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        ],
    }
).encode()
SSE = "text/event-stream"
ASK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}

Start = Callable[..., tuple[Program, RawProvider]]


TIMEOUT_S = 60
"""The provider's. Nothing here may take as long."""


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture(scope="module")
def program(listener: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    config = (
        f'[[providers]]\nname = "p"\nkind = "openai"\nbase_url = "{url}"\napi_key = "sk"\ntimeout_s'
        f" = {TIMEOUT_S}\n"
    )
    running = Program(
        tmp_path_factory.mktemp("odd"), config, proxy="drain_s = 1.0", env=NOT_LEARNING
    ).start()
    yield running
    running.stop()


@pytest.fixture
def start(program: Program, listener: socket.socket) -> Iterator[Start]:
    """Play the provider; the program is the same for all tests."""
    with ExitStack() as stack:

        def begin(*script: bytes, then: str = CLOSE) -> tuple[Program, RawProvider]:
            return program, stack.enter_context(RawProvider(script, then, listener))

        yield begin


def ask(program: Program, path: str = "/v1/chat/completions", **more: object) -> httpx.Response:
    return httpx.post(
        program.url + path, json={**ASK, "max_tokens": 9, **more}, headers=program.auth, timeout=60
    )


def end_of(program: Program, answer: httpx.Response) -> str:
    return str(program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")["end"])


@pytest.mark.parametrize("then", [LINGER, RESET, CLOSE])
@pytest.mark.parametrize("wire", ["/v1/chat/completions", "/v1/messages"])
def test_an_answer_that_is_whole_is_whole_whatever_its_connection_does_next(
    start: Start, then: str, wire: str
) -> None:
    program, _ = start(http(CHAT_EVENTS, SSE, chunked=True), then=then)
    began = time.monotonic()
    answer = ask(program, wire, stream=True)
    assert time.monotonic() - began < TIMEOUT_S / 2
    assert answer.text.endswith(
        "data: [DONE]\n\n" if "chat" in wire else 'data: {"type":"message_stop"}\n\n'
    )
    assert end_of(program, answer) == "completed"


@pytest.mark.parametrize("content_type", [None, "text/plain", "text/event-stream;charset=utf-8"])
def test_a_stream_that_was_asked_for_is_one_even_if_its_type_is_forgotten(
    start: Start, content_type: str | None
) -> None:
    program, _ = start(http(CHAT_EVENTS, content_type))
    answer = ask(program, stream=True)
    assert answer.content == CHAT_EVENTS
    assert end_of(program, answer) == "completed"


def test_a_stream_that_nobody_asked_for_is_relayed_as_one(start: Start) -> None:
    program, _ = start(http(CHAT_EVENTS, SSE))
    answer = ask(program)
    assert answer.content == CHAT_EVENTS
    assert program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")["stream"] is True


def test_a_whole_answer_to_a_request_for_a_stream_is_streamed_to_a_client_of_another_wire(
    start: Start,
) -> None:
    program, _ = start(http(CHAT_WHOLE))
    answer = ask(program, "/v1/messages", stream=True)
    assert "text_delta" in answer.text
    assert answer.text.endswith('data: {"type":"message_stop"}\n\n')


@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_under_status_200_is_relayed_and_recorded_as_a_failure(
    start: Start, streamed: bool
) -> None:
    program, _ = start(http(b'{"error": {"message": "out of credits", "type": "billing"}}'))
    answer = ask(program, stream=streamed)
    assert "out of credits" in answer.text
    assert end_of(program, answer) == "failed"


def test_counts_beyond_all_reason_do_not_cost_the_turn(start: Start) -> None:
    body = json.loads(CHAT_WHOLE) | {
        "usage": {"prompt_tokens": 2**63, "completion_tokens": 1, "total_tokens": 2**63}
    }
    program, _ = start(http(json.dumps(body).encode()))
    assert end_of(program, ask(program)) == "completed"


def test_a_terminal_event_is_never_shown_before_its_turn_is_on_disk_however_its_keys_are_ordered(
    start: Start,
) -> None:
    whole: dict[str, object] = {
        "id": "resp_1",
        "status": "completed",
        "model": "m",
        "output": [],
        "error": None,
    }
    events = (
        b"data: "
        + json.dumps(
            {"response": whole, "sequence_number": 1, "type": "response.completed"}
        ).encode()
        + b"\n\n"
    )
    program, _ = start(http(events, SSE, chunked=True), then=LINGER)
    with httpx.stream(
        "POST",
        f"{program.url}/v1/responses",
        json={"model": "m", "input": "x", "stream": True},
        headers=program.auth,
    ) as answer:
        for _ in answer.iter_raw():
            assert end_of(program, answer) == "completed"


def test_a_program_that_is_stopped_says_so_in_the_stream_and_in_the_ledger(start: Start) -> None:
    program, _ = start(http(CHAT_EVENTS[:100], SSE, chunked=True), then=LINGER)
    with httpx.stream(
        "POST",
        f"{program.url}/v1/chat/completions",
        json={**ASK, "stream": True},
        headers=program.auth,
        timeout=30,
    ) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        assert program.process is not None
        program.process.terminate()
        rest = b"".join(pieces)
    assert b"stopped" in rest
    assert b"[DONE]" not in rest
    assert program.process.wait(60) == 0
    program.start()
    assert end_of(program, answer) == "failed"


def test_a_client_that_leaves_a_plain_relay_cancels_the_providers_call(start: Start) -> None:
    program, provider = start(then=LINGER)
    client = HTTPConnection(urlsplit(program.url).netloc)
    client.request("POST", "/v1/embeddings", b'{"model": "e", "input": "x"}', program.auth)
    assert provider.asked.wait(TIMEOUT_S / 2)
    client.close()
    assert provider.hung_up.wait(TIMEOUT_S / 2)


def test_a_relay_that_is_cut_off_does_not_look_whole(start: Start) -> None:
    program, _ = start(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(
            f"{program.url}/v1/completions",
            json={"model": "e", "prompt": "x"},
            headers=program.auth,
        )


def test_a_packed_request_is_unpacked_once_and_sent_plain(start: Start) -> None:
    program, provider = start(http(CHAT_WHOLE))
    packed = gzip.compress(json.dumps(ASK).encode())
    headers = {**program.auth, "content-encoding": "gzip", "content-type": "application/json"}
    assert (
        httpx.post(
            f"{program.url}/v1/chat/completions", content=packed, headers=headers
        ).status_code
        == 200
    )
    assert b"content-encoding" not in provider.heads[0].lower()


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("/v1/models/org%2Fmodel", b"/v1/models/org%2Fmodel"),
        (f"/k/{KEY}/v1/files/a%2541", b"/v1/files/a%2541"),
    ],
)
def test_a_path_is_relayed_as_it_was_written(start: Start, asked: str, sent: bytes) -> None:
    program, provider = start(http(b"{}"))
    assert httpx.get(program.url + asked, headers=program.auth).status_code == 200
    assert provider.heads[0].startswith(b"GET " + sent + b" HTTP/1.1")


@pytest.mark.parametrize("path", ["/v1/%2e%2e/admin", "/v1/a/%2E%2E/%2e%2e/admin"])
def test_a_path_that_climbs_out_is_refused(start: Start, path: str) -> None:
    program, provider = start(http(b"{}"))
    assert httpx.get(program.url + path, headers=program.auth).status_code == 400
    assert not provider.heads


@pytest.mark.parametrize(
    "path", ["/v1//chat/completions", "/v1/chat/completions/", "//v1/chat/completions"]
)
def test_doubled_and_trailing_slashes_change_nothing(start: Start, path: str) -> None:
    program, _ = start(http(CHAT_WHOLE))
    assert end_of(program, ask(program, path)) == "completed"


def test_a_head_of_any_size_is_not_taken(start: Start) -> None:
    program, _ = start(http(CHAT_WHOLE))
    answer = httpx.get(f"{program.url}/healthz", headers={"x-big": "a" * 100_000})
    assert answer.status_code == 400
