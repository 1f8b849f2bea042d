"""`python -m benchmarks.proxy.instructions`: processor instructions per request, counted by valgrind.

Load on the machine hardly changes these numbers. Each program runs under `valgrind
--tool=callgrind`, which makes it about fifty times slower, with the configuration of the proxy
benchmark. So that its background loops have the same share as without, their pauses are made fifty
times longer.

- `chat`: 2 kB, the next message of a person in a known session;
- `long-new`: the first request of a 200 kB conversation with tools;
- `long-known`: the same conversation with one more result of a tool;
- `stream`: 1 kB, 64 clients at once, answers of 64 tokens in a burst, each a new session."""

import argparse
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import bodies
from .procfs import cpu_s
from .suites import BY_NAME, Bench
from .targets import CHAT, KEY, Launch, Recipe, Target, ours, running_provider
from .toolchain import MissingToolError, build

_STARTER = """
import asyncio, sys
sleep, asyncio.sleep = asyncio.sleep, lambda delay, *rest: sleep(50 * delay, *rest)
from metaclaw.cli import main
sys.exit(main())
"""
_TOOL = "--tool=callgrind --instr-atstart=no --separate-threads=yes"
_STREAMS = 64
_IDLE_LIMIT_S, _QUIET_S, _IDLE_CPU_S = 300.0, 4, 0.1


@dataclass(frozen=True, slots=True)
class Count:
    """Instructions per request of one case."""

    program: str
    case: str
    loop: float
    """Of the thread that runs the event loop."""
    every: float
    """Of all threads, with the one that writes the ledger."""


def _under_valgrind(checkout: Path, skills: int, retrieval: str, out: Path) -> Recipe:
    """The recipe of the proxy benchmark, run from the source tree of a checkout."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise MissingToolError("valgrind is not installed (Debian: apt install valgrind)")
    recipe = ours(skills, Path(sys.executable))

    def counted(home: Path, port: int, provider_port: int) -> Launch:
        launch = recipe(home, port, provider_port)
        python = [sys.executable, "-c", _STARTER, *launch.command[1:]]
        env = {"METACLAW__SKILLS__RETRIEVAL": retrieval} if retrieval else {}
        env |= {**launch.env, "PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0"}
        return Launch([valgrind, *_TOOL.split(), f"--callgrind-out-file={out}", *python], env)

    return counted


class _Counter:
    """Counts the instructions of a program under valgrind."""

    def __init__(self, pid: int, out: Path) -> None:
        self._pid = pid
        self._out = out
        self._dumps = 0

    @contextlib.contextmanager
    def counting(self) -> Iterator[list[int]]:
        """Count what is executed inside; the list then holds the number of each thread."""
        found: list[int] = []
        self._control("-i", "on")
        self._control("-z")
        yield found
        self._control("-d")
        self._control("-i", "off")
        self._dumps += 1
        files = self._out.parent.glob(f"{self._out.name}.{self._dumps}-*")
        found += [_total(file) for file in sorted(files)]

    def _control(self, *wish: str) -> None:
        command = ["callgrind_control", *wish, str(self._pid)]
        subprocess.run(command, check=True, capture_output=True)


def _total(file: Path) -> int:
    lines = file.read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("totals:"))


class _Connection:
    """One kept connection to a program: requests with whole answers, one after another."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._reader = self._socket.makefile("rb")

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def ask(self, body: bytes) -> None:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        status = self._reader.readline()
        if b" 200 " not in status:
            raise ValueError(f"the program answered {status!r}")
        length = 0
        while line := self._reader.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        self._reader.read(length)


def _wait_until_idle(target: Target) -> None:
    """Wait until a program has done what it does after its start, such as embedding its library."""
    quiet, give_up = 0, time.monotonic() + _IDLE_LIMIT_S
    while quiet < _QUIET_S and time.monotonic() < give_up:
        before = cpu_s(target.pid)
        time.sleep(1)
        quiet = quiet + 1 if cpu_s(target.pid) - before < _IDLE_CPU_S else 0


def _numbered(body: bytes, number: int) -> dict[str, list[object]]:
    text = body.decode().replace(bodies.CONVERSATION, f"{number:08d}")
    found: dict[str, list[object]] = json.loads(text.replace(bodies.TURN, f"{number:08d}"))
    return found


def _longer(body: bytes, number: int, *more: object) -> bytes:
    """The body of a conversation of this number, with more messages at its end."""
    fields = _numbered(body, number)
    fields["messages"] = [*fields["messages"], *more]
    return json.dumps(fields, separators=(",", ":")).encode()


def _chat(number: int, *, is_known: bool) -> bytes:
    more = (
        {"role": "assistant", "content": "The migration is split. " + "It fills old rows. " * 40},
        {"role": "user", "content": f"Turn {number}: now name the revision after the ticket."},
    )
    return _longer(bodies.chat(), number, *(more if is_known else ()))


def _long(number: int, *, is_known: bool) -> bytes:
    call = {"name": "run", "arguments": json.dumps({"command": "pytest -q tests"})}
    call_id = f"call_last_{number}"
    more = (
        {
            "role": "assistant",
            "content": "I run the tests.",
            "tool_calls": [{"id": call_id, "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": f"{number} passed in 3.1s"},
    )
    return _longer(bodies.long_chat(), number, *(more if is_known else ()))


def _counts(
    name: str, target: Target, bench: Bench, counter: _Counter, requests: int
) -> Iterator[Count]:
    def ask(sent: Iterable[bytes]) -> None:
        with contextlib.closing(_Connection(target.port)) as connection:
            for body in sent:
                connection.ask(body)

    def asked(case: str, sent: Sequence[bytes]) -> Count:
        with counter.counting() as found:
            ask(sent)
        return Count(name, case, found[0] / len(sent), sum(found) / len(sent))

    _wait_until_idle(target)
    few = max(1, requests // 4)
    warm, numbers, long_numbers = range(1, 41), range(100, 100 + requests), range(100, 100 + few)
    ask(_chat(number, is_known=False) for number in (*warm, *numbers))
    ask(_chat(number, is_known=True) for number in warm)
    _wait_until_idle(target)
    yield asked("chat", [_chat(number, is_known=True) for number in numbers])
    ask(_long(number, is_known=is_known) for number in range(1, 9) for is_known in (False, True))
    yield asked("long-new", [_long(number, is_known=False) for number in long_numbers])
    yield asked("long-known", [_long(number, is_known=True) for number in long_numbers])
    streams = replace(BY_NAME["burst-8"], concurrency=_STREAMS)
    bench.load(target, streams, seconds=600, requests=_STREAMS)
    with counter.counting() as found:
        bench.load(target, streams, seconds=600, requests=requests)
    yield Count(name, "stream", found[0] / requests, sum(found) / requests)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy.instructions")
    parser.add_argument(
        "checkouts", type=Path, nargs="*", default=[Path.cwd()], help="source trees [this one]"
    )
    parser.add_argument("--requests", type=int, default=100, help="requests of a case [100]")
    parser.add_argument("--skills", type=int, default=1000, help="size of the library [1000]")
    parser.add_argument("--retrieval", default="", help="words, auto or hybrid")
    parser.add_argument("--keep", type=Path, help="keep callgrind's files in this folder")
    given = parser.parse_args()
    programs = build()
    with tempfile.TemporaryDirectory(prefix="instructions-") as folder:
        work = Path(folder)
        (work / "bodies").mkdir()
        bench = Bench(programs, bodies.write_all(work / "bodies"))
        with running_provider(programs["provider"]) as (_, provider_port):
            for at, checkout in enumerate(given.checkouts):
                kept = given.keep or work
                kept.mkdir(parents=True, exist_ok=True)
                out = kept / f"callgrind.{at}"
                recipe = _under_valgrind(checkout.resolve(), given.skills, given.retrieval, out)
                target = Target(f"program-{at}", recipe, work, provider_port)
                try:
                    target.start(bodies.chat())
                    counter = _Counter(target.pid, out)
                    for count in _counts(str(checkout), target, bench, counter, given.requests):
                        line = f"{count.case:12} {count.loop:14,.0f} {count.every:14,.0f}  {count.program}"
                        print(line, flush=True)
                finally:
                    target.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
