"""What a candidate does on the prompts of each skill: a gain elsewhere must not hide that one of them was lost. Pure.

For every skill in the prompts of the pairs, somebody bets that the candidate is worse there (`betting`, as over all pairs). Whoever
looks at k skills has k chances to be unlucky, so each must show k times as much:

- evidence of k/alpha, from `least` pairs on            → worse there
- evidence of k·`suspicion`, or fewer than `least` pairs → open: more pairs are wanted; suspect where there are no more

A pair whose prompt held several skills speaks for each of them; one without a skill, or that nobody could score, for none. While
new skills come up k grows, and a candidate that is no worse on any is called worse with probability at most alpha·(1 + ln k).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from metaclaw.domain.ids import SkillName
from metaclaw.train.betting import GainBets


class Compared(Protocol):
    """A pair of answers to one prompt."""

    @property
    def gain(self) -> float | None: ...
    @property
    def strict_gain(self) -> float | None: ...
    @property
    def skills(self) -> tuple[SkillName, ...]: ...


@dataclass(frozen=True, slots=True)
class SkillRules:
    """When a skill counts as lost."""

    alpha: float = 0.05
    least: int = 8
    suspicion: float = 3.0


@dataclass(frozen=True, slots=True)
class SkillGain:
    """How a candidate does on the prompts of one skill. `is_open` says that more should be seen, `is_suspect` that it looks bad."""

    skill: SkillName
    pairs: int
    better: int
    worse: int
    mean_gain: float
    e_worse: float
    is_worse: bool
    is_open: bool
    is_suspect: bool

    @property
    def words(self) -> str:
        """For a report."""
        return f"on the prompts of {self.skill}: better in {self.better} of {self.pairs}, worse in {self.worse}"


def weigh_skills(pairs: Sequence[Compared], rules: SkillRules | None = None, *, strictly: bool = False) -> list[SkillGain]:
    """Every skill that stood in a prompt, in the order in which they came; by the measure that trains or by the strict one."""
    gains: dict[SkillName, list[float]] = {}
    for pair in pairs:
        if (gain := pair.strict_gain if strictly else pair.gain) is not None:
            for skill in dict.fromkeys(pair.skills):
                gains.setdefault(skill, []).append(gain)
    return [_weigh(skill, found, len(gains), rules or SkillRules()) for skill, found in gains.items()]


def _weigh(skill: SkillName, gains: Sequence[float], skills: int, rules: SkillRules) -> SkillGain:
    bets, most = GainBets(), 0.0
    for number, gain in enumerate(gains, 1):
        bets.add(-gain)
        # The first moment at which it was decisive stands.
        most = max(most, bets.e_value) if number >= rules.least else most
    is_suspect = bets.e_value >= rules.suspicion * skills
    return SkillGain(
        skill=skill,
        pairs=len(gains),
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        mean_gain=math.fsum(gains) / len(gains),
        e_worse=bets.e_value,
        is_worse=most >= skills / rules.alpha,
        is_open=is_suspect or len(gains) < rules.least,
        is_suspect=is_suspect,
    )
