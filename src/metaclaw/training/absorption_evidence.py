"""Decide which skills a policy version has absorbed, so that their text may leave its prompts.
Pure.

The new weights answer the same prompts with and without the skill; each pair gives d = score
without - score with, in [-1, 1]. Bets are made against two claims, pair by pair (`bets`):

    "without it answers are worse by `margin` or more", E[d] <= -margin      refuted → absorbed, if answers without it are good
    "without it answers are no worse",                  E[d] >= 0            refuted → needed

If answers without the skill are bad, it is not absorbed: it may make no difference because nothing
helps. A version inherits the absorbed skills of its parent and may gain or lose some. A rollback
brings back every skill that the older version needs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from metaclaw.domain.ids import SkillName
from metaclaw.training.bets import GainBets


@dataclass(frozen=True, slots=True)
class SkillPair:
    """Scores from 0 to 1 of the new weights on one prompt, with and without a skill; None if an
    answer could not be scored.
    """

    with_skill: float | None
    without: float | None

    def __post_init__(self) -> None:
        for score in (self.with_skill, self.without):
            if score is not None and not 0.0 <= score <= 1.0:
                raise ValueError(f"a score of {score} is not in [0, 1]")


@dataclass(frozen=True, slots=True)
class AbsorptionThresholds:
    """Error level, margin, and the most pairs. A skill is absorbed only if the mean score without
    it is at least `good`.
    """

    alpha: float = 0.05
    margin: float = 0.1
    good: float = 0.5
    most: int = 200


class Absorption(StrEnum):
    """Whether the weights follow a skill without its text."""

    ABSORBED = "absorbed"
    NEEDED = "needed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class AbsorptionReport:
    """The finding, why, and the evidence."""

    finding: Absorption
    reason: str


def judge_absorption(
    pairs: Sequence[SkillPair], rules: AbsorptionThresholds | None = None
) -> AbsorptionReport:
    """Decide from the pairs so far, in order; pairs after the first decisive one do not count.
    After `most` pairs without a decision, the skill is needed."""
    rules = rules or AbsorptionThresholds()
    absorbed, needed = GainBets(rules.margin), GainBets()
    scores: list[float] = []
    finding = Absorption.UNDECIDED
    for pair in pairs:
        if pair.with_skill is None or pair.without is None:
            continue
        scores.append(pair.without)
        absorbed.add(pair.without - pair.with_skill)
        needed.add(pair.with_skill - pair.without)
        finding = _finding(absorbed.e_value, needed.e_value, scores, rules)
        if finding is not Absorption.UNDECIDED:
            break
    mean = math.fsum(scores) / len(scores) if scores else None
    shown = (
        "no pair was scored"
        if mean is None
        else f"mean score without it {mean:.2f} in {len(scores)} pairs"
    )
    reason = (
        f"{finding}: {shown}; e = {absorbed.e_value:.3g} for absorbed, {needed.e_value:.3g} for"
        " needed"
    )
    return AbsorptionReport(finding, reason)


def absorbed_by(
    parent: frozenset[SkillName], findings: Mapping[SkillName, Absorption]
) -> frozenset[SkillName]:
    """The absorbed skills of a new version: those of its parent, without those now needed, and with
    those now absorbed.
    """
    gained = {name for name, finding in findings.items() if finding is Absorption.ABSORBED}
    lost = {name for name, finding in findings.items() if finding is Absorption.NEEDED}
    return (parent - lost) | gained


def _finding(
    absorbed: float, needed: float, scores: Sequence[float], rules: AbsorptionThresholds
) -> Absorption:
    if needed >= 1 / rules.alpha:
        return Absorption.NEEDED
    if absorbed >= 1 / rules.alpha and math.fsum(scores) / len(scores) >= rules.good:
        return Absorption.ABSORBED
    return Absorption.NEEDED if len(scores) >= rules.most else Absorption.UNDECIDED
