"""`metaclaw service`: let systemd start the proxy at login and keep it running."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from metaclaw.cli.home import prepared
from metaclaw.cli.output import (
    CommandOutput,
    answers,
    confirm,
    echo,
    echo_lines,
    wants_json,
    yes_option,
)
from metaclaw.errors import ConfigError, MetaClawError
from metaclaw.instance import find

_NAME = "metaclaw"
_KEYS = "service.env"
_TIMEOUT_S = 60
_UNIT = """# Written by `metaclaw service install`; `metaclaw service remove` deletes it.
[Unit]
Description=MetaClaw, a proxy that lets agents learn from use

[Service]
Type=exec
ExecStart={command}
EnvironmentFile=-{keys}
Restart=on-failure
RestartSec=5
TimeoutStopSec=90
UMask=0077

[Install]
WantedBy=default.target
"""


@click.group()
def service() -> None:
    """Run the proxy as a systemd user service, from login to logout."""


@service.command()
@click.option(
    "--name", default=_NAME, show_default=True, help="Name of the unit; another for each home."
)
@click.option(
    "--copy-keys",
    is_flag=True,
    help=f"Copy keys that config.toml takes from the environment into {_KEYS} (mode 0600).",
)
@click.option(
    "--start/--no-start", "starts", default=True, help="Start it now and at each login [start]."
)
@yes_option
@answers
def install(home: Path, name: str, copy_keys: bool, starts: bool, yes: bool) -> CommandOutput:
    """Write a systemd user unit that runs `metaclaw start` on this home, and start it. Keys
    written as env:NAME are read from service.env in the home folder."""
    prepared(home, [])
    systemctl = _require_systemctl() if starts else None
    if starts and (running := find(home)) is not None and not _is_active(name):
        raise MetaClawError(
            f"a proxy of {home} runs already (pid {running.pid}); stop it first: metaclaw stop"
        )
    path, text = unit_path(name), unit_text(home)
    if not wants_json():
        echo_lines([f"{path}:", "", *text.splitlines(), ""])
    confirm("Write this?", yes=yes)
    missing = _provide_keys(home, copies=copy_keys)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if systemctl is not None:
        _run(systemctl, "daemon-reload")
        _run(systemctl, "enable", "--now", f"{name}.service")
    _warn_of_missing(home, missing, "say --copy-keys")
    return CommandOutput(
        {"unit": str(path), "started": starts, "missing_keys": missing},
        [
            f"Installed {name}.service{' and started it' if starts else ''}.",
            f"Its state: metaclaw status. Its log: journalctl --user -u {name}",
            "To run it without a login as well: loginctl enable-linger",
        ],
    )


@service.command()
@click.option("--name", default=_NAME, show_default=True, help="Name of the unit.")
@yes_option
@answers
def remove(home: Path, name: str, yes: bool) -> CommandOutput:
    """Stop the service and delete its unit. The home folder is not changed."""
    path = unit_path(name)
    if not path.exists():
        raise MetaClawError(f"there is no service {name}: {path} does not exist")
    confirm(f"Stop {name}.service and delete {path}?", yes=yes)
    systemctl = shutil.which("systemctl")
    if systemctl is not None:
        _run(systemctl, "disable", "--now", f"{name}.service")
    path.unlink()
    if systemctl is not None:
        _run(systemctl, "daemon-reload")
    holds = f"; it holds {_KEYS}" if (home / _KEYS).exists() else ""
    return CommandOutput(
        {"removed": str(path)}, f"Removed {name}.service. {home} is as it was{holds}."
    )


def unit_path(name: str) -> Path:
    if Path(name).name != name or not name:
        raise ConfigError(f"{name!r} cannot be the name of a unit: use letters, digits and dashes")
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user" / f"{name}.service"


def unit_text(home: Path) -> str:
    """The text of the unit file."""
    words = [sys.executable, "-P", "-m", "metaclaw.cli", "--home", str(home), "start"]
    return _UNIT.format(
        command=" ".join(_quoted(word) for word in words), keys=_escaped(str(home / _KEYS))
    )


def active_unit(home: Path, *, is_running: bool) -> str | None:
    """The installed unit that runs the proxy of this home, or would if none runs; None if another
    way does.
    """
    if shutil.which("systemctl") is None:
        return None
    command = (
        unit_text(home).split("ExecStart=", 1)[1].split("\n", 1)[0].removeprefix(sys.executable)
    )
    for path in sorted(one for one in unit_path(_NAME).parent.glob("*.service") if one.is_file()):
        text = path.read_text(encoding="utf-8", errors="replace")
        is_ours = text.startswith(_UNIT.split("\n", 1)[0]) and f"{command}\n" in text
        if is_ours and (not is_running or _is_active(path.stem)):
            return path.name
    return None


def restart_unit(home: Path, unit: str, stop_s: float) -> None:
    """Have systemd restart the unit of this home, or start it; return when the new process has
    begun.
    """
    _warn_of_missing(
        home, _provide_keys(home, copies=False), "metaclaw service install --copy-keys"
    )
    _run(_require_systemctl(), "restart", unit, timeout_s=stop_s + _TIMEOUT_S)


def _quoted(word: str) -> str:
    """A word of ExecStart; systemd expands %, $ and backslashes."""
    text = _escaped(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{text}"' if text != word or any(char.isspace() for char in word) else word


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _provide_keys(home: Path, *, copies: bool) -> list[str]:
    """Configured variables that the service will not see. With `copies`, those in the environment
    are written to service.env.
    """
    path = home / _KEYS
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    has = {line.partition("=")[0].strip() for line in known.splitlines()}
    wanted = [variable for variable in _variables(home) if variable not in has]
    found = (
        {variable: os.environ[variable] for variable in wanted if os.environ.get(variable)}
        if copies
        else {}
    )
    if found:
        with open(
            path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)
        ) as file:
            file.writelines(f"{variable}={value}\n" for variable, value in found.items())
    return [variable for variable in wanted if variable not in found]


def _warn_of_missing(home: Path, variables: list[str], remedy: str) -> None:
    for variable in variables:
        echo(
            f"! {variable} is not known to the service: write {variable}=… into {home / _KEYS}, or"
            f" {remedy}",
            err=True,
        )


def _variables(home: Path) -> list[str]:
    """Names in `env:NAME` references of the configuration."""
    from metaclaw.config import Secret, flatten, load

    secrets = {value.masked for _, value in flatten(load(home)) if isinstance(value, Secret)}
    return sorted(name.removeprefix("env:") for name in secrets if name.startswith("env:"))


def _require_systemctl() -> str:
    found = shutil.which("systemctl")
    if found is None:
        raise ConfigError(
            "this machine has no systemd (systemctl was not found): start the proxy with metaclaw"
            " start --detach, or write the unit alone with --no-start"
        )
    return found


def _is_active(name: str) -> bool:
    found = shutil.which("systemctl")
    if found is None:
        return False
    command = [found, "--user", "is-active", "--quiet", f"{name}.service"]
    return subprocess.run(command, check=False, timeout=_TIMEOUT_S).returncode == 0


def _run(systemctl: str, *words: str, timeout_s: float = _TIMEOUT_S) -> None:
    command = [systemctl, "--user", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise MetaClawError(
            f"systemctl --user {' '.join(words)} is not done after {timeout_s:g} s"
        ) from error
    if done.returncode != 0:
        raise MetaClawError(
            f"systemctl --user {' '.join(words)} failed: {(done.stderr or done.stdout).strip()}"
        )
