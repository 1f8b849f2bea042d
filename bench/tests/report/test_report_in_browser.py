"""The report in a real browser: it is laid out, nothing sticks out on a phone, light and dark
differ, and nothing is fetched.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.tests.report.runs import made_runs
from metaclaw_bench.records import write_records
from metaclaw_bench.report import write_report

_BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        _BROWSER is None,
        reason="no Chromium here: install the system's chromium package to look at reports",
    ),
]

_PROBE = """
<script>
const root = document.documentElement, out = document.createElement('output');
const seen = element => element.getBoundingClientRect();
const curve = document.querySelector('svg.curve'), heat = document.querySelector('td.heat');
out.id = 'probe';
out.textContent = [
  'overflow=' + (root.scrollWidth > root.clientWidth),
  'curve=' + (seen(curve).width > 200 && seen(curve).height > 100),
  'cut=' + [...document.querySelectorAll('.scroll, figure')].filter(one => one.scrollWidth > one.clientWidth).length,
  'lines=' + document.querySelectorAll('path.line').length,
  'heat=' + getComputedStyle(heat).backgroundColor,
  'paper=' + getComputedStyle(document.body).backgroundColor,
  'scripts=' + (document.scripts.length - 1),
  'requests=' + performance.getEntriesByType('resource').length,
].join(';');
document.body.append(out);
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_records(folder / "rounds.jsonl", made_runs())
    report = write_report([folder / "rounds.jsonl"], folder)
    probed = folder / "probed.html"
    probed.write_text(
        report.page.read_text(encoding="utf-8").replace("</body>", f"{_PROBE}</body>"),
        encoding="utf-8",
    )
    return probed


def look(page: Path, width: int, *, dark: bool, home: Path) -> dict[str, str]:
    """What the page says of itself, laid out at this width."""
    assert _BROWSER is not None
    command = [
        _BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={home}",
        f"--window-size={width},900",
    ]
    command += ["--blink-settings=preferredColorScheme=0"] if dark else []
    command += ["--dump-dom", page.as_uri()]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(home)},
        check=True,
    )
    found = re.search(r'<output id="probe">([^<]*)</output>', done.stdout)
    assert found is not None
    return dict(one.split("=", 1) for one in found[1].split(";"))


@pytest.mark.parametrize("width", [400, 500, 1280])
def test_the_page_is_laid_out_without_sticking_out(page: Path, width: int, tmp_path: Path) -> None:
    seen = look(page, width, dark=False, home=tmp_path)
    assert seen["overflow"] == "false"
    assert seen["cut"] == "0", "no table or figure has to be scrolled sideways"
    assert seen["curve"] == "true"
    assert seen["lines"] == "2"
    assert seen["heat"] != seen["paper"]
    assert seen["scripts"] == seen["requests"] == "0"


def test_the_page_follows_the_reader_into_the_dark(page: Path, tmp_path: Path) -> None:
    light, dark = (
        look(page, 1280, dark=is_dark, home=tmp_path / str(is_dark))["paper"]
        for is_dark in (False, True)
    )
    assert light == "rgb(252, 252, 251)"
    assert dark == "rgb(20, 23, 26)"
