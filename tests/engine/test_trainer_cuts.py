"""A run that is killed with `kill -9` at any moment goes on where it was: nothing is lost, and nothing is taught twice.

The processes are real and are forked from one that has loaded torch already, so that a hundred of them are soon started.
"""

import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest
import torch

from metaclaw.engine.training.lora import Adapter
from metaclaw.engine.training.peft import read_adapter
from tests.engine.cutting import drive, drive_quietly
from tests.engine.tiny import make_tiny_model

STEPS, PIECES = 3, 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    """What the run comes to if nobody disturbs it."""
    root = tmp_path_factory.mktemp("whole")
    drive(model, root, STEPS, PIECES)
    return read_adapter(root / "end")


@pytest.fixture(scope="module")
def forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.engine.cutting"])
    return context


@pytest.fixture(scope="module")
def pace_s(forks: ForkServerContext, model: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long a process takes for the whole run, once the first of them has loaded everything."""
    _finish(forks, model, tmp_path_factory.mktemp("first"))
    started = time.monotonic()
    _finish(forks, model, tmp_path_factory.mktemp("pace"))
    return time.monotonic() - started


def _begin(forks: ForkServerContext, model: Path, root: Path) -> ForkServerProcess:
    going = root / "going"
    going.unlink(missing_ok=True)
    process = forks.Process(target=drive_quietly, args=(model, root, STEPS, PIECES))
    process.start()
    _wait(lambda: going.exists() or not process.is_alive())
    return process


def _kill(process: ForkServerProcess) -> bool:
    """Whether it was still at work."""
    process.kill()
    process.join(30)
    return process.exitcode == -signal.SIGKILL


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def _finish(forks: ForkServerContext, model: Path, root: Path) -> None:
    process = _begin(forks, model, root)
    process.join(60)
    assert process.exitcode == 0


def _same(one: Adapter, other: Adapter) -> bool:
    assert one.pairs.keys() == other.pairs.keys()
    return all(
        torch.allclose(mine, theirs, rtol=1e-6, atol=1e-8)
        for module in one.pairs
        for mine, theirs in zip(one.pairs[module], other.pairs[module], strict=True)
    )


def _cut_at_random(forks: ForkServerContext, model: Path, root: Path, waits_s: Iterable[float]) -> int:
    """Start it, kill it after each of these times, and at last let it finish; how often it was killed at work."""
    killed = 0
    for wait_s in waits_s:
        process = _begin(forks, model, root)
        process.join(wait_s)
        killed += _kill(process)
    _finish(forks, model, root)
    print("KILLED", killed); return killed


@pytest.mark.parametrize("seed", range(4))
def test_a_run_killed_at_random_moments_ends_as_if_nobody_had_disturbed_it(
    seed: int, forks: ForkServerContext, model: Path, whole: Adapter, pace_s: float, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    assert _cut_at_random(forks, model, tmp_path, [chance.uniform(0.0, 0.8 * pace_s) for _ in range(2)]) > 0
    assert _same(read_adapter(tmp_path / "end"), whole)


@pytest.mark.parametrize("pattern", ["step-*.tmp", "gradient-*.tmp", "run.tmp"])
def test_a_run_killed_while_it_writes_ends_the_same(
    pattern: str, forks: ForkServerContext, model: Path, whole: Adapter, tmp_path: Path
) -> None:
    process = _begin(forks, model, tmp_path)
    _wait(lambda: any((tmp_path / "run").glob(pattern)) or not process.is_alive())
    _kill(process)
    _finish(forks, model, tmp_path)
    assert _same(read_adapter(tmp_path / "end"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_hundred_kills_change_nothing(
    seed: int, forks: ForkServerContext, model: Path, whole: Adapter, pace_s: float, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    assert _cut_at_random(forks, model, tmp_path, [chance.uniform(0.0, 0.4 * pace_s) for _ in range(10)]) > 3
    assert _same(read_adapter(tmp_path / "end"), whole)
