"""The parts of the simulated world: a policy that is moved as told, drafts that the real draft check reads, idle time."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.bench.world.drafting import draft
from metaclaw.bench.world.idle import Calendar, Stretch, stretches
from metaclaw.bench.world.policy import HEED, Effect, SimulatedPolicy, family
from metaclaw.bench.world.settings import EVOLVERS, Evolver, Practice, Traits
from metaclaw.skills.gate.lint import lint

_TRAITS = Traits()
_NEW = SimulatedPolicy(_TRAITS, {})
_RIGHT = Effect(frozenset({"times"}), mends=frozenset({"times"}))
_WRONG = Effect(frozenset({"times"}), breaks=frozenset({"times"}))
_RULES = ("money", "names", "times", "times=utc")


def test_the_chances_are_the_ones_that_were_given() -> None:
    assert _NEW.chance("times") == pytest.approx(_TRAITS.p_base)
    assert _NEW.chance("times", [_RIGHT]) == pytest.approx(_TRAITS.p_skill)
    assert _NEW.chance("times", [_WRONG]) == pytest.approx(_TRAITS.p_harm)
    assert _NEW.chance("money", [_RIGHT, _WRONG]) == pytest.approx(_TRAITS.p_base)


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_pull_moves_a_rule_its_own_way_and_never_beyond_what_weights_can_do(times: float, money: float) -> None:
    after = _NEW.taught({"times": times, "money": money})
    assert (after.chance("times") > _NEW.chance("times")) == (times > 1e-12) or abs(times) < 1e-9
    assert after.chance("times") <= _TRAITS.p_weights + 1e-9
    assert after.chance("names") == _NEW.chance("names")


def test_a_policy_that_learned_to_ignore_skills_gains_nothing_by_them() -> None:
    deaf = _NEW.taught({HEED: -100.0})
    assert deaf.heed == 0.0
    assert deaf.chance("times", [_RIGHT]) == pytest.approx(_TRAITS.p_base)


def test_what_a_step_does_not_touch_fades() -> None:
    learned = _NEW.taught({"times": 0.1})
    faded = learned.taught({"money": 0.1})
    assert _TRAITS.p_base < faded.chance("times") < learned.chance("times")


def test_forms_of_a_rule_are_of_one_family() -> None:
    assert family("times=+09:00") == family("times") == "times"


@pytest.mark.parametrize("worth", ["right", "useless", "harmful"])
def test_the_draft_check_objects_to_sloppy_drafts_and_to_no_other(worth: str) -> None:
    shares = {"right": (1.0, 0.0), "useless": (0.0, 0.0), "harmful": (0.0, 1.0)}[worth]
    for seed in range(6):
        clean = draft("times", seed, _RULES, Evolver(*shares, sloppy=0.0, declines=0.0), Random(seed))
        sloppy = draft("times", seed, _RULES, Evolver(*shares, sloppy=1.0, declines=0.0), Random(seed))
        assert clean.worth == worth
        assert not lint(clean.skill)
        assert bool(lint(sloppy.skill)) == (worth != "right")


def test_a_right_draft_misleads_where_another_form_is_meant() -> None:
    made = draft("times", 1, _RULES, EVOLVERS["perfect"], Random(0))
    assert made.effect.mends == {"times"}
    assert made.effect.breaks == {"times=utc"}


def test_shares_of_an_evolver_add_up() -> None:
    assert all(one.useless >= -1e-9 for one in EVOLVERS.values())


def test_time_goes_on_without_gaps_and_nights_are_away() -> None:
    flat = [stretch for before in stretches([5, 6, 4], Random(1)) for stretch in before]
    assert all(one.end == pytest.approx(two.begin) for one, two in pairwise(flat))
    assert sum(one.is_away and one.length_s > 8 * 3_600 for one in flat) == 3


def test_presence_is_a_veto_for_every_scheduler_but_the_immediate() -> None:
    there = Stretch(0.0, 7_200.0, is_away=False)
    for name, worked in (("fixed", 0.0), ("forecast", 0.0), ("immediate", 600.0)):
        assert Calendar(name, Practice()).use(there, 0.0, 600.0).worked_s == worked  # type: ignore[arg-type]


def test_the_fixed_rule_waits_half_an_hour_and_loses_the_piece_under_way() -> None:
    spent = Calendar("fixed", Practice(piece_s=60.0)).use(Stretch(0.0, 1_950.0, is_away=True), 0.0, 3_600.0)
    assert (spent.worked_s, spent.wasted_s) == (120.0, 30.0)


def test_the_forecast_learns_to_use_a_break_that_comes_every_day() -> None:
    calendar = Calendar("forecast", Practice())
    breaks = [Stretch(day * 86_400.0 + 36_000, day * 86_400.0 + 37_200, is_away=True) for day in range(20)]
    first = calendar.use(breaks[0], 0.0, 3_600.0)
    for one in breaks[:-1]:
        calendar.passed(one)
    last = calendar.use(breaks[-1], 0.0, 3_600.0)
    assert first.worked_s == 0.0
    assert last.worked_s > 600.0
    assert last.overlap_s == 0.0


@given(
    st.lists(st.floats(30.0, 4_000.0), max_size=30),
    st.floats(60.0, 4_000.0),
    st.floats(0.0, 0.99),
    st.sampled_from(("forecast", "fixed", "immediate")),
)
def test_time_passes_whether_or_not_it_is_trained_in(before: list[float], length_s: float, begun: float, scheduler: str) -> None:
    calendar = Calendar(scheduler, Practice())  # type: ignore[arg-type]
    for number, gap_s in enumerate(before):
        calendar.passed(Stretch(number * 86_400.0, number * 86_400.0 + gap_s, is_away=True))
    stretch = Stretch(len(before) * 86_400.0, len(before) * 86_400.0 + length_s, is_away=True)
    spent = calendar.use(stretch, begun * stretch.length_s, 3_600.0)
    assert begun * stretch.length_s < spent.until_s <= stretch.length_s
    assert spent.worked_s >= 3_600.0 or spent.until_s == stretch.length_s
