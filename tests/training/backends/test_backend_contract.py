"""What every training backend promises: the same cases for each of them."""

import math

import pytest

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Drawing, Loss, LossKind
from metaclaw.errors import TrainingError
from tests.support.contract import (
    ADAM,
    DRAWING,
    PLAIN,
    PROMPTS,
    Stage,
    datum,
    draw_one,
    pair,
    step,
    total,
)

pytestmark = [pytest.mark.anyio]


async def test_a_new_run_has_no_steps(stage: Stage) -> None:
    progress = await stage.backend.open(stage.plan())
    assert (progress.steps, progress.pieces) == (0, 0)


async def test_each_prompt_gets_its_rollouts_with_finite_logprobs(stage: Stage) -> None:
    await stage.backend.open(stage.plan())
    drawn = await stage.backend.sample(PROMPTS, DRAWING)
    assert [len(group) for group in drawn] == [DRAWING.count, DRAWING.count]
    for rollout in (rollout for group in drawn for rollout in group):
        assert 1 <= len(rollout.tokens_T) <= DRAWING.max_tokens
        assert rollout.is_whole or len(rollout.tokens_T) == DRAWING.max_tokens
        assert all(math.isfinite(logprob) and logprob < 0.0 for logprob in rollout.logprobs_T)
    assert len({rollout.tokens_T for group in drawn for rollout in group}) > 1


async def test_the_same_seed_draws_the_same_rollouts_and_another_draws_others(stage: Stage) -> None:
    await stage.backend.open(stage.plan())
    first = await stage.backend.sample(PROMPTS, DRAWING)
    again = await stage.backend.sample(PROMPTS, DRAWING)
    other = await stage.backend.sample(PROMPTS, Drawing(DRAWING.count, DRAWING.max_tokens, seed=8))
    assert [[each.tokens_T for each in group] for group in first] == [
        [each.tokens_T for each in group] for group in again
    ]
    assert [[each.tokens_T for each in group] for group in first] != [
        [each.tokens_T for each in group] for group in other
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_scores_are_what_sampling_said_at_any_temperature(
    stage: Stage, temperature: float
) -> None:
    await stage.backend.open(stage.plan())
    drawn = await stage.backend.sample(
        PROMPTS, Drawing(DRAWING.count, DRAWING.max_tokens, temperature)
    )
    rollout = drawn[0][0]
    [scores] = await stage.backend.score([pair(rollout)])
    assert scores == pytest.approx(rollout.logprobs_T, abs=stage.tolerance)


@pytest.mark.parametrize("kind", list(LossKind))
@pytest.mark.parametrize("advantage", [1.0, -1.0])
async def test_a_step_moves_an_answer_where_its_advantage_points(
    stage: Stage, kind: LossKind, advantage: float
) -> None:
    await stage.backend.open(stage.plan())
    rollout = await draw_one(stage.backend)
    before = await total(stage.backend, rollout)
    await step(stage.backend, [datum(rollout, advantage)], Loss(kind))
    after = await total(stage.backend, rollout)
    assert (after - before) * advantage > 0.01


async def test_steps_are_counted_and_pieces_may_be_cut_anyhow(stage: Stage) -> None:
    await stage.backend.open(stage.plan("whole"))
    group = (await stage.backend.sample(PROMPTS, DRAWING))[0]
    data = [datum(group[0], 1.0), datum(group[1], -0.5)]
    await stage.backend.accumulate(data, PLAIN)
    assert (await stage.backend.apply(ADAM, 12.0)).step == 1
    whole = await total(stage.backend, group[0])
    await stage.backend.close(discard=True)
    await stage.backend.open(stage.plan("cut"))
    for each in data:
        await stage.backend.accumulate([each], PLAIN)
    assert (await stage.backend.apply(ADAM, 12.0)).step == 1
    assert await total(stage.backend, group[0]) == pytest.approx(whole, abs=stage.tolerance)


async def test_the_gradient_is_divided_by_the_normaliser(stage: Stage) -> None:
    norms = []
    for name, normaliser in (("once", 6.0), ("twice", 12.0)):
        await stage.backend.open(stage.plan(name))
        rollout = await draw_one(stage.backend)
        await stage.backend.accumulate([datum(rollout, 1.0)], PLAIN)
        norms.append((await stage.backend.apply(ADAM, normaliser)).grad_norm)
        await stage.backend.close(discard=True)
    once, twice = norms
    assert once is not None
    assert twice is not None
    assert once == pytest.approx(2 * twice, rel=1e-3)


async def test_kept_weights_stay_what_they_were_while_training_goes_on(stage: Stage) -> None:
    await stage.backend.open(stage.plan())
    rollout = await draw_one(stage.backend)
    await step(stage.backend, [datum(rollout, 1.0)])
    kept = await stage.backend.keep("one")
    then = await total(stage.backend, rollout)
    await step(stage.backend, [datum(rollout, 1.0)])
    now = await total(stage.backend, rollout)
    assert now > then
    assert await total(stage.backend, rollout, kept) == pytest.approx(then, abs=stage.tolerance)
    # Asking kept weights leaves the run's own alone, before and after its next step.
    assert await total(stage.backend, rollout) == pytest.approx(now, abs=stage.tolerance)
    await step(stage.backend, [datum(rollout, 1.0)])
    assert await total(stage.backend, rollout) > now
    assert await total(stage.backend, rollout, kept) == pytest.approx(then, abs=stage.tolerance)


async def test_the_untrained_model_stays_untrained(stage: Stage) -> None:
    await stage.backend.open(stage.plan())
    rollout = await draw_one(stage.backend)
    base = await stage.backend.score_base([pair(rollout)])
    drawn = await stage.backend.sample_base(PROMPTS, DRAWING)
    await step(stage.backend, [datum(rollout, 1.0)])
    again = await stage.backend.score_base([pair(rollout)])
    assert again[0] == pytest.approx(base[0], abs=stage.tolerance)
    assert [
        [each.tokens_T for each in group]
        for group in await stage.backend.sample_base(PROMPTS, DRAWING)
    ] == [[each.tokens_T for each in group] for group in drawn]


async def test_a_run_goes_on_after_its_process_has_ended(stage: Stage) -> None:
    plan = stage.plan()
    await stage.backend.open(plan)
    rollout = await draw_one(stage.backend)
    for _ in range(2):
        await step(stage.backend, [datum(rollout, 1.0)])
    then = await total(stage.backend, rollout)
    await stage.backend.close(discard=False)
    other = await stage.again()
    assert (await other.open(plan)).steps == 2
    assert await total(other, rollout) == pytest.approx(then, abs=stage.tolerance)
    await step(other, [datum(rollout, 1.0)])
    assert await total(other, rollout) > then


async def test_kept_weights_serve_after_the_process_has_ended_and_begin_the_next_run(
    stage: Stage,
) -> None:
    await stage.backend.open(stage.plan())
    rollout = await draw_one(stage.backend)
    await step(stage.backend, [datum(rollout, 1.0)])
    kept = await stage.backend.keep("one")
    then = await total(stage.backend, rollout)
    await stage.backend.close(discard=True)
    other = await stage.again()
    drawn = await other.sample(PROMPTS, DRAWING, kept)
    assert len(drawn[0]) == DRAWING.count
    assert await total(other, rollout, kept) == pytest.approx(then, abs=stage.tolerance)
    assert (await other.open(stage.plan("next", kept))).steps == 0
    assert await total(other, rollout) == pytest.approx(then, abs=stage.tolerance)


async def test_a_run_that_was_discarded_begins_anew(stage: Stage) -> None:
    plan = stage.plan()
    await stage.backend.open(plan)
    rollout = await draw_one(stage.backend)
    await step(stage.backend, [datum(rollout, 1.0)])
    await stage.backend.close(discard=True)
    assert (await stage.backend.open(plan)).steps == 0
    assert await total(stage.backend, rollout) == pytest.approx(
        sum(rollout.logprobs_T), abs=10 * stage.tolerance
    )


async def test_without_an_open_run_nothing_is_trained_or_drawn(stage: Stage) -> None:
    with pytest.raises(TrainingError):
        await stage.backend.sample(PROMPTS, DRAWING)
    with pytest.raises(TrainingError):
        await stage.backend.apply(ADAM, 1.0)
    with pytest.raises(TrainingError):
        await stage.backend.keep("nothing")


async def test_what_cannot_be_taught_is_refused(stage: Stage) -> None:
    await stage.backend.open(stage.plan())
    rollout = await draw_one(stage.backend)
    unscored = datum(rollout, 1.0)
    bare = type(unscored)(
        unscored.turn, unscored.prompt, unscored.tokens_T, unscored.advantages_T, None
    )
    with pytest.raises(TrainingError):
        await stage.backend.accumulate([bare], PLAIN)
    with pytest.raises(TrainingError):
        await stage.backend.accumulate([], PLAIN)


async def test_weights_that_are_not_there_or_not_ours_are_refused(stage: Stage) -> None:
    foreign = Weights("somebody else", "somewhere", "somewhere")
    with pytest.raises(TrainingError):
        await stage.backend.sample(PROMPTS, DRAWING, foreign)
    with pytest.raises(TrainingError):
        await stage.backend.open(stage.plan(start=foreign))
    missing = Weights(stage.backend.name, "nowhere", "nowhere")
    with pytest.raises(TrainingError):
        await stage.backend.sample(PROMPTS, DRAWING, missing)
    with pytest.raises(TrainingError):
        await stage.backend.open(stage.plan(start=missing))
