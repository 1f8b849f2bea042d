"""The slow loop as a program of its own that somebody kills: real store, journal, gate and
versions; the toy backend trains.
"""

import asyncio
import random
import signal
from collections import Counter
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from metaclaw.domain.ids import TurnId
from metaclaw.domain.policy import PolicyState
from metaclaw.store import BatchState, TrainingBatch
from metaclaw.training.training_turns import TurnCount
from tests.training.stage import Stage

BATCH = 6


@dataclass(frozen=True)
class Story:
    """What became of a program that was killed so often: what it had to learn from, and what is on
    record.
    """

    kills: int
    eligible: frozenset[TurnId]
    taught: Counter[TurnId]
    waiting: int
    states: Counter[BatchState]
    versions_by_batch: Counter[int]
    left_over: frozenset[str]
    """Files of weights that are no version's: checkpoints that were not chosen."""


def make_stage(folder: Path) -> Stage:
    """The installation in a folder, as it is."""
    return Stage(folder, {"batch_turns": BATCH, "batch_most": BATCH})


async def work(folder: Path, life_s: float) -> None:
    """What the program does from its start to the last batch."""
    stage = make_stage(folder)
    await stage.versions.restore()
    signal.setitimer(signal.ITIMER_PROF, life_s)
    while (
        stage.batches.open_batch_now()
        or stage.turns.has_enough(TurnCount(BATCH, BATCH))
        or stage.slow.candidate()
    ):
        await stage.slow.once(TurnCount(BATCH, BATCH))


def killed_story(folder: Path, turns: int, span_s: float, chance: random.Random) -> Story:
    """Start the program again and again, each time to be killed after a random time, until it comes
    to its end before. It is given a little longer each time, so that it does."""
    folder.mkdir()
    stage = make_stage(folder)
    everything = stage.talk(turns)
    eligible = frozenset(turn for turn in everything if not stage.turns.is_held_out(turn))
    kills = 0
    while _is_killed(folder, chance.uniform(0.0, span_s * (1.0 + kills / 10))):
        kills += 1
    again = make_stage(folder)
    asyncio.run(again.versions.restore())
    return _told(again, kills, eligible)


def _is_killed(folder: Path, life_s: float) -> bool:
    # Forked from a process that has imported everything: most of a start is imports.
    forked = get_context("forkserver")
    forked.set_forkserver_preload([__name__])
    program = forked.Process(target=_run, args=(folder, life_s))
    program.start()
    program.join(600)
    assert program.exitcode in (0, -signal.SIGPROF)
    return program.exitcode != 0


def _run(folder: Path, life_s: float) -> None:
    asyncio.run(work(folder, life_s))


def _told(stage: Stage, kills: int, eligible: frozenset[TurnId]) -> Story:
    batches: list[TrainingBatch] = []
    while (batch := stage.batches.batch(len(batches) + 1)) is not None:
        batches.append(batch)
    found = stage.policies.versions()
    given_up = {
        version.batch
        for version in found
        if version.state in (PolicyState.REJECTED, PolicyState.ROLLED_BACK)
    }
    done = [
        batch
        for batch in batches
        if batch.state is BatchState.DONE and batch.number not in given_up
    ]
    versions = [version.batch for version in found if version.batch is not None]
    return Story(
        kills=kills,
        eligible=eligible,
        taught=Counter(turn for batch in done for turn in batch.turns),
        waiting=stage.turns.waiting(len(eligible)).turns,
        states=Counter(batch.state for batch in batches),
        versions_by_batch=Counter(versions),
        left_over=frozenset(map(str, (stage.folder / "policies").glob("*.pickle")))
        - {version.weights.adapter for version in stage.policies.versions()},
    )
