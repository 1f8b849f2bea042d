"""The training_pause: counted holds, and real processes that stand still while one is left."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.engine.trainer import TrainingPause
from tests.support.pause import holding

_SPIN = """
import threading
def spin():
    while True: sum(range(1000))
threading.Thread(target=spin, daemon=True).start()
print("spinning", flush=True)
spin()
"""


class _Witness:
    """A member that knows whether it goes."""

    def __init__(self) -> None:
        self.goes = True
        self.stops = 0

    def stop(self) -> None:
        self.goes = False
        self.stops += 1

    def go(self) -> None:
        self.goes = True


class _Group:
    """A member that stops a group of processes, as the trainer does."""

    def __init__(self, leader: int) -> None:
        self._leader = leader

    def stop(self) -> None:
        os.killpg(self._leader, signal.SIGSTOP)

    def go(self) -> None:
        os.killpg(self._leader, signal.SIGCONT)


@pytest.fixture
def spinner() -> Iterator[int]:
    """A process with two busy threads, leader of its own group."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SPIN], stdout=subprocess.PIPE, process_group=0
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def _used_s(pid: int) -> float:
    """Processor time all threads of a process have had, to the nanosecond."""
    return time.clock_gettime(~pid << 3 | 2)


needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="reads the processor time of another process"
)


@given(st.lists(st.sampled_from([*"abcABC", "attach", "detach"]), max_size=40))
def test_walkers_stand_still_exactly_while_somebody_holds(actions: list[str]) -> None:
    training_pause = TrainingPause()
    held: list[str] = []
    members = [_Witness()]
    training_pause.attach(members[0])
    for action in actions:
        match action:
            case "attach":
                members.append(_Witness())
                training_pause.attach(members[-1])
            case "detach":
                if members:
                    training_pause.detach(members.pop())
            case reason if reason.islower():
                training_pause.hold(reason)
                held.append(reason)
            case reason if reason.lower() in held:
                training_pause.release(reason.lower())
                held.remove(reason.lower())
        assert training_pause.is_still == bool(held)
        assert set(training_pause.reasons) == set(held)
        assert all(member.goes != bool(held) for member in members)


def test_a_release_that_nobody_held_for_is_an_error_and_changes_nothing() -> None:
    training_pause = TrainingPause()
    training_pause.hold("answer")
    with pytest.raises(ValueError, match="window shut"):
        training_pause.release("window shut")
    assert training_pause.is_still


def test_a_block_that_fails_releases_what_it_held() -> None:
    training_pause = TrainingPause()
    with contextlib.suppress(RuntimeError):
        with holding(training_pause, "answer"):
            assert training_pause.reasons == ("answer",)
            raise RuntimeError("the answer failed")
    assert not training_pause.is_still


@pytest.mark.anyio
async def test_a_burst_of_answers_is_one_stop_and_walkers_go_on_after_it_has_settled() -> None:
    training_pause, member = TrainingPause(settle_s=0.02), _Witness()
    training_pause.attach(member)
    for _ in range(5):
        with holding(training_pause, "answer"):
            await anyio.lowlevel.checkpoint()
    assert training_pause.is_still
    assert member.stops == 1
    with anyio.fail_after(60):
        while not member.goes:
            await anyio.sleep(0.005)
    assert not training_pause.is_still


def test_without_an_event_loop_nobody_settles() -> None:
    training_pause = TrainingPause(settle_s=10.0)
    training_pause.hold("window shut")
    training_pause.release("window shut")
    assert not training_pause.is_still


@needs_linux
def test_a_held_group_has_less_than_a_millisecond_of_processor_time_left(spinner: int) -> None:
    training_pause = TrainingPause()
    training_pause.attach(_Group(spinner))
    overruns = []
    for _ in range(20):
        training_pause.hold("answer")
        before = _used_s(spinner)
        time.sleep(0.03)
        overruns.append(_used_s(spinner) - before)
        training_pause.release("answer")
        _until_it_works(spinner)
    assert statistics.median(overruns) < 0.001
    assert max(overruns) < 0.01


def _until_it_works(pid: int) -> None:
    before, deadline = _used_s(pid), time.perf_counter() + 10
    while _used_s(pid) < before + 0.002:
        assert time.perf_counter() < deadline
        time.sleep(0.002)


@needs_linux
def test_a_group_that_comes_while_training_is_paused_is_stopped_at_once(spinner: int) -> None:
    training_pause = TrainingPause()
    training_pause.hold("window shut")
    training_pause.attach(_Group(spinner))
    before = _used_s(spinner)
    time.sleep(0.03)
    assert _used_s(spinner) - before < 0.01


def test_holding_costs_a_request_next_to_nothing(spinner: int) -> None:
    training_pause = TrainingPause()
    training_pause.attach(_Group(spinner))
    times = []
    for _ in range(300):
        started = time.perf_counter()
        training_pause.hold("answer")
        times.append(time.perf_counter() - started)
        training_pause.release("answer")
    assert statistics.median(times) < 50e-6
