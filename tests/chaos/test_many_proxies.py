"""Two proxies on one PostgreSQL while one of them, or the database, fails.

Each episode is drawn from a number, as in `test_chaos`; `METACLAW_CHAOS=0-49` runs fifty."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest

from tests.chaos.test_chaos import wanted_episodes
from tests.support.network import Network
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.program import PATIENCE_S, Program
from tests.support.teacher import Teacher

_CONFIG: Final = """
[[providers]]
name = "world"
kind = "openai"
base_url = "{provider}/v1"
api_key = "sk-world"
wires = ["chat"]

[learning]
daily_tokens = 100_000_000

[store]
url = "{store}"
"""


@dataclass
class Pair:
    """Two proxies, their store, and what people said to them and got an answer to."""

    server: PostgresServer
    programs: list[Program]
    networks: list[Network]
    """Between each program and the server."""
    answered: list[str] = field(default_factory=list)

    def leader(self) -> Program:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            leading = [one for one in self.programs if one.get("/api/status")["leads"]]
            if len(leading) == 1:
                return leading[0]
            assert time.monotonic() < deadline, f"{len(leading)} lead"
            time.sleep(0.1)

    def talk(self, program: Program, seed: str, stopping: threading.Event) -> None:
        """Lay down a rule now and then, until told to stop."""
        for count in range(1_000):
            if stopping.wait(0.4):
                return
            word = f"w{seed}x{count}w"
            text = f"From now on, always end with {word}."
            body = {"model": "worker", "messages": [{"role": "user", "content": text}]}
            url = f"{program.url}/v1/chat/completions"
            with suppress(httpx.HTTPError):
                answer = httpx.post(url, json=body, headers=program.auth, timeout=10)
                if answer.status_code == 200:
                    self.answered.append(word)

    def settle(self) -> None:
        """Both have what was said, each of it once, and nothing that nobody said; then it is
        withdrawn.
        """
        for program in self.programs:
            program.wait_for("/api/status", lambda found: not found["degraded"])
        self.leader()
        for program in self.programs:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                texts = [rule["text"] for rule in program.get("/api/rules")["rules"]]
                found = {word: sum(word in text for text in texts) for word in self.answered}
                if set(found.values()) <= {1} or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            assert set(found.values()) <= {1}, f"{program.home.name}: {found}"
        self.answered.clear()
        first = self.programs[0]
        for rule in first.get("/api/rules")["rules"]:
            httpx.delete(
                f"{first.url}/api/rules/{rule['name']}", headers=first.auth, timeout=PATIENCE_S
            ).raise_for_status()


Fault = Callable[[Pair, float], None]


def leader_killed(pair: Pair, for_s: float) -> None:
    leader = pair.leader()
    leader.kill()
    time.sleep(for_s)
    leader.start()


def leader_stopped(pair: Pair, for_s: float) -> None:
    """For long enough that another one leads when it goes on."""
    leader = pair.leader()
    assert leader.process is not None
    os.kill(leader.process.pid, signal.SIGSTOP)
    time.sleep(4 + for_s)
    os.kill(leader.process.pid, signal.SIGCONT)


def database_gone(pair: Pair, for_s: float) -> None:
    pair.server.stop_in_order()
    time.sleep(for_s)
    pair.server.start()


def leader_cut_off(pair: Pair, for_s: float) -> None:
    """From the database alone, for long enough that another one leads when it is heard again."""
    network = pair.networks[pair.programs.index(pair.leader())]
    network.cut()
    time.sleep(4 + for_s)
    network.heal()


def all_cut_off(pair: Pair, for_s: float) -> None:
    for network in pair.networks:
        network.cut()
    time.sleep(for_s)
    for network in pair.networks:
        network.heal()


FAULTS: Final[tuple[Fault, ...]] = (
    leader_killed,
    leader_stopped,
    database_gone,
    leader_cut_off,
    all_cut_off,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("pair")
    teacher = Teacher(listed=("worker",))
    teacher.start()
    with running_postgres() as server:
        name = urlsplit(server.prepared_database()).path
        networks = [Network(server.socket) for _ in "ab"]
        urls = [f"postgresql://metaclaw@127.0.0.1:{network.port}{name}" for network in networks]
        programs = [
            Program(folder / name, _CONFIG.format(provider=teacher.url, store=url)).start()
            for name, url in zip("ab", urls, strict=True)
        ]
        yield Pair(server, programs, networks)
        for program, network in zip(programs, networks, strict=True):
            program.kill()
            network.close()
    teacher.stop()


@pytest.mark.slow
@pytest.mark.parametrize("number", wanted_episodes(range(len(FAULTS))))
def test_what_was_said_is_learned_once_whatever_fails(pair: Pair, number: int) -> None:
    dice = random.Random(f"episode {number}")
    fault = FAULTS[number % len(FAULTS)]
    before_s, for_s = dice.uniform(0.3, 1.5), dice.uniform(0.5, 5)
    print(f"episode {number}: {fault.__name__} after {before_s:.2f} s for {for_s:.2f} s")  # noqa: T201
    stopping = threading.Event()
    talking = [
        threading.Thread(target=pair.talk, args=(program, f"{number}p{place}", stopping))
        for place, program in enumerate(pair.programs)
    ]
    for thread in talking:
        thread.start()
    try:
        time.sleep(before_s)
        fault(pair, for_s)
        time.sleep(0.5)
    finally:
        stopping.set()
        for thread in talking:
            thread.join(PATIENCE_S)
    pair.settle()
