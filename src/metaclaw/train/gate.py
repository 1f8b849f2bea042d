"""The gate for weights: what a candidate must show before it serves. Pure: it is given scores and answers, and decides.

Candidate and serving version answer the same held-out prompts with the same skills and seeds. Each pair of answers is scored by
two measures: the one that trained the candidate, and a strict one that did not (decision 38). Each gives a gain in [-1, 1]. The
evidence may be looked at after every pair (`bets`), and the first moment at which it was decisive stands:

- a weight is not a finite number, or the KL limit is passed                     → reject
- the golden set got worse by more than its margin (`golden`)                    → reject
- the answers have degenerated (`degeneration`)                                  → reject
- it gained by checks that accept one answer to any question, and no judge voted → reject
- worse is shown by a measure, on all pairs or on those of one skill             → reject
- better is shown by the strict measure, the other is not lower, the golden set holds, no skill is suspect or hardly tried
                                                                                 → promote
- `most` pairs, or all there are, were not enough    → reject: not shown better, or improved only by the measure it was trained on
- else                                               → undecided: more pairs, or the golden set, are wanted

A candidate that is no better passes with probability at most `alpha`; one that is no worse is called worse by a measure with
probability at most `alpha_harm`. A pair of which one answer could not be scored is left out and counted.

**Each skill alone.** A gain elsewhere must not hide that one skill was lost. With k skills in the prompts of the pairs, each
must show k times as much: evidence of k/alpha from `least` pairs on means worse there; evidence of k·`suspicion`, or fewer than
`least` pairs, leaves the skill open, and more pairs are drawn. A pair counts for every skill in its prompt. While new skills
come up k grows, and a candidate that is no worse on any is called worse with probability at most alpha·(1 + ln k).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import Comparison, GateReport
from metaclaw.train.bets import GainBets
from metaclaw.train.degeneration import DegenerationRules, HeldOutAnswer, describe_length, find_degeneration
from metaclaw.train.golden import GoldenRules, GoldenScore, compare_golden

_MOST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """Two answers to one held-out prompt, drawn with one seed. `candidate` and `serving` are what each was worth, from 0 to 1, by
    the measure that trains; `strict_candidate` and `strict_serving` by the second measure; None where a measure cannot tell.
    `skills` stood in the prompt. `answers` are the candidate's and the serving version's."""

    candidate: float | None
    serving: float | None
    skills: tuple[SkillName, ...] = ()
    strict_candidate: float | None = None
    strict_serving: float | None = None
    answers: tuple[HeldOutAnswer, HeldOutAnswer] | None = None

    def __post_init__(self) -> None:
        for score in (self.candidate, self.serving, self.strict_candidate, self.strict_serving):
            if score is not None and not 0.0 <= score <= 1.0:
                raise ValueError(f"a score of {score} is not in [0, 1]")

    @property
    def gain(self) -> float | None:
        """What the candidate did better by the measure that trains; None where it cannot be said."""
        return _gain(self.candidate, self.serving)

    @property
    def strict_gain(self) -> float | None:
        """What the candidate did better by the second measure; None where it cannot be said."""
        return _gain(self.strict_candidate, self.strict_serving)


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


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a candidate so far. `is_all` says that no further held-out prompt is left to try; `wanted` are reference
    answers that people gave to some of the prompts; `demanded` are answers than which the checks accept no other;
    `lenient` are answers that checks accept whatever is asked, by the skills that carry them."""

    pairs: Sequence[AnswerPair]
    golden_serving: GoldenScore | None = None
    golden_candidate: GoldenScore | None = None
    kl: float | None = None
    is_finite: bool = True
    is_all: bool = False
    judge: str | None = None
    wanted: tuple[str, ...] = ()
    demanded: frozenset[str] = frozenset()
    lenient: Mapping[tuple[SkillName, ...], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateRules:
    """When a candidate passes. `wave` is how many pairs are asked for at a time; `kl_most` is in nats per drawn token;
    `lenient_gain` is the mean gain by a lenient check that needs a judge."""

    alpha: float = 0.05
    alpha_harm: float = 0.05
    least: int = 20
    most: int = 200
    wave: int = 20
    kl_most: float = 1.0
    lenient_gain: float = 0.02
    golden: GoldenRules = field(default_factory=GoldenRules)
    skill: SkillRules = field(default_factory=SkillRules)
    degeneration: DegenerationRules = field(default_factory=DegenerationRules)

    def for_try(self, number: int) -> "GateRules":
        """The rules by which weights are judged of which others were refused before: each further try must show more, so that all
        tries together are wrong no more often than one."""
        return replace(self, alpha=self.alpha / number, golden=self.golden.for_try(number))


class GateRuling(StrEnum):
    """What becomes of a candidate."""

    PROMOTE = "promote"
    REJECT = "reject"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The ruling, the report that is kept with the version, and how many more pairs are wanted while it is undecided. With none,
    the golden set is wanted."""

    ruling: GateRuling
    report: GateReport
    more: int = 0


class _Held(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class _Measured:
    """What one measure shows on the pairs."""

    held: _Held
    comparison: Comparison
    unscored: int

    def words(self, what: str = "") -> str:
        found = self.comparison
        if not found.pairs:
            return f"none of {self.unscored}{what} could be scored"
        left_out = f", {self.unscored} could not be scored" if self.unscored else ""
        return f"better in {found.better} of {found.pairs}{what}, worse in {found.worse}{left_out}"


def judge_candidate(evidence: Evidence, rules: GateRules | None = None) -> GateDecision:
    """What the evidence so far means."""
    rules = rules or GateRules()
    trained = _compare([pair.gain for pair in evidence.pairs], rules)
    strict = _compare([pair.strict_gain for pair in evidence.pairs], rules)
    skills = [*weigh_skills(evidence.pairs, rules.skill), *weigh_skills(evidence.pairs, rules.skill, strictly=True)]
    words = _describe(evidence, trained, strict)
    lost = _lost(evidence, rules)
    objections = [*_unsafe(evidence, rules), *lost, *_degenerate(evidence, rules)]
    objections += _unproven(evidence, rules)
    objections += [
        f"worse than the serving version: {one.words(' held-out questions')}"
        for one in (trained, strict)
        if one.held is _Held.WORSE
    ]
    objections += [f"worse {one.words}" for one in skills if one.is_worse]
    if objections:
        decision = _decision(GateRuling.REJECT, evidence, trained.comparison, [*objections, *([words] if evidence.pairs else [])])
        return replace(decision, report=replace(decision.report, lost_abilities=objections == lost))
    left = 0 if evidence.is_all else max(0, rules.most - len(evidence.pairs))
    doubts = _doubts(trained, strict, skills, rules, is_last=not left)
    if doubts:
        ruling = GateRuling.UNDECIDED if left else GateRuling.REJECT
        return _decision(ruling, evidence, trained.comparison, [*doubts, words], min(rules.wave, left))
    if evidence.golden_serving is None or evidence.golden_candidate is None:
        return _decision(GateRuling.UNDECIDED, evidence, trained.comparison, [words, "the golden set has not been tried"])
    golden = compare_golden(evidence.golden_serving, evidence.golden_candidate, rules.golden)
    length = describe_length(*_answers(evidence))
    return _decision(GateRuling.PROMOTE, evidence, trained.comparison, [words, golden.words, *([] if length is None else [length])])


def _doubts(trained: _Measured, strict: _Measured, skills: Sequence[SkillGain], rules: GateRules, *, is_last: bool) -> list[str]:
    """Why a candidate that is not shown to be bad is not promoted yet; with `is_last` not at all."""
    if strict.held is _Held.OPEN:
        if not is_last:
            return ["open"]
        if trained.held is not _Held.BETTER:
            return ["not shown better"]
        if strict.comparison.pairs < min(rules.least, trained.comparison.pairs):
            return ["no second measure can tell: only the one it was trained on says better"]
        return ["improved only by the measure it was trained on"]
    if trained.comparison.mean_gain < 0.0:
        return ["lower by the measure it was trained on"]
    # What is better on the whole may have lost one thing; and where that is suspected to the end, what serves stays.
    word = "not shown harmless" if is_last else "open"
    return [f"{word} {one.words}" for one in skills if one.is_suspect or (one.is_open and not is_last)]


def weigh_skills(pairs: Sequence[AnswerPair], rules: SkillRules | None = None, *, strictly: bool = False) -> list[SkillGain]:
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


def _describe(evidence: Evidence, trained: _Measured, strict: _Measured) -> str:
    if not evidence.pairs:
        return "there were no held-out questions to compare it on; policy.held_out_share says how many turns are kept for that"
    return f"{trained.words(' held-out questions')}; by the strict reading {strict.words()}"


def _gain(candidate: float | None, serving: float | None) -> float | None:
    return None if candidate is None or serving is None else candidate - serving


def _compare(found: Sequence[float | None], rules: GateRules) -> _Measured:
    better, worse, held = GainBets(), GainBets(), _Held.OPEN
    gains: list[float] = []
    unscored = 0
    for gain in found:
        if gain is None:
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
    return _Measured(held, comparison, unscored)


def _standing(better: float, worse: float, pairs: int, rules: GateRules) -> _Held:
    if worse >= 1 / rules.alpha_harm:
        return _Held.WORSE
    return _Held.BETTER if better >= 1 / rules.alpha and pairs >= rules.least else _Held.OPEN


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


def _degenerate(evidence: Evidence, rules: GateRules) -> list[str]:
    return [f"degenerate: {words}" for words in _found(evidence, rules)]


def _found(evidence: Evidence, rules: GateRules) -> list[str]:
    return find_degeneration(*_answers(evidence), rules.degeneration, evidence.wanted, evidence.demanded)


def _unproven(evidence: Evidence, rules: GateRules) -> list[str]:
    """Lenient checks by which the candidate gained, where nothing else can say whether it learned anything."""
    found = []
    for skills, accepted in evidence.lenient.items():
        mine = [pair for pair in evidence.pairs if pair.skills == skills]
        gains = [pair.gain for pair in mine if pair.gain is not None and pair.strict_gain is None]
        if len(gains) * 2 > len(mine) and len(gains) >= rules.skill.least and math.fsum(gains) > rules.lenient_gain * len(gains):
            shown = accepted if len(accepted) <= _MOST_SHOWN else accepted[:_MOST_SHOWN] + "…"
            remedy = "make it stricter, or set [judge]" if evidence.judge is None else "make it stricter; the judge could not tell"
            found.append(
                f"the check of {', '.join(skills) or 'its rules'} accepts {shown!r} whatever is asked, so it cannot tell whether "
                f"anything was learned: {remedy}"
            )
    return found


def _answers(evidence: Evidence) -> tuple[list[HeldOutAnswer], list[HeldOutAnswer]]:
    said = [pair.answers for pair in evidence.pairs if pair.answers is not None]
    return [mine for mine, _ in said], [theirs for _, theirs in said]


def _decision(ruling: GateRuling, evidence: Evidence, held_out: Comparison, reasons: list[str], more: int = 0) -> GateDecision:
    serving, candidate = evidence.golden_serving, evidence.golden_candidate
    report = GateReport(
        is_passed=ruling is GateRuling.PROMOTE,
        reasons=tuple(reasons),
        held_out=held_out if held_out.pairs else None,
        golden_serving=None if serving is None else serving.share,
        golden_candidate=None if candidate is None else candidate.share,
        kl=evidence.kl,
        judge=evidence.judge,
    )
    return GateDecision(ruling, report, more)
