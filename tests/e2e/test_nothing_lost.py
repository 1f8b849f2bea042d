"""kill -9 at random moments: every answer a client saw completed is in the ledger, exactly once."""

import gc
import random
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import TurnEnd
from metaclaw.store import LedgerReader, open_database
from tests.support.depth import tries
from tests.support.ports import free_port
from tests.support.program import Program, providers_toml
from tests.support.provider import Provider

ROUNDS = tries(6, nightly=50)
ENDS = {
    "/v1/chat/completions": b"data: [DONE]\n\n",
    "/v1/responses": b"response.completed",
    "/v1/messages": b"message_stop",
}
MODELS = {
    "/v1/chat/completions": "echo",
    "/v1/responses": "chatonly/echo",
    "/v1/messages": "claude-model",
}


@dataclass
class Load:
    """Clients that ask without pause and note which answers they saw completed."""

    seed: int
    url: str = ""
    auth: dict[str, str] = field(default_factory=dict)
    completed: dict[str, bytes] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, number: int) -> None:
        dice = random.Random(self.seed * 100 + number)
        while not self.stopping.is_set():
            with self._lock:
                self.asked += 1
                word = f"word-{self.seed}-{number}-{self.asked}"
            try:
                self._ask(dice.choice(list(ENDS)), dice.random() < 0.6, word)
            except (httpx.HTTPError, OSError):
                self.stopping.wait(0.01)

    def _ask(self, path: str, streamed: bool, word: str) -> None:
        body: dict[str, object] = {"model": MODELS[path], "max_tokens": 20, "stream": streamed}
        body |= (
            {"input": word}
            if path == "/v1/responses"
            else {"messages": [{"role": "user", "content": word}]}
        )
        with httpx.stream(
            "POST", self.url + path, json=body, headers=self.auth, timeout=60
        ) as answer:
            content = answer.read()
        if answer.status_code == 200 and (not streamed or ENDS[path] in content):
            turn = answer.headers["x-metaclaw-turn"]
            with self._lock:
                self.completed[turn] = content
                self.words[turn] = word

    def run(self, program: Program, for_s: float, clients: int = 4) -> None:
        """Load the program from several clients and kill it without warning while they are at
        it.
        """
        self.url, self.auth = program.url, program.auth
        self.stopping.clear()
        threads = [
            threading.Thread(target=self.client, args=(number,)) for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        time.sleep(for_s)
        program.kill()
        self.stopping.set()
        for thread in threads:
            thread.join(60)
        _collect_sockets()


def _collect_sockets() -> None:
    """A client whose server dies while it connects may leave its socket to the garbage collector:
    here, not in a later test.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def assert_all_there_once(program: Program, load: Load) -> None:
    database = open_database(f"sqlite:///{program.home / 'ledger.db'}")
    reader = LedgerReader(database)
    ids = [
        row.id
        for session in reader.sessions(1_000_000)
        for row in reader.turns_of(session.id, 1_000_000)
    ]
    recorded = {turn: found.turn for turn in ids if (found := reader.turn(turn)) is not None}
    database.close()
    assert len(ids) == len(set(ids))
    kept = Counter(turn.exchange.request for turn in recorded.values())
    assert load.completed
    for turn_id, content in load.completed.items():
        turn = recorded.get(TurnId(turn_id))
        assert turn is not None, f"{turn_id} was seen completed and is not in the ledger"
        assert turn.end is TurnEnd.COMPLETED
        assert turn.exchange.shown == content
        assert kept[turn.exchange.request] == 1, (
            f"{load.words[turn_id]} is there {kept[turn.exchange.request]} times"
        )


@pytest.mark.slow
def test_after_many_kills_nothing_a_client_saw_completed_is_missing_or_there_twice(
    provider: Provider, tmp_path: Path
) -> None:
    dice = random.Random(20261115)
    program = Program(tmp_path / "home", providers_toml(provider.url))
    load = Load(seed=1)
    for _ in range(ROUNDS):
        program.start()
        load.run(program, for_s=dice.uniform(0.02, 0.6))
    program.start()
    assert program.stop() == 0
    assert len(load.completed) > ROUNDS
    assert_all_there_once(program, load)


def wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on {port}")


@pytest.mark.slow
def test_a_provider_killed_mid_stream_leaves_no_answer_that_looks_whole_and_loses_none(
    tmp_path: Path,
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "tests.support.provider", str(port), "0.01"]
    dice = random.Random(7)
    program = Program(tmp_path / "home", providers_toml(f"http://127.0.0.1:{port}")).start()
    load = Load(seed=2, url=program.url, auth=program.auth)
    threads = [threading.Thread(target=load.client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(tries(3, nightly=12)):
        victim = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until_listening(port)
        time.sleep(dice.uniform(0.3, 0.8))
        victim.kill()
        victim.wait()
    load.stopping.set()
    for thread in threads:
        thread.join(60)
    assert program.stop() == 0
    assert_all_there_once(program, load)
