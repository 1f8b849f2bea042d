"""The benchmark of the fast loop: a small run of it measures what it says, and its goals can be
missed.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.time_to_effect import GOALS, Serving, goals_met, percentile
from benchmarks.time_to_effect_topics import TOPICS, Topic
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.skills.gate.gate import lint
from tests.support.cases import each

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_three_corrections_take_effect_and_serving_is_measured_meanwhile() -> None:
    few = ("--repetitions", "3", "--rounds", "1", "--seconds", "1", "--evolver-delay", "0.2")
    command = [sys.executable, "-m", "benchmarks.time_to_effect", *few, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["repetitions"] == 3
    assert facts["skills"] >= 3
    assert 0 < facts["effect_s"]["p50"] <= facts["effect_s"]["p95"] <= facts["effect_s"]["max"] < 20
    assert facts["evolver_s"]["p50"] >= 0.19  # an event loop may wake a millisecond early
    assert (facts["serving"]["learning"]["n"], facts["serving"]["off"]["n"]) == (50, 50)
    assert facts["serving"]["corrections"] > 0
    assert facts["evolver_calls"] >= 3
    assert set(facts["goals"]) == set(GOALS)


def test_goals_can_be_met_and_missed() -> None:
    serving = {"p50_ratio": 1.0, "p99_ratio": 1.2}
    assert all(goals_met({"effect_s": {"p50": 1.9}, "serving": serving}).values())
    slow = goals_met({"effect_s": {"p50": 2.0}, "serving": {"p50_ratio": 1.2, "p99_ratio": 1.6}})
    assert not any(slow.values())
    assert set(goals_met({"effect_s": {"p50": 1.0}})) == {"effect_p50_s"}


def test_a_ratio_compares_the_same_share_of_both_arms() -> None:
    one = Serving([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], 5)
    assert (one.ratio(0.5), one.ratio(0.99)) == (2.0, 2.0)
    assert [percentile([3.0, 1.0, 2.0, 4.0], share) for share in (0.0, 0.5, 0.99)] == [
        1.0,
        3.0,
        4.0,
    ]


@each("topic", TOPICS, ids=lambda topic: topic.name)
def test_every_topic_makes_a_skill_that_the_gate_has_nothing_against(topic: Topic) -> None:
    proposed = topic.skill
    skill = Skill(
        SkillName(proposed["name"]),
        proposed["trigger"],
        proposed["body"],
        author=Authorship.EVOLVER,
    )
    assert lint(skill) == ()


def test_no_two_topics_have_the_same_name() -> None:
    assert len({topic.name for topic in TOPICS}) == len(TOPICS) == 40
