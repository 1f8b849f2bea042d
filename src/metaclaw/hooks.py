"""Hooks for plugins: what installed distributions add to the program, found by the group and the
name of an entry point (docs/plugins.md)."""

from importlib.metadata import EntryPoint, entry_points
from types import FunctionType
from typing import Final, TypeVar

from metaclaw.errors import MetaClawError

T = TypeVar("T")

COMMANDS: Final = "metaclaw.commands"
CALENDARS: Final = "metaclaw.calendars"
TRAINING_SERVICES: Final = "metaclaw.training_services"
MODEL_HOSTS: Final = "metaclaw.model_hosts"
AGENTS: Final = "metaclaw.agents"
PRESENCE: Final = "metaclaw.presence"
TELEMETRY: Final = "metaclaw.telemetry"

# What distributions of this project add, and the folder of each in the repository.
_OURS: Final = {
    COMMANDS: {"bench": "bench", "demo": "plugins/demo"},
    PRESENCE: {"desktop": "plugins/desktop"},
    TELEMETRY: {"otlp": "plugins/otlp"},
    CALENDARS: {
        "caldav": "plugins/caldav",
        "google": "plugins/google_calendar",
        "ics": "plugins/caldav",
    },
    TRAINING_SERVICES: {
        "mint": "plugins/tinker",
        "tinker": "plugins/tinker",
        "weaver": "plugins/weaver",
    },
    MODEL_HOSTS: {"sglang": "plugins/sglang"},
    AGENTS: dict.fromkeys(
        ("aider", "copaw", "gemini", "ironclaw", "nanoclaw", "nemoclaw", "picoclaw", "zeroclaw"),
        "plugins/more_agents",
    ),
}


class PluginError(MetaClawError):
    """A plugin is not installed or does not work; the message names it and what to do."""


def installed_names(group: str) -> set[str]:
    """The names that installed distributions add to a hook."""
    return {entry.name for entry in entry_points(group=group)}


def known_names(group: str) -> list[str]:
    """The same, and those that distributions of this project would add."""
    return sorted(installed_names(group) | _OURS[group].keys())


def find_entry(group: str, name: str) -> EntryPoint:
    """The entry point, not loaded. Raises PluginError with what to install."""
    found = next(iter(entry_points(group=group, name=name)), None)
    if found is not None:
        return found
    if (folder := _OURS[group].get(name)) is not None:
        package = f"metaclaw-{folder.rpartition('/')[2].replace('_', '-')}"
        raise PluginError(
            f"{package} is not installed; in MetaClaw's repository run: pip install ./{folder}"
        )
    raise PluginError(
        f"no installed plugin has the name {name!r}; known are {', '.join(known_names(group))}"
    )


def load_plugin(group: str, name: str, kind: type[T]) -> T:
    """What the entry point names. Raises PluginError if it cannot be loaded or is not of this
    kind.
    """
    entry = find_entry(group, name)
    try:
        found = entry.load()
    except Exception as error:
        raise PluginError(_failure(entry, "cannot be loaded", error)) from error
    if not isinstance(found, kind):
        raise PluginError(
            f"the plugin {_package(entry)} names {entry.value}, which is no {kind.__name__};"
            " install another version of it"
        )
    return found


def call_plugin(group: str, name: str, settings: object) -> object:
    """The result of the function that the entry point names. Raises PluginError, and the program's
    own errors that the function raises.
    """
    function = load_plugin(group, name, FunctionType)
    try:
        return function(settings)
    except MetaClawError:
        raise
    except Exception as error:
        raise PluginError(_failure(find_entry(group, name), "failed", error)) from error


def _failure(entry: EntryPoint, what: str, error: Exception) -> str:
    package, remedy = _package(entry), "install it again"
    if isinstance(error, ImportError) and entry.extras:
        remedy = f"run: pip install '{package}[{','.join(entry.extras)}]'"
    return f"the plugin {package} {what} ({str(error) or type(error).__name__}); {remedy}"


def _package(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else entry.dist.name
