"""The configuration as one strict typed tree, and its loading. Later sources override earlier ones:
defaults, the file, `METACLAW__SECTION__KEY`, `--set section.key=value`. An unknown key is an
error."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from metaclaw.config.learning import (
    EvolverConfig,
    JudgeConfig,
    LearningConfig,
    ListenConfig,
    PrivacyConfig,
    SkillsConfig,
    TeamConfig,
)
from metaclaw.config.problems import InvalidConfigError, Problem, explain, find_field, section_type
from metaclaw.config.section import CONFIG_NAME, Secret, Section
from metaclaw.config.serving import (
    EngineConfig,
    LogConfig,
    ProviderConfig,
    ProxyConfig,
    SessionsConfig,
    StoreConfig,
    TelemetryConfig,
)
from metaclaw.config.sources import (
    DEFAULT,
    LISTS,
    OPTIONAL,
    ConfigFile,
    KeyPath,
    SourceKind,
    ValueAssignment,
    ValueSource,
    ValueSources,
    key_of,
    named_key_of,
    path_of,
)
from metaclaw.config.training import PolicyConfig, ScheduleConfig, TrainingMode
from metaclaw.errors import ConfigError
from metaclaw.hooks import CALENDARS, MODEL_HOSTS, TELEMETRY, TRAINING_SERVICES


class Config(Section):
    """The whole configuration."""

    proxy: ProxyConfig = Field(default_factory=ProxyConfig)
    providers: Annotated[tuple[ProviderConfig, ...], Field(strict=False)] = ()
    skills: SkillsConfig = Field(default_factory=SkillsConfig)
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    listen: ListenConfig = Field(default_factory=ListenConfig)
    evolver: EvolverConfig = Field(default_factory=EvolverConfig)
    learning: LearningConfig = Field(default_factory=LearningConfig)
    teams: Annotated[tuple[TeamConfig, ...], Field(strict=False)] = ()
    policy: PolicyConfig | None = None
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)
    sessions: SessionsConfig = Field(default_factory=SessionsConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    _sources: ValueSources | None = PrivateAttr(None)

    @field_validator("providers")
    @classmethod
    def _check_providers(cls, providers: tuple[ProviderConfig, ...]) -> tuple[ProviderConfig, ...]:
        names = [provider.name for provider in providers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PydanticCustomError(
                "twice", "has two entries named {name}; give each its own name", {"name": twice}
            )
        if sum(provider.kind == "embedded" for provider in providers) > 1:
            raise PydanticCustomError(
                "embedded_twice", "has the embedded model twice; keep one of them"
            )
        return providers

    @model_validator(mode="after")
    def _check_named_providers(self) -> "Config":
        for name in ("judge", "listen", "evolver"):
            self._named_provider(f"{name}.provider", getattr(self, name).provider)
        return self

    @model_validator(mode="after")
    def _check_embeddings_provider(self) -> "Config":
        provider = self._named_provider(
            "skills.embeddings_provider", self.skills.embeddings_provider
        )
        if provider is not None and provider.kind != "openai":
            raise PydanticCustomError(
                "embeddings_kind",
                "skills.embeddings_provider names {name}, which is not of kind openai and has no"
                " /v1/embeddings",
                {"name": provider.name},
            )
        return self

    @model_validator(mode="after")
    def _check_policy(self) -> "Config":
        policy = self.policy
        if policy is None:
            return self
        host = self._named_provider("policy.provider", policy.provider)
        if host is not None and host.kind != "openai":
            raise PydanticCustomError(
                "policy_provider",
                "policy.provider names {name}, which is not of kind openai as a server of weights"
                " is",
                {"name": host.name},
            )
        is_own = policy.backend == "embedded" and policy.serve == "backend"
        if (
            is_own
            and self.providers
            and not any(provider.kind == "embedded" for provider in self.providers)
        ):
            raise PydanticCustomError(
                "policy_unserved",
                'policy.backend = "embedded" trains a model that no provider serves; add'
                " [[providers]] of kind embedded",
            )
        return self

    def _named_provider(self, key: str, wanted: str | None) -> ProviderConfig | None:
        """The provider that a key names for the program's own calls. Raises if it cannot be used
        for them.
        """
        if wanted is None:
            return None
        provider = next((provider for provider in self.providers if provider.name == wanted), None)
        if provider is None:
            raise PydanticCustomError(
                "asked_unknown",
                "{key} names {name}, which is no provider",
                {"key": key, "name": wanted},
            )
        if provider.api_key is not None and provider.api_key.is_passthrough:
            raise PydanticCustomError(
                "asked_passthrough",
                "{key} names {name}, which forwards its callers' credentials and has no key of"
                " its own",
                {"key": key, "name": wanted},
            )
        return provider

    @property
    def mode(self) -> TrainingMode:
        """When weights are trained: `skills_only` is never."""
        return "skills_only" if self.policy is None else self.policy.mode

    def plugins(self) -> Iterator[tuple[str, str, str]]:
        """The keys that name a plugin, each with the plugin's hook and name."""
        for number, calendar in enumerate(self.schedule.calendars):
            yield f"schedule.calendars.{number}.kind", CALENDARS, calendar.kind
        if self.policy is not None and self.policy.backend != "embedded":
            yield "policy.backend", TRAINING_SERVICES, self.policy.backend
        if self.policy is not None and self.policy.serve != "backend":
            yield "policy.serve", MODEL_HOSTS, self.policy.serve
        if self.telemetry.otlp is not None:
            yield "telemetry.otlp", TELEMETRY, "otlp"

    @property
    def untrainable(self) -> str | None:
        """Why no weights can be trained, and what to write; None if they can."""
        if (
            self.policy is not None
            or not self.providers
            or any(provider.kind == "embedded" for provider in self.providers)
        ):
            return None
        hosted = ", ".join(provider.name for provider in self.providers)
        return (
            f"the weights of the configured providers ({hosted}) cannot be trained. Write in"
            ' config.toml what to train: the embedded model ([[providers]] with kind = "embedded")'
            " or a model of a training service ([policy] with backend and base_model, see"
            " docs/training.md)"
        )

    @property
    def fallback_order(self) -> tuple[ProviderConfig, ...]:
        """The providers in the order they are tried."""
        places = [
            (provider.order if provider.order is not None else place, place)
            for place, provider in enumerate(self.providers)
        ]
        return tuple(self.providers[place] for _, place in sorted(places))

    def where(self, key: str) -> ValueSource:
        """Where the value of a key such as `proxy.port` or `providers.0.name` comes from."""
        return DEFAULT if self._sources is None else self._sources.of(key)


def parse_text(path: Sequence[str | int], text: str) -> object:
    """Parse the text of a value by its key's type: strings stay as they are, the rest is TOML.
    Validation finds invalid values.
    """
    parts = tuple(part for part in path if not (isinstance(part, str) and part.isdecimal()))
    if parts[:1] and parts[0] in LISTS and len(parts) == len(path) > 2:
        parts = (parts[0], *parts[2:])  # the second part is an entry's name
    _, field = find_field(Config, parts)
    if field is None or _is_text(field.annotation):
        return text
    value = _toml(text)
    is_list_of_words = (
        get_origin(field.annotation) is tuple and section_type(field.annotation) is None
    )
    if is_list_of_words and not isinstance(value, list):
        return [word.strip() for word in text.split(",") if word.strip()]
    return text if value is None else value


def _toml(text: str) -> object:
    """The text as one TOML value, or None."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    return tree["value"] if len(tree) == 1 else None


def _is_text(annotation: object) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, str | Secret | Path | Enum):
        return True
    if get_origin(annotation) is Literal:
        return True
    inner = [arg for arg in get_args(annotation) if arg is not type(None)]
    return len(inner) == 1 and get_origin(annotation) is not tuple and _is_text(inner[0])


def flatten(config: Config) -> Iterator[tuple[str, object]]:
    """Every key with its value, in the order of the tree. Secrets stay `Secret`; absent sections
    have no keys.
    """
    named = [(name, value) for name, value in config if name not in LISTS]
    for section, value in [*named, *((name, getattr(config, name)) for name in LISTS)]:
        yield from _keys((section,), value)


def _keys(path: tuple[str | int, ...], value: object) -> Iterator[tuple[str, object]]:
    """The keys inside a section or a list of sections; anything else is a value."""
    if isinstance(value, BaseModel):
        for name, inner in value:
            yield from _keys((*path, name), inner)
    elif (
        isinstance(value, tuple) and value and all(isinstance(entry, BaseModel) for entry in value)
    ):
        for position, entry in enumerate(value):
            yield from _keys((*path, position), entry)
    elif len(path) > 1:
        yield key_of(path), value


def missing_secrets(config: Config, env: Mapping[str, str] | None = None) -> list[Problem]:
    """Secrets whose variable or file has no value, each with its place."""
    problems = []
    for key, value in flatten(config):
        if isinstance(value, Secret):
            try:
                value.resolve(env)
            except ConfigError as error:
                what, _, remedy = str(error).partition(": ")
                shown = named_key_of(path_of(key), [provider.name for provider in config.providers])
                problems.append(
                    Problem(str(config.where(key)), shown, f"has no value ({what})", remedy)
                )
    return problems


ENV_PREFIX = "METACLAW__"
_POSITION = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")


def load(home: Path, env: Mapping[str, str] | None = None, sets: Sequence[str] = ()) -> Config:
    """Load the configuration of a home folder. Raises InvalidConfigError with all problems. Never
    writes.
    """
    file = read_file(home / CONFIG_NAME)
    layers = [*from_environment(os.environ if env is None else env), *from_options(sets)]
    return compose(home, file, layers)


def build(tree: Mapping[str, object], home: Path) -> Config:
    """Build a configuration from a tree in memory, validated like a file."""
    return compose(home, ConfigFile(home / CONFIG_NAME, "", tree), [])


def compose(home: Path, file: ConfigFile, layers: Sequence[ValueAssignment]) -> Config:
    """Apply the assignments to the file's tree and validate the result."""
    tree: dict[str, object] = deepcopy(dict(file.tree))
    placed = [place(tree, layer) for layer in layers]
    sources = ValueSources(file, placed)
    # Absent sections are validated, too, so that `{home}` in their defaults is replaced.
    whole = {name: {} for name in Config.model_fields if name not in (*LISTS, *OPTIONAL)} | tree
    try:
        config = Config.model_validate(whole, context={"home": home})
    except ValidationError as error:
        raise explain(error, Config, sources, whole) from None
    config._sources = sources
    return config


def read_file(path: Path) -> ConfigFile:
    """Read the file. Raises InvalidConfigError if it cannot be read or parsed."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ConfigFile(path, "", {})
    except OSError as error:
        raise _broken(
            path, f"cannot be read ({error.strerror})", "make it a file that you may read"
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _broken(
            f"{path}:{line}", "is not UTF-8 text", "save the file as UTF-8; it is unchanged"
        ) from None
    if text.startswith("\ufeff"):
        raise _broken(
            f"{path}:1",
            "begins with a byte order mark",
            "save the file as UTF-8 without one; it is unchanged",
        )
    try:
        return ConfigFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise _syntax(path, text, str(error)) from None
    except RecursionError:
        raise _broken(
            path, "is nested too deeply", "write plain sections and keys; it is unchanged"
        ) from None


def from_environment(env: Mapping[str, str]) -> list[ValueAssignment]:
    """The settings in environment variables, in the order of their names."""
    assignments = []
    for name in sorted(env):
        if name.startswith(ENV_PREFIX):
            key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            assignments.append(
                _assignment(key, env[name], ValueSource(SourceKind.ENVIRONMENT, name))
            )
    return assignments


def from_options(sets: Sequence[str], *, option: str = "--set") -> list[ValueAssignment]:
    """The settings given as `section.key=value`, in order."""
    assignments = []
    for text in sets:
        key, separator, value = text.partition("=")
        if not separator:
            raise _broken(option, f"{text!r} has no =", f"write {option} section.key=value")
        assignments.append(_assignment(key.strip(), value, ValueSource(SourceKind.OPTION, option)))
    return assignments


def place(tree: dict[str, object], layer: ValueAssignment) -> ValueAssignment:
    """Put one setting into the tree, with the sections and the list entry that are missing. Returns
    it with the position of a list entry in place of its name.
    """
    here: Any = tree
    path: list[str | int] = []
    for depth, part in enumerate(layer.path):
        step = part
        if isinstance(here, list):
            step = _position(here, part, layer)
            if step == len(here):
                here.append({})
        elif not isinstance(here, dict):
            raise _broken(
                str(layer.source),
                f"leads into {part}, which is not a section",
                "see docs/config.md for the keys there are",
            )
        path.append(step)
        if depth == len(layer.path) - 1:
            here[step] = layer.value
        elif isinstance(here, dict):
            here = here.setdefault(step, [] if depth == 0 and step in LISTS else {})
        else:
            here = here[step]
    return ValueAssignment(tuple(path), layer.value, layer.source)


def _assignment(key: str, text: str, source: ValueSource) -> ValueAssignment:
    parts = key.split(".")
    if not all(parts):
        raise _broken(str(source), f"{key!r} is not a key", "write section.key, as in proxy.port")
    path: KeyPath = tuple(parts)
    return ValueAssignment(path, parse_text(path, text), source)


def _position(here: list[Any], part: str | int, layer: ValueAssignment) -> int:
    """The position that a number or a name means. A new name adds an entry."""
    if isinstance(part, int) or part.isdecimal():
        if int(part) > len(here):
            raise _broken(
                str(layer.source),
                f"there are only {len(here)} {layer.path[0]}",
                f"write {len(here)} to add one",
            )
        return int(part)
    for position, entry in enumerate(here):
        if isinstance(entry, dict) and entry.get("name") == part:
            return position
    here.append({"name": part})
    return len(here) - 1


def _syntax(path: Path, text: str, message: str) -> InvalidConfigError:
    """The error for a file that is not TOML: where the parser stopped, and the key on that line."""
    match = _POSITION.search(message)
    lines = text.splitlines() or [""]
    line = int(match[1]) if match and match[1] else len(lines)
    written = re.match(r"\s*([\w.\"'-]+)\s*=", lines[min(line, len(lines)) - 1])
    what = _POSITION.sub("", message).strip()
    remedy = (
        'write key = value, with texts in "quotes", numbers and true or false without; the file is'
        " unchanged"
    )
    return InvalidConfigError(
        [
            Problem(
                f"{path}:{line}",
                written[1] if written else "",
                f"is not valid TOML ({what})",
                remedy,
            )
        ]
    )


def _broken(place: Path | str, what: str, remedy: str) -> InvalidConfigError:
    return InvalidConfigError([Problem(str(place), "", what, remedy)])
