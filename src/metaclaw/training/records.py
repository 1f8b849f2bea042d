"""Records of the finished steps of a run, from which all its decisions follow, and the watch that
stops a drifting run. Pure.

Each figure x of a step is smoothed, m ← 0.7·m + 0.3·x, and compared with its mean b over the run's
first steps. The run drifts if

    entropy    m < 0.2·b   or  m > 3·b        answers become all alike, or random
    length     m < 0.25·b  or  m > 3·b        answers become much shorter, or much longer
    ratio      |m - b| > 0.5                  the weights that are taught differ from those that drew the answers
    forgotten  m > 1                          the untrained model's answers to ordinary questions become unlikely
    KL         m - b > 1                      too far in this run; the gate limits the distance from the untrained weights

Learning to answer differently changes entropy and length, so these are judged only while the reward
has neither risen nor is high; a very low entropy may rise to 0.9. The KL on trained
prompts rises with learning, so it is judged only if nothing is rehearsed.

A figure that is not a finite number stops the run at once. A figure that a backend does not return
(None) is not judged. The caller ends a drifting run with the last checkpoint before the drift."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from metaclaw.training.advantages import ScoredGroup
from metaclaw.training.drawn_elsewhere import EngineGap

FULL_REWARD = 1.0 - 1e-6
"""Rewards from this value on count as full."""
_BEGINNING: Final = 3
_SMOOTHING: Final = 0.3
_LOW_ENTROPY: Final = 0.2
_LEAST_ENTROPY: Final = 0.3
_SHORT: Final = 0.25
_HIGH: Final = 3.0
_MOST_RATIO: Final = 0.5
_MOST_KL: Final = 1.0
_MOST_FORGOTTEN: Final = 1.0
_RISEN: Final = 0.02
_GOOD: Final = 0.9
_FIGURES = ("entropy", "kl", "length", "ratio", "forgotten", "reward")


class GroupRecord(msgspec.Struct, frozen=True, array_like=True):
    """One prompt of a step. `mean` and `full` (the share of full rewards) are None if no answer
    could be scored.
    """

    turn: str
    key: str
    mean: float | None
    full: float | None


class BestAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The best answer to a prompt so far: its tokens, including the end token, and its reward."""

    turn: str
    tokens: list[int]
    reward: float


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """One step. `moved` is False if it had no data. `earned` are the lengths of the answers with
    high rewards. `forgotten` is the log-probability that rehearsed answers have lost, in nats per
    token. `drift` says why the run must stop. `hinted` counts the prompts that were answered again
    with a hint, `helped` those for which that helped. `found` are answers better than all earlier answers to the
    same prompt. `validated` is the mean reward of greedy answers to the validation prompts after
    the step, if they were drawn. `gap` is how far the server that drew the answers is from the
    trainer."""

    groups: list[GroupRecord]
    reward: float | None
    moved: bool
    earned: list[int]
    length: float
    entropy: float | None = None
    kl: float | None = None
    ratio: float | None = None
    forgotten: float | None = None
    drift: str | None = None
    hinted: int = 0
    helped: int = 0
    found: list[BestAnswer] = []
    validated: float | None = None
    gap: EngineGap | None = None


def group_record(group: ScoredGroup) -> GroupRecord:
    rewards = [reward for _, reward in group.known]
    if not rewards:
        return GroupRecord(group.turn, group.key, None, None)
    full = sum(reward >= FULL_REWARD for reward in rewards) / len(rewards)
    return GroupRecord(group.turn, group.key, sum(rewards) / len(rewards), full)


def mean_reward(groups: Iterable[ScoredGroup]) -> float | None:
    """The mean reward of all answers that could be scored."""
    rewards = [reward for group in groups for _, reward in group.known]
    return sum(rewards) / len(rewards) if rewards else None


def earned_lengths(groups: Sequence[ScoredGroup]) -> list[int]:
    """The lengths, in tokens, of the answers whose reward is above zero and at least half of the
    best.
    """
    least = max((reward for group in groups for _, reward in group.known), default=0.0) / 2.0
    return [
        len(rollout.tokens_T)
        for group in groups
        for rollout, reward in group.known
        if reward > 0.0 and reward >= least
    ]


def moved_prefix(records: Sequence[StepRecord], moves: int) -> list[StepRecord]:
    """The records up to the last before optimiser step `moves` + 1: later ones are of steps that
    were not applied.
    """
    kept: list[StepRecord] = []
    for record in records:
        if record.moved and not moves:
            break
        moves -= record.moved
        kept.append(record)
    return kept


@dataclass(frozen=True, slots=True)
class _Course:
    """One figure over time: how often it was seen, its mean over the first steps, and its smoothed
    value.
    """

    seen: int
    begun: float
    now: float

    def after(self, value: float) -> "_Course":
        """The course with one more value."""
        seen = self.seen + 1
        begun = self.begun + (value - self.begun) / seen if seen <= _BEGINNING else self.begun
        return _Course(seen, begun, self.now + _SMOOTHING * (value - self.now))


def find_drift(records: Sequence[StepRecord]) -> str | None:
    """Why a run must stop after these steps, in words with the figures, or None. Steps without data
    do not count.
    """
    courses: dict[str, _Course] = {}
    for record in records:
        if not record.moved:
            continue
        known: dict[str, float] = {
            name: value for name in _FIGURES if (value := getattr(record, name)) is not None
        }
        for name, value in known.items():
            if not math.isfinite(value):
                return f"the step's figures make no sense ({name} is not a finite number)"
            courses[name] = courses.get(name, _Course(0, value, value)).after(value)
        for name in known:
            course = courses[name]
            words = _drifted(name, courses) if course.seen > _BEGINNING else ""
            if words:
                went = f"{name} went from {course.begun:.3g} to {course.now:.3g}"
                return f"{words} ({went} in {course.seen} steps)"
    return None


def _drifted(name: str, courses: Mapping[str, _Course]) -> str:
    """How a figure has drifted, in words; empty if it has not, or is not judged."""
    now, begun = courses[name].now, courses[name].begun
    if name in ("entropy", "length"):
        reward = courses.get("reward")
        if reward is not None and reward.now > min(reward.begun + _RISEN, _GOOD):
            return ""
    match name:
        case "entropy" if now < _LOW_ENTROPY * begun:
            return "the answers became nearly all alike"
        case "entropy" if now > _HIGH * max(begun, _LEAST_ENTROPY):
            return "the answers became random"
        case "length" if now < _SHORT * begun:
            return "the answers became much shorter, and earned no more"
        case "length" if now > _HIGH * begun:
            return "the answers became much longer, and earned no more"
        case "ratio" if abs(now - begun) > _MOST_RATIO:
            return "the model learned from answers that it would no longer give"
        case "forgotten" if now > _MOST_FORGOTTEN:
            return "the model forgot how it answered ordinary questions"
        case "kl" if "forgotten" not in courses and now - begun > _MOST_KL:
            return "the weights moved too far from the untrained model at once"
        case _:
            return ""


def weighted_mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    """The mean of the pieces' values, weighted by their tokens; None if no piece has a value."""
    known = [(value, tokens) for value, tokens in values if value is not None and tokens]
    weight = sum(tokens for _, tokens in known)
    # Not fsum, which raises for infinities of both signs: the drift watch must see them.
    return sum(value * tokens for value, tokens in known) / weight if weight else None
