"""Conditions: what each configures, and that the program accepts it."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.tests.running.miniature import plan as miniature
from metaclaw.config import Config, load
from metaclaw.plugin import ConfigError
from metaclaw_bench.ablations import Ablation
from metaclaw_bench.conditions import CONDITIONS, Condition, named
from metaclaw_bench.running.plan import Embedded, Endpoint, Plan, Prices


def configured(plan: Plan, home: Path, number: int = 0) -> Config:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(plan.config(plan.stages[number]))
    return load(home, sets=plan.sets)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    judge = Endpoint("http://127.0.0.1:9/v1", "judging", is_simulated=True)
    return replace(
        miniature(tmp_path / "data", days=2, held_out=1), provider=Embedded(), judge=judge
    )


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=lambda one: one.name)
def test_every_condition_is_a_configuration_the_program_accepts(
    plan: Plan, condition: Condition, home: Path
) -> None:
    config = configured(replace(plan, condition=condition), home)
    assert config.skills.enabled is condition.skills
    assert config.skills.learn is condition.skills
    assert (config.policy is not None) is condition.weights
    assert config.judge.votes == 1


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=lambda one: one.name)
def test_a_day_that_only_measures_places_what_was_learned_and_learns_nothing(
    plan: Plan, condition: Condition, home: Path
) -> None:
    config = configured(replace(plan, condition=condition), home, number=1)
    assert config.skills.learn is False
    assert config.skills.enabled is condition.skills


def test_weights_are_trained_between_days_and_at_no_other_time(plan: Plan, home: Path) -> None:
    config = configured(replace(plan, condition=CONDITIONS["full"]), home)
    assert config.policy is not None
    assert config.policy.mode == "auto"
    assert config.schedule.sleep == ()


def test_under_rl_nothing_makes_or_places_skills_and_on_a_day_that_only_measures_nothing_is_trained(
    plan: Plan, home: Path
) -> None:
    rl = replace(plan, condition=CONDITIONS["rl"])
    config = configured(rl, home)
    assert (config.skills.enabled, config.skills.learn) == (False, False)
    assert config.judge.max_share == 1.0
    frozen = configured(rl, home, number=1)
    assert frozen.policy is not None
    assert frozen.policy.mode == "skills_only"


def test_a_judge_is_a_provider_of_its_own_and_nobody_else_judges_or_writes(
    plan: Plan, home: Path
) -> None:
    config = configured(replace(plan, condition=CONDITIONS["full"]), home)
    assert [one.name for one in config.providers] == ["embedded", "judge"]
    assert (config.judge.provider, config.judge.model) == ("judge", "judging")
    assert (config.evolver.provider, config.evolver.model) == ("judge", "judging")
    assert plan.facts()["judge"] == "the benchmark's checkers"


def test_weights_cannot_be_trained_where_nobody_says_how_good_an_answer_is(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="--judge"):
        replace(plan, condition=CONDITIONS["rl"], judge=None)


def test_another_embedded_model_is_asked_for_by_the_name_of_its_folder() -> None:
    assert Embedded.of(("judge.votes=1",)).model == "embedded/smollm2-135m-instruct"
    assert Embedded.of(("policy.base_model=/models/other",)).model == "embedded/other"


def test_a_changed_gate_is_configured_and_labelled(plan: Plan, home: Path) -> None:
    _, skills = named(["baseline", "skills", "skills"])
    wanted = Ablation.parse("gate=off").of(replace(plan, condition=skills))
    assert wanted.name == "skills_gate=off/seed-1"
    assert configured(wanted, home).skills.gate == "off"


def test_an_unknown_condition_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="baseline, skills, rl, full"):
        named(["skils"])


def test_weights_of_a_provider_cannot_be_trained_unless_somebody_is_named_who_does(
    plan: Plan,
) -> None:
    with pytest.raises(ConfigError, match="--embedded"):
        replace(plan, provider=Endpoint("http://127.0.0.1:1/v1", "gpt"), condition=CONDITIONS["rl"])
    trained = replace(
        plan,
        provider=Endpoint("http://127.0.0.1:1/v1", "gpt"),
        condition=CONDITIONS["rl"],
        sets=("policy.backend=tinker",),
    )
    assert trained.condition.weights


def test_a_providers_key_is_a_reference_and_never_written_down(
    plan: Plan, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_KEY", "sk-very-secret")
    wanted = replace(plan, provider=Endpoint("http://127.0.0.1:1/v1", "gpt", "env:BENCH_KEY"))
    config = configured(wanted, home)
    assert config.providers[0].api_key is not None
    assert config.providers[0].api_key.resolve() == "sk-very-secret"
    assert "sk-very-secret" not in wanted.config(wanted.stages[0]) + str(wanted.facts())


def test_tokens_that_nobody_counted_cost_an_unknown_sum() -> None:
    prices = Prices(1.0, 4.0)
    assert prices.cost(1_000_000, 500_000) == 3.0
    assert prices.cost(None, 5) is None
