"""How long a run goes on, how fast it learns, and which size the learning budget pays for. Pure: a
function of its records.

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

import msgspec

from metaclaw.training.records import StepRecord

_MEMORY: Final = 0.8
_BETTER: Final = 0.005
"""An average must rise by more than this to count as better."""
_LEARNED: Final = 0.02
_WORTH_KEEPING: Final = 0.01
_LOWEST: Final = 0.1
_LEAST_CAP: Final = 16
_SPAN: Final = 20
"""Steps whose lengths are looked at for the cap."""


class Phase(StrEnum):
    """What a run does next."""

    LEARN = "learning"
    SETTLE = "settling"
    CHOOSE = "choosing a checkpoint"


@dataclass(frozen=True, slots=True)
class ScheduleThresholds:
    """At most `most` steps, `settle` of them with a falling rate. `enough` is a mean reward over
    `enough_steps`; `patience` is how many steps may pass without a better average (twice as many
    before anything was learned), and `idle` how many without any gradient. Validation prompts are
    looked at after every `validate_every` steps (0: never) whose mean reward is `worth_validating`;
    `validations` is how many looks may pass without a better one. Checkpoints are kept every
    `settle_every` steps of settling."""

    most: int = 200
    warm_up: int = 10
    enough: float = 0.97
    enough_steps: int = 5
    patience: int = 25
    idle: int = 20
    settle: int = 16
    keep_every: int = 4
    settle_every: int = 4
    validate_every: int = 0
    worth_validating: float = 0.7
    validations: int = 3

    @property
    def settle_steps(self) -> int:
        """Steps that settle: a quarter of a short run."""
        return min(self.settle, self.most // 4)


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


def next_step(records: Sequence[StepRecord], rules: ScheduleThresholds) -> Next:
    """What comes after these steps."""
    end = learning_end(records, rules)
    if end is None:
        return Next(Phase.LEARN, min(1.0, (len(records) + 1) / max(1, rules.warm_up)))
    settled = len(records) - end.step
    if (
        not end.settles
        or settled >= rules.settle_steps
        or any(record.drift for record in records[end.step :])
    ):
        return Next(Phase.CHOOSE, reason=end.reason)
    return Next(
        Phase.SETTLE, 1.0 - (1.0 - _LOWEST) * (settled + 1) / rules.settle_steps, end.reason
    )


def learning_end(records: Sequence[StepRecord], rules: ScheduleThresholds) -> LearningEnd | None:
    """Where learning ended; None while it goes on."""
    averages = progress(records)
    best, best_at = 0.0, 0
    for step, record in enumerate(records):
        if averages[step] > best + _BETTER:
            best, best_at = averages[step], step
        done = step + 1
        if record.drift:
            return LearningEnd(done, f"stopped: {record.drift}", settles=False, has_drifted=True)
        if done >= rules.idle and not any(one.moved for one in records[done - rules.idle : done]):
            reason = (
                f"all answers to each prompt earned the same in {rules.idle} steps, so there is"
                " nothing to learn from"
            )
            return LearningEnd(done, reason, settles=False)
        if done >= rules.enough_steps and _is_enough(
            records[done - rules.enough_steps : done], rules
        ):
            return LearningEnd(
                done,
                f"learned: the mean reward was {rules.enough:g} or more over {rules.enough_steps}"
                " steps",
            )
        if (validated := _validation_end(records[:done], rules, step - best_at)) is not None:
            return validated
        has_learned = best > averages[0] + _LEARNED
        if step - best_at >= rules.patience * (1 if has_learned else 2):
            return LearningEnd(done, f"no better for {step - best_at} steps")
        if done >= rules.most - rules.settle_steps:
            return LearningEnd(done, f"made the most steps, {rules.most}")
    return None


def is_validation_due(records: Sequence[StepRecord], rules: ScheduleThresholds) -> bool:
    """Whether the validation prompts are to be answered before the next step."""
    done, every = len(records), rules.validate_every
    if (
        not every
        or not done
        or done % every
        or records[-1].validated is not None
        or learning_end(records, rules) is not None
    ):
        return False
    rewards = [record.reward for record in records[-every:] if record.reward is not None]
    return bool(rewards) and sum(rewards) / len(rewards) >= rules.worth_validating


def _validation_end(
    records: Sequence[StepRecord], rules: ScheduleThresholds, steps_without_gain: int
) -> LearningEnd | None:
    """The end of learning by the last step's look at the validation prompts. These are few, so a
    run goes on while the rewards of its steps still rise."""
    if not records or records[-1].validated is None:
        return None
    looks = [record.validated for record in records if record.validated is not None]
    if looks[-1] >= rules.enough:
        reason = f"learned: the likeliest answers to the validation prompts earn {looks[-1]:.2f}"
        return LearningEnd(len(records), reason, settles=False, is_validated=True)
    is_no_better = (
        len(looks) > rules.validations
        and max(looks[-rules.validations :]) <= max(looks[: -rules.validations]) + _BETTER
    )
    if is_no_better and steps_without_gain >= rules.validations * rules.validate_every:
        return LearningEnd(
            len(records), f"no better on the validation prompts in {rules.validations} looks"
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


def checkpoint_steps(records: Sequence[StepRecord], rules: ScheduleThresholds) -> list[int]:
    """After how many steps weights are kept: the best point while learning, its end, and every few
    steps of settling.
    """
    end = learning_end(records, rules)
    if end is None or end.has_drifted:
        return _best(records if end is None else records[: end.step], rules)
    if not any(record.moved for record in records):
        return []
    learned = end.step
    if end.is_validated:
        return [learned]
    settled = [one for one in range(learned, len(records) + 1) if _is_kept(one - learned, rules)]
    return [*(one for one in _best(records[:learned], rules) if one != learned), *settled]


def token_cap(records: Sequence[StepRecord], most: int, shown: int = 0) -> int:
    """How many tokens answers may have: twice as many as nearly all that earned much had, once that
    is known; before, somewhat more than the longest right answer that was shown, where there is one
    of so many tokens."""
    lengths = sorted(length for record in records[-_SPAN:] for length in record.earned)
    if len(lengths) < 16:
        return min(most, max(_LEAST_CAP, 3 * shown // 2 + 2)) if shown else most
    return min(most, max(_LEAST_CAP, 2 * lengths[min(len(lengths) - 1, int(0.95 * len(lengths)))]))


def _is_enough(records: Sequence[StepRecord], rules: ScheduleThresholds) -> bool:
    rewards = [record.reward for record in records if record.reward is not None]
    return len(rewards) == len(records) and sum(rewards) / len(rewards) >= rules.enough


def _is_kept(settled: int, rules: ScheduleThresholds) -> bool:
    return settled % rules.settle_every == 0 or settled == rules.settle_steps


def _best(records: Sequence[StepRecord], rules: ScheduleThresholds) -> list[int]:
    """The last of the points, some steps apart, at which the run went better than at those before;
    none at first.
    """
    averages = progress(records)
    best, at = averages[0] if averages else 0.0, 0
    for done in range(2 * rules.keep_every, len(records) + 1, 2 * rules.keep_every):
        if averages[done - 1] > best + _WORTH_KEEPING and not records[done - 1].drift:
            best, at = averages[done - 1], done
    return [at] if at else []


_FRAME_TOKENS: Final = 400
"""The judge's instructions and its own words."""
_TOKENS_A_RANK: Final = 6
_ANSWERED_TWICE: Final = 1.25
"""Some prompts of a step are answered again, with a hint or hotter, and judged again."""
_USEFUL_STEPS: Final = 40
_LEAST_PROMPTS: Final = 4
_LEAST_STEPS: Final = 8


class RunSize(msgspec.Struct, frozen=True):
    """So many prompts in each of at most so many steps, and about how many tokens judging a step
    takes; 0 where no judge scores.
    """

    prompts: int
    steps: int
    tokens_a_step: int = 0

    @property
    def tokens(self) -> int:
        """What judging takes if the run makes all its steps."""
        return self.steps * self.tokens_a_step


def ranking_tokens(prompt_tokens: int, answer_tokens: int, answers: int) -> int:
    """About how many tokens one call takes that compares so many answers to a prompt."""
    return _FRAME_TOKENS + prompt_tokens + answers * (answer_tokens + _TOKENS_A_RANK)


def judged_size(prompts: int, steps: int, rankings: Sequence[int | None]) -> RunSize:
    """The size of a run with what its judging takes; `rankings` are the tokens of one call for each
    turn, None where no judge is asked."""
    mean = sum(one or 0 for one in rankings) / max(1, len(rankings))
    return RunSize(prompts, steps, int(_ANSWERED_TWICE * prompts * mean))


def fit_to_budget(whole: RunSize, tokens_a_day: int) -> RunSize:
    """The run that a day's budget carries: many small steps teach more than a few large ones. A run
    that is too large for a day even then, with the fewest prompts and steps that make sense, takes
    several days."""
    if whole.tokens <= tokens_a_day:
        return whole
    tokens_a_prompt = whole.tokens_a_step / whole.prompts
    affordable = tokens_a_day / tokens_a_prompt
    prompts = min(whole.prompts, max(_LEAST_PROMPTS, int(affordable / _USEFUL_STEPS)))
    steps = min(whole.steps, max(_LEAST_STEPS, int(affordable / prompts)))
    return RunSize(prompts, steps, int(prompts * tokens_a_prompt))
