"""`metaclaw bench` on the command line: what it writes, what it says of runs, and what it refuses
in one sentence.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from metaclaw.plugin import ConfigError
from metaclaw_bench.records import PlanRecord, RoundRecord, write_records
from metaclaw_bench.run_options import numbers
from metaclaw_bench.workdays.rules import times
from tests.cli.program import metaclaw


def recorded(folder: Path, *, simulated: bool = False, score: float = 1.0) -> Path:
    made: dict[str, Any] = {
        "run": f"skills/{folder.name}",
        "benchmark": "miniature",
        "condition": "skills",
    }
    planned = PlanRecord(**made, seed=1, simulated=simulated, stream=4)
    done = RoundRecord(
        **made,
        seed=1,
        simulated=simulated,
        day="day01",
        day_number=1,
        round="r1",
        kind="file_check",
        score=score,
        passed=score > 0,
        exact=None,
        held_out=False,
        phase="stream",
        tokens_in=100,
        tokens_out=10,
    )
    write_records(folder / "rounds.jsonl", [planned, done])
    return folder


def test_generated_days_are_written_and_the_same_again_changes_nothing(tmp_path: Path) -> None:
    arguments = ("bench", "workdays", "--part", "tiny", "--seeds", "3", "--write", str(tmp_path))
    done = metaclaw(*arguments)
    assert (done.code, done.out) == (0, f"{tmp_path / 'seed-3'}: 30 questions on 5 days\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert metaclaw(*arguments).code == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_scores_are_over_all_planned_rounds(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "seed-1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "keys.jsonl").write_text("{}\n")
    facts = metaclaw("bench", "score", str(tmp_path), "--json").facts
    (run,) = facts["runs"]
    assert (run["planned"], run["executed"], run["accuracy"], run["completion"], run["tokens"]) == (
        4,
        1,
        0.25,
        1.0,
        110,
    )
    words = metaclaw("bench", "score", str(folder)).out
    assert "25.0%" in words
    assert "SIMULATED" not in words


def test_a_round_that_is_there_twice_is_not_counted_twice(tmp_path: Path) -> None:
    folder = str(recorded(tmp_path / "seed-1"))
    refused = metaclaw("bench", "score", folder, folder)
    assert refused.code == 1
    assert "a round is there twice" in refused.err


def test_simulated_scores_are_called_so_and_never_stand_beside_real_ones(tmp_path: Path) -> None:
    simulated = recorded(tmp_path / "a" / "seed-1", simulated=True)
    assert metaclaw("bench", "score", str(simulated)).out.startswith("SIMULATED")
    recorded(tmp_path / "b" / "seed-2")
    refused = metaclaw("bench", "score", str(tmp_path))
    assert refused.code == 1
    assert "never mixed" in refused.err


def test_a_report_is_made_of_the_runs_in_a_folder(tmp_path: Path) -> None:
    recorded(tmp_path / "seed-1", simulated=True)
    done = metaclaw("bench", "report", str(tmp_path))
    assert done.code == 0, done.err
    page, words = done.out.split()
    assert "simulated" in Path(page).read_text().lower()
    assert Path(words) == tmp_path / "report.md"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--simulated", "--embedded"), "say who answers"),
        ((), "say who answers"),
        (("--provider-url", "http://127.0.0.1:1/v1"), "needs --model"),
        (
            ("--provider-url", "http://h/v1", "--model", "m", "--provider-key-env", "NOT_SET"),
            "no such environment variable",
        ),
        (("--simulated", "--conditions", "skils"), "no condition"),
        (("--simulated", "--conditions", "full"), "trains weights"),
        (("--simulated", "--seeds", "a"), "is no number"),
        (("--simulated", "--agent", "command"), "belong together"),
        (("--embedded", "--conditions", "rl"), "--judge"),
        (("--embedded", "--judge", "http://h/v1"), "needs --judge-model"),
        (("--embedded", "--judge", "checkers", "--judge-model", "m"), "belong to --judge"),
        (("--simulated", "--users", "Kim", "--languages", "de"), "one of them"),
        (("--simulated", "--domains", "moon"), "office"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = metaclaw("bench", "workdays", "--part", "tiny", "--out", str(tmp_path), *arguments)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1


def test_a_price_below_nothing_is_refused(tmp_path: Path) -> None:
    done = metaclaw(
        "bench",
        "workdays",
        "--part",
        "tiny",
        "--simulated",
        "--out",
        str(tmp_path),
        "--price",
        "-1",
        "5",
    )
    assert done.code == 2
    assert "--price" in done.err


def test_days_can_be_made_to_measure(tmp_path: Path) -> None:
    made = ("--users", "Kim:de:times=utc", "--domains", "kitchen", "--drift", "2:times=+09:00")
    assert (
        metaclaw("bench", "workdays", "--part", "tiny", "--write", str(tmp_path), *made).code == 0
    )
    index = json.loads((tmp_path / "seed-0" / "days" / "all_tests.json").read_text())
    assert {day["desc"].partition(": ")[2] for day in index["test"]} == {"kitchen, Kim"}
    assert "Kim" in index["name"]


def test_a_rule_of_ones_own_is_in_force(tmp_path: Path) -> None:
    rule = tmp_path / "phones.py"
    rule.write_text((Path(times.__file__)).read_text())
    assert (
        metaclaw(
            "bench",
            "workdays",
            "--part",
            "tiny",
            "--write",
            str(tmp_path / "out"),
            "--rules",
            str(rule),
        ).code
        == 0
    )
    index = json.loads((tmp_path / "out" / "seed-0" / "days" / "all_tests.json").read_text())
    assert any("phones" in day["preference_tags"] for day in index["test"])


def test_on_the_public_benchmark_a_simulated_model_is_a_script_with_a_name(tmp_path: Path) -> None:
    done = metaclaw("bench", "metaclaw", "--data", str(tmp_path), "--simulated")
    assert (done.code, "--scripted NAME" in done.err) == (2, True)
    done = metaclaw(
        "bench", "metaclaw", "--data", str(tmp_path), "--simulated", "--scripted", "genius"
    )
    assert (done.code, "oracle" in done.err) == (2, True)


def test_a_day_that_there_is_not_is_refused_with_those_there_are(tmp_path: Path) -> None:
    assert (
        metaclaw(
            "bench", "workdays", "--part", "tiny", "--seeds", "3", "--write", str(tmp_path)
        ).code
        == 0
    )
    data = tmp_path / "seed-3" / "days"
    done = metaclaw("bench", "metaclaw", "--data", str(data), "--days", "day02-day09", "--embedded")
    assert done.code == 2
    assert "day01, day02, day03" in done.err


def test_an_ablation_that_there_is_not_is_refused_with_those_there_are(tmp_path: Path) -> None:
    done = metaclaw("bench", "ablations", "--only", "gate=open", "--out", str(tmp_path))
    assert done.code == 2
    assert "gate: off" in done.err


def test_seeds_are_numbers_and_ranges_each_once() -> None:
    assert numbers("3,0-2, 2", "--seeds") == [3, 0, 1, 2]
    with pytest.raises(ConfigError, match="1-b is no number"):
        numbers("1-b", "--seeds")


def test_json_facts_of_no_rounds_are_an_empty_list(tmp_path: Path) -> None:
    write_records(tmp_path / "rounds.jsonl", [])
    assert json.loads(metaclaw("bench", "score", str(tmp_path), "--json").out) == {"runs": []}
