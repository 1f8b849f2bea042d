"""`metaclaw service`: let systemd, or launchd on macOS, start the proxy at login and keep it running."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

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
_STOP_S = 90
_UNIT = """# Written by `metaclaw service install`; `metaclaw service remove` deletes it.
[Unit]
Description=MetaClaw, a proxy that lets agents learn from use

[Service]
Type=exec
ExecStart={command}
EnvironmentFile=-{keys}
# The listening socket, while the service restarts: no connection is refused.
NotifyAccess=main
FileDescriptorStoreMax=1
Restart=on-failure
RestartSec=5
TimeoutStopSec={stop_s}
UMask=0077

[Install]
WantedBy=default.target
"""


class Systemd:
    """User units of systemd."""

    title = "systemd user unit"
    suffix = ".service"

    def __init__(self, program: str) -> None:
        self._program = program

    @staticmethod
    def folder() -> Path:
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        return Path(base) / "systemd" / "user"

    @staticmethod
    def text(home: Path, _name: str) -> str:
        """The text of the unit file."""
        return _UNIT.format(
            command=" ".join(map(_quoted, start_words(home))),
            keys=_escaped(str(home / _KEYS)),
            stop_s=_STOP_S,
        )

    @staticmethod
    def is_of(path: Path, home: Path) -> bool:
        """Whether a file is a unit that we wrote for this home, by whatever interpreter."""
        text = path.read_text(encoding="utf-8", errors="replace")
        command = " ".join(map(_quoted, start_words(home)[1:]))
        return text.startswith(_UNIT.split("\n", 1)[0]) and f" {command}\n" in text

    def begin(self, path: Path) -> None:
        self._run("daemon-reload")
        self._run("enable", "--now", path.name)

    def end(self, path: Path) -> None:
        self._run("disable", "--now", path.name)

    def removed(self) -> None:
        self._run("daemon-reload")

    def restart(self, path: Path, timeout_s: float) -> None:
        self._run("restart", path.name, timeout_s=timeout_s)

    def is_active(self, name: str) -> bool:
        command = [self._program, "--user", "is-active", "--quiet", f"{name}{self.suffix}"]
        return subprocess.run(command, check=False, timeout=_TIMEOUT_S).returncode == 0

    @staticmethod
    def notes(_home: Path, name: str) -> list[str]:
        return [
            f"Its state: metaclaw status. Its log: journalctl --user -u {name}",
            "To run it without a login as well: loginctl enable-linger",
        ]

    def _run(self, *words: str, timeout_s: float = _TIMEOUT_S) -> None:
        _run([self._program, "--user", *words], timeout_s)


class Launchd:
    """Launch agents of macOS."""

    title = "launch agent"
    suffix = ".plist"

    def __init__(self, program: str) -> None:
        self._program = program
        self._domain = f"gui/{os.getuid()}"

    @staticmethod
    def folder() -> Path:
        return Path.home() / "Library" / "LaunchAgents"

    @staticmethod
    def text(home: Path, name: str) -> str:
        """The text of the property list. launchd reads no file of variables: they are copied."""
        import plistlib

        log = str(home / "logs" / "metaclaw.log")
        agent = {
            "Label": name,
            "ProgramArguments": start_words(home),
            "EnvironmentVariables": service_variables(home),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": _STOP_S,
            "Umask": 0o077,
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
        return plistlib.dumps(agent, sort_keys=False).decode()

    @staticmethod
    def is_of(path: Path, home: Path) -> bool:
        """Whether a file is an agent for this home, by whatever interpreter."""
        import plistlib

        try:
            words = plistlib.loads(path.read_bytes())["ProgramArguments"]
        except (plistlib.InvalidFileException, KeyError, ValueError):
            return False
        return bool(words[1:] == start_words(home)[1:])

    def begin(self, path: Path) -> None:
        _run([self._program, "bootstrap", self._domain, str(path)])

    def end(self, path: Path) -> None:
        _run([self._program, "bootout", f"{self._domain}/{path.stem}"])

    def removed(self) -> None:
        """Nothing is left to do."""

    def restart(self, path: Path, timeout_s: float) -> None:
        _run([self._program, "kickstart", "-k", f"{self._domain}/{path.stem}"], timeout_s)

    def is_active(self, name: str) -> bool:
        command = [self._program, "print", f"{self._domain}/{name}"]
        done = subprocess.run(command, check=False, capture_output=True, timeout=_TIMEOUT_S)
        return done.returncode == 0

    @staticmethod
    def notes(home: Path, _name: str) -> list[str]:
        return [f"Its state: metaclaw status. Its log: {home / 'logs' / 'metaclaw.log'}"]


ServiceManager: TypeAlias = Systemd | Launchd


def find_manager() -> ServiceManager | None:
    """What starts services on this machine."""
    if (launchctl := shutil.which("launchctl")) is not None:
        return Launchd(launchctl)
    systemctl = shutil.which("systemctl")
    return None if systemctl is None else Systemd(systemctl)


@click.group()
def service() -> None:
    """Run the proxy as a service of systemd or launchd, from login to logout."""


@service.command()
@click.option(
    "--name", default=_NAME, show_default=True, help="Name of the service; another for each home."
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
    """Write a systemd user unit, or on macOS a launch agent, that runs `metaclaw start` on this
    home, and start it. Keys written as env:NAME are read from service.env in the home folder.
    """
    prepared(home, [])
    manager = find_manager()
    if manager is None and starts:
        raise ConfigError(
            "this machine has neither systemd nor launchd (systemctl and launchctl were not found):"
            " start the proxy with metaclaw start --detach, or write the unit alone with --no-start"
        )
    if (
        (manager is not None and starts)
        and (running := find(home)) is not None
        and not manager.is_active(name)
    ):
        raise MetaClawError(
            f"a proxy of {home} runs already (pid {running.pid}); stop it first: metaclaw stop"
        )
    kind = manager or Systemd("")
    path = service_path(kind, name)
    if not wants_json():
        shown = f"{kind.title} {path}"
        echo_lines([f"{shown}:", "", *kind.text(home, name).splitlines(), ""])
    confirm("Write this?", yes=yes)
    missing = _provide_keys(home, copies=copy_keys)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", opener=_private) as file:  # it may hold keys
        file.write(kind.text(home, name))
    if manager is not None and starts:
        manager.begin(path)
    _warn_of_missing(home, missing, "say --copy-keys")
    return CommandOutput(
        {"unit": str(path), "started": starts, "missing_keys": missing},
        [
            f"Installed {path.name}{' and started it' if starts else ''}.",
            *kind.notes(home, name),
        ],
    )


@service.command()
@click.option("--name", default=_NAME, show_default=True, help="Name of the service.")
@yes_option
@answers
def remove(home: Path, name: str, yes: bool) -> CommandOutput:
    """Stop the service and delete its file. The home folder is not changed."""
    manager = find_manager()
    path = service_path(manager or Systemd(""), name)
    if not path.exists():
        raise MetaClawError(f"there is no service {name}: {path} does not exist")
    confirm(f"Stop {path.name} and delete {path}?", yes=yes)
    if manager is not None:
        manager.end(path)
    path.unlink()
    if manager is not None:
        manager.removed()
    holds = f"; it holds {_KEYS}" if (home / _KEYS).exists() else ""
    return CommandOutput(
        {"removed": str(path)}, f"Removed {path.name}. {home} is as it was{holds}."
    )


def service_path(manager: ServiceManager, name: str) -> Path:
    if Path(name).name != name or not name:
        raise ConfigError(
            f"{name!r} cannot be the name of a service: use letters, digits and dashes"
        )
    return manager.folder() / f"{name}{manager.suffix}"


def start_words(home: Path) -> list[str]:
    """The command that starts the proxy."""
    return [sys.executable, "-P", "-m", "metaclaw.cli", "--home", str(home), "start"]


def active_service(home: Path, *, is_running: bool) -> Path | None:
    """The file of the installed service that runs the proxy of this home, or would if none runs;
    None if another way does.
    """
    manager = find_manager()
    if manager is None:
        return None
    ours = (
        path
        for path in sorted(manager.folder().glob(f"*{manager.suffix}"))
        if path.is_file() and manager.is_of(path, home)
    )
    return next((path for path in ours if not is_running or manager.is_active(path.stem)), None)


def restart_service(home: Path, path: Path, stop_s: float) -> None:
    """Have the service of this home restarted, or started; return when the new process has
    begun.
    """
    _warn_of_missing(
        home, _provide_keys(home, copies=False), "metaclaw service install --copy-keys"
    )
    manager = find_manager()
    assert manager is not None
    manager.restart(path, stop_s + _TIMEOUT_S)


def service_variables(home: Path) -> dict[str, str]:
    """The variables in service.env."""
    path = home / _KEYS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    named = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name.strip(): value for name, sign, value in named if sign}


def _quoted(word: str) -> str:
    """A word of ExecStart; systemd expands %, $ and backslashes."""
    text = _escaped(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{text}"' if text != word or any(char.isspace() for char in word) else word


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _provide_keys(home: Path, *, copies: bool) -> list[str]:
    """Configured variables that the service will not see. With `copies`, those in the environment
    are written to service.env.
    """
    path, has = home / _KEYS, service_variables(home)
    wanted = [variable for variable in _variables(home) if variable not in has]
    found = (
        {variable: os.environ[variable] for variable in wanted if os.environ.get(variable)}
        if copies
        else {}
    )
    if found:
        with open(path, "a", encoding="utf-8", opener=_private) as file:
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


def _run(command: list[str], timeout_s: float = _TIMEOUT_S) -> None:
    shown = " ".join([Path(command[0]).name, *command[1:]])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise MetaClawError(f"{shown} is not done after {timeout_s:g} s") from error
    if done.returncode != 0:
        raise MetaClawError(f"{shown} failed: {(done.stderr or done.stdout).strip()}")
