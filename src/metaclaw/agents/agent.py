"""The description of one agent program, and of the proxy it connects to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from metaclaw.agents.formats import KeyPath, TextFormat
from metaclaw.errors import ConfigError

Environment: TypeAlias = Mapping[str, str]


class ModelNeededError(ConfigError):
    """An agent must name a model, and none is known."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The proxy's address, key and model for an agent. `model` is written if an agent must name
    one, or if the person chose it.

    `kinds` are the kinds of the configured providers, `passthrough` the kinds that get the caller's
    own credentials."""

    url: str
    key: str = field(repr=False)
    model: str | None = None
    kinds: frozenset[str] = frozenset()
    passthrough: frozenset[str] = frozenset()
    is_model_chosen: bool = False
    mcp: tuple[str, ...] = ()
    """The command of our MCP server, for agents that are to start it."""

    @property
    def openai_url(self) -> str:
        """The base URL of an OpenAI client."""
        return f"{self.url}/v1"

    def keyed_url(self, suffix: str = "") -> str:
        """The base URL with our key in it, for clients whose own credentials are forwarded."""
        return f"{self.url}/k/{self.key}{suffix}"

    def require_model(self, title: str) -> str:
        """The model to write into an agent's configuration. Raises ModelNeededError if none is
        known.
        """
        if self.model is None:
            raise ModelNeededError(
                f"{title} needs the name of a model, and no provider in config.toml lists one; give"
                " it with --model NAME, or start the proxy first if the embedded model is to"
                " answer"
            )
        return self.model

    def refuse_passthrough(self, title: str) -> None:
        """Raise ConfigError if the provider needs the caller's credentials: this agent would send
        only our key.
        """
        if "openai" in self.passthrough:
            raise ConfigError(
                f"the openai provider has api_key = passthrough, so {title} would have to send its"
                " own provider key, which is never written for you; give the provider a key"
                " (api_key = env:NAME), or see metaclaw agents connect env"
            )


@dataclass(frozen=True, slots=True)
class Setting:
    """One value in an agent's configuration. With `within`, it is set only if that section exists
    already.
    """

    path: KeyPath
    value: object
    within: KeyPath | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent program. An agent without `file` is connected by hand; `steps` says how. With
    `takes_mcp` its settings name our MCP server, if it is wanted; `mcp_file` stands for a file of its
    own for that, `second_file` for one that is always written."""

    name: str
    title: str
    program: str
    install: str
    tried: str | None
    settings: Callable[[Endpoint], list[Setting]] = lambda endpoint: []
    file: Callable[[Environment], Path] | None = None
    text: TextFormat | None = None
    steps: Callable[[Endpoint], list[str]] = lambda endpoint: []
    question: Callable[[str], Sequence[str]] | None = None
    after: str = ""
    takes_mcp: bool = False
    mcp_file: "Agent | None" = None
    second_file: "Agent | None" = None

    @property
    def is_automatic(self) -> bool:
        """Whether `connect` changes a file; otherwise it prints what to do."""
        return self.file is not None

    def needs_model(self, endpoint: Endpoint) -> bool:
        """Whether the agent's configuration must name a model for this endpoint."""
        try:
            self.settings(replace(endpoint, model=None, is_model_chosen=False))
        except ConfigError as error:
            return isinstance(error, ModelNeededError)
        return False


def user_home(env: Environment) -> Path:
    """The user's own folder."""
    named = env.get("HOME", "")
    return Path(named) if named else Path.home()


def folder_of(env: Environment, variable: str, default: str) -> Path:
    """A program's folder: from the variable, else `default` in the user's home folder."""
    named = env.get(variable, "").strip()
    return Path(named).expanduser() if named else user_home(env) / default


def leaves(prefix: KeyPath, values: Mapping[str, object]) -> list[Setting]:
    """One setting for each value of a section, also of nested sections."""
    found: list[Setting] = []
    for name, value in values.items():
        path = (*prefix, name)
        found += leaves(path, value) if isinstance(value, Mapping) else [Setting(path, value)]
    return found
