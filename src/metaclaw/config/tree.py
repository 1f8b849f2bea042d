"""The whole configuration as one strict typed tree. An unknown key is an error."""

from typing import Annotated

from pydantic import Field, PrivateAttr, field_validator, model_validator
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
from metaclaw.config.policy import PolicyConfig, TrainingMode
from metaclaw.config.schedule import ScheduleConfig
from metaclaw.config.section import Section
from metaclaw.config.serving import (
    EngineConfig,
    LogConfig,
    ProviderConfig,
    ProxyConfig,
    SessionsConfig,
    StoreConfig,
    TelemetryConfig,
)
from metaclaw.config.sources import DEFAULT, ValueSource, ValueSources


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
    def _have_names_of_their_own(cls, providers: tuple[ProviderConfig, ...]) -> tuple[ProviderConfig, ...]:
        names = [provider.name for provider in providers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PydanticCustomError("twice", "has two entries named {name}; give each its own name", {"name": twice})
        if sum(provider.kind == "embedded" for provider in providers) > 1:
            raise PydanticCustomError("embedded_twice", "has the embedded model twice; keep one of them")
        return providers

    @model_validator(mode="after")
    def _asks_providers_that_exist(self) -> "Config":
        for key, wanted in (
            ("judge.provider", self.judge.provider),
            ("listen.provider", self.listen.provider),
            ("evolver.provider", self.evolver.provider),
        ):
            self._asked(key, wanted)
        if self.policy is not None and self.policy.distill is not None:
            self._asked("policy.distill.teacher", self.policy.distill.teacher)
        return self

    @model_validator(mode="after")
    def _asks_for_embeddings_where_they_are(self) -> "Config":
        provider = self._asked("skills.embeddings_provider", self.skills.embeddings_provider)
        if provider is not None and provider.kind != "openai":
            raise PydanticCustomError(
                "embeddings_kind",
                "skills.embeddings_provider names {name}, which is not of kind openai and has no /v1/embeddings",
                {"name": provider.name},
            )
        return self

    @model_validator(mode="after")
    def _serves_what_it_trains(self) -> "Config":
        policy = self.policy
        if policy is None:
            return self
        host = self._asked("policy.provider", policy.provider)
        if host is not None and host.kind != "openai":
            raise PydanticCustomError(
                "policy_provider",
                "policy.provider names {name}, which is not of kind openai as a vLLM or SGLang server is",
                {"name": host.name},
            )
        is_own = policy.backend == "embedded" and policy.serve == "backend"
        if is_own and self.providers and not any(provider.kind == "embedded" for provider in self.providers):
            raise PydanticCustomError(
                "policy_unserved",
                'policy.backend = "embedded" trains a model that no provider serves; add [[providers]] of kind embedded',
            )
        return self

    def _asked(self, key: str, wanted: str | None) -> ProviderConfig | None:
        """The provider that a key names for calls of the program's own."""
        if wanted is None:
            return None
        provider = next((one for one in self.providers if one.name == wanted), None)
        if provider is None:
            raise PydanticCustomError("asked_unknown", "{key} names {name}, which is no provider", {"key": key, "name": wanted})
        if provider.api_key is not None and provider.api_key.is_passthrough:
            raise PydanticCustomError(
                "asked_passthrough",
                "{key} names {name}, which forwards its callers' credentials and has none of its own",
                {"key": key, "name": wanted},
            )
        return provider

    @property
    def mode(self) -> TrainingMode:
        """When weights are trained: `skills_only` is never."""
        return "skills_only" if self.policy is None else self.policy.mode

    @property
    def untrainable(self) -> str | None:
        """Why there are no weights to train, and what to write; None if there are some."""
        if self.policy is not None or not self.providers or any(provider.kind == "embedded" for provider in self.providers):
            return None
        hosted = ", ".join(provider.name for provider in self.providers)
        return (
            f"the weights behind the configured providers ({hosted}) cannot be trained from here. Say in config.toml what to train:"
            ' the embedded model ([[providers]] with kind = "embedded") or one of a training service'
            " ([policy] with backend and base_model, see docs/training.md)"
        )

    @property
    def fallback_order(self) -> tuple[ProviderConfig, ...]:
        """The providers in the order they are tried."""
        places = [(provider.order if provider.order is not None else place, place) for place, provider in enumerate(self.providers)]
        return tuple(self.providers[place] for _, place in sorted(places))

    def where(self, key: str) -> ValueSource:
        """Where the value of a key such as `proxy.port` or `providers.0.name` comes from."""
        return DEFAULT if self._sources is None else self._sources.of(key)
