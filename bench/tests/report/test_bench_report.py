"""Reports: one page that stands alone and hides nothing, a Markdown table, and never simulated
beside real.
"""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.tests.report.runs import EVIL, made_runs, round_of
from metaclaw_bench.records import (
    EventRecord,
    PlanRecord,
    Record,
    RecordError,
    RoundRecord,
    write_records,
)
from metaclaw_bench.report import Report, write_report
from metaclaw_bench.report.figures import Study, failures_by_rule, per_day, worst_rounds

_VOID = {"meta", "line", "circle", "path", "rect", "br"}


class Outline(HTMLParser):
    """Checks that elements are closed in order, and collects what is loaded, run or headed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("report")
    write_records(folder / "runs" / "rounds.jsonl", made_runs())
    return write_report([folder / "runs"], folder / "out")


def outline(page: Path) -> Outline:
    parser = Outline()
    parser.feed(page.read_text(encoding="utf-8"))
    parser.close()
    return parser


def test_the_page_is_well_formed_loads_nothing_and_runs_nothing(report: Report) -> None:
    found = outline(report.page)
    assert not found.open
    assert not [
        tag
        for tag, _ in found.tags
        if tag in ("script", "link", "img", "iframe", "object", "embed")
    ]
    assert not [
        one
        for _, attributes in found.tags
        for one in attributes
        if one in ("src", "href") or one.startswith("on")
    ]
    assert not re.search(r"url\(|@import|https?://", report.page.read_text(encoding="utf-8"))


def test_every_table_has_a_caption_and_headers_and_every_drawing_words(report: Report) -> None:
    tags = outline(report.page).tags
    tables = sum(tag == "table" for tag, _ in tags)
    assert tables >= 6
    assert sum(tag == "caption" for tag, _ in tags) == tables
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in tags if tag == "th")
    drawings = [attributes for tag, attributes in tags if tag == "svg"]
    assert drawings
    assert all(one.get("aria-label") or one.get("aria-hidden") == "true" for one in drawings)


def test_what_an_answer_says_is_shown_and_never_becomes_markup(report: Report) -> None:
    page = report.page.read_text(encoding="utf-8")
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_page_says_what_is_simulated_and_shows_both_clocks_and_every_section(
    report: Report,
) -> None:
    page = report.page.read_text(encoding="utf-8")
    assert "Simulated policy: no model has answered any of this." in page
    for told in (
        "Day by day",
        "What each mechanism is worth",
        "What was learned",
        "Rewards",
        "What it cost",
        "Where it failed",
    ):
        assert f">{told}</h2>" in page
    assert "full, day 2: new skills in 50.0 % of the seeds" in page
    assert "full, day 3: new weights in 100.0 % of the seeds" in page
    assert "without defects" in page
    assert "the agent gave up" in page


def test_the_markdown_has_a_row_for_every_condition_and_change(report: Report) -> None:
    lines = report.markdown.read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert rows[0] == rows.pop(rows.index("condition"))
    assert [row for row in rows if row in ("baseline", "full", "gate=off")] == [
        "baseline",
        "full",
        "gate=off",
    ]
    widths = {line.count("|") for line in lines if line.startswith("| ")}
    assert len(widths) == 2
    assert "Simulated policy" in lines[2]


def test_real_records_are_called_real(tmp_path: Path) -> None:
    write_records(tmp_path / "real.jsonl", [round_of("baseline", 0, 1, "r1", 1.0, simulated=False)])
    page = write_report([tmp_path / "real.jsonl"], tmp_path / "out").page.read_text(
        encoding="utf-8"
    )
    assert "Answers of a real model." in page
    assert "Simulated" not in page


def test_simulated_and_real_are_refused_together(tmp_path: Path) -> None:
    one, two = (
        round_of("baseline", 0, 1, "r1", 1.0),
        round_of("baseline", 0, 1, "r2", 1.0, simulated=False),
    )
    write_records(tmp_path / "both.jsonl", [one, two])
    with pytest.raises(RecordError, match="never mixed"):
        write_report([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_round_that_is_there_twice_is_refused() -> None:
    with pytest.raises(RecordError, match="there twice: baseline, seed 0, stream/day01/r1"):
        Study([round_of("baseline", 0, 1, "r1", 1.0), round_of("baseline", 0, 1, "r1", 0.0)])


def test_records_without_a_round_are_refused() -> None:
    with pytest.raises(RecordError, match="no round"):
        Study([])


def test_a_planned_round_that_never_ran_counts_as_wrong() -> None:
    plan = PlanRecord(
        run="x", benchmark="tiny", condition="baseline", seed=0, simulated=True, stream=4
    )
    study = Study(
        [plan, round_of("baseline", 0, 1, "r1", 1.0), round_of("baseline", 0, 1, "r2", 1.0)]
    )
    accuracy = study.accuracy(study.cells[0])
    assert accuracy is not None
    assert accuracy.value == 0.5


def test_gains_are_paired_and_forgetting_is_what_was_lost() -> None:
    records: list[Record] = []
    for seed in (0, 1):
        records += [round_of("baseline", seed, day, "r1", 0.0) for day in (1, 2)]
        records += [round_of("full", seed, day, "r1", 1.0) for day in (1, 2)]
        records.append(round_of("full", seed, 1, "r1", 0.25, phase="again"))
    study = Study(records)
    full = study.cells[1]
    gain, lost, transfer = study.gain(full), study.forgetting(full), study.transfer(full)
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == (1.0, 1.0, 1.0)
    assert lost is not None
    assert lost.value == 0.75
    assert transfer is None  # the one rule there is was asked for on the first day


def test_defective_questions_are_left_out_of_the_number_beside() -> None:
    good, bad = (
        round_of("baseline", 0, 1, "r1", 1.0),
        round_of("baseline", 0, 1, "r2", 0.0, defect="impossible"),
    )
    study = Study([good, bad])
    without, raw = study.without_defects(study.cells[0]), study.accuracy(study.cells[0])
    assert without is not None
    assert raw is not None
    assert (without.value, raw.value) == (1.0, 0.5)


def test_days_roll_rules_count_and_the_worst_comes_first() -> None:
    rounds = [round_of("full", 0, day, "r1", float(day > 1)) for day in (1, 2, 3, 4)]
    cell = Study(list(rounds)).cells[0]
    assert [round(one.rolling, 2) for one in per_day(cell)] == [0.0, 0.5, 0.67, 1.0]
    assert failures_by_rule(cell) == {"times": (1, 4)}
    assert [group[0].day for group in worst_rounds(cell, 9)] == ["day01"]


def test_two_changes_are_compared_with_one_change_less() -> None:
    cells = [(), ("gate=off",), ("evolver=noisy",), ("evolver=noisy", "gate=off")]
    study = Study([round_of("full", 0, 1, "r1", 1.0, ablation=labels) for labels in cells])
    told = {one.label: one.other.label for one in study.contrasts()}
    assert told["gate=off"] == "full"
    assert told["gate=off, where evolver=noisy"] == "full · evolver=noisy"


def test_events_are_counted_a_seed() -> None:
    assert isinstance(made_runs()[0], PlanRecord)
    cell = next(one for one in Study(made_runs()).cells if one.label == "full")
    assert cell.count("version") == 1.0
    assert cell.count("generation") == 0.5
    assert {type(one) for one in (*cell.rounds, *cell.events)} == {RoundRecord, EventRecord}


def test_the_report_says_what_kept_the_agent_from_the_answers(tmp_path: Path) -> None:
    write_records(tmp_path / "rounds.jsonl", made_runs())
    report = write_report([tmp_path / "rounds.jsonl"], tmp_path)
    assert "an agent that looked for the answers could have found them" in report.page.read_text()
    assert (
        "an agent that looked for the answers could have found them" in report.markdown.read_text()
    )
