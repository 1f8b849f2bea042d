"""The simulated policy: log-odds of following each rule, moved by skills in the prompt and by gradients. No model is behind it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

from metaclaw.bench.questions import ChoiceCheck
from metaclaw.bench.workdays.model import Item
from metaclaw.bench.world.settings import Traits

PLAIN: Final = "(no rule)"
"""What a round without rules is counted under."""

HEED: Final = "(heeds skills)"
"""The one habit that is not about a rule: how much skills in the prompt count, from 0 to a quarter more than at first."""

_MOST_HEED: Final = 1.25
_FORM: Final = re.compile(r"[=:@]")


@dataclass(frozen=True, slots=True)
class Effect:
    """What a skill does: for rounds of which rules it is found, which it makes the policy follow, from which it leads it away."""

    matches: frozenset[str]
    mends: frozenset[str] = frozenset()
    breaks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Answered:
    """How a round went: the rules that were broken, and what that scores."""

    broken: frozenset[str]
    score: float
    exact: bool | None

    @property
    def passed(self) -> bool:
        """Whether nothing was broken."""
        return not self.broken


@dataclass(frozen=True, slots=True)
class SimulatedPolicy:
    """What was gained over the untrained policy: log-odds by rule, and `HEED`. It never changes: `taught` gives the next."""

    traits: Traits
    gained: Mapping[str, float]

    def chance(self, rule: str, effects: Sequence[Effect] = ()) -> float:
        """With what probability it follows a rule, given the skills in its prompt."""
        traits = self.traits
        if rule == PLAIN:
            return traits.p_plain
        told = 0.0
        if any(rule in one.mends for one in effects):
            told += logit(traits.p_skill) - logit(traits.p_base)
        if any(rule in one.breaks for one in effects):
            told += logit(traits.p_harm) - logit(traits.p_base)
        return sigmoid(logit(traits.p_base) + self.gained.get(rule, 0.0) + self.heed * told)

    @property
    def heed(self) -> float:
        """How much skills count: 1 before anything was learned."""
        return max(0.0, min(_MOST_HEED, 1.0 + self.gained.get(HEED, 0.0)))

    def answer(self, item: Item, effects: Sequence[Effect], luck: Callable[[str], float]) -> Answered:
        """How it answers; `luck` draws a number from 0 to 1 for each rule."""
        return scored(item, frozenset(rule for rule in rules_of(item) if luck(rule) >= self.chance(rule, effects)))

    def taught(self, pull: Mapping[str, float]) -> "SimulatedPolicy":
        """After a step with so much pull on each habit, moved by its rate; the habits it says nothing about fade."""
        traits = self.traits
        kept = {habit: gain * (1.0 - traits.forgets) for habit, gain in self.gained.items() if habit not in pull}
        rates = {habit: traits.heed_rate if habit == HEED else traits.rate for habit in pull if habit != PLAIN}
        moved = {habit: self.gained.get(habit, 0.0) + rate * pull[habit] for habit, rate in rates.items()}
        if HEED in moved:
            moved[HEED] = max(-1.0, min(_MOST_HEED - 1.0, moved[HEED]))
        most = logit(traits.p_weights) - logit(traits.p_base)
        return SimulatedPolicy(traits, kept | {habit: min(most, gain) for habit, gain in moved.items()})


def scored(item: Item, broken: frozenset[str]) -> Answered:
    """By the published formulas, where each broken rule of a choice is one wrong letter."""
    check = item.round.check
    if isinstance(check, ChoiceCheck):
        letters = len(check.options)
        return Answered(broken, 1.0 - min(len(broken), letters) / letters, not broken)
    return Answered(broken, float(not broken), None)


def rules_of(item: Item) -> tuple[str, ...]:
    """The rules a round asks for, or the one that stands for none."""
    return item.rules or (PLAIN,)


def family(rule: str) -> str:
    """What a rule is about: of `times=utc` it is `times`. A skill for one form is found for rounds of another, and misleads."""
    return _FORM.split(rule, maxsplit=1)[0]


def logit(share: float) -> float:
    """Log-odds."""
    return log(share / (1.0 - share))


def sigmoid(odds: float) -> float:
    """The probability of log-odds."""
    return 1.0 / (1.0 + exp(-odds)) if odds >= 0 else exp(odds) / (1.0 + exp(odds))
