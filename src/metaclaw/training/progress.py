"""How long a run goes on, and how fast it learns. Pure: functions of its records.

The rate rises in a straight line, stays, and falls to a tenth in the last steps (to settle). A run
stops learning when it has learned enough, when it no longer improves, when nothing is left to learn
from, or when it has made most of its steps; then it settles. How well it goes is the mean over keys
of a moving average, since prompts that go badly are drawn more often.

Steps of few answers say little about that: there the likeliest answers to the validation prompts
are looked at every few steps, once the rewards make it worth while. A run whose validation prompts
go well enough has learned and need not settle."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from metaclaw.training.recipe import Recipe
from metaclaw.training.records import StepRecord

_MEMORY: Final = 0.8
_BETTER: Final = 0.005
"""An average must rise by more than this to count as better."""
_LEARNED: Final = 0.02
_WORTH_KEEPING: Final = 0.01
_LOWEST: Final = 0.1
_LEAST_CAP: Final = 16
_ENOUGH: Final = 0.97
_ENOUGH_STEPS: Final = 5
_PATIENCE: Final = 25
"""So many steps may pass without a better average; twice as many before anything was learned."""
_IDLE: Final = 20
"""So many steps may pass without any gradient."""
_KEEP_EVERY: Final = 4
_WORTH_VALIDATING: Final = 0.7
_VALIDATIONS: Final = 3
"""So many looks at the validation prompts may pass without a better one."""
_SPAN: Final = 20
"""Steps whose lengths are looked at for the cap."""


class Phase(StrEnum):
    """What a run does next."""

    LEARN = "learning"
    SETTLE = "settling"
    CHOOSE = "choosing a checkpoint"


@dataclass(frozen=True, slots=True)
class Next:
    """The next step's phase and its rate as a share of the highest; once learning is over, why it
    is.
    """

    phase: Phase
    rate: float = 1.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LearningEnd:
    """After how many steps learning ended, and why; whether the run settles then, whether it
    drifted, and whether the validation prompts went well enough."""

    step: int
    reason: str
    settles: bool = True
    has_drifted: bool = False
    is_validated: bool = False


def next_step(records: Sequence[StepRecord], recipe: Recipe) -> Next:
    """What comes after these steps."""
    end = learning_end(records, recipe)
    if end is None:
        return Next(Phase.LEARN, min(1.0, (len(records) + 1) / max(1, recipe.warm_up)))
    settled = len(records) - end.step
    if (
        not end.settles
        or settled >= recipe.settle_steps
        or any(record.drift for record in records[end.step :])
    ):
        return Next(Phase.CHOOSE, reason=end.reason)
    return Next(
        Phase.SETTLE, 1.0 - (1.0 - _LOWEST) * (settled + 1) / recipe.settle_steps, end.reason
    )


def learning_end(records: Sequence[StepRecord], recipe: Recipe) -> LearningEnd | None:
    """Where learning ended; None while it goes on."""
    averages = progress(records)
    best, best_at = 0.0, 0
    for step, record in enumerate(records):
        if averages[step] > best + _BETTER:
            best, best_at = averages[step], step
        done = step + 1
        if record.drift:
            return LearningEnd(done, f"stopped: {record.drift}", settles=False, has_drifted=True)
        if done >= _IDLE and not any(one.moved for one in records[done - _IDLE : done]):
            reason = (
                f"all answers to each prompt earned the same in {_IDLE} steps, so there is"
                " nothing to learn from"
            )
            return LearningEnd(done, reason, settles=False)
        if done >= _ENOUGH_STEPS and _is_enough(records[done - _ENOUGH_STEPS : done], recipe):
            return LearningEnd(
                done,
                f"learned: the mean reward was {_ENOUGH:g} or more over {_ENOUGH_STEPS} steps",
            )
        if (validated := _validation_end(records[:done], recipe, step - best_at)) is not None:
            return validated
        has_learned = best > averages[0] + _LEARNED
        if step - best_at >= _PATIENCE * (1 if has_learned else 2):
            return LearningEnd(done, f"no better for {step - best_at} steps")
        if done >= recipe.steps - recipe.settle_steps:
            return LearningEnd(done, f"made the most steps, {recipe.steps}")
    return None


def is_validation_due(records: Sequence[StepRecord], recipe: Recipe) -> bool:
    """Whether the validation prompts are to be answered before the next step."""
    done, every = len(records), recipe.validate_every
    if (
        not every
        or not done
        or done % every
        or records[-1].validated is not None
        or learning_end(records, recipe) is not None
    ):
        return False
    rewards = [record.reward for record in records[-every:] if record.reward is not None]
    return bool(rewards) and sum(rewards) / len(rewards) >= _WORTH_VALIDATING


def _validation_end(
    records: Sequence[StepRecord], recipe: Recipe, steps_without_gain: int
) -> LearningEnd | None:
    """The end of learning by the last step's look at the validation prompts. These are few, so a
    run goes on while the rewards of its steps still rise."""
    if not records or records[-1].validated is None:
        return None
    looks = [record.validated for record in records if record.validated is not None]
    if looks[-1] >= _ENOUGH:
        reason = f"learned: the likeliest answers to the validation prompts earn {looks[-1]:.2f}"
        return LearningEnd(len(records), reason, settles=False, is_validated=True)
    is_no_better = (
        len(looks) > _VALIDATIONS
        and max(looks[-_VALIDATIONS:]) <= max(looks[:-_VALIDATIONS]) + _BETTER
    )
    if is_no_better and steps_without_gain >= _VALIDATIONS * recipe.validate_every:
        return LearningEnd(
            len(records), f"no better on the validation prompts in {_VALIDATIONS} looks"
        )
    return None


def progress(records: Sequence[StepRecord]) -> list[float]:
    """After each step, how well the run goes: the mean over keys of a moving average of their
    rewards.
    """
    return [sum(wells.values()) / len(wells) if wells else 0.0 for wells in _averages(records)]


def key_rewards(records: Sequence[StepRecord]) -> dict[str, float]:
    """A moving average of the reward of each key."""
    wells: dict[str, float] = {}
    for one in _averages(records):
        wells = one
    return wells


def _averages(records: Sequence[StepRecord]) -> Iterator[dict[str, float]]:
    """After each step, the moving averages of the keys."""
    wells: dict[str, float] = {}
    for record in records:
        told: dict[str, list[float]] = {}
        for group in record.groups:
            if group.mean is not None:
                told.setdefault(group.key, []).append(group.mean)
        for key, means in told.items():
            mean = sum(means) / len(means)
            wells[key] = mean if key not in wells else _MEMORY * wells[key] + (1.0 - _MEMORY) * mean
        yield dict(wells)


def checkpoint_steps(records: Sequence[StepRecord], recipe: Recipe) -> list[int]:
    """After how many steps weights are kept: the best point while learning, its end, and every few
    steps of settling.
    """
    end = learning_end(records, recipe)
    if end is None or end.has_drifted:
        return _best(records if end is None else records[: end.step], recipe)
    if not any(record.moved for record in records):
        return []
    learned = end.step
    if end.is_validated:
        return [learned]
    settled = [one for one in range(learned, len(records) + 1) if _is_kept(one - learned, recipe)]
    return [*(one for one in _best(records[:learned], recipe) if one != learned), *settled]


def token_cap(records: Sequence[StepRecord], most: int, shown: int = 0) -> int:
    """How many tokens answers may have: twice as many as nearly all that earned much had, once that
    is known; before, somewhat more than the longest right answer that was shown, where there is one
    of so many tokens."""
    lengths = sorted(length for record in records[-_SPAN:] for length in record.earned)
    if len(lengths) < 16:
        return min(most, max(_LEAST_CAP, 3 * shown // 2 + 2)) if shown else most
    return min(most, max(_LEAST_CAP, 2 * lengths[min(len(lengths) - 1, int(0.95 * len(lengths)))]))


def _is_enough(records: Sequence[StepRecord], recipe: Recipe) -> bool:
    rewards = [record.reward for record in records if record.reward is not None]
    return len(rewards) == len(records) and sum(rewards) / len(rewards) >= _ENOUGH


def _is_kept(settled: int, recipe: Recipe) -> bool:
    return settled % recipe.settle_every == 0 or settled == recipe.settle_steps


def _best(records: Sequence[StepRecord], recipe: Recipe) -> list[int]:
    """The last of the points, some steps apart, at which the run went better than at those before;
    none at first.
    """
    averages = progress(records)
    best, at = averages[0] if averages else 0.0, 0
    for done in range(2 * _KEEP_EVERY, len(records) + 1, 2 * _KEEP_EVERY):
        if averages[done - 1] > best + _WORTH_KEEPING and not records[done - 1].drift:
            best, at = averages[done - 1], done
    return [at] if at else []
