"""The gate for weights: decides from scores and answers whether a candidate may serve. Pure.

Candidate and serving version answer the same held-out prompts with the same skills and seeds. Two
measures score each pair of answers: the measure that trained the candidate, and a strict measure
that did not (decision 13). Each gives a gain in [-1, 1]. The evidence may be checked after every
pair (`bets`); pairs after the first decisive pair do not count.

- the KL limit is exceeded                                                      → reject
- the golden set got worse by more than its margin (`golden`)                    → reject
- the answers have degenerated (`degeneration`)                                  → reject
- the gain comes from checks that accept one answer to any question, and no judge voted → reject
- a measure shows that it is worse, on all pairs or on those of one skill        → reject
- the strict measure shows that it is better, the other is not lower, the golden set holds, no skill
  is suspect or has few pairs
                                                                                 → promote
- `most` pairs, or all there are, were not enough    → reject: not shown better, or improved only by the measure it was trained on
- otherwise                                          → undecided: more pairs, or the golden set, are needed

A candidate that is no better passes with probability at most `alpha`; a candidate that is no worse
is called worse by a measure with probability at most `alpha_harm`. A pair with an answer that could
not be scored is left out and counted.

**Each skill separately.** A gain elsewhere must not hide the loss of one skill. With k skills in
the prompts of the pairs, the thresholds for each skill are k times as high: evidence of k/alpha
after at least `least` pairs means worse; evidence of k·`suspicion`, or fewer than `least` pairs,
leaves the skill open, and more pairs are drawn. A pair counts for every skill in its prompt. k
grows with new skills, and a candidate that is no worse on any is called worse with probability at
most alpha·(1 + ln k)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import Comparison, GateReport
from metaclaw.training.bets import GainBets
from metaclaw.training.degeneration import (
    DegenerationThresholds,
    HeldOutAnswer,
    describe_length,
    find_degeneration,
)
from metaclaw.training.golden import GoldenScore, GoldenThresholds, compare_golden

_MOST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """Two answers to one held-out prompt, drawn with one seed. `candidate` and `serving` are their
    scores from 0 to 1 by the measure that trains, `strict_candidate` and `strict_serving` by the
    strict measure; None if a measure cannot score an answer. `skills` were in the prompt. `answers`
    are the candidate's and the serving version's."""

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
        """The candidate's score less the serving version's, by the measure that trains; None if one
        is unknown.
        """
        return _gain(self.candidate, self.serving)

    @property
    def strict_gain(self) -> float | None:
        """The same by the strict measure."""
        return _gain(self.strict_candidate, self.strict_serving)


@dataclass(frozen=True, slots=True)
class SkillThresholds:
    """When a skill counts as lost."""

    alpha: float = 0.05
    least: int = 8
    suspicion: float = 3.0


@dataclass(frozen=True, slots=True)
class SkillGain:
    """The candidate's gain on the prompts of one skill. `is_open`: more pairs are needed.
    `is_suspect`: it looks worse.
    """

    skill: SkillName
    pairs: int
    better: int
    worse: int
    e_worse: float
    is_worse: bool
    is_open: bool
    is_suspect: bool

    @property
    def words(self) -> str:
        return (
            f"on the prompts of {self.skill}: better in {self.better} of {self.pairs}, worse in"
            f" {self.worse}"
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a candidate so far. `is_all`: all held-out prompts were tried. `demanded`: answers that are the only
    one their check accepts. `lenient`: for skills whose check accepts one answer to any question,
    that answer."""

    pairs: Sequence[AnswerPair]
    golden_serving: GoldenScore | None = None
    golden_candidate: GoldenScore | None = None
    kl: float | None = None
    is_all: bool = False
    judge: str | None = None
    demanded: frozenset[str] = frozenset()
    lenient: Mapping[tuple[SkillName, ...], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateThresholds:
    """When a candidate passes. `wave` is the number of pairs requested at a time; `kl_most` is in
    nats per drawn token; a mean gain above `lenient_gain` by a lenient check needs a judge."""

    alpha: float = 0.05
    alpha_harm: float = 0.05
    least: int = 20
    most: int = 200
    wave: int = 20
    kl_most: float = 1.0
    lenient_gain: float = 0.02
    golden: GoldenThresholds = field(default_factory=GoldenThresholds)
    skill: SkillThresholds = field(default_factory=SkillThresholds)
    degeneration: DegenerationThresholds = field(default_factory=DegenerationThresholds)

    def for_try(self, number: int) -> "GateThresholds":
        """Stricter rules for try number `number` of a run, so that all tries together are wrong no
        more often than a single one.
        """
        return replace(self, alpha=self.alpha / number, golden=self.golden.for_try(number))


class GateRuling(StrEnum):
    PROMOTE = "promote"
    REJECT = "reject"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The ruling, the report that is stored with the version, and how many more pairs an undecided
    ruling needs. If that is 0, it needs the golden set."""

    ruling: GateRuling
    report: GateReport
    more: int = 0


class _Finding(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class _Measured:
    """What one measure shows on the pairs."""

    finding: _Finding
    comparison: Comparison
    unscored: int

    def words(self, what: str = "") -> str:
        compared = self.comparison
        if not compared.pairs:
            return f"none of {self.unscored}{what} could be scored"
        left_out = f", {self.unscored} could not be scored" if self.unscored else ""
        return (
            f"better in {compared.better} of {compared.pairs}{what}, worse in"
            f" {compared.worse}{left_out}"
        )


def judge_candidate(evidence: Evidence, rules: GateThresholds | None = None) -> GateDecision:
    """Rule on a candidate by the evidence so far."""
    rules = rules or GateThresholds()
    trained = _compare([pair.gain for pair in evidence.pairs], rules)
    strict = _compare([pair.strict_gain for pair in evidence.pairs], rules)
    skills = [
        *weigh_skills(evidence.pairs, rules.skill),
        *weigh_skills(evidence.pairs, rules.skill, strictly=True),
    ]
    words = _describe(evidence, trained, strict)
    lost = _lost(evidence, rules)
    degenerate = find_degeneration(*_answers(evidence), rules.degeneration, evidence.demanded)
    objections = [
        *_unsafe(evidence, rules),
        *lost,
        *(f"degenerate: {reason}" for reason in degenerate),
    ]
    objections += _unproven(evidence, rules)
    objections += [
        f"worse than the serving version: {measured.words(' answers to held-out questions')}"
        for measured in (trained, strict)
        if measured.finding is _Finding.WORSE
    ]
    objections += [f"worse {skill.words}" for skill in skills if skill.is_worse]
    if objections:
        decision = _decision(
            GateRuling.REJECT,
            evidence,
            trained.comparison,
            [*objections, *([words] if evidence.pairs else [])],
        )
        return replace(decision, report=replace(decision.report, lost_abilities=objections == lost))
    left = 0 if evidence.is_all else max(0, rules.most - len(evidence.pairs))
    doubts = _doubts(trained, strict, skills, rules, is_last=not left)
    if doubts:
        ruling = GateRuling.UNDECIDED if left else GateRuling.REJECT
        return _decision(
            ruling, evidence, trained.comparison, [*doubts, words], min(rules.wave, left)
        )
    if evidence.golden_serving is None or evidence.golden_candidate is None:
        return _decision(
            GateRuling.UNDECIDED,
            evidence,
            trained.comparison,
            [words, "the golden set has not been tried"],
        )
    golden = compare_golden(evidence.golden_serving, evidence.golden_candidate, rules.golden)
    length = describe_length(*_answers(evidence))
    return _decision(
        GateRuling.PROMOTE,
        evidence,
        trained.comparison,
        [words, golden.words, *([] if length is None else [length])],
    )


def _doubts(
    trained: _Measured,
    strict: _Measured,
    skills: Sequence[SkillGain],
    rules: GateThresholds,
    *,
    is_last: bool,
) -> list[str]:
    """Why a candidate without objections is not promoted. `is_last`: there are no more pairs to
    try.
    """
    if strict.finding is _Finding.OPEN:
        if not is_last:
            return ["open"]
        if trained.finding is not _Finding.BETTER:
            return ["not shown better"]
        if strict.comparison.pairs < min(rules.least, trained.comparison.pairs):
            return ["no second measure can tell: only the one it was trained on says better"]
        return ["improved only by the measure it was trained on, so a check may accept too much"]
    if trained.comparison.mean_gain < 0.0:
        return ["lower by the measure it was trained on"]
    # A candidate that is better overall may have lost one skill. If that is still suspected at the
    # end, the serving version stays.
    word = "not shown harmless" if is_last else "open"
    return [
        f"{word} {skill.words}"
        for skill in skills
        if skill.is_suspect or (skill.is_open and not is_last)
    ]


def weigh_skills(
    pairs: Sequence[AnswerPair], rules: SkillThresholds | None = None, *, strictly: bool = False
) -> list[SkillGain]:
    """The gain on each skill in the prompts, in order of appearance, by the measure that trains or
    by the strict one.
    """
    gains: dict[SkillName, list[float]] = {}
    for pair in pairs:
        if (gain := pair.strict_gain if strictly else pair.gain) is not None:
            for skill in dict.fromkeys(pair.skills):
                gains.setdefault(skill, []).append(gain)
    return [
        _weigh(skill, of_skill, len(gains), rules or SkillThresholds())
        for skill, of_skill in gains.items()
    ]


def _weigh(
    skill: SkillName, gains: Sequence[float], skills: int, rules: SkillThresholds
) -> SkillGain:
    bets, most = GainBets(), 0.0
    for number, gain in enumerate(gains, 1):
        bets.add(-gain)
        # Later pairs do not undo decisive evidence.
        most = max(most, bets.e_value) if number >= rules.least else most
    is_suspect = bets.e_value >= rules.suspicion * skills
    return SkillGain(
        skill=skill,
        pairs=len(gains),
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        e_worse=bets.e_value,
        is_worse=most >= skills / rules.alpha,
        is_open=is_suspect or len(gains) < rules.least,
        is_suspect=is_suspect,
    )


def _describe(evidence: Evidence, trained: _Measured, strict: _Measured) -> str:
    if not evidence.pairs:
        return (
            "there were no held-out questions to compare it on; policy.held_out_share sets the"
            " share of turns held out"
        )
    read = [pair for pair in evidence.pairs if pair.strict_gain is not None]
    new, old = (
        sum(pair.strict_candidate == 1.0 for pair in read),
        sum(pair.strict_serving == 1.0 for pair in read),
    )
    right = f" ({new} of {len(read)} wholly right, {old} before)" if read else ""
    return (
        f"{trained.words(' answers to held-out questions')}; by the strict reading"
        f" {strict.words()}{right}"
    )


def _gain(candidate: float | None, serving: float | None) -> float | None:
    return None if candidate is None or serving is None else candidate - serving


def _compare(pairs: Sequence[float | None], rules: GateThresholds) -> _Measured:
    better, worse, finding = GainBets(), GainBets(), _Finding.OPEN
    gains: list[float] = []
    unscored = 0
    for gain in pairs:
        if gain is None:
            unscored += 1
            continue
        gains.append(gain)
        better.add(gain)
        worse.add(-gain)
        if (
            finding := _finding(better.e_value, worse.e_value, len(gains), rules)
        ) is not _Finding.OPEN:
            break
    wins, losses = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    mean = math.fsum(gains) / len(gains) if gains else 0.0
    comparison = Comparison(
        len(gains),
        wins,
        losses,
        mean,
        worse.e_value if finding is _Finding.WORSE else better.e_value,
    )
    return _Measured(finding, comparison, unscored)


def _finding(better: float, worse: float, pairs: int, rules: GateThresholds) -> _Finding:
    if worse >= 1 / rules.alpha_harm:
        return _Finding.WORSE
    return _Finding.BETTER if better >= 1 / rules.alpha and pairs >= rules.least else _Finding.OPEN


def _unsafe(evidence: Evidence, rules: GateThresholds) -> list[str]:
    if evidence.kl is None:
        return []
    if not math.isfinite(evidence.kl):
        return ["the distance to the untrained weights is not a finite number"]
    if evidence.kl > rules.kl_most:
        return [
            f"too far from the untrained weights: {evidence.kl:.3g} nats a token, at most"
            f" {rules.kl_most:g}"
        ]
    return []


def _lost(evidence: Evidence, rules: GateThresholds) -> list[str]:
    if evidence.golden_serving is None or evidence.golden_candidate is None:
        return []
    golden = compare_golden(evidence.golden_serving, evidence.golden_candidate, rules.golden)
    return [golden.words] if golden.is_worse else []


def _unproven(evidence: Evidence, rules: GateThresholds) -> list[str]:
    """Objections to gains by lenient checks that the strict measure cannot confirm."""
    objections = []
    for skills, accepted in evidence.lenient.items():
        pairs = [pair for pair in evidence.pairs if pair.skills == skills]
        gains = [pair.gain for pair in pairs if pair.gain is not None and pair.strict_gain is None]
        if (
            len(gains) * 2 > len(pairs)
            and len(gains) >= rules.skill.least
            and math.fsum(gains) > rules.lenient_gain * len(gains)
        ):
            shown = accepted if len(accepted) <= _MOST_SHOWN else accepted[:_MOST_SHOWN] + "…"
            remedy = (
                "make it stricter, or set [judge]"
                if evidence.judge is None
                else "make it stricter; the judge could not tell"
            )
            objections.append(
                f"the check of {', '.join(skills) or 'its rules'} accepts {shown!r} whatever is"
                f" asked, so it cannot tell whether anything was learned: {remedy}"
            )
    return objections


def _answers(evidence: Evidence) -> tuple[list[HeldOutAnswer], list[HeldOutAnswer]]:
    answers = [pair.answers for pair in evidence.pairs if pair.answers is not None]
    return [candidate for candidate, _ in answers], [serving for _, serving in answers]


def _decision(
    ruling: GateRuling, evidence: Evidence, held_out: Comparison, reasons: list[str], more: int = 0
) -> GateDecision:
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
