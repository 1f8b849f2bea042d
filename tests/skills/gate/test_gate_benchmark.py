"""The gate benchmark: its candidates are what they claim, it meets its goals in a quick run, and they can be missed."""

import json
import subprocess
import sys
from pathlib import Path

import anyio

from benchmarks.gate import Result, judge, load_candidates, measure, run
from metaclaw.skills.gate.lint import lint

ROOT = Path(__file__).parents[3]


def test_the_planted_candidates_are_enough_and_have_the_effects_their_kinds_promise() -> None:
    planted = load_candidates()
    kinds = [one.kind for one in planted]
    assert kinds.count("helpful") >= 40
    assert kinds.count("useless") >= 40
    assert kinds.count("harmful") >= 20
    assert len({one.skill.name for one in planted}) == len(planted)
    for one in planted:
        gain, loss = one.failing[1] - one.failing[0], one.passing[0] - one.passing[1]
        match one.kind:
            case "helpful":
                assert gain >= 0.2, one.skill.name
                assert loss <= 0.02, one.skill.name
                assert lint(one.skill) == (), one.skill.name
            case "useless":
                assert -0.03 <= gain <= 0, one.skill.name
                assert 0 <= loss <= 0.03, one.skill.name
            case "harmful":
                assert one.live_effect <= -0.03 or loss >= 0.2, one.skill.name


def test_a_quick_run_meets_the_goals_and_says_so() -> None:
    command = [sys.executable, "-m", "benchmarks.gate", "--seeds", "2", "--json", "--assert-goals"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("yes ") == 3
    full = json.loads(done.stdout)["ways"]["full"]
    assert full["harmful"] == 0
    assert full["false_commits"][0] <= 0.05
    assert full["recall"][0] >= 0.70


def test_without_the_gate_the_goals_are_missed() -> None:
    facts = measure(1)
    lines: list[str] = []
    assert not judge({"full": facts["score"]}, lines.append)
    assert lines[0].startswith("NO ")
    assert not judge({"full": facts["lint"]}, lines.append)


def test_a_run_is_the_same_for_the_same_seed() -> None:
    async def once() -> Result:
        return await run("full", load_candidates()[:30], 7)

    assert anyio.run(once) == anyio.run(once)
