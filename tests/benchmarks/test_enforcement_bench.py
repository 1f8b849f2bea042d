"""The benchmark of held rules: a small run of all of it, and that it notices what it is there to
notice.
"""

from pathlib import Path

from benchmarks.enforcement import (
    COMPLIANT,
    GOALS,
    VIOLATING,
    goals_met,
    measure,
    measure_delivery,
    plans_for,
)


def test_a_small_run_delivers_no_violating_call_and_counts_what_the_script_did() -> None:
    facts = measure(calls=12, requests=2, rounds=1)
    delivery, cost = facts["delivery"], facts["cost"]
    assert delivery["violating_made"] >= 12
    assert delivery["violating_delivered"] == 0
    assert delivery["compliant_made"] >= 12
    assert delivery["compliant_changed"] == 0
    assert delivery["failed"] == []
    assert delivery["refused_histories"] == 0
    assert delivery["counted"] == delivery["truth"]
    assert delivery["compliance_is_true"]
    assert (
        set(cost["cpu_ms"])
        == set(cost["cpu_ratio"])
        == {
            "whole",
            "streamed",
            "streamed without calls",
            "streamed in one piece",
        }
    )
    assert set(cost["first_text_ms"]) == {"held", "none"}


def test_without_held_rules_it_reports_the_calls_that_get_through(tmp_path: Path) -> None:
    delivery = measure_delivery(tmp_path, 12, held=0)
    assert delivery["violating_delivered"] > 0
    assert not delivery["compliance_is_true"]
    assert not goals_met({"delivery": delivery})["violating_delivered"]


def test_plans_come_to_the_calls_that_were_asked_for() -> None:
    assert plans_for(VIOLATING, 4) == ["bad good", "mixed two", "bad mixed good"]
    assert plans_for(COMPLIANT, 4) == ["good", "two", "good"]
    assert plans_for(VIOLATING, 0) == []


def test_goals_can_be_met_and_missed() -> None:
    delivery = {
        "violating_delivered": 0,
        "compliant_changed": 0,
        "failures": 0,
        "compliance_is_true": True,
    }
    cost = {
        "cpu_ratio": {"whole": 1.0, "streamed": GOALS["cpu_ratio"]},
        "first_text_ms": {"held": 10.0, "none": 9.0},
    }
    assert all(goals_met({"delivery": delivery, "cost": cost}).values())
    bad = {
        "violating_delivered": 1,
        "compliant_changed": 1,
        "failures": 1,
        "compliance_is_true": False,
    }
    slow = {
        "cpu_ratio": {"whole": 1.2, "streamed": 1.2},
        "first_text_ms": {"held": 20.0, "none": 9.0},
    }
    assert not any(goals_met({"delivery": bad, "cost": slow}).values())
