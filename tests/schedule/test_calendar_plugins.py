"""Calendars of other distributions: the example of docs/plugins.md in the running program, and what
is said of a missing one.
"""

import os
import re
import tomllib
from pathlib import Path

from tests.cli.program import Done, program

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"
HIDDEN = """
import importlib.metadata as metadata
_all = metadata.entry_points
metadata.entry_points = lambda **wanted: [one for one in _all(**wanted) if one.name not in ("caldav", "google")]
"""


def beside(folder: Path, home: Path, *command: str) -> Done:
    return program(
        *command, env={**os.environ, "METACLAW_HOME": str(home), "PYTHONPATH": str(folder)}
    )


def test_the_plugin_of_the_page_is_found_and_read_by_the_program(
    home: Path, tmp_path: Path
) -> None:
    blocks = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert blocks["shifts.py"].count("\n") <= 20
    dist = tmp_path / "metaclaw_shifts-1.0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: metaclaw-shifts\nVersion: 1.0\n")
    ((group, entries),) = tomllib.loads(blocks["pyproject.toml"])["project"]["entry-points"].items()
    (dist / "entry_points.txt").write_text(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
    )
    (tmp_path / "shifts.py").write_text(blocks["shifts.py"])
    shifts = tmp_path / "shifts.txt"
    shifts.write_text("2026-03-04 13:00 2026-03-04 14:00 lunch\n")
    home.mkdir()
    (home / "config.toml").write_text(
        blocks["config.toml"].replace("/home/me/shifts.txt", str(shifts))
    )
    assert beside(tmp_path, home, "config", "check").code == 0
    assert re.search(r"calendar 1 \(shifts\).*it can be read", beside(tmp_path, home, "doctor").out)
    shifts.write_text("tomorrow\n")
    assert f"{shifts} cannot be read" in beside(tmp_path, home, "doctor").out


def test_kinds_that_nothing_installed_reads_are_named_with_what_to_install(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    tables = {
        'kind = "google"\nclient_id = "id"\nclient_secret = "s"': (
            "pip install ./plugins/google_calendar"
        ),
        'kind = "caldav"\nurl = "https://example.org/"': (
            "metaclaw-caldav is not installed, which reads it"
        ),
        'kind = "outlook"': (
            "no installed package reads calendars of kind 'outlook'; known kinds are caldav,"
            " google, ics"
        ),
    }
    home.mkdir()
    (home / "config.toml").write_text(
        "".join(f"[[schedule.calendars]]\n{table}\n" for table in tables)
    )
    checked, examined = beside(tmp_path, home, "config", "check"), beside(tmp_path, home, "doctor")
    assert checked.code == 2
    assert (
        "config.toml:2: schedule.calendars.0 is ignored: metaclaw-google-calendar is not installed"
        in checked.err
    )
    for words in tables.values():
        assert words in checked.err
        assert words in " ".join(examined.out.split())
