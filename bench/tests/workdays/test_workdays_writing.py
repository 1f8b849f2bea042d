"""A generated benchmark on disk: in the published layout, with the same questions and verdicts, and
nothing to peek at.
"""

import json
from pathlib import Path

import pytest

from bench.tests.workdays.samples import days_of, file_checks, held_out_of
from metaclaw.plugin import ConfigError
from metaclaw_bench.checking import Checked, run_check
from metaclaw_bench.data import digest, read_benchmark
from metaclaw_bench.questions import FileCheck
from metaclaw_bench.workdays import Answer, Item, Workday, generate, score, speaking, write
from metaclaw_bench.workdays.plans import PART_ONE, TINY
from metaclaw_bench.workspaces import lay_out


@pytest.mark.parametrize(("name", "language"), [("tiny", "en"), ("one", "fr"), ("two", "de")])
def test_what_is_read_back_is_what_was_made(tmp_path: Path, name: str, language: str) -> None:
    made = days_of(name, 1, language)
    read = read_benchmark(write(made, tmp_path / "bench"))
    assert [day.rounds for day in read.days] == [day.day.rounds for day in made.days]
    assert [(day.id, day.session, day.opening, day.title) for day in read.days] == [
        (day.day.id, day.day.session, day.day.opening, day.day.title) for day in made.days
    ]
    assert {name: path.read_text() for name, path in read.shared.items()} == made.shared
    for day, workday in zip(read.days, made.days, strict=True):
        assert day.folder is not None
        files = {
            f"{day.id}/{path.relative_to(day.folder).as_posix()}": path.read_text()
            for path in day.folder.rglob("*")
        }
        assert files == workday.begins_with


def test_held_out_days_are_written_and_read_like_others(tmp_path: Path) -> None:
    made = held_out_of("tiny")
    read = read_benchmark(write(made, tmp_path))
    assert [day.rounds for day in read.days] == [day.day.rounds for day in made.days]
    assert set(read.shared) == set(made.shared)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    plan = speaking(TINY, "en", "es")
    folders = [
        write(generate(seed, plan), tmp_path / str(nth)) for nth, seed in enumerate((5, 5, 6))
    ]
    assert digest(folders[0]) == digest(folders[1]) != digest(folders[2])


def test_writing_the_same_again_is_fine_and_over_another_benchmark_refused(tmp_path: Path) -> None:
    write(days_of("tiny"), tmp_path)
    before = digest(tmp_path)
    write(days_of("tiny"), tmp_path)
    assert digest(tmp_path) == before
    with pytest.raises(ConfigError, match="another benchmark in this folder"):
        write(days_of("tiny", seed=2), tmp_path)
    assert digest(tmp_path) == before


def test_the_agents_workspace_has_neither_keys_nor_checkers_nor_other_days(tmp_path: Path) -> None:
    read = read_benchmark(write(days_of("tiny"), tmp_path / "bench"))
    lay_out(read, read.days[0], tmp_path / "workspace")
    names = {
        path.relative_to(tmp_path / "workspace").parts[0]
        for path in (tmp_path / "workspace").rglob("*")
    }
    assert names == {*read.shared, "day01"}
    keys = [json.loads(line) for line in (tmp_path / "bench/keys.jsonl").read_text().splitlines()]
    assert [(key["day"], key["round"]) for key in keys] == [
        (day.id, one.id) for day in read.days for one in day.rounds
    ]


def test_transcripts_have_the_published_six_lines_and_the_days_date(tmp_path: Path) -> None:
    made = days_of("tiny")
    folder = write(made, tmp_path) / "openclaw_state/agents/metaclaw_agent/sessions"
    for day, date in zip(made.days, ("2026-03-02", "2026-03-03", "2026-03-04"), strict=True):
        lines = [
            json.loads(line)
            for line in (folder / f"{day.day.session}.jsonl").read_text().splitlines()
        ]
        assert [line["type"] for line in lines] == [
            "session",
            "model_change",
            "thinking_level_change",
            "custom",
            "message",
            "message",
        ]
        assert all(line["timestamp"].startswith(date) for line in lines)
        assert [line["parentId"] for line in lines[1:]] == [
            None,
            *(line["id"] for line in lines[1:-1]),
        ]


def _one_per_rule(language: str) -> list[tuple[Workday, Item]]:
    """A file-check for each rule, of as many rules as possible."""
    by_rule = {
        rule: pair
        for pair in sorted(
            file_checks(days_of("one", 1, language)), key=lambda pair: len(pair[1].rules)
        )
        for rule in pair[1].rules
    }
    assert set(by_rule) == set(PART_ONE.begins)
    return list({pair[1].round.question: pair for pair in by_rule.values()}.values())


def _verdict(folder: Path, day: Workday, item: Item, answer: Answer, workspace: Path) -> bool:
    for name, text in {**day.begins_with, **answer.files}.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
    assert isinstance(item.round.check, FileCheck)
    outcome = run_check(item.round.check, workspace, folder / "eval/scripts")
    assert isinstance(outcome, Checked)
    assert "Traceback" not in outcome.stderr
    return outcome.passed


def test_the_script_on_disk_comes_to_the_same_verdict_as_the_mark_in_process(
    tmp_path: Path,
) -> None:
    folder = write(days_of("one", 1, "fr"), tmp_path / "bench")
    for nth, (day, item) in enumerate(_one_per_rule("fr")):
        wrong = item.near_misses[nth % len(item.near_misses)] if nth else Answer("Done.")
        for which, answer in enumerate((item.reference, wrong)):
            passed = _verdict(folder, day, item, answer, tmp_path / f"{nth}-{which}")
            assert passed is score(item, answer, day.begins_with).passed is (which == 0)
