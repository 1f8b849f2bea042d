"""Reports of runs: one self-contained page and a Markdown file. Simulated and real records are
never put together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metaclaw_bench.records import read_all
from metaclaw_bench.report.figures import Study
from metaclaw_bench.report.markdown import render_markdown
from metaclaw_bench.report.page import render_page


@dataclass(frozen=True, slots=True)
class Report:
    """Where a report lies."""

    page: Path
    markdown: Path


def write_report(records: Sequence[Path], out: Path) -> Report:
    """Report on files of records, and on all of them in and below folders, as `<out>/report.html`
    and `<out>/report.md`.

    Raises RecordError for lines that are no records, for no rounds at all, for a round that is
    there twice, and for simulated and real records together."""
    study = Study(read_all(records))
    return write_pages(out, render_page(study), render_markdown(study))


def write_pages(out: Path, page: str, markdown: str) -> Report:
    """Write both forms of a report."""
    out.mkdir(parents=True, exist_ok=True)
    report = Report(out / "report.html", out / "report.md")
    report.page.write_text(page, encoding="utf-8")
    report.markdown.write_text(markdown, encoding="utf-8")
    return report
