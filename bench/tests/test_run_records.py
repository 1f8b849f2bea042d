"""Records of runs: written whole, read back the same, bad lines named, simulated and real never
together.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw_bench.records import (
    TAIL_CHARS,
    EventRecord,
    PlanRecord,
    Record,
    RecordError,
    RecordWriter,
    RoundRecord,
    of_one_kind,
    read_all,
    read_records,
    tail_of,
    write_records,
)


def round_record(
    *,
    simulated: bool = True,
    score: float = 1.0,
    tail: str = "",
    run: str = "one",
    name: str = "r1",
) -> RoundRecord:
    return RoundRecord(
        run=run,
        benchmark="tiny",
        condition="full",
        ablation=("gate=off",),
        seed=3,
        simulated=simulated,
        day="day01",
        day_number=1,
        round=name,
        kind="file_check",
        score=score,
        passed=score == 1.0,
        exact=None,
        held_out=False,
        phase="stream",
        tail=tail,
    )


def event_record() -> EventRecord:
    return EventRecord(
        run="one",
        benchmark="tiny",
        condition="full",
        seed=3,
        simulated=True,
        day="day01",
        day_number=1,
        after=2,
        kind="skill_born",
        name="times-1",
        numbers={"tokens": 12.0},
    )


def plan_record() -> PlanRecord:
    return PlanRecord(
        run="one",
        benchmark="tiny",
        condition="full",
        seed=3,
        simulated=True,
        stream=4,
        words="settings",
    )


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=50))
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, score: float, tail: str
) -> None:
    path = tmp_path_factory.mktemp("records") / "rounds.jsonl"
    tail = tail.encode("utf-8", "replace").decode()
    records: list[Record] = [plan_record(), round_record(score=score, tail=tail), event_record()]
    with RecordWriter(path) as writer:
        writer.write(*records)
    assert read_records(path) == records


def test_a_whole_file_is_there_at_once_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_records(tmp_path / "deep" / "rounds.jsonl", [plan_record()])
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["rounds.jsonl"]


def test_a_line_cut_by_an_interruption_is_not_read_and_the_next_run_mends_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rounds.jsonl"
    write_records(path, [plan_record()])
    with path.open("ab") as file:
        file.write(b'{"type":"round","run"')
    assert read_records(path) == [plan_record()]
    with RecordWriter(path) as writer:
        writer.write(event_record())
    assert read_records(path) == [plan_record(), event_record()]


@pytest.mark.parametrize(
    "line",
    ["not json", '{"type":"round"}', '{"type":"unheard of"}', "[1]", '{"type":"plan","run":3}'],
)
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rounds.jsonl"
    write_records(path, [plan_record()])
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    with pytest.raises(
        RecordError, match=r"rounds\.jsonl, line 2: .*name the folder given as --out"
    ):
        read_records(path)


def test_an_unknown_field_is_refused_rather_than_lost(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    write_records(path, [plan_record()])
    path.write_text(path.read_text().replace('"words"', '"wordz"'))
    with pytest.raises(RecordError, match="wordz"):
        read_records(path)


def test_a_missing_file_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"rounds\.jsonl"):
        read_records(tmp_path / "nowhere.jsonl")


def test_folders_are_read_with_everything_below_them(tmp_path: Path) -> None:
    write_records(tmp_path / "b" / "two.jsonl", [event_record()])
    write_records(tmp_path / "a.jsonl", [plan_record()])
    assert read_all([tmp_path]) == [plan_record(), event_record()]


def test_simulated_and_real_records_are_never_taken_together() -> None:
    assert of_one_kind([round_record()])
    assert not of_one_kind([round_record(simulated=False)])
    with pytest.raises(RecordError, match="simulated: one; of a real model: two"):
        of_one_kind([round_record(), round_record(simulated=False, run="two")])


def test_a_cell_is_the_condition_with_what_was_changed() -> None:
    assert round_record().cell == "full · gate=off"
    assert plan_record().cell == "full"


def test_only_the_end_of_an_answer_is_kept() -> None:
    assert tail_of("x" * TAIL_CHARS + "end").endswith("end")
    assert len(tail_of("x" * 10_000)) == TAIL_CHARS
