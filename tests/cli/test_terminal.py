"""How output fits a terminal, and the commands that help at one: logs and completion."""

import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from metaclaw.cli.output import (
    ago,
    bar,
    cell_width,
    cut,
    print_table,
    show_progress,
    shown_while,
    wrap_cell,
)
from metaclaw.domain.ids import new_session_id
from tests.cli.program import metaclaw, program
from tests.cli.recorded import record, turn

ROWS = [("s_1", "a" * 60, "short"), ("s_2", "b", "日本" * 30)]


def on_terminal(*arguments: str, columns: int, env: dict[str, str] | None = None) -> str:
    """What the real program prints on a terminal of this width."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "metaclaw.cli", *arguments]
    given = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", **(env or {})}
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=given
    ) as child:
        os.close(follower)
        said = b""
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:
                break
            if not chunk:
                break
            said += chunk
        child.wait(60)
    os.close(leader)
    return said.decode()


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_a_table_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(("SESSION", "WORDS", "MORE"), ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_width, lines)) <= columns
    assert lines[1].startswith("s_1 ")
    assert ("…" in "".join(lines)) == (columns < 150)


def test_a_table_in_a_pipe_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("SESSION", "WORDS", "MORE"), ROWS)
    out = capsys.readouterr().out
    assert "a" * 60 in out
    assert "日本" * 30 in out


def test_a_text_is_cut_by_the_columns_it_takes() -> None:
    assert cut("plain", 5) == "plain"
    assert cut("plain text", 6) == "plain…"
    assert cut("日本日本", 5) == "日本…"
    assert cell_width("e\u0301") == 1


def test_the_real_program_fits_its_tables_and_heeds_no_color(home: Path) -> None:
    record(home, turn(new_session_id()))
    listed = on_terminal("agents", "list", columns=50)
    assert max(len(line) for line in listed.splitlines()) <= 50
    assert "\x1b[1m" in on_terminal("sessions", "show", "--last", columns=80)
    assert "\x1b" not in on_terminal(
        "sessions", "show", "--last", columns=80, env={"NO_COLOR": "1"}
    )


def test_start_prints_the_key_and_a_link_on_a_terminal(home: Path) -> None:
    settings = (
        "providers.main.kind=openai",
        "providers.main.base_url=http://127.0.0.1:1/v1",
        "proxy.port=0",
    )
    assert metaclaw("config", "set", *settings).code == 0
    try:
        said = on_terminal("start", "--detach", columns=200)
        key = metaclaw("key").out.strip()
        assert f"  key  {key}" in said
        assert f"Authorization: Bearer {key}" in said
        assert "/ui/sign-in?token=" in said
    finally:
        metaclaw("stop")


def test_rules_can_be_read_on_a_narrow_terminal(home: Path) -> None:
    text = "Never write to the production database without a backup of it."
    for arguments in ((text,), ("The staging server is called Heron.", "--fact", "--for", "you")):
        assert metaclaw("rules", "add", *arguments).code == 0
    listed = on_terminal("rules", columns=60)
    lines = listed.splitlines()
    assert max(map(cell_width, lines)) <= 60
    assert "(no room for" in lines[-1]
    names = "".join(line[:20].strip() for line in lines[1:])
    assert metaclaw("rules", "--json").facts["rules"][0]["name"] in names, (
        "a name is wrapped, not cut"
    )
    assert "production" in listed
    for line in on_terminal("rules", columns=200).splitlines():
        assert "no room" not in line


@pytest.mark.parametrize(
    ("columns", "shown"), [(80, ["NAME", "TEXT", "MORE"]), (44, ["NAME", "TEXT"])]
)
def test_columns_that_are_not_needed_make_room(
    columns: int,
    shown: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(
        ("NAME", "TEXT", "MORE"),
        [("a-name-of-many-words-and-more", "words " * 10, "more " * 10)],
        optional=("MORE",),
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == shown
    assert max(map(cell_width, lines)) <= columns


def test_a_cell_is_wrapped_at_hyphens_and_cut_in_its_last_line() -> None:
    assert wrap_cell("use-uv-instead-of-pip", 12) == ["use-uv-", "instead-of-", "pip"]
    assert wrap_cell("a" * 10, 4) == ["aaaa", "aaaa", "aa"]
    assert wrap_cell("one two three four", 8, 2) == ["one two", "three f…"]
    assert wrap_cell("", 8) == [""]


def test_progress_is_silent_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show_progress("nothing")
    with shown_while("working"):
        pass
    assert capsys.readouterr() == ("", "")
    assert bar(0.5) == "[############............]  50%"
    assert bar(1.0).endswith("100%")


def test_times_are_told_as_people_do() -> None:
    now = datetime.now(UTC)
    assert ago(now) == "just now"
    assert ago(now - timedelta(minutes=5, seconds=2)) == "5 min ago"
    assert ago(now - timedelta(hours=30)) == "1 d ago"
    assert ago(now - timedelta(days=400)) == (now - timedelta(days=400)).astimezone().strftime(
        "%Y-%m-%d"
    )


def test_the_end_of_the_log_is_printed_and_followed(home: Path) -> None:
    assert "metaclaw start --detach" in metaclaw("logs").err
    (home / "logs").mkdir(parents=True)
    log = home / "logs" / "metaclaw.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)) + "evil \x1b[31m\n")
    assert metaclaw("logs", "-n", "2").out == "line 99\nevil \\x1b[31m\n"
    command = [sys.executable, "-m", "metaclaw.cli", "logs", "-n", "1", "--follow"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("evil")
        with log.open("a") as file:
            file.write("one more\n")
        assert child.stdout.readline() == "one more\n"
        child.terminate()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands(shell: str) -> None:
    script = metaclaw("completion", shell)
    assert script.code == 0
    assert f"_METACLAW_COMPLETE={shell}_complete" in script.out


def test_completion_names_the_commands(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "_METACLAW_COMPLETE": "bash_complete",
        "COMP_WORDS": "metaclaw sess",
        "COMP_CWORD": "1",
    }
    assert program(env=env).out.strip() == "plain,sessions"
    unknown = metaclaw("completion", "tcsh")
    assert unknown.code == 2
