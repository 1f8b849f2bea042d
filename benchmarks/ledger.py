"""What recording costs: turns per second, processor time per turn and latency, for small and for
long conversations.

    python benchmarks/ledger.py [--seconds 3] [--folder DIR] [--url URL]

Every number is of the whole way of `record`: queue, writer thread, commit, wake-up. Conversations
grow the way agents make them grow: each request repeats the one before it and adds a message, until
it has twice its size and a new session begins."""

import argparse
import asyncio
import os
import resource
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from metaclaw.domain.chat import Finish, Usage, Wire
from metaclaw.domain.ids import SessionId, new_session_id, new_turn_id
from metaclaw.domain.turn import Exchange, Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.store import SqlLedger, open_database

_STAMP = Stamp(0, 0, "cae66941d9efbd404e4d88758ea67670", ())
_SAID = b'{"choices":[{"message":{"role":"assistant","content":"' + b"a" * 540 + b'"}}]}'


def _turn(session: SessionId, body: bytes) -> Turn:
    return Turn(
        id=new_turn_id(),
        session=session,
        kind=TurnKind.MAIN,
        kind_reason="conversation",
        scope=Scope(),
        stamp=_STAMP,
        agent="benchmark",
        wire=Wire.CHAT,
        path="/v1/chat/completions",
        stream=False,
        model="gpt-bench",
        provider="bench",
        provider_wire=Wire.CHAT,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        exchange=Exchange(body, said=_SAID),
        finish=Finish.STOP,
        usage=Usage(250, 120),
        tokens=None,
        times=Times(datetime.now(UTC), 0.01, 0.05),
        head=b"0123456789abcdef",
    )


class _Conversation:
    """A client's session: grows by a message with each request, begins anew at twice its first
    size.
    """

    def __init__(self, first_bytes: int) -> None:
        self._first_bytes = first_bytes
        self._begin()

    def _begin(self) -> None:
        self._session = new_session_id()
        self._messages = os.urandom(self._first_bytes // 2).hex().encode()

    def next(self) -> Turn:
        if len(self._messages) > 2 * self._first_bytes:
            self._begin()
        self._messages += b',{"role":"user","content":"' + os.urandom(50).hex().encode() + b'"}'
        return _turn(
            self._session,
            b'{"model":"gpt-bench","messages":[' + self._messages + b'],"stream":false}',
        )


async def _client(
    ledger: SqlLedger, body_bytes: int, until: float, latencies_ms: list[float]
) -> None:
    conversation = _Conversation(body_bytes)
    while time.perf_counter() < until:
        turn = conversation.next()
        began = time.perf_counter()
        if not await ledger.record(turn):
            raise SystemExit(f"not recorded: {ledger.health}")
        latencies_ms.append((time.perf_counter() - began) * 1000)


def _making_cost_us(body_bytes: int) -> float:
    """Processor time of making the turns themselves, which is not the ledger's."""
    conversation = _Conversation(body_bytes)
    count = 2000 if body_bytes < 10_000 else 300
    began = time.process_time()
    for _ in range(count):
        conversation.next()
    return (time.process_time() - began) / count * 1e6


async def _measure(url: str, body_bytes: int, clients: int, seconds: float) -> str:
    database = open_database(url)
    ledger = SqlLedger(database)
    await ledger.start()
    warm_up: list[float] = []
    await asyncio.gather(
        *(_client(ledger, body_bytes, time.perf_counter() + 0.3, warm_up) for _ in range(clients))
    )
    latencies: list[float] = []
    began, cpu_began = time.perf_counter(), time.process_time()
    await asyncio.gather(
        *(_client(ledger, body_bytes, began + seconds, latencies) for _ in range(clients))
    )
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    await ledger.aclose()
    database.close()
    latencies.sort()
    cpu_us = cpu / len(latencies) * 1e6 - _making_cost_us(body_bytes)
    p99 = latencies[int(len(latencies) * 0.99)]
    return (
        f"{body_bytes // 1000:>5} kB {clients:>8} {len(latencies) / elapsed:>10,.0f}"
        f" {cpu_us:>12.1f} {statistics.median(latencies):>9.3f} {p99:>9.3f} {latencies[-1]:>9.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="where the SQLite file is made (default: a temporary folder)",
    )
    parser.add_argument("--url", default=None, help="another database, such as postgresql://…")
    options = parser.parse_args()
    print(
        f"{'body':>8} {'clients':>8} {'turns/s':>10} {'CPU µs/turn':>12} {'p50 ms':>9}"
        f" {'p99 ms':>9} {'max ms':>9}"
    )
    for body_bytes in (1_000, 200_000):
        for clients in (1, 8, 64):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                url = options.url or f"sqlite:///{folder}/ledger.db"
                print(uvloop.run(_measure(url, body_bytes, clients, options.seconds)), flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
