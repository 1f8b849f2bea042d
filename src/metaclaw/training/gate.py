"""The gate for weights: decides from scores and answers whether a candidate may serve. Pure.

Candidate and serving version answer the same held-out prompts with the same skills and seeds. Two
measures score each pair of answers: the measure that trained the candidate, and a strict measure
that did not (docs/decisions/0008). Each gives a gain in [-1, 1]. The evidence may be checked after every
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

A candidate that is no better passes with probability at most alpha (5 %); a candidate that is no worse
is called worse by a measure with probability at most alpha. A pair with an answer that could
not be scored is left out and counted.

**Each skill separately.** A gain elsewhere must not hide the loss of one skill. With k skills in
the prompts of the pairs, the thresholds for each skill are k times as high: evidence of k/alpha
after at least `_LEAST_OF_A_SKILL` pairs means worse; evidence of k·`_SUSPICION`, or fewer pairs,
leaves the skill open, and more pairs are drawn. A pair counts for every skill in its prompt. k
grows with new skills, and a candidate that is no worse on any is called worse with probability at
most alpha·(1 + ln k)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import Comparison, GateReport
from metaclaw.training.bets import PairedTest, Shown, compare_pairs
from metaclaw.training.degeneration import HeldOutAnswer, describe_length, find_degeneration
from metaclaw.training.golden import GoldenComparison, GoldenScore, compare_golden

_ALPHA: Final = 0.05
_LEAST_OF_A_SKILL: Final = 8
_SUSPICION: Final = 3.0
_LENIENT_GAIN: Final = 0.02
"""A mean gain above this by a lenient check needs a judge."""
_MOST_SHOWN: Final = 60


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
class Evidence:
    """What is known of a candidate so far. `is_all`: all held-out prompts were tried. `demanded`: answers that are the only
    one their check accepts. `lenient`: for skills whose check accepts one answer to any question,
    that answer."""

    pairs: Sequence[AnswerPair]
    golden_untrained: GoldenScore | None = None
    golden_candidate: GoldenScore | None = None
    kl: float | None = None
    is_all: bool = False
    judge: str | None = None
    demanded: frozenset[str] = frozenset()
    lenient: Mapping[tuple[SkillName, ...], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateThresholds:
    """When a candidate passes. `wave` is the number of pairs requested at a time; `kl_most` is in
    nats per drawn token, `golden_margin` in percentage points. With several `tries` the rules are
    so strict that all of them together are wrong no more often than a single one."""

    least: int = 20
    most: int = 200
    wave: int = 20
    kl_most: float = 1.0
    golden_margin: float = 2.0
    tries: int = 1


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


def judge_candidate(evidence: Evidence, rules: GateThresholds | None = None) -> GateDecision:
    """Rule on a candidate by the evidence so far."""
    rules = rules or GateThresholds()
    trained = _compare([pair.gain for pair in evidence.pairs], rules)
    strict = _compare([pair.strict_gain for pair in evidence.pairs], rules)
    skills = [
        *weigh_skills(evidence.pairs).items(),
        *weigh_skills(evidence.pairs, strictly=True).items(),
    ]
    words = _describe(evidence, trained, strict)
    golden = _golden(evidence, rules)
    lost = [golden.words] if golden is not None and golden.is_worse else []
    degenerate = find_degeneration(*_answers(evidence), evidence.demanded)
    objections = [
        *_unsafe(evidence, rules),
        *lost,
        *(f"degenerate: {reason}" for reason in degenerate),
        *_unproven(evidence),
        *(
            f"worse than the serving version: {test.words(' answers to held-out questions')}"
            for test in (trained, strict)
            if test.shown is Shown.WORSE
        ),
        *(f"worse {_of_skill(*one)}" for one in skills if one[1].shown is Shown.WORSE),
    ]
    left = 0 if evidence.is_all else max(0, rules.most - len(evidence.pairs))
    doubts = _doubts(trained, strict, skills, rules, is_last=not left)
    ruling, more = GateRuling.REJECT, 0
    if objections:
        reasons = [*objections, *([words] if evidence.pairs else [])]
    elif doubts:
        reasons, more = [*doubts, words], min(rules.wave, left)
        ruling = GateRuling.UNDECIDED if left else GateRuling.REJECT
    elif golden is None:
        ruling, reasons = GateRuling.UNDECIDED, [words, "the golden set has not been tried"]
    else:
        length = describe_length(*_answers(evidence))
        ruling, reasons = GateRuling.PROMOTE, [words, golden.words]
        reasons += [] if length is None else [length]
    return GateDecision(
        ruling,
        _report(
            evidence, trained, ruling, reasons, lost_abilities=bool(lost) and objections == lost
        ),
        more,
    )


def _doubts(
    trained: PairedTest,
    strict: PairedTest,
    skills: Sequence[tuple[SkillName, PairedTest]],
    rules: GateThresholds,
    *,
    is_last: bool,
) -> list[str]:
    """Why a candidate without objections is not promoted. `is_last`: there are no more pairs to
    try.
    """
    if strict.shown is Shown.OPEN:
        if not is_last:
            return ["open"]
        if trained.shown is not Shown.BETTER:
            return ["not shown better"]
        if strict.pairs < min(rules.least, trained.pairs):
            return ["no second measure can tell: only the one it was trained on says better"]
        return ["improved only by the measure it was trained on, so a check may accept too much"]
    if trained.mean < 0.0:
        return ["lower by the measure it was trained on"]
    # A candidate that is better overall may have lost one skill. If that is still suspected at the
    # end, the serving version stays.
    word = "not shown harmless" if is_last else "open"
    kinds = len(dict(skills))
    return [
        f"{word} {_of_skill(name, test)}"
        for name, test in skills
        if test.e_worse >= _SUSPICION * kinds or (test.pairs < _LEAST_OF_A_SKILL and not is_last)
    ]


def weigh_skills(
    pairs: Sequence[AnswerPair], *, strictly: bool = False
) -> dict[SkillName, PairedTest]:
    """The gain on each skill in the prompts, in order of appearance, by the measure that trains or
    by the strict one.
    """
    gains: dict[SkillName, list[float]] = {}
    for pair in pairs:
        if (gain := pair.strict_gain if strictly else pair.gain) is not None:
            for skill in dict.fromkeys(pair.skills):
                gains.setdefault(skill, []).append(gain)
    return {
        skill: compare_pairs(
            of_skill,
            better_at=math.inf,
            worse_at=len(gains) / _ALPHA,
            least_worse=_LEAST_OF_A_SKILL,
        )
        for skill, of_skill in gains.items()
    }


def _of_skill(skill: SkillName, test: PairedTest) -> str:
    return f"on the prompts of {skill}: {test.words()}"


def _describe(evidence: Evidence, trained: PairedTest, strict: PairedTest) -> str:
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


def _compare(gains: Sequence[float | None], rules: GateThresholds) -> PairedTest:
    return compare_pairs(
        gains,
        better_at=rules.tries / _ALPHA,
        worse_at=1 / _ALPHA,
        least_better=rules.least,
    )


def _golden(evidence: Evidence, rules: GateThresholds) -> GoldenComparison | None:
    untrained, candidate = evidence.golden_untrained, evidence.golden_candidate
    if untrained is None or candidate is None:
        return None
    return compare_golden(untrained, candidate, rules.golden_margin, tries=rules.tries)


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


def _unproven(evidence: Evidence) -> list[str]:
    """Objections to gains by lenient checks that the strict measure cannot confirm."""
    objections = []
    for skills, accepted in evidence.lenient.items():
        pairs = [pair for pair in evidence.pairs if pair.skills == skills]
        gains = [pair.gain for pair in pairs if pair.gain is not None and pair.strict_gain is None]
        if (
            len(gains) * 2 > len(pairs)
            and len(gains) >= _LEAST_OF_A_SKILL
            and math.fsum(gains) > _LENIENT_GAIN * len(gains)
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


def _report(
    evidence: Evidence,
    trained: PairedTest,
    ruling: GateRuling,
    reasons: Sequence[str],
    *,
    lost_abilities: bool,
) -> GateReport:
    untrained, candidate = evidence.golden_untrained, evidence.golden_candidate
    e_value = trained.e_worse if trained.shown is Shown.WORSE else trained.e_better
    return GateReport(
        is_passed=ruling is GateRuling.PROMOTE,
        reasons=tuple(reasons),
        held_out=Comparison(trained.pairs, trained.better, trained.worse, trained.mean, e_value)
        if trained.pairs
        else None,
        golden_untrained=None if untrained is None else untrained.share,
        golden_candidate=None if candidate is None else candidate.share,
        kl=evidence.kl,
        judge=evidence.judge,
        lost_abilities=lost_abilities,
    )
