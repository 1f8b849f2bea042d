"""What is better on the whole may have lost one skill: gate and canary see it, name it, and leave honest weights alone."""

import math
import random
from collections.abc import Callable, Iterator

import pytest

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.train.coin import LiveTurn
from metaclaw.train.gate import Evidence, GateDecision, GateRules, Pair, Ruling, judge_candidate
from metaclaw.train.golden import GoldenScore
from metaclaw.train.live import LiveReport, LiveRuling, LiveWatch
from metaclaw.train.skillwise import SkillRules, weigh_skills

GOLDEN = GoldenScore({f"i{at}": at < 500 for at in range(800)})
SKILLS = tuple(SkillName(name) for name in ("dates", "names", "metadata", "backups", "log-lines"))
LOST = SKILLS[3]
RUNS, LIVES = 40, 48


def pair(candidate: float | None, serving: float | None, skills: tuple[SkillName, ...] = ()) -> Pair:
    """Both measures say the same."""
    return Pair(candidate, serving, skills, candidate, serving)


def tried(draw: Callable[[SkillName], Pair], pool: int = 200) -> GateDecision:
    """The gate as the loop runs it, the skills taking turns."""
    seen: list[Pair] = []
    while (decision := judge_candidate(Evidence(seen, GOLDEN, GOLDEN, is_all=len(seen) >= pool))).ruling is Ruling.UNDECIDED:
        seen += [draw(SKILLS[(len(seen) + number) % len(SKILLS)]) for number in range(decision.more)]
    return decision


def drawing(rng: random.Random, serving: float, candidate: float, lost: float | None = None) -> Callable[[SkillName], Pair]:
    """Answers that pass so often; those with one skill as often as `lost` says."""

    def draw(skill: SkillName) -> Pair:
        rate = candidate if lost is None or skill != LOST else lost
        return pair(float(rng.random() < rate), float(rng.random() < serving), (skill,))

    return draw


def test_a_candidate_that_is_better_on_the_whole_and_lost_one_skill_is_refused_with_that_skill_named() -> None:
    for seed in range(RUNS):
        decision = tried(drawing(random.Random(seed), 0.7, 0.95, lost=0.0))
        assert decision.ruling is Ruling.REJECT, decision.report.reasons
        assert any(reason.startswith(f"worse on the prompts of {LOST}: ") for reason in decision.report.reasons)


def test_an_honest_candidate_passes() -> None:
    passed = [tried(drawing(random.Random(seed), 0.7, 0.93)).ruling is Ruling.PROMOTE for seed in range(RUNS)]
    assert sum(passed) / RUNS >= 0.97


def test_nobody_passes_before_every_skill_that_came_up_was_tried_several_times() -> None:
    better = [pair(1.0, 0.0, SKILLS[:1]) for _ in range(30)]
    hardly = [pair(1.0, 1.0, SKILLS[1:2]) for _ in range(3)]
    decision = judge_candidate(Evidence([*better, *hardly], GOLDEN, GOLDEN))
    assert (decision.ruling, decision.more) == (Ruling.UNDECIDED, GateRules().wave)
    assert decision.report.reasons[0].startswith(f"open on the prompts of {SKILLS[1]}: better in 0 of 3, worse in 0")
    # Where there are no more prompts, that is nobody's fault.
    assert judge_candidate(Evidence([*better, *hardly], GOLDEN, GOLDEN, is_all=True)).ruling is Ruling.PROMOTE


def test_a_skill_that_stays_suspect_to_the_end_keeps_the_candidate_out() -> None:
    better = [pair(1.0, 0.0, SKILLS[:1]) for _ in range(40)]
    bad = [pair(0.0, 1.0, SKILLS[1:2]) for _ in range(6)]
    decision = judge_candidate(Evidence([*better, *bad], GOLDEN, GOLDEN, is_all=True))
    assert decision.ruling is Ruling.REJECT
    assert decision.report.reasons[0].startswith(f"not shown harmless on the prompts of {SKILLS[1]}: better in 0 of 6, worse in 6")


def test_a_pair_speaks_for_every_skill_in_its_prompt_and_without_one_or_a_score_for_none() -> None:
    pairs = [pair(1.0, 0.0, SKILLS[:2]), pair(0.0, 1.0, SKILLS[1:2]), pair(0.0, 1.0), pair(None, 1.0, SKILLS[:1])]
    found = {one.skill: (one.pairs, one.better, one.worse) for one in weigh_skills(pairs)}
    assert found == {SKILLS[0]: (1, 1, 0), SKILLS[1]: (2, 1, 1)}


def test_the_more_skills_there_are_the_more_each_must_show() -> None:
    lost = [pair(0.0, 1.0, SKILLS[:1]) for _ in range(8)]
    others = [pair(1.0, 1.0, (SkillName(f"skill-{number}"),)) for number in range(40)]
    rules = SkillRules(least=6)
    assert weigh_skills(lost, rules)[0].is_worse
    assert not weigh_skills([*lost, *others], rules)[0].is_worse


@pytest.mark.slow
def test_a_candidate_that_is_no_worse_with_any_skill_is_seldom_called_worse_with_one() -> None:
    runs, found = 300, 0
    for seed in range(runs):
        rng = random.Random(seed)
        pairs = [drawing(rng, 0.7, 0.7)(SKILLS[number % 5]) for number in range(200)]
        found += any(one.is_worse for one in weigh_skills(pairs))
    assert found / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def sessions(rng: random.Random, serving: float, canary: float, lost: float | None, share: float = 0.1) -> Iterator[LiveTurn]:
    """Conversations about one skill each, some turns long."""
    number = 0
    while True:
        number += 1
        skill, is_canary = rng.choice(SKILLS), rng.random() < share
        rate = serving if not is_canary else lost if lost is not None and skill == LOST else canary
        while True:
            outcome = Outcome.PASS if rng.random() < rate else Outcome.FAIL
            yield LiveTurn(SessionId(f"s{number}"), is_canary, share, outcome, (skill,))
            if rng.random() < 0.25:
                break


def watched(turns: Iterator[LiveTurn]) -> LiveReport:
    watch = LiveWatch()
    return next(report for turn in turns if (report := watch.see(turn)).ruling is not LiveRuling.WAIT)


def ends(serving: float, canary: float, lost: float | None = None) -> list[LiveReport]:
    return [watched(sessions(random.Random(seed), serving, canary, lost)) for seed in range(LIVES)]


def test_a_canary_that_lost_one_skill_of_five_is_taken_back_and_mostly_within_fifty_turns() -> None:
    reports = ends(0.74, 0.74, lost=0.0)
    back = [one for one in reports if one.ruling is LiveRuling.ROLL_BACK]
    assert len(back) / LIVES >= 0.93
    assert sum(one.canary_passed + one.canary_failed <= 50 for one in back) / LIVES >= 0.8


def test_what_is_better_elsewhere_does_not_save_a_canary_that_lost_a_skill_and_the_reason_names_it() -> None:
    reports = ends(0.74, 0.95, lost=0.0)
    assert sum(one.ruling is LiveRuling.ROLL_BACK for one in reports) / LIVES >= 0.93
    # Who happens to be asked for it often is worse on the whole, too, and that is said instead.
    assert sum(f"with {LOST}: " in one.reason for one in reports) / LIVES >= 0.8


def test_a_canary_that_is_really_better_is_promoted() -> None:
    assert sum(one.ruling is LiveRuling.PROMOTE for one in ends(0.74, 0.93)) / LIVES >= 0.97


def test_a_canary_is_not_promoted_while_a_common_skill_was_hardly_tried_but_not_for_ever() -> None:
    def turn(number: int, is_canary: bool, skill: SkillName) -> LiveTurn:
        return LiveTurn(SessionId(f"s{number}"), is_canary, 0.1, Outcome.PASS, (skill,))

    watch = LiveWatch()
    for number in range(100):
        watch.see(turn(number, False, SKILLS[number % 2]))
    for number in range(100, 160):
        report = watch.see(turn(number, True, SKILLS[0]))
    assert report.ruling is LiveRuling.WAIT
    assert SKILLS[1] in report.reason
    for number in range(200, 205):
        report = watch.see(turn(number, True, SKILLS[1]))
    assert report.ruling is LiveRuling.PROMOTE
    for number in range(300, 400):
        watch = LiveWatch() if number == 300 else watch
        watch.see(turn(number, False, SKILLS[number % 2]))
    for number in range(400, 550):
        report = watch.see(turn(number, True, SKILLS[0]))
    assert report.ruling is LiveRuling.PROMOTE
