"""Benchmarks through the real program with a simulated model behind it: it learns, it keeps the
denominator, it survives a kill.
"""

import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest

from bench.tests.running.miniature import (
    HABITS,
    ITEMS,
    LORE,
    Failing,
    builtin_agent,
    direct_agent,
    follower,
    plan,
    taught,
)
from metaclaw.instance import find
from metaclaw.plugin import ConfigError
from metaclaw_bench.records import EventRecord, RoundRecord, read_records
from metaclaw_bench.running.plan import Plan
from metaclaw_bench.running.runs import Runs
from metaclaw_bench.running.summary import summarise
from metaclaw_bench.simulated.rule_follower import Follower
from metaclaw_bench.simulated.skills import Writing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_proxies")]


def rounds_in(folder: Path) -> list[RoundRecord]:
    return [one for one in read_records(folder / "rounds.jsonl") if isinstance(one, RoundRecord)]


def alike(rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Rounds without what differs from run to run."""
    return [msgspec.structs.replace(one, seconds=0.0) for one in rounds]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def learned(data: Path, tmp_path_factory: pytest.TempPathFactory, forked_proxies: None) -> Path:
    """The folder of a run with skills, from beginning to end."""
    runs = Runs(tmp_path_factory.mktemp("learned"), direct_agent, make_model=follower)
    return anyio.run(runs.run, taught(data))


def test_with_skills_the_score_rises_and_what_was_learned_stays(learned: Path) -> None:
    rounds = rounds_in(learned)
    assert [(one.phase, one.day, one.score) for one in rounds] == [
        ("stream", "day01", 0.0),
        ("stream", "day01", 0.0),
        ("stream", "day02", 1.0),
        ("stream", "day02", 1.0),
        ("again", "day01", 1.0),
        ("again", "day01", 1.0),
    ]
    assert [one.skills for one in rounds[2:]] == [("house-dates",)] * 4
    assert all(one.simulated for one in rounds)
    assert [one.generation for one in rounds] == [0, 0, 1, 1, 1, 1]
    rewards = [one.reward for one in rounds]
    assert [None if reward is None else reward > 0 for reward in rewards] == [
        False,
        False,
        True,
        True,
        None,
        None,
    ]
    happened = [
        one for one in read_records(learned / "rounds.jsonl") if isinstance(one, EventRecord)
    ]
    assert [(one.kind, one.name, one.number, one.day) for one in happened] == [
        ("generation", None, 1, "day01"),
        ("skill_born", "house-dates", 1, "day01"),
    ]


def test_an_evolver_that_writes_garbage_does_not_raise_the_score(
    data: Path, tmp_path: Path
) -> None:
    def mind(plan: Plan) -> Follower:
        return Follower(
            ITEMS.values(), [LORE], seed=plan.seed, habits=HABITS, writing=Writing.GARBAGE
        )

    wanted = plan(data, days=2, each_round=True)
    rounds = rounds_in(anyio.run(Runs(tmp_path, direct_agent, make_model=mind).run, wanted))
    assert [one.score for one in rounds] == [0.0] * 4


def test_a_run_leaves_everything_that_is_needed_to_check_it(learned: Path, data: Path) -> None:
    facts = json.loads((learned / "run.json").read_text())
    assert facts["is_done"] is True
    assert facts["digest_before"] == facts["digest_after"]
    assert facts["plan"]["simulated"] is True
    answer = json.loads((learned / "day02" / "day02" / "r1" / "infer_result.json").read_text())
    assert (answer["status"], answer["inline_score"]["passed"], answer["question_type"]) == (
        "success",
        True,
        "file_check",
    )
    assert answer["llm_log"]["messages"][0]["usage"]["input"] > 0
    with tarfile.open(learned / "workspaces" / "day02.tar.gz") as archive:
        assert {"day02/day02/report1.txt", "day02/USER.md", "day02/day02/README.md"} <= set(
            archive.getnames()
        )
    assert [one.name for one in (learned / "after").iterdir()] == ["day01-again"]
    assert sorted(path.name for path in data.iterdir()) == ["USER.md", "day01", "day02"]
    with pytest.raises(ConfigError, match="holds this run already"):
        anyio.run(Runs(learned.parents[1], direct_agent, make_model=follower).run, taught(data))


def test_without_skills_nothing_changes_and_a_round_that_fails_still_counts(
    data: Path, tmp_path: Path
) -> None:
    def mind(plan: Plan) -> Failing:
        return Failing(follower(plan), ("Day 1: write the harbour report number 2",))

    wanted = plan(data, "baseline", days=2)
    folder = anyio.run(Runs(tmp_path, builtin_agent, make_model=mind).run, wanted)
    rounds = rounds_in(folder)
    assert [(one.score, one.skills, one.generation) for one in rounds] == [(0.0, (), 0)] * 4
    assert [one.failure is not None for one in rounds] == [False, True, False, False]
    assert rounds[1].failure is not None
    assert "500" in rounds[1].failure
    (line,) = summarise(read_records(folder / "rounds.jsonl"))
    assert (line.planned, line.executed, line.failed, line.accuracy) == (4, 4, 1, 0.0)
    answer = json.loads((folder / "day01" / "day01" / "r2" / "infer_result.json").read_text())
    assert (answer["status"], answer["answer"]) == ("failed", None)


def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    data: Path, learned: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "bench.tests.running.miniature", str(data), str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    ) as killed:
        assert killed.stdout is not None
        # A pipe that ends early is a run that ended by itself.
        assert any(line.startswith("day02 r1") for line in killed.stdout)
        killed.kill()
    wanted = taught(data)
    home = tmp_path / wanted.name / "home"
    deadline = time.monotonic() + 30
    while find(home) is not None:
        assert time.monotonic() < deadline, "the proxy outlives the run that started it"
        time.sleep(0.05)
    runs = Runs(tmp_path, direct_agent, make_model=follower)
    with pytest.raises(ConfigError, match="--resume"):
        anyio.run(runs.run, wanted)
    folder = anyio.run(lambda: runs.run(wanted, resume=True))
    assert alike(rounds_in(folder)) == alike(rounds_in(learned))
    assert runs.done(wanted)
