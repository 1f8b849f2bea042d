"""Clients that flood, that never read, or that close half of their connection: each is served or
refused, and harms no other.
"""

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from metaclaw.domain.chat import Wire
from metaclaw.errors import WireError
from metaclaw.proxy.http.body import MAX_ITEMS, check
from tests.support.program import KEY, NOT_LEARNING, Program, providers_toml
from tests.support.provider import Provider
from tests.support.raw import LINGER, RawProvider
from tests.support.raw import http as http_response

UPGRADE = b"GET %b HTTP/1.1\r\nhost: h\r\nconnection: Upgrade\r\nupgrade: %b\r\n%b\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
AUTH = b"authorization: Bearer " + KEY.encode() + b"\r\n"


@contextmanager
def connected(program: Program) -> Iterator[socket.socket]:
    address = urlsplit(program.url)
    with socket.create_connection(
        (address.hostname or "", address.port or 0), timeout=20
    ) as connection:
        yield connection


def read_until_closed(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def read_response(connection: socket.socket) -> tuple[http.client.HTTPResponse, bytes]:
    """One response, read by the standard library's client."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response, response.read()


def chat(text: str, *, model: str = "echo", stream: bool = False) -> bytes:
    body = json.dumps(
        {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]}
    ).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n%bcontent-length: %d\r\n\r\n%b" % (
        AUTH,
        len(body),
        body,
    )


@pytest.mark.parametrize(
    "one",
    [
        UPGRADE % (b"/", b"other", b""),
        UPGRADE % (b"/v1/responses", b"websocket", b""),
        b"CONNECT h:1 HTTP/1.1\r\nhost: h\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nhost: h\r\n\r\n",
    ],
    ids=["upgrade", "websocket", "connect", "tiny"],
)
def test_a_flood_of_requests_without_a_key_is_answered_in_order_and_leaves_the_log_alone(
    program: Program, one: bytes
) -> None:
    count = 64 * 1024 // len(one)
    before = program.log.stat().st_size
    with connected(program) as connection:
        connection.sendall(
            one * count + b"GET /healthz HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"
        )
        answers = read_until_closed(connection)
    assert answers.count(b"HTTP/1.1 4") == count
    assert answers.endswith(b'{"ok":true}')
    # A line or two of something else may come meanwhile.
    assert program.log.read_bytes()[before:].count(b"\n") < min(count, 5)


def test_a_request_with_thousands_of_header_fields_is_refused(program: Program) -> None:
    with connected(program) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n")
        answer = read_until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"more than 256 header fields" in answer


@pytest.mark.parametrize(
    "path",
    ["/v1/responses", "/responses", "/v1/messages", "/v1/realtime", "/api/events", "/nowhere"],
)
@pytest.mark.parametrize("auth", [AUTH, b""], ids=["key", "no-key"])
def test_a_websocket_upgrade_is_a_426_and_the_connection_stays_usable(
    program: Program, path: str, auth: bytes
) -> None:
    handshake = b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    with connected(program) as connection:
        connection.sendall(UPGRADE % (path.encode(), b"WebSocket", auth + handshake))
        refused, body = read_response(connection)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n")
        after, _ = read_response(connection)
    assert (refused.status, refused.getheader("upgrade"), refused.getheader("connection")) == (
        426,
        "HTTP/1.1",
        "upgrade",
    )
    assert "does not speak WebSocket" in json.loads(body)["error"]["message"]
    assert after.status == 200


@pytest.mark.parametrize(
    ("request_head", "reason"),
    [
        (b"GET /healthz\r\n\r\n", b"speaks HTTP/1.1 and HTTP/1.0 only"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"no Host"),
        (b"GET /healthz HTTP/1.0\r\n\r\n", b"no Host"),
        (b"GET /healthz HTTP/1.1\r\nhost:\r\n\r\n", b"no Host"),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", b"more than one Host"),
    ],
    ids=["http-0.9", "without", "without-http-1.0", "empty", "two"],
)
def test_a_request_of_http_0_9_or_without_one_host_is_refused(
    program: Program, request_head: bytes, reason: bytes
) -> None:
    with connected(program) as connection:
        connection.sendall(request_head)
        answer = read_until_closed(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"x-content-type-options: nosniff" in head
    assert reason in body


@pytest.mark.parametrize(
    "path",
    [b"/v1/embeddings", b"/v1/anything", b"/v1/chat/completions", b"/healthz", b"/api/status"],
)
def test_trace_is_refused_and_not_forwarded(
    program: Program, provider: Provider, path: bytes
) -> None:
    before = len(provider.requests)
    with connected(program) as connection:
        connection.sendall(b"TRACE %b HTTP/1.1\r\nhost: h\r\n%b\r\n" % (path, AUTH))
        response, _ = read_response(connection)
    assert (response.status, len(provider.requests)) == (405, before)
    assert "POST" in (response.getheader("allow") or "")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/healthz", None, None),
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b'{"model": "status-429", "messages": []}', 429),
        ("/v1/messages", b'{"model": "status-400", "messages": []}', 400),
        ("/api/rules", b"{", 400),
        ("/api/nowhere", None, 404),
        ("/v1/nowhere", None, 404),
    ],
)
def test_every_error_forbids_browsers_to_guess_its_type(
    program: Program, path: str, body: bytes | None, status: int | None
) -> None:
    response = httpx.request(
        "GET" if body is None else "POST", program.url + path, content=body, headers=program.auth
    )
    assert response.headers.get("x-content-type-options") == (None if status is None else "nosniff")
    assert response.status_code == (status or 200)


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request"])
def test_cookies_of_a_provider_do_not_reach_the_client(tmp_path: Path, status: str) -> None:
    whole = json.dumps(
        {
            "id": "x",
            "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
            "content": [],
        }
    ).encode()
    cookies = b"\r\nset-cookie: a=1\r\nSet-Cookie2: b=2\r\nx-kept: 1\r\n"
    with RawProvider(
        [http_response(whole, status=status).replace(b"\r\n", cookies, 1)]
    ) as provider:
        running = Program(tmp_path / "home", providers_toml(provider.url), env=NOT_LEARNING).start()
        try:
            for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/messages"):
                response = httpx.post(
                    running.url + path, json={"model": "m", "messages": []}, headers=running.auth
                )
                assert response.headers.get("x-kept") == "1"
                assert not [name for name in response.headers if name.startswith("set-cookie")]
        finally:
            assert running.stop() == 0


MESSAGE = b'{"role":"user","content":"hi"}'
# Made when they are sent: they take time and memory, and every worker reads this file.
HUGE: dict[str, Callable[[], bytes]] = {
    "300,000 messages": lambda: (
        b'{"model":"m","messages":[' + b",".join([MESSAGE] * 300_000) + b"]}"
    ),
    "one string": lambda: b'"' + b"a" * 60_000_000 + b'"',
    "broken at its end": lambda: (
        b'{"model":"m","messages":[{"role":"user","content":"' + b"a" * 40_000_000 + b'"}]'
    ),
    "many keys": lambda: (
        b'{"model":"m","messages":[%b],%b}'
        % (MESSAGE, b",".join(b'"k%d":1' % number for number in range(330_000)))
    ),
    "many parts": lambda: (
        b'{"model":"m","messages":[{"role":"user","content":['
        + b",".join([b"{}"] * 1_000_000)
        + b"]}]}"
    ),
}


@pytest.mark.parametrize("kind", HUGE)
def test_other_clients_do_not_wait_while_a_huge_body_is_refused(
    program: Program, kind: str
) -> None:
    body = HUGE[kind]()
    began = time.process_time()
    with pytest.raises(WireError) as refused:
        check(Wire.CHAT, body, MAX_ITEMS)
    inline_s = time.process_time() - began
    with ThreadPoolExecutor(1) as sending, httpx.Client(base_url=program.url) as other:
        answer = sending.submit(post_raw, program, body)
        longest_s = 0.0
        while not answer.done():
            longest_s = max(longest_s, delay_of(program, other))
    assert answer.result() == refused.value.status
    # Decoding in the event loop, or in a thread, would delay the other client by `inline_s`.
    assert longest_s < max(0.05, inline_s / 3)


def post_raw(program: Program, body: bytes) -> int:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n%bcontent-length: %d\r\n\r\n" % (
        AUTH,
        len(body),
    )
    with connected(program) as connection:
        connection.sendall(head)
        connection.sendall(body)
        return read_response(connection)[0].status


def delay_of(program: Program, client: httpx.Client) -> float:
    """How long the program keeps a client waiting: by the clock, but not longer than its own
    processor time, because the machine may be busy with other processes."""
    used, began = processor_s(program), time.monotonic()
    assert client.get("/healthz").status_code == 200
    return min(time.monotonic() - began, processor_s(program) - used)


def processor_s(program: Program) -> float:
    assert program.process is not None
    user, system = (
        Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    )
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_closes_its_sending_side_is_answered(program: Program, stream: bool) -> None:
    with connected(program) as connection:
        connection.sendall(chat("half closed", stream=stream))
        connection.shutdown(socket.SHUT_WR)
        response, body = read_response(connection)
        assert connection.recv(1) == b""
    assert response.status == 200
    assert (
        body.endswith(b"data: [DONE]\n\n")
        if stream
        else "half closed" in json.loads(body)["choices"][0]["message"]["content"]
    )


def test_all_requests_before_a_half_close_are_answered_however_long_it_takes(
    program: Program, provider: Provider
) -> None:
    provider.chunk_delay_s = 0.3
    try:
        with connected(program) as connection:
            connection.sendall(chat("a b c", stream=True) + chat("last"))
            connection.shutdown(socket.SHUT_WR)
            answers = read_until_closed(connection)
    finally:
        provider.chunk_delay_s = 0.0
    assert b"data: [DONE]\n\n" in answers
    assert b"echo: last" in answers


@pytest.mark.parametrize("script", [(), (STREAM + b"data: {}\n\n",)], ids=["waiting", "started"])
def test_a_client_that_leaves_cancels_the_call_also_while_the_provider_is_silent(
    script: tuple[bytes, ...], tmp_path: Path
) -> None:
    with RawProvider(script, LINGER) as silent:
        running = Program(tmp_path / "home", providers_toml(silent.url), env=NOT_LEARNING).start()
        try:
            with connected(running) as connection:
                connection.sendall(chat("anything", stream=True))
                if script:
                    connection.recv(4096)
                else:
                    _wait_until(lambda: bool(silent.heads))
            assert silent.hung_up.wait(60)
        finally:
            assert running.stop() == 0


class Torrent:
    """A provider that sends an endless stream as fast as it is read."""

    def __init__(self) -> None:
        self.hung_up = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, self._listener:
            connection.recv(65536)
            connection.sendall(STREAM)
            try:
                while True:
                    connection.sendall(b": padding\n\n" * 6000)
            except OSError:
                self.hung_up.set()


def test_a_client_that_never_reads_is_disconnected_and_its_turn_is_cancelled(
    tmp_path: Path,
) -> None:
    provider = Torrent()
    running = Program(
        tmp_path / "home",
        providers_toml(provider.url),
        proxy="write_timeout_s = 1.0",
        env=NOT_LEARNING,
    ).start()
    try:
        with connected(running) as connection:
            connection.sendall(chat("anything", stream=True))
            assert provider.hung_up.wait(60)
        (session,) = running.wait_for("/api/sessions", lambda seen: bool(seen["sessions"]))[
            "sessions"
        ]
        (turn,) = running.get(f"/api/sessions/{session['id']}")["turns"]
        assert (turn["end"], turn["error"]) == ("cancelled", "the client read nothing for 1 s")
        assert httpx.get(f"{running.url}/healthz").status_code == 200
    finally:
        assert running.stop() == 0


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
