"""One run of the trainer on the toy backend: how it learns, what it keeps, and where it ends."""

from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.domain.policy import PolicyVersion, Weights
from metaclaw.domain.training import Adam, Datum, Drawing, Loss, LossKind, PieceStats, Rollout
from metaclaw.store import BatchState
from metaclaw.training.progress import Phase
from metaclaw.training.training_turns import TurnCount
from tests.training.stage import CutError, Stage

pytestmark = pytest.mark.anyio


class Seen:
    """What a stage's backend was asked for."""

    def __init__(self, stage: Stage) -> None:
        self.rates: list[float] = []
        self.drawings: list[Drawing] = []
        self.losses: list[LossKind] = []
        self.phases: set[str] = set()
        backend = stage.backend._backend
        apply, sample, accumulate = backend.apply, backend.sample, backend.accumulate

        async def applied(adam: Adam, normaliser: float) -> object:
            self.rates.append(adam.learning_rate)
            assert stage.slow.status.tally is not None
            self.phases.add(stage.slow.status.tally.phase)
            return await apply(adam, normaliser)

        async def sampled(
            prompts: list[list[int]], drawing: Drawing, weights: Weights | None = None
        ) -> list[list[Rollout]]:
            self.drawings.append(drawing)
            return await sample(prompts, drawing, weights)

        async def accumulated(data: list[Datum], loss: Loss) -> PieceStats:
            self.losses.append(loss.kind)
            return await accumulate(data, loss)

        backend.apply, backend.sample, backend.accumulate = applied, sampled, accumulated  # type: ignore[method-assign,assignment]


async def trained(stage: Stage) -> PolicyVersion:
    stage.talk(40)
    await stage.slow.once(TurnCount(8))
    (version,) = stage.policies.versions()
    return version


async def test_the_rate_rises_and_falls_what_was_is_rehearsed_and_only_the_chosen_weights_are_left(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    seen = Seen(stage)
    version = await trained(stage)
    peak = stage.recipe.adam.learning_rate
    # A step in which all answers of each prompt earn the same does not move, and so has no rate
    # here; which ones do is chance.
    wanted = [0.5 * peak, *[peak] * 7, 0.55 * peak, 0.1 * peak]
    assert seen.rates == pytest.approx(
        sorted(seen.rates[:2]) + sorted(seen.rates[2:], reverse=True)
    )
    assert all(any(rate == pytest.approx(one) for one in wanted) for rate in seen.rates)
    assert max(seen.rates) == pytest.approx(peak)
    assert min(seen.rates[2:]) < peak
    assert seen.phases == {Phase.LEARN.value, Phase.SETTLE.value}
    assert set(seen.losses) == {LossKind.PPO, LossKind.CROSS_ENTROPY}
    # Weights were kept on the way, and one of them, measured greedily, was taken.
    assert any(drawing.temperature == 0.0 for drawing in seen.drawings)
    assert [path.name for path in (tmp_path / "policies").iterdir() if path.is_file()] == [
        Path(version.weights.adapter).name
    ]
    assert list((tmp_path / "policies" / "runs").iterdir()) == []


async def test_without_rehearsal_only_what_was_drawn_teaches(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"rehearsal": 0.0})
    seen = Seen(stage)
    await trained(stage)
    assert set(seen.losses) == {LossKind.PPO}


async def test_no_answer_is_longer_than_the_client_allowed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_tokens=4)
    seen = Seen(stage)
    await trained(stage)
    drawn = [drawing for drawing in seen.drawings if drawing.count == stage.recipe.group_size]
    assert {drawing.max_tokens for drawing in drawn} == {4}


def forget_from(stage: Stage, piece: int) -> None:
    """From this rehearsed piece on the backend tells that everything was forgotten."""
    backend = stage.backend._backend
    accumulate, calls = backend.accumulate, 0

    async def accumulated(data: list[Datum], loss: Loss) -> PieceStats:
        nonlocal calls
        stats = await accumulate(data, loss)
        if loss.kind is not LossKind.CROSS_ENTROPY:
            return stats
        calls += 1
        return replace(stats, loss=data[0].advantages_T[0] * (100.0 if calls >= piece else 4.85))

    backend.accumulate = accumulated  # type: ignore[method-assign,assignment]


async def test_a_run_that_drifts_ends_with_its_last_good_checkpoint(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"steps": 30})
    forget_from(stage, 12)
    seen = Seen(stage)
    version = await trained(stage)
    assert 8 <= len(seen.rates) < 16
    assert await stage.share_with_stars(version.weights) > await stage.share_with_stars(None)


async def test_a_run_that_drifts_before_anything_was_kept_is_dropped_and_its_turns_train_again(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    stage.talk(40)
    waiting = stage.turns.waiting(8)
    accumulate = stage.backend._backend.accumulate
    forget_from(stage, 5)
    assert await stage.slow.once(TurnCount(8))
    batch = stage.batches.batch(1)
    assert batch is not None
    assert batch.state is BatchState.DROPPED
    assert "forgotten went from" in batch.note
    assert not stage.policies.versions()
    assert not list((tmp_path / "policies" / "runs").glob("*"))
    again = stage.turns.waiting(8)
    assert again.turns == waiting.turns == 8
    stage.backend._backend.accumulate = accumulate  # type: ignore[method-assign]
    assert await stage.slow.once(TurnCount(8))
    second = stage.batches.batch(2)
    assert second is not None
    assert set(second.turns) == set(batch.turns)
    assert [version.batch for version in stage.policies.versions()] == [2]


async def test_small_steps_end_with_the_validation_prompts_and_that_checkpoint_is_not_measured_again(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, {"steps": 40}, {"validate_every": 2})
    seen = Seen(stage)
    version = await trained(stage)
    looks = [drawing for drawing in seen.drawings if drawing.temperature == 0.0]
    assert version.steps < 40 - stage.recipe.settle_steps
    assert seen.phases == {Phase.LEARN.value}
    assert looks, "the validation prompts were answered"
    assert await stage.share_with_stars(version.weights) > 0.8


async def test_a_run_that_goes_on_still_says_what_its_validation_prompts_earned(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, {"steps": 40}, {"validate_every": 2})
    stage.talk(40)

    async def cut_after_a_look(label: str) -> Weights:
        assert stage.slow.status.tally is not None
        if not looks and stage.slow.status.tally.validated is None:
            return await keep(label)
        looks.append(stage.slow.status.tally.validated)
        raise CutError

    looks: list[float | None] = []
    for _ in range(2):
        keep = stage.backend._backend.keep
        stage.backend._backend.keep = cut_after_a_look  # type: ignore[method-assign]
        with pytest.raises(CutError):
            await stage.slow.once(TurnCount(8))
        stage.build()
    before, after = looks
    assert after == before
