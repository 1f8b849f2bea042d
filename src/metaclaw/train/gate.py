"""The gate for weights: what a candidate must show before anybody is served with it. Pure: it is given scores, and weighs them.

Candidate and serving version answer the same held-out prompts with the same skills and seeds; each pair gives a gain in [-1, 1].
The evidence may be looked at after every pair (`betting`), and the first moment at which it was decisive stands:

- a weight is not a finite number, or the KL limit is passed        → reject
- the golden set got worse by more than its margin (`regression`)   → reject
- worse is shown on the pairs, or on those of one skill (`skillwise`) → reject
- better is shown on the pairs, the golden set holds, and no skill is suspect or hardly tried → promote
- `most` pairs, or all there are, were not enough                   → reject: not shown better
- else                                                              → undecided: so many more pairs, or the golden set, are wanted

A candidate that is no better passes with probability at most `alpha`; one that is no worse is called worse with at most
`alpha_harm`. A pair of which one answer could not be scored is left out and counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import Comparison, GateReport
from metaclaw.train.betting import GainBets
from metaclaw.train.golden import GoldenScore
from metaclaw.train.regression import GoldenRules, compare_golden
from metaclaw.train.skillwise import SkillRules, weigh_skills


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one held-out prompt, drawn with one seed: what each was worth, from 0 to 1; None where nobody could say.
    `skills` stood in the prompt."""

    candidate: float | None
    serving: float | None
    skills: tuple[SkillName, ...] = ()

    def __post_init__(self) -> None:
        for score in (self.candidate, self.serving):
            if score is not None and not 0.0 <= score <= 1.0:
                raise ValueError(f"a score of {score} is not in [0, 1]")

    @property
    def gain(self) -> float | None:
        """What the candidate did better; None where it cannot be said."""
        return None if self.candidate is None or self.serving is None else self.candidate - self.serving


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a candidate so far. `is_all` says that no further held-out prompt is left to try."""

    pairs: Sequence[Pair]
    golden_serving: GoldenScore | None = None
    golden_candidate: GoldenScore | None = None
    kl: float | None = None
    is_finite: bool = True
    is_all: bool = False
    judge: str | None = None


@dataclass(frozen=True, slots=True)
class GateRules:
    """When a candidate passes. `wave` is how many pairs are asked for at a time; `kl_most` is in nats per drawn token."""

    alpha: float = 0.05
    alpha_harm: float = 0.05
    least: int = 20
    most: int = 200
    wave: int = 20
    kl_most: float = 1.0
    golden: GoldenRules = field(default_factory=GoldenRules)
    skill: SkillRules = field(default_factory=SkillRules)


class Ruling(StrEnum):
    """What becomes of a candidate."""

    PROMOTE = "promote"
    REJECT = "reject"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The ruling, the report that is kept with the version, and how many more pairs are wanted while it is undecided."""

    ruling: Ruling
    report: GateReport
    more: int = 0


class _Held(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    OPEN = "open"


def judge_candidate(evidence: Evidence, rules: GateRules | None = None) -> GateDecision:
    """What the evidence so far means."""
    rules = rules or GateRules()
    held, comparison, words = _compare(evidence.pairs, rules)
    objections = [*_unsafe(evidence, rules), *_lost(evidence, rules)]
    if held is _Held.WORSE:
        objections.append(f"worse than the serving version: {words}")
    skills = weigh_skills(evidence.pairs, rules.skill)
    objections += [f"worse {one.words}" for one in skills if one.is_worse]
    if objections:
        return _decision(Ruling.REJECT, evidence, comparison, objections)
    left = 0 if evidence.is_all else max(0, rules.most - len(evidence.pairs))
    wave = min(rules.wave, left)
    if held is _Held.OPEN:
        ruling, word = (Ruling.UNDECIDED, "open") if left else (Ruling.REJECT, "not shown better")
        return _decision(ruling, evidence, comparison, [f"{word}: {words}"], wave)
    # What is better on the whole may have lost one thing; and where that is suspected to the end, what serves stays.
    if doubts := [one for one in skills if one.is_suspect or (left and one.is_open)]:
        ruling, word = (Ruling.UNDECIDED, "open") if left else (Ruling.REJECT, "not shown harmless")
        reasons = [f"better: {words}", *(f"{word} {one.words}" for one in doubts)]
        return _decision(ruling, evidence, comparison, reasons, wave)
    if evidence.golden_serving is None or evidence.golden_candidate is None:
        return _decision(Ruling.UNDECIDED, evidence, comparison, [f"better: {words}", "the golden set has not been tried"])
    golden = compare_golden(evidence.golden_serving, evidence.golden_candidate, rules.golden)
    return _decision(Ruling.PROMOTE, evidence, comparison, [f"better: {words}", golden.words])


def _compare(pairs: Sequence[Pair], rules: GateRules) -> tuple[_Held, Comparison, str]:
    better, worse, held = GainBets(), GainBets(), _Held.OPEN
    gains: list[float] = []
    unscored = 0
    for pair in pairs:
        if (gain := pair.gain) is None:
            unscored += 1
            continue
        gains.append(gain)
        better.add(gain)
        worse.add(-gain)
        if (held := _standing(better.e_value, worse.e_value, len(gains), rules)) is not _Held.OPEN:
            break
    wins, losses = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    mean = math.fsum(gains) / len(gains) if gains else 0.0
    comparison = Comparison(len(gains), wins, losses, mean, worse.e_value if held is _Held.WORSE else better.e_value)
    return held, comparison, _in_words(comparison, unscored)


def _standing(better: float, worse: float, pairs: int, rules: GateRules) -> _Held:
    if worse >= 1 / rules.alpha_harm:
        return _Held.WORSE
    return _Held.BETTER if better >= 1 / rules.alpha and pairs >= rules.least else _Held.OPEN


def _in_words(comparison: Comparison, unscored: int) -> str:
    counts = f"{comparison.better} better and {comparison.worse} worse of {comparison.pairs} pairs"
    left_out = f", {unscored} not scored" if unscored else ""
    return f"{counts}{left_out}, mean gain {comparison.mean_gain:+.3f}, e = {comparison.e_value:.3g}"


def _unsafe(evidence: Evidence, rules: GateRules) -> list[str]:
    if not evidence.is_finite:
        return ["a weight is not a finite number"]
    if evidence.kl is None:
        return []
    if not math.isfinite(evidence.kl):
        return ["the distance to the untrained weights is not a finite number"]
    if evidence.kl > rules.kl_most:
        return [f"too far from the untrained weights: {evidence.kl:.3g} nats a token, at most {rules.kl_most:g}"]
    return []


def _lost(evidence: Evidence, rules: GateRules) -> list[str]:
    if evidence.golden_serving is None or evidence.golden_candidate is None:
        return []
    golden = compare_golden(evidence.golden_serving, evidence.golden_candidate, rules.golden)
    return [golden.words] if golden.is_worse else []


def _decision(ruling: Ruling, evidence: Evidence, held_out: Comparison, reasons: list[str], more: int = 0) -> GateDecision:
    serving, candidate = evidence.golden_serving, evidence.golden_candidate
    report = GateReport(
        is_passed=ruling is Ruling.PROMOTE,
        reasons=tuple(reasons),
        held_out=held_out if held_out.pairs else None,
        golden_serving=None if serving is None else serving.share,
        golden_candidate=None if candidate is None else candidate.share,
        kl=evidence.kl,
        judge=evidence.judge,
    )
    return GateDecision(ruling, report, more)
