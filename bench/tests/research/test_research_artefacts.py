"""What a run of AutoResearchClaw leaves behind: files read without guessing, requests counted,
lessons taken in.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.errors import SkillError
from metaclaw.skills import read_skill, write_skill
from metaclaw_bench.json_types import Json
from metaclaw_bench.research.arc_artefacts import Left, read_artefacts
from metaclaw_bench.research.arc_lessons import Lessons, skills_in, take_in
from metaclaw_bench.research.arc_requests import Counted, count_requests
from metaclaw_bench.research.autoresearchclaw import judged
from tests.support.cases import each


def summary(final: object, status: object) -> dict[str, object]:
    return {
        "stages_executed": 99,
        "stages_done": 99,
        "stages_failed": 0,
        "final_stage": final,
        "final_status": status,
    }


def written(
    folder: Path, stages: Iterable[str] = (), status: str = "done", **files: object
) -> Path:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    for name in stages:
        (folder / f"stage-{name}").mkdir()
        (folder / f"stage-{name}" / "decision.json").write_text(json.dumps({"status": status}))
    return folder


def left_in(folder: Path, status: int | None = 0) -> Left:
    return read_artefacts(folder, status, folder / "output.log")


def test_a_stage_that_was_run_again_counts_once(tmp_path: Path) -> None:
    written(
        tmp_path, pipeline_summary=summary(23, "done"), decision_history=[{"decision": "refine"}]
    )
    assert left_in(tmp_path) == Left(23, 1, "completed")


@pytest.mark.parametrize(
    ("final", "status", "completed", "ending"),
    [
        (17, "failed", 16, "failed"),
        (9, "paused", 8, "failed"),
        (5, "rejected", 4, "failed"),
        (5, "blocked_approval", 4, "broken"),
        (1, "no_stages", 0, "broken"),
    ],
)
def test_a_run_that_did_not_reach_its_end_counts_the_stages_before_it(
    tmp_path: Path, final: int, status: str, completed: int, ending: str
) -> None:
    left = left_in(written(tmp_path, pipeline_summary=summary(final, status)), 1)
    assert (left.completed, left.ending, left.why) == (
        completed,
        ending,
        f"final stage {final}: {status}",
    )


def test_a_stage_that_was_done_before_a_decision_led_back_stays_done_when_it_fails_later(
    tmp_path: Path,
) -> None:
    done = [f"{stage:02d}" for stage in range(1, 13)] + ["13_v1", "14_v1", "15_v1"]
    written(
        tmp_path,
        done,
        pipeline_summary=summary(13, "failed"),
        decision_history=[{"decision": "refine"}],
    )
    written(tmp_path, ["13"], status="failed")
    assert left_in(tmp_path, 1) == Left(15, 1, "failed", "final stage 13: failed")


def test_a_run_that_stopped_by_itself_behind_a_stage_that_was_done_is_nobodys_failure(
    tmp_path: Path,
) -> None:
    left = left_in(written(tmp_path, pipeline_summary=summary(12, "done")))
    assert (left.completed, left.ending) == (12, "broken")
    assert "interrupted, or out of a budget" in left.why


def test_a_version_with_more_stages_is_counted_up_to_the_last_that_all_have(tmp_path: Path) -> None:
    assert left_in(written(tmp_path, pipeline_summary=summary(25, "done"))) == Left(
        23, 0, "completed"
    )
    assert left_in(written(tmp_path, pipeline_summary=summary(24, "failed"))) == Left(
        23, 0, "completed", "final stage 24: failed"
    )


@pytest.mark.parametrize(
    "value",
    [
        {"stages_done": 18},
        summary("CITATION_VERIFY", "done"),
        summary(True, "done"),
        summary(12, "degraded"),
        summary(12, None),
        [],
        "x",
    ],
)
def test_a_summary_of_another_kind_says_nothing_and_is_named(tmp_path: Path, value: object) -> None:
    left = left_in(written(tmp_path, pipeline_summary=value))
    assert (left.completed, left.ending) == (None, "broken")
    assert "pipeline_summary.json is of no kind known here" in left.why


@pytest.mark.parametrize(
    "history",
    [{"refine": 1}, ["refine"], [{"decision": "proceed"}], [{"decision": "refine"}] * 3, None],
)
def test_a_history_of_another_kind_is_no_number_of_cycles(tmp_path: Path, history: object) -> None:
    left = left_in(
        written(tmp_path, pipeline_summary=summary(23, "done"), decision_history=history)
    )
    assert (left.completed, left.refines, left.ending) == (23, None, "completed")
    assert "decision_history.json is of no kind known here" in left.why


def test_a_run_without_a_summary_broke_off_and_shows_the_end_of_its_output(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("Traceback: no module named researchclaw")
    assert left_in(tmp_path, 1).completed == 0, "it did nothing at all"
    written(
        tmp_path,
        checkpoint={"last_completed_stage": 7},
        decision_history=[{"decision": "pivot"}, {"decision": "refine"}],
    )
    left = left_in(tmp_path, 1)
    assert (left.completed, left.refines, left.ending) == (7, 2, "broken")
    assert "no module named researchclaw" in left.why
    assert left_in(tmp_path, None).why.startswith("it took too long")


def test_a_run_that_was_killed_counts_what_its_stages_wrote_down_and_what_none_did_is_unknown(
    tmp_path: Path,
) -> None:
    (tmp_path / "stage-01").mkdir()
    assert left_in(tmp_path, -9).completed is None, "another layout, or killed in its first stage"
    written(tmp_path, ["02", "03", "03_v1"])
    (tmp_path / "stage-04").mkdir()
    (tmp_path / "stage-04" / "decision.json").write_text('{"stat')
    assert left_in(tmp_path, -9).completed == 2


ALL_WELL = Counted(30, 2, 3)


@each(
    ("left", "counted", "ending", "why"),
    [
        (Left(23, 0, "completed"), ALL_WELL, "completed", ""),
        (Left(23, 0, "completed"), Counted(0, 0, 0), "broken", "it asked the proxy nothing at all"),
        (
            Left(4, 0, "failed", "x"),
            replace(ALL_WELL, unanswered=3, cut_off=True),
            "broken",
            "x; the last thing it asked was not",
        ),
        (Left(4, 0, "failed", "x"), replace(ALL_WELL, unanswered=3), "failed", "x"),
        (
            Left(23, 0, "completed"),
            Counted(2, 0, 40),
            "completed",
            "40 of its requests are of no stage known here",
        ),
    ],
)
def test_what_files_say_is_seen_in_the_light_of_what_was_asked(
    left: Left, counted: Counted, ending: str, why: str
) -> None:
    found = judged(left, counted)
    assert (found.completed, found.ending, found.why[: len(why)]) == (left.completed, ending, why)
    assert bool(found.why) == bool(why)


def recorded(
    words: str,
    *,
    kind: str = "main",
    end: str = "completed",
    status: int = 200,
    max_tokens: int = 4096,
) -> dict[str, Json]:
    request: Json = {
        "model": "m",
        "messages": [{"role": "user", "content": words}],
        "max_tokens": max_tokens,
    }
    return {"id": "t", "kind": kind, "end": end, "status": status, "request": request}


def test_a_request_that_nobody_answered_is_no_attempt_and_asking_again_no_retry() -> None:
    goal, plan = "Create a SMART research goal", "Design an experiment plan"
    fails = [
        recorded(goal, status=429),
        recorded(goal, end="failed"),
        recorded(goal, end="cancelled"),
    ]
    assert count_requests([*fails, recorded(goal)]) == Counted(1, 0, 0, 3)
    assert count_requests(
        [recorded(goal), recorded(goal), recorded("Say hello."), recorded(plan)]
    ) == Counted(3, 1, 1)
    improve = "Improve the experiment code"
    assert count_requests([recorded(improve)] * 3) == Counted(3, 0, 0), (
        "rounds that brought nothing make the next one the same"
    )
    assert count_requests([recorded(plan), recorded(plan, max_tokens=32768)]) == Counted(2, 1, 0), (
        "the same, with more room"
    )
    assert count_requests([recorded(goal), recorded(plan, status=500)]) == Counted(
        1, 0, 0, 1, cut_off=True
    )
    assert count_requests([recorded(goal, kind="side")]) == Counted(0, 0, 0)


def test_stages_that_a_refine_cycle_repeats_are_no_retries() -> None:
    analysis, decision, outline = (
        "Analyze run metrics",
        "Make a PROCEED or REFINE decision",
        "Create a detailed paper outline",
    )
    cycle = [recorded("Improve the experiment code"), recorded(analysis), recorded(decision)]
    assert count_requests([*cycle, *cycle, recorded(outline)]) == Counted(7, 0, 0)
    within = [*cycle, recorded(decision), *cycle[:2], recorded(analysis)]
    assert count_requests(within) == Counted(7, 2, 0), "what is repeated within one cycle is"


def lesson(folder: Path, name: str, description: str, body: str = "1. Look first.") -> Path:
    """As the program writes it: words go into the front matter as they are."""
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"---\nname: {name}\ndescription: {description}\ncategory: coding\n---\n{body}\n"
    )
    return path


words = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1
).map(lambda one: " ".join(one.split()))


@settings(deadline=None, max_examples=50)
@given(words.filter(bool))
def test_a_lesson_can_be_read_whatever_its_description_says(
    tmp_path_factory: pytest.TempPathFactory, description: str
) -> None:
    path = lesson(tmp_path_factory.mktemp("skills"), "arc-one", description)
    as_it_was = read_if_it_can_be(path)
    assert take_in(path.parent.parent, {}) == Lessons(("arc-one",))
    assert read_skill(path) == (
        as_it_was or Skill(SkillName("arc-one"), description, "1. Look first.", "coding")
    )


def read_if_it_can_be(path: Path) -> Skill | None:
    try:
        return read_skill(path)
    except SkillError:
        return None


def test_only_what_a_run_brought_is_its_lesson_and_what_the_proxy_learned_is_not(
    tmp_path: Path,
) -> None:
    lesson(tmp_path, "arc-old", "When it is old")
    lesson(tmp_path, "arc-changed", "When it is old")
    before = skills_in(tmp_path)
    lesson(tmp_path, "arc-changed", "When it is new: now")
    lesson(tmp_path, "arc-new", "When it is new")
    write_skill(
        tmp_path,
        Skill(SkillName("learned"), "When it matters", "Do it.", author=Authorship.EVOLVER),
    )
    assert take_in(tmp_path, before) == Lessons(("arc-changed", "arc-new"))


def test_a_lesson_that_nobody_can_use_is_named(tmp_path: Path) -> None:
    lesson(tmp_path, "arc-empty", "When: ever", body="")
    lesson(tmp_path, "arc-long", "When: ever", body="x" * 20_000)
    (tmp_path / "arc-odd").mkdir()
    (tmp_path / "arc-odd" / "SKILL.md").write_text("no front matter")
    taken = take_in(tmp_path, {})
    assert taken.names == ()
    assert [
        next(name for name in ("empty", "long", "odd") if f"arc-{name}" in one)
        for one in taken.unusable
    ] == [
        "empty",
        "long",
        "odd",
    ]
