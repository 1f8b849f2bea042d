"""The program as a whole: quick to start, sparing with words, honest about bugs."""

import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaclaw import __version__
from metaclaw.cli import main
from metaclaw.cli.output import counted, duration, plain, plain_block
from metaclaw.cli.root import root
from metaclaw.errors import ConfigError
from tests.cli.program import program

HEAVY = ("sqlalchemy", "alembic", "uvicorn", "torch", "numpy", "metaclaw.app", "metaclaw.store")


@pytest.mark.parametrize("arguments", [["--help"], ["status"], ["stop"], ["config", "path"]])
def test_quick_commands_import_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys; from metaclaw.cli import main; main(sys.argv[1:]); print([m for m in"
        f" sys.modules if m in {HEAVY}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_command() -> None:
    out = program("--help").out
    for name in ("start", "stop", "status", "doctor", "config", "skills", "sessions"):
        assert f"\n  {name} " in out
    assert program("--version").out == f"metaclaw, version {__version__}\n"


@pytest.fixture
def boom() -> Iterator[None]:
    """A command with a bug in it."""

    @root.command()
    def boom() -> None:
        raise ZeroDivisionError("secret detail")

    yield
    del root.commands["boom"]


def test_a_bug_is_one_sentence_and_its_trace_is_in_the_log(
    boom: None, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = home / "logs" / "metaclaw.log"
    assert main(["--home", str(home), "boom"]) == 1
    assert (
        capsys.readouterr().err
        == "metaclaw: this is a bug in MetaClaw (ZeroDivisionError); what happened is written in"
        f" {log}\n"
    )
    assert "secret detail" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_bug_where_nothing_can_be_written_is_shown(
    boom: None, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_text("not a folder")
    assert main([f"--home={home}/in", "boom"]) == 1
    assert "ZeroDivisionError: secret detail" in capsys.readouterr().err


def test_an_error_of_ours_from_tasks_side_by_side_is_no_bug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @root.command()
    def grouped() -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", [ConfigError("put this right")])])

    assert main(["grouped"]) == 2
    del root.commands["grouped"]
    assert capsys.readouterr().err == "metaclaw: put this right\n"


def test_output_that_nobody_reads_is_no_traceback() -> None:
    script = (
        f"{sys.executable} -m metaclaw.cli config show | head -1 >/dev/null; exit"
        " ${PIPESTATUS[0]}"
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr


def test_reference_pages_are_what_the_program_says() -> None:
    script = Path(__file__).resolve().parents[2] / "scripts" / "gen-docs"
    done = subprocess.run(
        [sys.executable, str(script), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (90000, "1 d 1 h")],
)
def test_a_length_of_time_is_said_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    assert plain("a\x1b[31m\n\u202eb") == "a\\x1b[31m\\n\\u202eb"
    assert "\x1b" not in plain_block("a\x1b[2J\n\tb")
    assert plain_block("a\n\tb") == "a\n\tb"
    assert (plain(None), plain("")) == ("–", "–")
    assert (counted(1, "turn"), counted(2, "turn"), counted(0, "entry", "entries")) == (
        "1 turn",
        "2 turns",
        "0 entries",
    )
