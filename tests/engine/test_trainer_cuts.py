"""A run that is killed with `kill -9` at any moment goes on where it was: nothing is lost, and
nothing is taught twice.

The processes are real and are forked from one that has loaded torch already, so that a hundred of
them are soon started."""

import multiprocessing
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest
import torch

from metaclaw.engine.training.lora import Adapter, read_adapter
from tests.engine.cutting import drive, drive_noting
from tests.engine.tiny import make_tiny_model
from tests.support.depth import tries

STEPS, PIECES = 3, 3
_PATIENCE_S = 300
"""The limit of a wait. It is for a hang: on a busy machine the first process alone, which imports
torch, takes a minute.
"""


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


def _begin(forks: ForkServerContext, model: Path, root: Path) -> ForkServerProcess:
    (root / "asked").write_bytes(b"")
    process = forks.Process(target=drive_noting, args=(model, root, STEPS, PIECES))
    process.start()
    return process


def _kill(process: ForkServerProcess) -> bool:
    """Whether it was still at work."""
    process.kill()
    process.join(_PATIENCE_S)
    return process.exitcode == -signal.SIGKILL


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def _finish(forks: ForkServerContext, model: Path, root: Path) -> None:
    process = _begin(forks, model, root)
    process.join(_PATIENCE_S)
    assert process.exitcode == 0


def _is_same(one: Adapter, other: Adapter) -> bool:
    assert one.pairs.keys() == other.pairs.keys()
    return all(
        torch.allclose(mine, theirs, rtol=1e-6, atol=1e-8)
        for module in one.pairs
        for mine, theirs in zip(one.pairs[module], other.pairs[module], strict=True)
    )


def _has_come_to(calls: int, root: Path, process: ForkServerProcess) -> bool:
    return (root / "asked").stat().st_size >= calls or not process.is_alive()


def _cut_at_random(
    forks: ForkServerContext, model: Path, root: Path, cuts: int, chance: random.Random
) -> int:
    """Start it and kill it a moment after one of its next calls was begun, again and again; how
    often it was killed at work.
    """
    killed = 0
    for _ in range(cuts):
        calls, moment_s = chance.randint(1, 6), chance.uniform(0.0, 0.05)
        process = _begin(forks, model, root)
        _wait(partial(_has_come_to, calls, root, process))
        process.join(moment_s)
        killed += _kill(process)
    return killed


@pytest.mark.parametrize("seed", range(4))
def test_a_run_killed_at_random_moments_ends_as_if_nobody_had_disturbed_it(
    seed: int, forks: ForkServerContext, model: Path, whole: Adapter, tmp_path: Path
) -> None:
    assert _cut_at_random(forks, model, tmp_path, 2, random.Random(seed)) > 0
    _finish(forks, model, tmp_path)
    assert _is_same(read_adapter(tmp_path / "end"), whole)


@pytest.mark.parametrize("pattern", [".step-*.tmp", ".gradient-*.tmp", ".run.json.*.tmp"])
def test_a_run_killed_while_it_writes_ends_the_same(
    pattern: str, forks: ForkServerContext, model: Path, whole: Adapter, tmp_path: Path
) -> None:
    process = _begin(forks, model, tmp_path)
    _wait(lambda: any((tmp_path / "run").glob(pattern)) or not process.is_alive())
    _kill(process)
    _finish(forks, model, tmp_path)
    assert _is_same(read_adapter(tmp_path / "end"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 100 + tries(1, nightly=10)))
def test_many_kills_change_nothing(
    seed: int, forks: ForkServerContext, model: Path, whole: Adapter, tmp_path: Path
) -> None:
    killed, chance, runs = 0, random.Random(seed), 0
    while killed < 10:
        root = tmp_path / str(runs)
        root.mkdir()
        killed += _cut_at_random(forks, model, root, 4, chance)
        _finish(forks, model, root)
        assert _is_same(read_adapter(root / "end"), whole)
        runs += 1
