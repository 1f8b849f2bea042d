"""`metaclaw config`, as the real program."""

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.cli.program import metaclaw, program

REPOSITORY = Path(__file__).resolve().parents[2]
HIDDEN = REPOSITORY / "tests" / "support" / "hidden"


def test_path_says_where_the_file_is_and_makes_nothing(home: Path) -> None:
    assert metaclaw("config", "path").out == f"{home / 'config.toml'}\n"
    assert metaclaw("config", "path", "--json").facts == {
        "path": str(home / "config.toml"),
        "home": str(home),
        "exists": False,
    }
    assert not home.exists()


def test_the_home_option_comes_before_the_variable(tmp_path: Path) -> None:
    assert (
        metaclaw("--home", str(tmp_path / "else"), "config", "path").out
        == f"{tmp_path / 'else' / 'config.toml'}\n"
    )


def test_show_prints_values_with_their_source_and_no_secret(home: Path) -> None:
    metaclaw("config", "set", "proxy.api_key", "hunter2-key")
    metaclaw(
        "config",
        "set",
        "providers.a.kind=openai",
        "providers.a.api_key=hunter2",
        "providers.a.base_url=http://u:hunter2@h/v1",
    )
    env = os.environ | {"METACLAW__PROXY__PORT": "8080"}
    shown = program("config", "show", env=env)
    assert shown.code == 0
    assert "hunter2" not in shown.out
    assert "= 8080  (METACLAW__PROXY__PORT)" in shown.out
    facts = program("config", "show", "--json", env=env).facts
    assert "hunter2" not in json.dumps(facts)
    assert facts["values"]["proxy.port"] == 8080
    assert facts["values"]["providers.0.wires"] == ["chat", "responses"]
    assert facts["sources"]["proxy.port"] == "METACLAW__PROXY__PORT"
    assert facts["sources"]["proxy.host"] == "default"
    assert facts["sources"]["proxy.api_key"] == f"{home / 'config.toml'}:2"


def test_show_takes_one_key_or_section() -> None:
    assert metaclaw("config", "show", "proxy.port").out == "proxy.port = 30000  (default)\n"
    assert metaclaw("config", "show", "log", "--json").facts == {
        "values": {"log.level": "info"},
        "sources": {"log.level": "default"},
    }
    missing = metaclaw("config", "show", "proxy.prot")
    assert (missing.code, missing.out) == (2, "")
    assert "proxy.prot is not a key" in missing.err


def test_check_finds_everything_that_is_wrong(home: Path) -> None:
    assert metaclaw("config", "check").code == 0
    home.mkdir()
    (home / "config.toml").write_text("[proxy]\nprot = 1\n[policy]\nsteps = 0\n")
    checked = program("config", "check")
    assert checked.code == 2
    assert (
        f"{home / 'config.toml'}:2: proxy.prot is not a known key; did you mean port?"
        in checked.err
    )
    facts = metaclaw("config", "check", "--json")
    assert (facts.code, facts.facts["valid"], len(facts.facts["problems"])) == (2, False, 2)


def test_check_finds_a_secret_that_is_not_there(home: Path) -> None:
    metaclaw("config", "set", "proxy.api_key=env:NOT_THERE")
    checked = metaclaw("config", "check")
    assert checked.code == 2
    assert "set the environment variable NOT_THERE" in checked.err


@pytest.mark.parametrize("command", [("config", "check"), ("doctor",)])
def test_calendars_without_their_libraries_are_found_and_how_to_install_them_is_told(
    home: Path, command: tuple[str, ...]
) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        "[[schedule.calendars]]\nkind = 'ics'\nurl = '/nowhere/me.ics'\n"
    )
    hidden = {"PYTHONPATH": str(HIDDEN), "HIDDEN_PACKAGES": "icalendar,recurring_ical_events"}
    done = program(*command, env={**os.environ, "METACLAW_HOME": str(home), **hidden})
    assert "icalendar" in done.out + done.err
    assert "the plugin metaclaw-caldav cannot be loaded" in done.out + done.err


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_install_brings_the_libraries_for_calendars() -> None:
    done = subprocess.run(
        ["make", "-n", "-B", "install"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "--editable ./plugins/caldav" in done.stdout


def test_set_writes_privately_and_takes_negative_numbers_as_values(home: Path) -> None:
    done = program("config", "set", "proxy.port", "31000")
    assert (done.code, done.err) == (0, "")
    assert (home / "config.toml").read_text() == "[proxy]\nport = 31000\n"
    assert stat.S_IMODE((home / "config.toml").stat().st_mode) == 0o600
    refused = metaclaw("config", "set", "proxy.port", "-1")
    assert refused.code == 2
    assert "proxy.port must be greater than or equal to 0" in refused.err


def test_check_objects_to_hours_of_sleep_that_do_not_exist(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[schedule]\nsleep = ["23:00-07:00", "25:00-07:00"]\n')
    refused = metaclaw("config", "check")
    assert (refused.code, refused.out) == (2, "")
    assert (
        'config.toml:2: schedule.sleep is ignored: "25:00-07:00" has 25:00, which is no time of day'
        in refused.err
    )
    assert [
        problem["key"] for problem in metaclaw("config", "check", "--json").facts["problems"]
    ] == ["schedule.sleep"]


def test_set_leaves_a_broken_file_alone(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[proxy\n")
    for arguments in (
        ("config", "set", "proxy.port", "1"),
        ("start",),
        ("start", "--detach"),
        ("skills", "list"),
        ("sessions", "list"),
    ):
        refused = program(*arguments)
        assert refused.code == 2, arguments
        assert "config.toml:1: is not valid TOML" in refused.err
        assert "Traceback" not in refused.err
    assert (home / "config.toml").read_text() == "[proxy\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("start", "--host", "0.0.0.0"), "proxy.host needs proxy.api_key"),
        (
            ("start", "--mode", "fast"),
            "'fast' is not one of 'skills_only', 'rl', 'auto'",
        ),
        (("start", "--set", "proxy.prot=1"), "did you mean port?"),
        (("start", "--port", "70000"), "70000 is not in the range"),
        (("strat",), "No such command 'strat'"),
        (("config", "set"), "Missing argument"),
    ],
)
def test_wrong_use_exits_with_2_and_a_sentence(
    home: Path, arguments: tuple[str, ...], words: str
) -> None:
    refused = metaclaw(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert words in refused.err
    assert not home.exists()


def test_a_home_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = metaclaw(
        "--home", str(tmp_path / "file" / "home"), "config", "set", "proxy.port", "1"
    )
    assert refused.code == 2
    assert "Traceback" not in refused.err
