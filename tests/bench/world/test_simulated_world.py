"""The simulated world: effects are what was worked out beforehand, and each mechanism is worth what it must be worth."""

import statistics
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import anyio
import pytest

from metaclaw.bench.records import EventRecord, Record, RecordError, RoundRecord, read_all
from metaclaw.bench.stats import Place, bootstrap, pair, student
from metaclaw.bench.workdays.generating import generate, held_out
from metaclaw.bench.workdays.model import Workday
from metaclaw.bench.workdays.plans import PART_ONE, PART_TWO, TINY, DayPlan, Plan
from metaclaw.bench.world import ABLATIONS, CONDITIONS, Ablation, Cell, Condition, Traits, cells, run_matrix
from metaclaw.bench.world.expected import expected_baseline, expected_skills
from metaclaw.bench.world.life import Life, live
from metaclaw.bench.world.matrix import Progress, formed
from metaclaw.bench.world.settings import Practice

_SMALL = Plan(
    name="small",
    days=tuple(DayPlan(2, 4, 0.3) for _ in range(12)),
    begins={"times": 1, "money": 3, "names": 5},
    held_out_days=2,
)
_HEARD = Traits(unknown=0.0, wrong=0.0)


_PLANS = [_SMALL, TINY, PART_ONE, PART_TWO]


@cache
def days(plan: int, seed: int) -> tuple[list[Workday], list[Workday]]:
    chosen = _PLANS[plan]
    stream, later = (made(seed, chosen).days for made in (generate, held_out))
    return [formed(day, chosen) for day in stream], [formed(day, chosen) for day in later]


def lived(
    plan: Plan, condition: Condition, seed: int, ablation: Ablation | None = None, traits: Traits | None = None, placed: int = 3
) -> list[Record]:
    stream, later = days(_PLANS.index(plan), seed)
    life = Life(
        stream=stream,
        held_out=later,
        again=2,
        condition=condition,
        ablation=ablation or Ablation(),
        seed=seed,
        benchmark=plan.name,
        traits=traits or Traits(),
        practice=Practice(max_placed=placed),
    )
    return anyio.run(live, life)


def rounds(records: Sequence[Record], phase: str = "stream") -> list[RoundRecord]:
    return [one for one in records if isinstance(one, RoundRecord) and one.phase == phase]


def accuracy(records: Sequence[Record], phase: str = "stream") -> float:
    return statistics.fmean(one.score for one in rounds(records, phase))


def scores(records: Sequence[Record], *phases: str) -> dict[Place, float]:
    return {(one.seed, f"{phase} {one.day}", one.round): one.score for phase in phases for one in rounds(records, phase)}


def assert_expected(measured: Callable[[int], float], expected: Callable[[int], float]) -> None:
    """Over many seeds, what was measured less what was expected is nothing, within its interval, which is narrow."""
    found = student([measured(seed) - expected(seed) for seed in range(24)])
    assert found is not None
    assert found.low <= 0.0 <= found.high
    assert found.high - found.low < 0.06


def test_the_baseline_scores_what_was_worked_out_beforehand() -> None:
    assert_expected(
        lambda seed: accuracy(lived(_SMALL, "baseline", seed)),
        lambda seed: expected_baseline(days(0, seed)[0], Traits()),
    )


def test_skills_without_a_gate_score_what_was_worked_out_beforehand() -> None:
    ablation = Ablation(gate="off", evolver="perfect")
    assert_expected(
        lambda seed: accuracy(lived(_SMALL, "skills", seed, ablation, _HEARD, placed=8)),
        lambda seed: expected_skills(days(0, seed)[0], _HEARD, Practice().min_failures),
    )


def test_a_noisy_evolver_does_harm_without_the_gate_and_not_with_it() -> None:
    noisy: list[tuple[Condition, Ablation]] = [
        ("baseline", Ablation()),
        ("skills", Ablation(gate="off", evolver="noisy")),
        ("skills", Ablation(evolver="noisy")),
    ]
    base, off, full = (
        [record for seed in range(2) for record in lived(PART_ONE, condition, seed, ablation)] for condition, ablation in noisy
    )
    bad = born_harmful(off)
    misled = [one for one in rounds(off) if any((one.seed, name) in bad for name in one.skills)]
    hurt = scores(misled, "stream")
    harmed = bootstrap(pair(hurt, scores(base, "stream")), resamples=300)
    helped = bootstrap(pair(scores(full, "stream"), scores(base, "stream")), resamples=300)
    assert len(bad) > 20
    assert harmed is not None
    assert harmed.high < 0.0
    assert not born_harmful(full)
    assert helped is not None
    assert helped.low > 0.0


def born_harmful(records: Sequence[Record]) -> set[tuple[int, str]]:
    events = [one for one in records if isinstance(one, EventRecord) and one.kind == "skill_born"]
    return {(one.seed, one.name or "") for one in events if "(harmful)" in one.why}


def test_what_taught_a_skill_spoils_the_weights_if_it_may_train_them() -> None:
    apart, mixed = (
        [record for seed in range(12) for record in lived(PART_ONE, "full", seed, ablation)]
        for ablation in (Ablation(weights="off"), Ablation(separation="off", weights="off"))
    )
    worse = bootstrap(pair(scores(mixed, "stream"), scores(apart, "stream")), resamples=300)
    assert worse is not None
    assert worse.high < 0.0


def test_a_rule_that_is_meant_in_another_way_is_another_rule() -> None:
    day = formed(generate(1, PART_TWO).days[8], PART_TWO)
    rules = {rule for item in day.items for rule in item.rules}
    assert "times=+09:00" in rules
    assert "times" not in rules


def test_drift_makes_the_old_skill_wrong_until_it_is_learned_anew() -> None:
    records = lived(PART_TWO, "skills", 1, Ablation(gate="off", evolver="perfect"), _HEARD, placed=8)
    asked = [one for one in rounds(records) if any(rule.startswith("times") for rule in one.rules)]
    before = [one for one in asked if one.day_number == 8]
    born = [one.day_number for one in records if isinstance(one, EventRecord) and (one.name or "").startswith("times")]
    assert born[0] < 9 <= born[-1]
    assert all(any(name.startswith("times-1") for name in one.skills) for one in before)


def test_everything_that_comes_from_here_says_that_it_is_simulated() -> None:
    assert all(record.simulated for record in lived(TINY, "full", 0))


def test_the_same_seed_lives_the_same_life_and_another_another() -> None:
    assert lived(TINY, "full", 0) == lived(TINY, "full", 0)
    assert lived(TINY, "baseline", 0)[1:] != lived(TINY, "baseline", 1)[1:]


def test_two_conditions_meet_the_same_luck_where_nothing_was_learned() -> None:
    first = [one for one in rounds(lived(_SMALL, "baseline", 5)) if one.day_number == 1][:3]
    other = [one for one in rounds(lived(_SMALL, "full", 5)) if one.day_number == 1][:3]
    assert [one.score for one in first] == [one.score for one in other]


def test_who_learns_nothing_forgets_nothing() -> None:
    records = lived(_SMALL, "baseline", 3)
    again = rounds(records, "again")
    assert [one.score for one in again] == [one.score for one in rounds(records)][: len(again)]


def test_training_beside_the_person_slows_answers_and_waiting_for_absence_does_not() -> None:
    disturbed = {}
    for scheduler in ("immediate", "fixed", "forecast"):
        records = lived(PART_ONE, "rl", 0, Ablation(scheduler=scheduler))
        disturbed[scheduler] = max(one.seconds for one in rounds(records)) > min(one.seconds for one in rounds(records))
    assert disturbed == {"immediate": True, "fixed": False, "forecast": False}


def test_a_matrix_is_resumed_and_not_run_again(tmp_path: Path) -> None:
    told: list[Progress] = []
    chosen = (Ablation(gate="off"), Ablation())
    run_matrix(tmp_path, seeds=[0], plan=TINY, conditions=["baseline"], ablations=chosen, parallel=1, progress=told.append)
    run_matrix(tmp_path, seeds=[0, 1], plan=TINY, conditions=["baseline"], ablations=chosen, parallel=1, progress=told.append)
    assert [one.name for one in told[:2]] == ["simulated-baseline-0", "simulated-full-gate_off-0"]
    assert [(one.is_old, one.done, one.of) for one in told[2:]] == [(True, 1, 4), (True, 2, 4), (False, 3, 4), (False, 4, 4)]
    assert {one.cell for one in read_all([tmp_path])} == {"baseline", "full · gate=off"}


def test_a_folder_with_other_settings_is_not_continued(tmp_path: Path) -> None:
    run_matrix(tmp_path, seeds=[0], plan=TINY, conditions=["baseline"], ablations=[], parallel=1)
    with pytest.raises(RecordError, match="other settings; name another folder"):
        run_matrix(tmp_path, seeds=[0], plan=TINY, conditions=["baseline"], ablations=[], parallel=1, traits=_HEARD)


@pytest.mark.slow
def test_runs_side_by_side_come_to_the_same(tmp_path: Path) -> None:
    for name, parallel in (("one", 1), ("two", 2)):
        run_matrix(tmp_path / name, seeds=[0, 1], plan=TINY, conditions=["baseline", "full"], ablations=[], parallel=parallel)
    one, two = (sorted((tmp_path / name).glob("*.jsonl")) for name in ("one", "two"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_the_default_matrix_has_every_condition_and_mechanism_once() -> None:
    made = list(cells([0], CONDITIONS, ABLATIONS))
    assert len({cell.name for cell in made}) == len(made)
    assert Cell("full", Ablation(separation="off"), 0) in made
    named = {label.split("=")[0] for cell in made for label in cell.ablation.labels}
    assert named == {"gate", "flush", "scheduler", "evolver", "separation", "weights"}


def test_an_ablation_that_is_not_there_is_named_with_those_that_are() -> None:
    assert Ablation.of({"gate": "off"}) == Ablation(gate="off")
    with pytest.raises(ValueError, match="no ablation gate=wide; there are gate: off, lint, full"):
        Ablation.of({"gate": "wide"})
