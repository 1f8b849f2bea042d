"""The processes of the embedded model and of the trainer fail while people ask and weights are
trained.

Each episode is drawn from a number, as in `test_chaos`; `METACLAW_CHAOS=0-49` runs fifty."""

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.chaos.test_chaos import _children, wanted_episodes
from tests.e2e.test_faults import OwnProcess
from tests.support.program import PATIENCE_S, Program
from tests.support.story import ANIMALS, NOBODY_WRITES, POLICY, ask, prepare, question
from tests.support.tiny import make_speaking_model

ENGINE: Final = "metaclaw.engine"
TRAINER: Final = "metaclaw.engine.training"


@dataclass
class Asking:
    """Clients that ask without pause until they are stopped, and the turns that were answered."""

    program: Program
    seeds: Iterator[int]
    answered: dict[str, str] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for _ in range(2):
            self._threads.append(threading.Thread(target=self._ask))
            self._threads[-1].start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(4 * PATIENCE_S)
            assert not thread.is_alive(), "a client got no answer and no error"

    def _ask(self) -> None:
        while not self._stopping.wait(0.05):
            self.ask_once()

    def ask_once(self) -> None:
        seed = next(self.seeds)
        animal = ANIMALS[seed % len(ANIMALS)]
        # An answer that is not a 200 is an assertion of `ask`, and is allowed here.
        with suppress(httpx.HTTPError, AssertionError):
            answer = ask(self.program, animal, seed)
            self.answered[answer.headers["x-metaclaw-turn"]] = question(animal)


def process_of(asking: Asking, module: str) -> int:
    """The process that runs this module. A trainer ends with its run, and begins the next when there
    are new turns and nobody has asked for a while."""
    process = asking.program.process
    assert process is not None
    for _ in range(8):
        deadline = time.monotonic() + PATIENCE_S / 2
        while time.monotonic() < deadline:
            for pid in _children(process.pid):
                with suppress(OSError):
                    if module in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                        return pid
            time.sleep(0.05)
        for _ in ANIMALS:
            asking.ask_once()
    raise TimeoutError(f"no process runs {module}: {asking.program.get('/api/status')['training']}")


Fault = Callable[[Asking, float], None]


def _killed(module: str) -> Fault:
    def fault(asking: Asking, for_s: float) -> None:
        os.kill(process_of(asking, module), signal.SIGKILL)

    fault.__name__ = f"{module} killed"
    return fault


def _stopped(module: str) -> Fault:
    def fault(asking: Asking, for_s: float) -> None:
        pid = process_of(asking, module)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(for_s)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    fault.__name__ = f"{module} stopped"
    return fault


FAULTS: Final = (_killed(TRAINER), _killed(ENGINE), _stopped(TRAINER), _stopped(ENGINE))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("training")
    model = make_speaking_model(folder / "miniature")
    longer = POLICY.replace("steps = 16", "steps = 60")
    policy = f'[policy]\nbase_model = "{model}"\n{longer}'
    config = f"{policy}\n{NOBODY_WRITES}\n[engine]\nthreads = 1\n"
    running = prepare(OwnProcess(folder / "home", config)).start()
    running.wait_for("/api/status", lambda status: status["engine"]["state"] == "ready")
    yield running
    running.kill()


@pytest.fixture(scope="module")
def seeds() -> Iterator[int]:
    return count(1)


def check_training(program: Program) -> None:
    """No batch has ended twice or taught two versions, at most one is open, and one version at most
    serves.
    """
    with closing(sqlite3.connect(program.home / "ledger.db")) as store:
        batches = dict(store.execute("SELECT seq, state FROM batches").fetchall())
        versions = store.execute("SELECT batch, state FROM policies WHERE batch > 0").fetchall()
    assert list(batches.values()).count("open") <= 1, batches
    taught = [batch for batch, _ in versions]
    assert len(set(taught)) == len(taught), versions
    assert {batches[batch] for batch in taught} <= {"done"}, (batches, versions)
    assert [state for _, state in versions].count("serving") <= 1, versions


@pytest.mark.slow
@pytest.mark.parametrize("number", wanted_episodes(range(len(FAULTS)))[:40])
def test_whichever_process_of_ours_fails_the_proxy_answers_and_trains_on(
    program: Program, seeds: Iterator[int], number: int
) -> None:
    dice = random.Random(f"episode {number}")
    fault = FAULTS[number % len(FAULTS)]
    before_s, for_s = dice.uniform(0, 2), dice.uniform(0.5, 5)
    print(f"episode {number}: {fault.__name__} after {before_s:.2f} s for {for_s:.2f} s")  # noqa: T201
    asking = Asking(program, seeds)
    for _ in range(2 * len(ANIMALS)):
        asking.ask_once()
    process_of(asking, TRAINER)
    asking.start()
    try:
        time.sleep(before_s)
        fault(asking, for_s)
        time.sleep(0.5)
    finally:
        asking.stop()
    program.wait_for(
        "/api/status",
        lambda status: (
            status["engine"]["state"] == "ready"
            and not status["degraded"]
            and {*status["loops"].values()} <= {"running", "done"}
        ),
    )
    ask(program, ANIMALS[0], next(seeds))
    process_of(asking, TRAINER)  # it goes on
    for turn, asked in asking.answered.items():
        found = program.get(f"/api/turns/{turn}")["request"]
        assert asked in str(found), f"{turn} is not what was asked"
    check_training(program)
