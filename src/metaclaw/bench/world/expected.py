"""What a simulated run must come to, worked out on paper: against this the simulation itself is checked.

Unaided, a rule is followed with `p_base`. With a perfect evolver, no gate and every verdict heard, the skill for a rule is there
from the round after its m-th failure on, m being `min_failures`; until then each round fails with 1 - p_base, independently. So at
the i-th round that asks for a rule, the skill is missing with probability P(Binomial(i - 1, 1 - p_base) < m). Rules do not touch
each other.
"""

from collections.abc import Mapping, Sequence
from math import comb, prod
from statistics import fmean

from metaclaw.bench.questions import ChoiceCheck
from metaclaw.bench.workdays.model import Item, Workday
from metaclaw.bench.world.policy import PLAIN, rules_of
from metaclaw.bench.world.settings import Traits


def expected_baseline(days: Sequence[Workday], traits: Traits) -> float:
    """The accuracy of a policy that learns nothing."""
    return fmean(_score(item, {rule: _unaided(rule, traits) for rule in rules_of(item)}) for day in days for item in day.items)


def expected_skills(days: Sequence[Workday], traits: Traits, min_failures: int) -> float:
    """The accuracy with a perfect evolver and no gate, where every verdict is known and true."""
    met: dict[tuple[str, str], int] = {}
    scores: list[float] = []
    for day in days:
        for item in day.items:
            chances = {rule: _aided(rule, met.get((day.user, rule), 0), traits, min_failures) for rule in rules_of(item)}
            scores.append(_score(item, chances))
            for rule in item.rules:
                met[day.user, rule] = met.get((day.user, rule), 0) + 1
    return fmean(scores)


def _unaided(rule: str, traits: Traits) -> float:
    return traits.p_plain if rule == PLAIN else traits.p_base


def _aided(rule: str, before: int, traits: Traits, needed: int) -> float:
    """With what probability a rule is followed that was asked for so often before."""
    if rule == PLAIN:
        return traits.p_plain
    fails = 1.0 - traits.p_base
    missing = sum(
        comb(before, count) * fails**count * traits.p_base ** (before - count) for count in range(min(needed, before + 1))
    )
    return missing * traits.p_base + (1.0 - missing) * traits.p_skill


def _score(item: Item, chances: Mapping[str, float]) -> float:
    check = item.round.check
    if isinstance(check, ChoiceCheck) and len(chances) <= len(check.options):
        return 1.0 - sum(1.0 - chance for chance in chances.values()) / len(check.options)
    return prod(chances.values())
