"""Reading a benchmark in the published layout, wherever its copy lies, and refusing loudly what
cannot be used.
"""

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bench.tests.small_benchmark import Record, choice, files, write
from metaclaw.plugin import ConfigError
from metaclaw_bench.data import digest, read_benchmark
from metaclaw_bench.questions import ChoiceCheck, FileCheck, Said
from metaclaw_bench.workspaces import lay_out


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rounds = [
        choice("r1", "ABCD", "AC"),
        files("r2", "python scripts/check_backup.py day1/notes.txt", timeout=5),
    ]
    return write(tmp_path / "here" / "small", {"day1": rounds, "day2": [choice("r1", "AB", "B")]})


def test_days_come_in_the_order_of_the_index_with_their_transcripts_and_checks(root: Path) -> None:
    benchmark = read_benchmark(root)
    first = benchmark.days[0]
    assert [day.id for day in benchmark.days] == ["day1", "day2"]
    assert benchmark.rounds == 3
    assert first.opening == (
        Said("user", "Good morning, it is day1."),
        Said("assistant", "Good morning."),
    )
    assert first.rounds[0].check == ChoiceCheck(("A", "B", "C", "D"), frozenset("AC"))
    assert first.rounds[1].check == FileCheck(
        "python scripts/check_backup.py day1/notes.txt", 0, 5.0
    )
    assert first.tags == ("arc A", "times")
    assert first.session == "day1_s"


def test_a_workspace_holds_what_all_share_and_nothing_of_another_day(
    root: Path, tmp_path: Path
) -> None:
    benchmark = read_benchmark(root)
    lay_out(benchmark, benchmark.days[0], tmp_path / "w")
    found = sorted(
        str(path.relative_to(tmp_path / "w"))
        for path in (tmp_path / "w").rglob("*")
        if path.is_file()
    )
    assert found == ["SOUL.md", "common/list.txt", "day1/notes.txt"]


def test_files_that_may_only_be_read_become_files_that_may_be_written(
    root: Path, tmp_path: Path
) -> None:
    notes = root / "workspaces/shared/day1/notes.txt"
    notes.chmod(0o444)
    notes.parent.chmod(0o555)
    benchmark = read_benchmark(root)
    lay_out(benchmark, benchmark.days[0], tmp_path / "w")
    notes.parent.chmod(0o755)
    assert (tmp_path / "w/day1").stat().st_mode & 0o700 == 0o700
    assert (tmp_path / "w/day1/notes.txt").stat().st_mode & 0o600 == 0o600


def test_a_folder_above_will_do_if_it_holds_one_benchmark(root: Path) -> None:
    assert read_benchmark(root.parent.parent).root == root


def test_two_benchmarks_below_are_one_too_many(root: Path) -> None:
    shutil.copytree(root, root.parent / "other")
    with pytest.raises(ConfigError, match="several benchmarks"):
        read_benchmark(root.parent)


def test_parts_that_are_not_beside_the_index_are_found_where_it_says(root: Path) -> None:
    (root.parent / "somewhere").mkdir()
    for part in ("eval", "workspaces", "openclaw_state"):
        (root / part).rename(root.parent / "somewhere" / part)
    assert len(read_benchmark(root).days) == 2


def test_what_lies_beside_the_index_comes_before_what_it_says(root: Path) -> None:
    shutil.copytree(root, root / "somewhere")
    folder = read_benchmark(root).days[0].folder
    assert folder == root / "workspaces/shared/day1"


def test_checkers_of_the_data_are_used_where_there_are_some(root: Path) -> None:
    assert read_benchmark(root).checkers is None
    (root / "eval/scripts").mkdir()
    (root / "eval/scripts/check_it.py").write_text("")
    assert read_benchmark(root).checkers == root / "eval/scripts"


def test_absent_days_are_named_unless_others_are_chosen(root: Path) -> None:
    shutil.rmtree(root / "eval/day2")
    with pytest.raises(ConfigError, match="no questions for day2"):
        read_benchmark(root)
    assert [day.id for day in read_benchmark(root, only=["day1"]).days] == ["day1"]


def test_a_day_nobody_knows_cannot_be_chosen(root: Path) -> None:
    with pytest.raises(ConfigError, match="does not name day9"):
        read_benchmark(root, only=["day1", "day9"])


def changed(record: Record, **more: object) -> Record:
    return {**record, **more}


def with_eval(record: Record, **more: object) -> Record:
    before = record["eval"]
    assert isinstance(before, dict)
    return {**record, "eval": {**before, **more}}


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (
            changed(choice("r1", "AB", "A"), update=[{"type": "workspace", "action": "new"}]),
            r"\(r1\): update: .*not supported",
        ),
        (with_eval(choice("r1", "AB", "A"), options={}), "eval.options: none"),
        (
            with_eval(choice("r1", "AB", "A"), options={"AB": "both"}),
            "eval.options: AB cannot be ticked",
        ),
        (
            with_eval(choice("r1", "AB", "A"), answer=["Q"]),
            "eval.answer: Q is not among the options",
        ),
        (with_eval(choice("r1", "AB", "A"), answer=[]), "eval.answer: nothing"),
        (
            with_eval(choice("r1", "AB", "A"), answer=7),
            r"got `int` - at `\$.rounds\[0\].eval.answer`",
        ),
        (with_eval(files("r1", "true"), command=" "), "eval.command: empty"),
        (with_eval(files("r1", "true"), timeout=0), "eval.timeout"),
        (
            with_eval(files("r1", "true"), expect_stdout="(", expect_stdout_regex=True),
            "eval.expect_stdout: not a regular",
        ),
        (changed(files("r1", "true"), type="essay"), r"rounds\[0\].type"),
        (changed(files("r1", "true"), question=None), r"rounds\[0\].question"),
    ],
)
def test_a_round_that_cannot_be_used_is_named_with_its_file_and_field(
    tmp_path: Path, record: Record, word: str
) -> None:
    write(tmp_path, {"day1": [record]})
    with pytest.raises(ConfigError, match=word) as caught:
        read_benchmark(tmp_path)
    assert "eval/day1/questions.json" in str(caught.value)


def test_two_rounds_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"day1": [choice("r1", "AB", "A"), files("r1", "true")]})
    with pytest.raises(ConfigError, match=r"rounds\[\].id: r1 more than once"):
        read_benchmark(tmp_path)


def test_a_missing_or_broken_transcript_is_named(root: Path) -> None:
    path = root / "openclaw_state/agents/someone/sessions/day2_s.jsonl"
    path.write_text('{"type": "session"}\n{"type": ')
    with pytest.raises(ConfigError, match=r"day2_s.jsonl:2: "):
        read_benchmark(root)
    path.unlink()
    with pytest.raises(ConfigError, match=r"day2_s.jsonl: cannot be read"):
        read_benchmark(root)


def test_what_the_published_runner_supports_beyond_its_data_is_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "day1": [
                files(
                    "r1",
                    "echo x7",
                    expect_exit=3,
                    timeout=2.5,
                    expect_stdout="x[0-9]",
                    expect_stdout_regex=True,
                )
            ]
        },
    )
    assert read_benchmark(tmp_path).days[0].rounds[0].check == FileCheck(
        "echo x7", 3, 2.5, "x[0-9]", is_regex=True
    )


def test_the_digest_is_what_the_documented_command_prints_and_feels_every_byte(root: Path) -> None:
    (root / "link").symlink_to(root / "all_tests.json")
    command = "find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
    printed = subprocess.run(
        ["/bin/sh", "-c", command], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split()[0]
    before = digest(root)
    assert before == printed
    (root / "eval/day1/questions.json").write_text(" ")
    assert digest(root) != before


def test_the_public_days_are_read_whole(shared: Path) -> None:
    folder = shared / "bench" / "metaclaw-bench"
    if not folder.is_dir():
        pytest.skip(
            f"no public benchmark at {folder}: set METACLAW_SHARED to a folder that holds"
            " bench/metaclaw-bench"
        )
    before = digest(folder)
    benchmark = read_benchmark(folder)
    index = json.loads((folder / "all_tests.json").read_text())
    assert [day.id for day in benchmark.days] == [day["id"] for day in index["test"]]
    kinds = Counter(type(asked.check).__name__ for day in benchmark.days for asked in day.rounds)
    assert kinds == {"FileCheck": 80, "ChoiceCheck": 49}
    assert all(
        [said.role for said in day.opening] == ["user", "assistant"] for day in benchmark.days
    )
    assert sorted(benchmark.shared) == [
        "AGENTS.md",
        "IDENTITY.md",
        "SOUL.md",
        "TOOLS.md",
        "USER.md",
    ]
    assert digest(folder) == before
