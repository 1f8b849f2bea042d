"""`metaclaw service`: what it writes, and what it asks of systemd and launchd."""

import os
import plistlib
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from metaclaw.cli.service import Systemd, active_service
from metaclaw.instance import acquire
from tests.cli.program import metaclaw


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes down what it is asked; the file it writes to."""
    asked, folder = tmp_path / "asked", tmp_path / "bin"
    folder.mkdir()
    program = folder / "systemctl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {asked}\ncase "$*" in *is-active*) exit 3;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return asked


def test_a_unit_is_written_started_and_removed(home: Path, tmp_path: Path, systemctl: Path) -> None:
    done = metaclaw("service", "install", "--yes")
    assert (done.code, done.err) == (0, "")
    unit = tmp_path / "config" / "systemd" / "user" / "metaclaw.service"
    assert unit.read_text() in done.out
    lines = unit.read_text().splitlines()
    assert f"ExecStart={sys.executable} -P -m metaclaw.cli --home {home} start" in lines
    assert f"EnvironmentFile=-{home}/service.env" in lines
    assert "Restart=on-failure" in lines
    assert "WantedBy=default.target" in lines
    assert (home / "config.toml").exists()
    assert systemctl.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable --now metaclaw.service",
    ]
    removed = metaclaw("service", "remove", "--yes", "--json")
    assert removed.facts == {"removed": str(unit)}
    assert not unit.exists()
    assert systemctl.read_text().splitlines()[2:] == [
        "--user disable --now metaclaw.service",
        "--user daemon-reload",
    ]
    assert "there is no service metaclaw" in metaclaw("service", "remove", "--yes").err


def test_restart_has_systemd_start_the_service_of_this_home(home: Path, systemctl: Path) -> None:
    program = Path(os.environ["PATH"].split(":")[0]) / "systemctl"
    start = (
        f"{sys.executable} -m metaclaw.cli --home {home} start --set providers.main.kind=openai"
        " --port 0"
    )
    program.write_text(
        f'{program.read_text()}case "$*" in *restart*) {start} >/dev/null 2>&1 & esac\n'
    )
    other = home.with_name("other")
    assert (
        metaclaw(
            "--home", str(other), "service", "install", "--name", "another", "--no-start", "--yes"
        ).code
        == 0
    )
    assert metaclaw("service", "install", "--name", "mine", "--no-start", "--yes").code == 0
    done = metaclaw("restart", "--json")
    try:
        assert (done.code, done.facts["unit"], done.facts["restarted"]) == (
            0,
            "mine.service",
            False,
        )
        assert systemctl.read_text().splitlines() == ["--user restart mine.service"]
    finally:
        assert metaclaw("stop").code == 0


def test_on_macos_a_launch_agent_is_written_started_and_removed(
    home: Path, tmp_path: Path, systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """launchctl is a script here: no macOS has run this."""
    program = Path(os.environ["PATH"].split(":")[0]) / "launchctl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {systemctl}\ncase "$1" in print) exit 113;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("SOME_KEY", "sk-secret=1")
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(
        "[[providers]]\nname = 'openai'\nkind = 'openai'\napi_key = 'env:SOME_KEY'\n"
    )
    done = metaclaw("service", "install", "--yes", "--copy-keys", "--json")
    assert (done.code, done.err) == (0, "")
    path = tmp_path / "person" / "Library" / "LaunchAgents" / "metaclaw.plist"
    assert done.facts == {"unit": str(path), "started": True, "missing_keys": []}
    agent = plistlib.loads(path.read_bytes())
    assert agent["ProgramArguments"][-3:] == ["--home", str(home), "start"]
    assert agent["EnvironmentVariables"] == {"SOME_KEY": "sk-secret=1"}
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert active_service(home, is_running=False) == path
    assert active_service(tmp_path, is_running=False) is None
    assert metaclaw("service", "remove", "--yes", "--json").facts == {"removed": str(path)}
    assert not path.exists()
    asked = [line for line in systemctl.read_text().splitlines() if not line.startswith("print")]
    domain = f"gui/{os.getuid()}"
    assert asked == [f"bootstrap {domain} {path}", f"bootout {domain}/metaclaw"]


def test_keys_from_the_environment_are_named_or_copied(
    home: Path, systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(
        "[[providers]]\nname = 'openai'\nkind = 'openai'\napi_key = 'env:SOME_KEY'\n"
    )
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    told = metaclaw("service", "install", "--yes", "--no-start")
    assert "SOME_KEY is not known to the service" in told.err
    assert "sk-secret" not in told.out + told.err
    assert (
        metaclaw("service", "install", "--yes", "--no-start", "--copy-keys", "--json").facts[
            "missing_keys"
        ]
        == []
    )
    keys = home / "service.env"
    assert keys.read_text() == "SOME_KEY=sk-secret\n"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600


def test_a_proxy_that_runs_already_is_not_started_twice(home: Path, systemctl: Path) -> None:
    with acquire(home):
        refused = metaclaw("service", "install", "--yes")
    assert refused.code == 1
    assert "metaclaw stop" in refused.err


def test_without_systemd_it_says_what_to_do_instead(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    refused = metaclaw("service", "install", "--yes")
    assert refused.code == 2
    assert "metaclaw start --detach" in refused.err
    assert metaclaw("service", "install", "--name", "../x", "--no-start", "--yes").code == 2


def test_odd_paths_are_escaped() -> None:
    text = Systemd.text(Path('/home/a b/100%/$x"y'), "metaclaw")
    assert r'--home "/home/a b/100%%/$$x\"y" start' in text
    assert "EnvironmentFile=-/home/a b/100%%/" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "metaclaw.service"
    unit.write_text(Systemd.text(tmp_path, "metaclaw"))
    command = ["systemd-analyze", "--user", "verify", str(unit)]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
