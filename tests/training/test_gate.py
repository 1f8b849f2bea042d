"""The gate for weights: only what is shown better and loses nothing passes; poison and luck do
not.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.training.bets import Shown
from metaclaw.training.degeneration import HeldOutAnswer
from metaclaw.training.gate import (
    AnswerPair,
    Evidence,
    GateDecision,
    GateRuling,
    GateThresholds,
    judge_candidate,
    weigh_skills,
)
from metaclaw.training.golden import GoldenScore
from tests.support.cases import each

GOLDEN = GoldenScore({f"i{at}": at < 500 for at in range(800)})
BROKEN = GoldenScore({f"i{at}": at < 300 for at in range(800)})
RULES = GateThresholds()


def pair(
    candidate: float | None,
    serving: float | None,
    strict: tuple[float | None, float | None] | None = None,
) -> AnswerPair:
    """Both measures say the same, unless the strict one is given."""
    strict_candidate, strict_serving = strict or (candidate, serving)
    return AnswerPair(candidate, serving, (), strict_candidate, strict_serving)


def pairs(better: int, worse: int = 0, ties: int = 0) -> list[AnswerPair]:
    mixed = [pair(1.0, 0.0)] * better + [pair(0.0, 1.0)] * worse + [pair(1.0, 1.0)] * ties
    random.Random(4).shuffle(mixed)
    return mixed


def whole(
    seen: list[AnswerPair], candidate: GoldenScore = GOLDEN, kl: float | None = 0.1
) -> Evidence:
    return Evidence(seen, GOLDEN, candidate, kl=kl, judge="check")


def run(draw: Callable[[], AnswerPair], candidate: GoldenScore = GOLDEN) -> GateDecision:
    """The gate as the loop runs it: wave after wave until it is decided."""
    seen: list[AnswerPair] = []
    while (decision := judge_candidate(whole(seen, candidate))).ruling is GateRuling.UNDECIDED:
        seen += [draw() for _ in range(decision.more)]
    return decision


def test_a_candidate_that_is_better_and_loses_nothing_is_promoted_with_its_report() -> None:
    decision = judge_candidate(whole(pairs(better=18, worse=2, ties=5)))
    assert decision.ruling is GateRuling.PROMOTE
    report = decision.report
    assert report.is_passed
    assert report.held_out is not None
    assert report.held_out.e_value >= 20
    assert (report.golden_untrained, report.golden_candidate, report.kl, report.judge) == (
        500 / 800,
        500 / 800,
        0.1,
        "check",
    )
    assert report.reasons == (
        (
            "better in 13 of 20 answers to held-out questions, worse in 2; by the strict reading"
            " better in 13 of 20, worse in 2 (23 of 25 wholly right, 7 before)"
        ),
        "general abilities kept (+0.0 points, at worst -0.2, on 800 questions)",
    )


def test_a_few_lucky_pairs_are_not_enough() -> None:
    decision = judge_candidate(whole(pairs(better=8)))
    assert decision.ruling is GateRuling.UNDECIDED
    assert decision.more == RULES.wave


def test_the_last_wave_is_no_longer_than_what_is_allowed() -> None:
    decision = judge_candidate(whole(pairs(better=5, worse=5, ties=185)))
    assert (decision.ruling, decision.more) == (GateRuling.UNDECIDED, 5)


@pytest.mark.parametrize(
    "evidence", [whole(pairs(10, 10, 180)), Evidence(pairs(1, 1, 3), GOLDEN, GOLDEN, is_all=True)]
)
def test_who_is_not_shown_better_is_rejected_in_the_end(evidence: Evidence) -> None:
    decision = judge_candidate(evidence)
    assert decision.ruling is GateRuling.REJECT
    assert decision.report.reasons[0].startswith("not shown better")


def test_who_is_shown_worse_is_rejected_early() -> None:
    decision = judge_candidate(whole(pairs(better=0, worse=8)))
    assert decision.ruling is GateRuling.REJECT
    told = (
        "worse than the serving version: better in 0 of 6 answers to held-out questions, worse in 6"
    )
    assert decision.report.reasons[0].startswith(told)


@each(
    ("evidence", "reason"),
    [
        (
            whole(pairs(30), kl=1.5),
            "too far from the untrained weights: 1.5 nats a token, at most 1",
        ),
        (
            whole(pairs(30), kl=math.nan),
            "the distance to the untrained weights is not a finite number",
        ),
        (
            whole(pairs(30), BROKEN),
            "general abilities lost, or not shown to be within 2 points (-25.0 points",
        ),
    ],
)
def test_the_best_pairs_do_not_make_up_for_what_is_broken(evidence: Evidence, reason: str) -> None:
    decision = judge_candidate(evidence)
    assert decision.ruling is GateRuling.REJECT
    assert decision.report.reasons[0].startswith(reason)


def test_nobody_is_promoted_before_the_golden_set_was_tried() -> None:
    decision = judge_candidate(Evidence(pairs(30)))
    assert (decision.ruling, decision.more) == (GateRuling.UNDECIDED, 0)
    assert "the golden set has not been tried" in decision.report.reasons


def test_a_distance_that_nobody_measured_is_not_judged() -> None:
    assert judge_candidate(whole(pairs(30), kl=None)).ruling is GateRuling.PROMOTE


def test_an_answer_that_could_not_be_scored_is_left_out_and_counted() -> None:
    decision = judge_candidate(whole([*pairs(better=25), pair(None, 1.0), pair(0.0, None)]))
    assert decision.report.held_out is not None
    assert decision.report.held_out.worse == 0
    undecided = judge_candidate(whole([pair(None, 1.0), pair(0.5, None)]))
    assert undecided.report.held_out is None
    assert "none of 2 answers to held-out questions could be scored" in undecided.report.reasons[1]


def test_the_first_decisive_moment_stands() -> None:
    decision = judge_candidate(whole([*pairs(better=20), *pairs(better=0, worse=40)]))
    assert decision.ruling is GateRuling.PROMOTE
    assert decision.report.held_out is not None
    assert decision.report.held_out.pairs == 20


def test_a_candidate_that_improved_only_by_the_measure_it_was_trained_on_is_rejected() -> None:
    fooled = [pair(1.0, 0.0, strict=(0.0, 0.0))] * 60
    assert judge_candidate(whole(fooled[:20])).ruling is GateRuling.UNDECIDED
    decision = judge_candidate(Evidence(fooled, GOLDEN, GOLDEN, is_all=True))
    assert decision.ruling is GateRuling.REJECT
    assert decision.report.reasons == (
        "improved only by the measure it was trained on, so a check may accept too much",
        (
            "better in 20 of 20 answers to held-out questions, worse in 0; by the strict reading"
            " better in 0 of 60, worse in 0 (0 of 60 wholly right, 0 before)"
        ),
    )


def test_a_candidate_that_is_worse_by_the_strict_measure_is_rejected_whatever_the_other_says() -> (
    None
):
    decision = judge_candidate(whole([pair(1.0, 0.0, strict=(0.0, 1.0))] * 20))
    assert decision.ruling is GateRuling.REJECT
    assert decision.report.reasons[0].startswith("worse than the serving version: better in 0 of 6")


def test_a_candidate_that_no_second_measure_can_judge_is_rejected() -> None:
    unseen = [pair(1.0, 0.0, strict=(None, None))] * 40
    decision = judge_candidate(Evidence(unseen, GOLDEN, GOLDEN, is_all=True))
    assert decision.ruling is GateRuling.REJECT
    assert decision.report.reasons[0].startswith("no second measure can tell")


def test_the_reason_says_in_words_that_there_was_nothing_to_compare_or_nothing_could_be_scored() -> (
    None
):
    nothing = judge_candidate(Evidence([], is_all=True))
    assert nothing.ruling is GateRuling.REJECT
    assert nothing.report.reasons == (
        "not shown better",
        (
            "there were no held-out questions to compare it on; policy.held_out_share sets the"
            " share of turns held out"
        ),
    )
    unscored = judge_candidate(
        Evidence([pair(1.0, 0.0, strict=(None, None))] * 30 + [pair(None, None)], is_all=True)
    )
    assert unscored.report.reasons[-1].endswith(
        "; by the strict reading none of 31 could be scored"
    )
    silent = judge_candidate(Evidence([pair(None, None)] * 3, is_all=True))
    told = (
        "none of 3 answers to held-out questions could be scored; by the strict reading none of 3"
    )
    assert silent.report.reasons[-1].startswith(told)


def test_a_candidate_that_is_better_strictly_and_lower_by_what_it_was_trained_on_is_not_promoted() -> (
    None
):
    mixed = [pair(0.4, 0.5, strict=(1.0, 0.0))] * 40
    decision = judge_candidate(Evidence(mixed, GOLDEN, GOLDEN, is_all=True))
    assert decision.ruling is GateRuling.REJECT


def test_answers_that_have_degenerated_are_rejected_however_much_they_are_worth() -> None:
    def said(at: int, text: str) -> HeldOutAnswer:
        return HeldOutAnswer(f"question {at}", text, 8)

    same = [
        replace(pair(1.0, 0.0), answers=(said(at, "always this"), said(at, f"answer {at}")))
        for at in range(30)
    ]
    decision = judge_candidate(whole(same))
    assert decision.ruling is GateRuling.REJECT
    assert (
        decision.report.reasons[0]
        == "degenerate: gives one answer to 30 of 30 different questions: 'always this'"
    )
    differing = [
        replace(pair(1.0, 0.0), answers=(said(at, f"14:{at}"), said(at, f"answer {at}")))
        for at in range(30)
    ]
    assert judge_candidate(whole(differing)).ruling is GateRuling.PROMOTE


def test_the_gate_refuses_poison_and_luck_and_lets_through_who_is_better() -> None:
    """Graded scores, waves and peeking as in real life. The bound of 5 % has room for chance in so
    few runs.
    """
    rng = random.Random(11)

    def drawing(candidate: float, serving: float) -> Callable[[], AnswerPair]:
        def graded(mean: float) -> float:
            return min(1.0, max(0.0, rng.gauss(mean, 0.25)))

        return lambda: pair(graded(candidate), graded(serving))

    def share(ruling: GateRuling, candidate: float, serving: float, runs: int = 60) -> float:
        return sum(run(drawing(candidate, serving)).ruling is ruling for _ in range(runs)) / runs

    assert share(GateRuling.PROMOTE, 0.5, 0.5, runs=80) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 80)
    assert share(GateRuling.REJECT, 0.3, 0.5) >= 0.95
    assert share(GateRuling.PROMOTE, 0.65, 0.5) >= 0.95


SKILLS = tuple(SkillName(name) for name in ("dates", "names", "metadata", "backups", "log-lines"))
LOST = SKILLS[3]
RUNS, LIVES = 40, 48


def skill_pair(
    candidate: float | None, serving: float | None, skills: tuple[SkillName, ...] = ()
) -> AnswerPair:
    """Both measures say the same."""
    return AnswerPair(candidate, serving, skills, candidate, serving)


def tried(draw: Callable[[SkillName], AnswerPair], pool: int = 200) -> GateDecision:
    """The gate as the loop runs it, the skills taking turns."""
    seen: list[AnswerPair] = []
    while (
        decision := judge_candidate(Evidence(seen, GOLDEN, GOLDEN, is_all=len(seen) >= pool))
    ).ruling is GateRuling.UNDECIDED:
        seen += [
            draw(SKILLS[(len(seen) + number) % len(SKILLS)]) for number in range(decision.more)
        ]
    return decision


def drawing(
    rng: random.Random, serving: float, candidate: float, lost: float | None = None
) -> Callable[[SkillName], AnswerPair]:
    """Answers that pass so often; those with one skill as often as `lost` says."""

    def draw(skill: SkillName) -> AnswerPair:
        rate = candidate if lost is None or skill != LOST else lost
        return skill_pair(float(rng.random() < rate), float(rng.random() < serving), (skill,))

    return draw


def test_a_candidate_that_is_better_on_the_whole_and_lost_one_skill_is_refused_with_that_skill_named() -> (
    None
):
    for seed in range(RUNS):
        decision = tried(drawing(random.Random(seed), 0.7, 0.95, lost=0.0))
        assert decision.ruling is GateRuling.REJECT, decision.report.reasons
        assert any(
            reason.startswith(f"worse on the prompts of {LOST}: ")
            for reason in decision.report.reasons
        )


def test_an_honest_candidate_passes() -> None:
    passed = [
        tried(drawing(random.Random(seed), 0.7, 0.93)).ruling is GateRuling.PROMOTE
        for seed in range(RUNS)
    ]
    assert sum(passed) / RUNS >= 0.97


def test_nobody_passes_before_every_skill_that_came_up_was_tried_several_times() -> None:
    better = [skill_pair(1.0, 0.0, SKILLS[:1]) for _ in range(30)]
    hardly = [skill_pair(1.0, 1.0, SKILLS[1:2]) for _ in range(3)]
    decision = judge_candidate(Evidence([*better, *hardly], GOLDEN, GOLDEN))
    assert (decision.ruling, decision.more) == (GateRuling.UNDECIDED, GateThresholds().wave)
    assert decision.report.reasons[0].startswith(
        f"open on the prompts of {SKILLS[1]}: better in 0 of 3, worse in 0"
    )
    # Where there are no more prompts, that is nobody's fault.
    assert (
        judge_candidate(Evidence([*better, *hardly], GOLDEN, GOLDEN, is_all=True)).ruling
        is GateRuling.PROMOTE
    )


def test_a_skill_that_stays_suspect_to_the_end_keeps_the_candidate_out() -> None:
    better = [skill_pair(1.0, 0.0, SKILLS[:1]) for _ in range(40)]
    bad = [skill_pair(0.0, 1.0, SKILLS[1:2]) for _ in range(6)]
    decision = judge_candidate(Evidence([*better, *bad], GOLDEN, GOLDEN, is_all=True))
    assert decision.ruling is GateRuling.REJECT
    assert decision.report.reasons[0].startswith(
        f"not shown harmless on the prompts of {SKILLS[1]}: better in 0 of 6, worse in 6"
    )


def test_a_pair_speaks_for_every_skill_in_its_prompt_and_without_one_or_a_score_for_none() -> None:
    pairs = [
        skill_pair(1.0, 0.0, SKILLS[:2]),
        skill_pair(0.0, 1.0, SKILLS[1:2]),
        skill_pair(0.0, 1.0),
        skill_pair(None, 1.0, SKILLS[:1]),
    ]
    found = {name: (one.pairs, one.better, one.worse) for name, one in weigh_skills(pairs).items()}
    assert found == {SKILLS[0]: (1, 1, 0), SKILLS[1]: (2, 1, 1)}


def test_the_more_skills_there_are_the_more_each_must_show() -> None:
    lost = [skill_pair(0.0, 1.0, SKILLS[:1]) for _ in range(8)]
    others = [skill_pair(1.0, 1.0, (SkillName(f"skill-{number}"),)) for number in range(40)]
    assert weigh_skills(lost)[SKILLS[0]].shown is Shown.WORSE
    assert weigh_skills([*lost, *others])[SKILLS[0]].shown is Shown.OPEN


@pytest.mark.slow
def test_a_candidate_that_is_no_worse_with_any_skill_is_seldom_called_worse_with_one() -> None:
    runs, found = 300, 0
    for seed in range(runs):
        rng = random.Random(seed)
        pairs = [drawing(rng, 0.7, 0.7)(SKILLS[number % 5]) for number in range(200)]
        found += any(one.shown is Shown.WORSE for one in weigh_skills(pairs).values())
    assert found / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
