"""The folder of a run: what is kept, what an interrupted day leaves behind, and what may be gone on
with.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.tests.running.miniature import plan as miniature
from metaclaw.plugin import ConfigError
from metaclaw_bench.records import EventRecord, PlanRecord, RecordWriter, RoundRecord, read_records
from metaclaw_bench.running.folder import Folder, is_done, plan_record, share_models
from metaclaw_bench.running.plan import Plan, Stage
from metaclaw_bench.running.summary import summarise


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return miniature(tmp_path / "data", days=3, again=1, held_out=1)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "out")


def live(folder: Folder, plan: Plan, stage: Stage, *, score: float = 1.0) -> None:
    """What a day leaves in its folder while it runs."""
    facts: dict[str, Any] = {
        "run": plan.name,
        "benchmark": "miniature",
        "condition": "skills",
        "seed": 1,
        "simulated": True,
    }
    common = {**facts, "day": stage.day.id, "day_number": stage.number}
    with RecordWriter(folder.rounds) as writer:
        for one in stage.day.rounds:
            writer.write(
                RoundRecord(
                    **common,
                    round=one.id,
                    kind="file_check",
                    score=score,
                    passed=score > 0,
                    exact=None,
                    held_out=stage.phase == "held_out",
                    phase=stage.phase,
                )
            )
            folder.keep_answer(stage, one.id, {"answer": "Done."})
        writer.write(EventRecord(**common, after=2, kind="generation", number=stage.number))
    skills = folder.place.home / "skills" / "run"
    skills.mkdir(parents=True, exist_ok=True)
    (skills / "SKILL.md").write_text(stage.name)
    (folder.place.home / "run").mkdir(exist_ok=True)
    (folder.place.home / "run" / "metaclaw.pid").write_text("1")


def days_in(folder: Folder) -> list[tuple[str, str]]:
    found = [
        (one.phase, one.day) for one in read_records(folder.rounds) if isinstance(one, RoundRecord)
    ]
    return list(dict.fromkeys(found))


def test_days_come_in_order_then_early_ones_again_then_those_held_out(plan: Plan) -> None:
    assert [(stage.phase, stage.name, stage.is_frozen) for stage in plan.stages] == [
        ("stream", "day01", False),
        ("stream", "day02", False),
        ("again", "day01-again", True),
        ("held_out", "day03", True),
    ]
    sessions = [stage.day.session for stage in plan.stages]
    assert len(set(sessions)) == len(sessions)


def test_a_resumed_run_begins_at_the_first_day_that_is_not_done(folder: Folder, plan: Plan) -> None:
    first, second, *_ = folder.begin(plan, "digest", resume=False)
    live(folder, plan, first)
    folder.keep_day(first)
    live(folder, plan, second, score=0.0)
    left = folder.begin(plan, "digest", resume=True)
    assert [stage.name for stage in left] == ["day02", "day01-again", "day03"]
    assert days_in(folder) == [("stream", "day01")]
    assert [one.day for one in read_records(folder.rounds) if isinstance(one, EventRecord)] == [
        "day01"
    ]
    assert sum(isinstance(one, PlanRecord) for one in read_records(folder.rounds)) == 1
    assert not (folder.root / "day02").exists()
    assert (folder.place.home / "skills" / "run" / "SKILL.md").read_text() == "day01"
    assert not (folder.place.home / "run").exists()


def test_a_copy_of_a_home_that_was_not_finished_does_not_count(folder: Folder, plan: Plan) -> None:
    first, *_ = folder.begin(plan, "digest", resume=False)
    live(folder, plan, first)
    half = folder.root / "after" / f".{first.name}.part"
    half.mkdir()
    assert folder.begin(plan, "digest", resume=True)[0] == first
    live(folder, plan, first)
    folder.keep_day(first)
    assert [one.name for one in (folder.root / "after").iterdir()] == [first.name]


def test_an_early_day_that_comes_again_is_told_from_its_first_time(
    folder: Folder, plan: Plan
) -> None:
    for stage in folder.begin(plan, None, resume=False)[:3]:
        live(folder, plan, stage)
        folder.keep_day(stage)
    assert [stage.name for stage in folder.begin(plan, None, resume=True)] == ["day03"]
    assert days_in(folder) == [("stream", "day01"), ("stream", "day02"), ("again", "day01")]


def test_another_run_in_the_same_folder_is_refused(folder: Folder, plan: Plan) -> None:
    folder.begin(plan, None, resume=False)
    with pytest.raises(ConfigError, match="--resume"):
        folder.begin(plan, None, resume=False)
    with pytest.raises(ConfigError, match="another run"):
        folder.begin(replace(plan, sets=("judge.votes=2",)), None, resume=True)
    folder.finish(None)
    assert is_done(folder.root, plan)
    with pytest.raises(ConfigError, match="already, done"):
        folder.begin(plan, None, resume=True)


def test_data_that_changed_during_a_run_is_said(folder: Folder, plan: Plan) -> None:
    folder.begin(plan, "before", resume=False)
    with pytest.raises(ConfigError, match="has changed"):
        folder.finish("after")
    assert json.loads((folder.root / "run.json").read_text())["digest_after"] == "after"


def test_rounds_that_never_ran_stay_in_the_denominator(folder: Folder, plan: Plan) -> None:
    first, *_ = folder.begin(plan, None, resume=False)
    live(folder, plan, first)
    lines = summarise(read_records(folder.rounds))
    assert [(line.phase, line.planned, line.executed, line.accuracy) for line in lines] == [
        ("stream", 4, 2, 0.5),
        ("again", 2, 0, 0.0),
        ("held_out", 2, 0, 0.0),
    ]
    assert plan_record(plan).simulated


def test_a_models_weights_lie_once_for_all_runs_and_are_not_copied(
    folder: Folder, plan: Plan, tmp_path: Path
) -> None:
    first, *_ = folder.begin(plan, None, resume=False)
    share_models(tmp_path / "all", folder.place.home)
    share_models(tmp_path / "all", folder.place.home)
    (folder.place.home / "models" / "weights").write_text("large")
    live(folder, plan, first)
    folder.keep_day(first)
    kept = folder.root / "after" / first.name / "models"
    assert kept.is_symlink()
    assert (tmp_path / "all" / "models" / "weights").read_text() == "large"


def test_more_days_than_there_are_cannot_be_held_out(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        replace(plan, held_out=3)
    with pytest.raises(ConfigError, match="do not fit"):
        replace(plan, again=3)
