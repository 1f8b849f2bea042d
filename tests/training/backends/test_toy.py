"""The toy: its gradients are exact, its reward rises, and it goes on in the middle of a step."""

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Adam, Datum, Drawing, Loss, LossKind
from metaclaw.ports import RunPlan
from tests.support.softmax import END, SIZE, Row, Softmax, decode, encode
from tests.support.toy_backend import ToyBackend

PROMPT = encode("Say a number: ")


def surrogate(policy: Softmax, datum: Datum, loss: Loss) -> float:
    """The loss by its formula, as a number."""
    value = 0.0
    assert datum.logprobs_T is not None
    now_T = policy.score(datum.prompt, datum.tokens_T)
    for now, then, advantage in zip(now_T, datum.logprobs_T, datum.advantages_T, strict=True):
        ratio = math.exp(now - then)
        kept = min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
        value -= {
            LossKind.PPO: min(ratio * advantage, kept * advantage),
            LossKind.CROSS_ENTROPY: advantage * now,
        }[loss.kind]
    return value


@pytest.mark.parametrize("kind", LossKind)
@given(st.floats(-2, 2), st.floats(-0.3, 0.3), st.integers(32, 126))
@settings(max_examples=30, deadline=None)
def test_gradients_are_those_of_the_formula(
    kind: LossKind, advantage: float, shift: float, token: int
) -> None:
    bias: Row = 0.01 * (np.arange(SIZE, dtype=np.float64) % 7)
    policy = Softmax(weights={-1: bias})
    drawn = (token, END)
    then = tuple(min(logprob + shift, 0.0) for logprob in policy.score(PROMPT, drawn))
    datum = Datum(TurnId("turn"), PROMPT, drawn, (advantage, -advantage), then)
    # Clip far away from the ratios at hand: at the edge itself there is no gradient to compare
    # with.
    loss = Loss(kind, clip_low=0.5, clip_high=0.5)
    policy.learn([datum], loss)
    step = 1e-5
    for probe in (token, END, 0):
        high, low = copy.deepcopy(policy), copy.deepcopy(policy)
        high.weights[-1][probe] += step
        low.weights[-1][probe] -= step
        slope = (surrogate(high, datum, loss) - surrogate(low, datum, loss)) / (2 * step)
        assert policy.gradient[-1][probe] == pytest.approx(slope, abs=1e-5)


def test_a_clipped_token_pushes_nothing() -> None:
    policy = Softmax()
    now = policy.score(PROMPT, (50,))[0]
    datum = Datum(TurnId("turn"), PROMPT, (50,), (1.0,), (now - 1.0,))
    policy.learn([datum], Loss(LossKind.PPO))
    assert not any(policy.gradient[-1])


async def train(backend: ToyBackend, reward: Callable[[str], float], steps: int) -> list[float]:
    means = []
    for number in range(steps):
        [group] = await backend.sample([PROMPT], Drawing(count=16, max_tokens=8, seed=number))
        rewards = [reward(rollout.text) for rollout in group]
        mean = sum(rewards) / len(rewards)
        means.append(mean)
        data = [
            Datum(
                TurnId("turn"),
                PROMPT,
                rollout.tokens_T,
                (got - mean,) * len(rollout.tokens_T),
                rollout.logprobs_T,
            )
            for rollout, got in zip(group, rewards, strict=True)
        ]
        await backend.accumulate(data, Loss(LossKind.PPO))
        await backend.apply(
            Adam(learning_rate=0.2), float(sum(len(each.tokens_T) for each in data))
        )
    return means


@pytest.mark.anyio
async def test_its_reward_really_rises(tmp_path: Path) -> None:
    backend = ToyBackend(tmp_path)
    await backend.open(RunPlan("run", None, 4, 0, tmp_path / "run"))
    means = await train(backend, lambda text: sum(letter.isdigit() for letter in text) / 8, 25)
    assert sum(means[:3]) / 3 < 0.2
    assert sum(means[-3:]) / 3 > 0.6


@pytest.mark.anyio
async def test_a_run_goes_on_in_the_middle_of_a_step(tmp_path: Path) -> None:
    plan = RunPlan("run", None, 4, 0, tmp_path / "run")
    data = [Datum(TurnId("turn"), PROMPT, (49, END), (1.0, 1.0), (-4.0, -4.0))]
    whole, cut = ToyBackend(tmp_path), ToyBackend(tmp_path)
    await whole.open(RunPlan("run", None, 4, 0, tmp_path / "whole"))
    for backend in (whole, whole):
        await backend.accumulate(data, Loss())
    await whole.apply(Adam(), 4.0)
    await cut.open(plan)
    await cut.accumulate(data, Loss())
    after = ToyBackend(tmp_path)
    progress = await after.open(plan)
    assert (progress.steps, progress.pieces) == (0, 1)
    await after.accumulate(data, Loss())
    await after.apply(Adam(), 4.0)
    pairs = [(PROMPT, (49, END))]
    assert await after.score(pairs) == await whole.score(pairs)


def test_text_and_tokens_are_each_others_view() -> None:
    assert decode((*encode("17 apples"), END)) == "17 apples"
    assert decode(encode("naïve")) == "na?ve"
