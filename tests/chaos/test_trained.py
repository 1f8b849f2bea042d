"""The engine that answers and the process that trains are killed or stopped while people ask.

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
from typing import Any, Final

import httpx
import pytest

from tests.chaos.test_chaos import _children, wanted_episodes
from tests.e2e.test_faults import OwnProcess
from tests.support.program import PATIENCE_S, Program
from tests.support.story import ANIMALS, NOBODY_WRITES, POLICY, ask, prepare
from tests.support.tiny import make_speaking_model

_MANY_STEPS: Final = POLICY.replace("steps = 16", "steps = 10000")
_STOPPED_S: Final = 2.0


@dataclass
class Trained:
    """A home whose model in miniature answers, and trains for as long as the test runs."""

    program: Program
    answered: dict[str, str] = field(default_factory=dict)
    """What was asked, by the turn that answered it."""

    def pids(self, module: str) -> list[int]:
        """The processes that run this module, at present."""
        assert self.program.process is not None
        found = []
        for pid in _children(self.program.process.pid):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if module in words:
                    found.append(pid)
        return found

    def signal(self, module: str, number: int) -> None:
        """To each of them; there must be one."""
        deadline = time.monotonic() + PATIENCE_S
        while not (pids := self.pids(module)):
            assert time.monotonic() < deadline, f"{module} does not run"
            time.sleep(0.1)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def step(self) -> int:
        """The steps of the run that are done."""
        return int(self.program.get("/api/status")["training"]["step"] or 0)

    def talk(self, seed: str, stopping: threading.Event) -> None:
        for count in range(1_000):
            if stopping.wait(0.3):
                return
            with suppress(httpx.HTTPError):
                self.ask(f"w{seed}x{count}w", 10)

    def ask(self, word: str, timeout_s: float) -> int:
        body = {
            "model": "any",
            "messages": [{"role": "user", "content": f"Look at {word}"}],
            "max_tokens": 4,
        }
        url = f"{self.program.url}/v1/chat/completions"
        answer = httpx.post(url, json=body, headers=self.program.auth, timeout=timeout_s)
        if answer.status_code == 200:
            self.answered[answer.headers["x-metaclaw-turn"]] = word
        return answer.status_code

    def settle(self, step_before: int) -> None:
        """Both go on where they were; nothing that was answered is lost."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(httpx.HTTPError):
                if self.ask("afterwards", 20) == 200:
                    break
            assert time.monotonic() < deadline, "requests are not answered again"
            time.sleep(0.2)
        status: Any = self.program.wait_for(
            "/api/status",
            lambda found: (
                found["engine"]["state"] == "ready"
                and (found["training"]["step"] or 0) > step_before
            ),
            within_s=3 * PATIENCE_S,
        )
        assert not status["degraded"]
        for turn, word in self.answered.items():
            assert word in str(self.program.get(f"/api/turns/{turn}")["request"])
        self.answered.clear()


Fault = Callable[[Trained, float], None]


def _killed(module: str) -> Fault:
    def fault(trained: Trained, for_s: float) -> None:
        trained.signal(module, signal.SIGKILL)
        time.sleep(for_s)

    fault.__name__ = f"{module} killed"
    return fault


def _stopped(module: str) -> Fault:
    def fault(trained: Trained, for_s: float) -> None:
        trained.signal(module, signal.SIGSTOP)
        time.sleep(_STOPPED_S + for_s)
        trained.signal(module, signal.SIGCONT)

    fault.__name__ = f"{module} stopped"
    return fault


_MODULES: Final = ("metaclaw.engine", "metaclaw.engine.training")
FAULTS: Final[tuple[Fault, ...]] = (*map(_killed, _MODULES), *map(_stopped, _MODULES))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("trained")
    model = make_speaking_model(folder / "miniature")
    config = f'[policy]\n{_MANY_STEPS}\nbase_model = "{model}"\n[engine]\nthreads = 1\n'
    # Started by the program itself, not forked for the tests: its own children can be found.
    program = prepare(OwnProcess(folder / "home", config + NOBODY_WRITES)).start()
    for animal in ANIMALS:
        ask(program, animal, 1)
    made = Trained(program)
    program.wait_for(
        "/api/status", lambda found: found["training"]["step"], within_s=4 * PATIENCE_S
    )
    yield made
    program.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", wanted_episodes(range(len(FAULTS))))
def test_answers_and_training_go_on_whichever_process_fails(trained: Trained, number: int) -> None:
    dice = random.Random(f"episode {number}")
    fault = FAULTS[number % len(FAULTS)]
    before_s, for_s = dice.uniform(0.3, 1.5), dice.uniform(0.2, 2)
    print(f"episode {number}: {fault.__name__} after {before_s:.2f} s for {for_s:.2f} s")  # noqa: T201
    step_before = trained.step()
    stopping = threading.Event()
    talking = threading.Thread(target=trained.talk, args=(str(number), stopping))
    talking.start()
    try:
        time.sleep(before_s)
        fault(trained, for_s)
        time.sleep(0.5)
    finally:
        stopping.set()
        talking.join(PATIENCE_S)
    trained.settle(step_before)
