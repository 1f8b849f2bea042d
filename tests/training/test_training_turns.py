"""Which turns a run takes, which it takes again, and that none is spent in vain."""

from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import PolicyState, Weights
from metaclaw.errors import MissingPackageError
from metaclaw.store import BatchState
from metaclaw.training.journal import DriftError
from metaclaw.training.training_turns import TurnCount
from tests.training.stage import STARS, Stage

pytestmark = pytest.mark.anyio


def fail(stage: Stage, error: Exception) -> None:
    def refuse() -> None:
        raise error

    stage.backend.before = refuse


async def test_a_run_takes_all_turns_that_may_train(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"batch_most": 100})
    stage.talk(40)
    waiting = stage.turns.waiting(100)
    assert waiting.turns == waiting.new > 8
    assert await stage.slow.once(TurnCount(8))
    assert len(stage.batches.turns_of(1)) == waiting.turns
    assert stage.turns.waiting(100).turns == 0


async def test_the_next_run_draws_prompts_of_earlier_ones_again_but_at_most_as_many_as_new_ones(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, {"batch_most": 100})
    stage.talk(60)
    assert await stage.slow.once(TurnCount(8))
    first = set(stage.batches.turns_of(1))
    assert stage.policies.versions()[0].state is PolicyState.SERVING
    stage.talk(20)
    new = stage.turns.waiting(100).turns
    assert stage.turns.open_batch(TurnCount(8), 100, 1) == 2
    second = set(stage.batches.turns_of(2))
    assert len(second - first) == new
    assert len(second & first) == new < len(first)
    assert not any(stage.turns.is_held_out(turn) for turn in second)


async def test_a_run_that_came_to_nothing_gives_its_turns_back_and_is_not_repeated_by_itself(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    stage.talk(20)
    waiting = stage.turns.waiting(8)
    fail(stage, DriftError("it drifted"))
    assert await stage.slow.once(stage.slow.least)
    batch = stage.batches.batch(1)
    assert batch is not None
    assert batch.state is BatchState.DROPPED
    again = stage.turns.waiting(8)
    assert (again.turns, again.new) == (waiting.turns, 0)
    stage.backend.before = lambda: None
    assert await stage.slow.once(TurnCount(1))  # a person asked for it
    assert set(stage.batches.turns_of(2)) == set(stage.batches.turns_of(1))
    assert stage.policies.versions()


async def test_given_back_turns_train_again_with_a_few_new_ones(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"batch_most": 100})
    stage.talk(20)
    least = stage.slow.least
    fail(stage, DriftError("it drifted"))
    assert await stage.slow.once(least)
    assert not stage.turns.has_enough(least)
    while stage.turns.waiting(100).new < 2:
        stage.talk(1)
    assert stage.turns.has_enough(least)


async def test_turns_of_a_rejected_version_may_train_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.talk(20)
    found = stage.turns.waiting(8)
    number = stage.turns.open_batch(TurnCount(8), 8, 1)
    stage.policies.publish(Weights("toy", "nowhere"), parent=0, base="toy", batch=number)
    assert stage.turns.waiting(8).turns < found.turns
    stage.policies.reject(1)
    assert stage.turns.waiting(8).turns == found.turns


async def test_turns_that_nothing_can_score_are_neither_drawn_nor_spent(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"batch_most": 100})
    plain = replace(STARS, name=SkillName("plain"), check=None)
    stage.library.publish([plain], (), "a skill without a check")
    unscorable, scorable = (
        [turn for turn in stage.talk(count, skill=skill) if not stage.turns.is_held_out(turn)]
        for count, skill in ((8, plain), (32, STARS))
    )
    assert stage.turns.unscorable() == len(unscorable) > 0
    assert await stage.slow.once(TurnCount(8))
    assert set(stage.batches.turns_of(1)) == set(scorable)
    assert all(stage.reader.role_of(turn) is None for turn in unscorable)


async def test_a_missing_package_spends_no_turn_and_says_what_to_install(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.talk(40)
    fail(stage, MissingPackageError("no transformers: pip install 'metaclaw-proxy[transformers]'"))
    for _ in range(8):
        assert await stage.slow.once(TurnCount(8))
    batch = stage.batches.open_batch_now()
    assert batch is not None
    assert (batch.number, batch.state) == (1, BatchState.OPEN)
    assert "pip install 'metaclaw-proxy[transformers]'" in str(stage.slow.status.trouble)
    stage.backend.before = lambda: None
    assert await stage.slow.once(TurnCount(8))
    assert str(stage.slow.status.trouble) == "None"
    assert [version.batch for version in stage.policies.versions()] == [1]
