"""Answers that do not end: the client gets all of them, the program keeps only their beginning, and
its memory comes back.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from metaclaw.proxy.answer_record import MAX_RECORD_BYTES
from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml

MIB = 1024 * 1024
WORDS = b"word word word w" * 4096
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
TEXT = {
    **CHUNK,
    "choices": [{"index": 0, "delta": {"content": WORDS.decode()}, "finish_reason": None}],
}
STOP = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USED = {
    **CHUNK,
    "choices": [],
    "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
}


def sse(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


EVENT = sse(TEXT)
STREAM_END = sse(STOP) + sse(USED) + b"data: [DONE]\n\n"
WHOLE = (
    b'{"id":"c","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"',
    b'"},"finish_reason":"stop"}],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}',
)


@dataclass(frozen=True)
class Request:
    """What a provider was asked: `long-24` is an answer of 24 MiB, `broken-24` one that is cut off
    after 24 MiB.
    """

    kind: str
    size: int
    streams: bool


class Flood:
    """A provider that answers many connections at once, as long as it is asked to."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                for piece in _pieces(_read(connection)):
                    connection.sendall(piece)
            except OSError:
                return


def _read(connection: socket.socket) -> Request:
    seen = b""
    while True:
        seen += connection.recv(65536)
        try:
            asked = json.loads(seen.partition(b"\r\n\r\n")[2])
        except ValueError:
            continue
        kind, _, size = asked["model"].rpartition("/")[2].partition("-")
        return Request(kind, int(size or 0) * MIB, bool(asked.get("stream")))


def _pieces(asked: Request) -> Iterator[bytes]:
    unit, ends = (EVENT, (b"", STREAM_END)) if asked.streams else (WORDS, WHOLE)
    count = asked.size // len(unit) + 1
    length = (
        b""
        if asked.streams
        else b"content-length: %d\r\n" % (count * len(unit) + len(ends[0]) + len(ends[1]))
    )
    kind = b"text/event-stream" if asked.streams else b"application/json"
    yield b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: %b\r\n%b\r\n" % (kind, length)
    yield ends[0]
    for _ in range(count):
        yield unit
    if asked.kind == "long":
        yield ends[1]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    flood = Flood()
    home: Path = tmp_path_factory.mktemp("program") / "home"
    running = Program(home, providers_toml(flood.url), env=NOT_LEARNING).start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]
    flood.close()


@dataclass(frozen=True)
class Got:
    """What a client got: how many bytes, the last of them, and the turn they belong to."""

    size: int
    last: bytes
    turn: str


def ask(program: Program, model: str, *, stream: bool, path: str = "/v1/chat/completions") -> Got:
    body = {
        "model": model,
        "stream": stream,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "input": "hi",
    }
    size, last = 0, b""
    with httpx.stream(
        "POST", program.url + path, json=body, headers=program.auth, timeout=PATIENCE_S
    ) as response:
        for piece in response.iter_raw():
            size, last = size + len(piece), (last + piece)[-len(STREAM_END) :]
    return Got(size, last, response.headers["x-metaclaw-turn"])


def recorded(program: Program, turn: str) -> dict[str, Any]:
    """A turn. A busy disk may take longer for it than the program lets its client wait."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        response = httpx.get(
            f"{program.url}/api/turns/{turn}", headers=program.auth, timeout=PATIENCE_S
        )
        if response.status_code == 200:
            found: dict[str, Any] = response.json()
            return found
        assert time.monotonic() < deadline, response.text
        time.sleep(0.05)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_the_client_gets_all_of_a_long_answer_and_the_record_is_cut_and_marked(
    program: Program, stream: bool
) -> None:
    got = ask(program, "long-70", stream=stream)
    assert got.size > 70 * MIB
    assert got.last.endswith(STREAM_END if stream else WHOLE[1])
    turn = recorded(program, got.turn)
    assert (turn["truncated"], turn["end"], turn["status"]) == (True, "completed", 200)
    assert (
        turn["error"]
        == f"only a part of the answer is recorded: {MAX_RECORD_BYTES:,} of {got.size:,} bytes"
    )
    assert len(turn["said"].encode()) == MAX_RECORD_BYTES
    if stream:
        assert (turn["finish"], turn["usage"]["output_tokens"]) == ("stop", 7)


def test_an_answer_below_the_limit_is_recorded_whole(program: Program) -> None:
    got = ask(program, "long-15", stream=True)
    turn = recorded(program, got.turn)
    assert (turn["truncated"], turn["error"], len(turn["said"])) == (False, None, got.size)


def test_a_long_whole_answer_that_breaks_off_is_seen_to_be_incomplete(program: Program) -> None:
    body = {"model": "broken-20", "messages": [{"role": "user", "content": "hi"}]}
    with httpx.stream(
        "POST",
        f"{program.url}/v1/chat/completions",
        json=body,
        headers=program.auth,
        timeout=PATIENCE_S,
    ) as response:
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in response.iter_raw():
                pass
    turn = recorded(program, response.headers["x-metaclaw-turn"])
    assert (turn["end"], turn["truncated"]) == ("failed", True)
    assert "closed in the middle of the answer" in turn["error"]


def test_an_answer_that_must_be_translated_as_a_whole_is_refused_beyond_the_limit(
    program: Program,
) -> None:
    body = {
        "model": "chatonly/long-17",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    }
    response = httpx.post(
        f"{program.url}/v1/messages", json=body, headers=program.auth, timeout=PATIENCE_S
    )
    assert response.status_code == 502
    assert f"sent more than {MAX_RECORD_BYTES} bytes" in response.json()["error"]["message"]


def test_the_memory_of_long_answers_is_bounded_and_comes_back(program: Program) -> None:
    ask(program, "long-0", stream=True)
    before_mib = memory_mib(program, "VmRSS")
    reset_peak(program)
    with ThreadPoolExecutor(6) as clients:
        for got in clients.map(
            lambda stream: ask(program, "long-40", stream=stream), [True, False] * 3
        ):
            assert got.size > 40 * MIB
    # Six whole answers would be 240 MiB, and three times as much while they are recorded.
    assert memory_mib(program, "VmHWM") - before_mib < 230
    deadline = time.monotonic() + PATIENCE_S
    while memory_mib(program, "VmRSS") - before_mib > 25:
        assert time.monotonic() < deadline
        ask(program, "long-0", stream=True)


def memory_mib(program: Program, name: str) -> float:
    assert program.process is not None
    lines = Path(f"/proc/{program.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024


def reset_peak(program: Program) -> None:
    assert program.process is not None
    Path(f"/proc/{program.process.pid}/clear_refs").write_text("5")
