"""`metaclaw policy plan`, with a model so small that measuring takes moments."""

from pathlib import Path

from tests.cli.program import metaclaw
from tests.engine.tiny import make_tiny_model


def test_the_plan_is_measured_on_this_machine(home: Path, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    metaclaw("config", "set", f"policy.base_model={model}", "policy.device=cpu")
    metaclaw("config", "set", 'schedule.sleep=["23:00-06:30"]')
    facts = metaclaw("policy", "plan", "--json").facts
    assert (facts["model"], facts["device"], facts["night_hours"]) == ("tiny", "cpu", 7.5)
    assert facts["training_bytes"] > facts["serving_bytes"] > 4 * facts["parameters"] > 0
    assert facts["drawn_per_s"] > 0
    step_s = facts["step_tokens"] * (1 / facts["drawn_per_s"] + 1 / facts["learned_per_s"])
    assert abs(facts["step_s"] - step_s) < 1e-6 * step_s
    assert facts["steps_a_night"] == int(7.5 * 3600 / facts["step_s"])


def test_a_service_trains_elsewhere(home: Path, tmp_path: Path) -> None:
    settings = ("backend=tinker", "base_model=Qwen/Qwen3-8B", f"tokenizer={tmp_path}")
    done = metaclaw("config", "set", *(f"policy.{one}" for one in settings))
    assert done.code == 0, done.err
    done = metaclaw("policy", "plan")
    assert done.code == 1
    assert "trained by tinker" in done.err
