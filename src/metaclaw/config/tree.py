"""The configuration as one strict typed tree: every section, key, default and rule. An unknown key is an error."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from metaclaw.config.policy import PolicyConfig, TrainingMode
from metaclaw.config.schedule import ScheduleConfig
from metaclaw.config.section import Names, Seconds, Secret, SecretUrl, Section, home_of, is_http, whole_path
from metaclaw.config.sources import DEFAULT, ValueSource, ValueSources
from metaclaw.domain.chat import Wire

MIB = 1024 * 1024
ProviderKind: TypeAlias = Literal["openai", "anthropic", "embedded"]
WIRES_OF_KIND: dict[str, tuple[Wire, ...]] = {"openai": (Wire.CHAT, Wire.RESPONSES), "anthropic": (Wire.MESSAGES,)}
_ADDRESS_OF_KIND = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
_PROVIDER_NAME = re.compile(r"(?=.*[a-z])[a-z0-9][a-z0-9_-]{0,63}")
_KEY_TEXT = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@-]+")
_STORE_SCHEMES = ("sqlite", "postgresql", "postgresql+psycopg")

Wires: TypeAlias = Annotated[tuple[Annotated[Wire, Field(strict=False)], ...], Field(strict=False)]


class ProxyConfig(Section):
    """The address agents talk to, and its limits."""

    host: str = Field(default="127.0.0.1", description="Address to listen on. Anything but loopback needs `api_key`.")
    port: int = Field(default=30000, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    api_key: Secret | None = Field(
        default=None,
        description="The key that callers must send. Generated and stored here at the first start.",
        examples=["env:METACLAW_KEY"],
    )
    max_body_bytes: int = Field(default=64 * MIB, ge=1024, le=1024 * MIB, description="A larger request is answered with 413.")
    max_items: int = Field(
        default=20_000,
        ge=1,
        le=10_000_000,
        description="Messages, content parts and tools in one request; more are answered with 413.",
    )
    max_concurrency: int = Field(
        default=1024, ge=1, le=65536, description="Requests answered at once; one more is answered with 429 and `retry-after`."
    )
    max_subscribers: int = Field(
        default=1024, ge=1, le=65536, description="Clients that follow `/api/events` at once; one more is answered with 429."
    )
    write_timeout_s: Seconds = Field(
        default=120.0,
        description="A client that reads nothing of its answer for so long is disconnected; the turn is recorded as cancelled.",
    )
    enforce_opt_out: bool = Field(
        default=False, description="A client may switch held rules off for a request with `X-Metaclaw-Enforce: off`."
    )
    drain_s: Seconds = Field(default=30.0, description="How long running answers may take to finish after SIGTERM or Ctrl-C.")

    @field_validator("host")
    @classmethod
    def _names_an_address(cls, host: str) -> str:
        if not host or not host.isascii() or any(char.isspace() or char in "/@[]" for char in host):
            raise PydanticCustomError("host", "is not a host name or an IP address")
        return host

    @field_validator("api_key")
    @classmethod
    def _fits_into_a_url(cls, key: Secret | None) -> Secret | None:
        if key is not None and key.is_passthrough:
            raise PydanticCustomError("proxy_key", "cannot be passthrough: that word belongs to a provider's api_key")
        if key is not None and key.is_literal and not _KEY_TEXT.fullmatch(key.resolve()):
            raise PydanticCustomError("proxy_key", "has characters that cannot stand in a URL; use letters, digits, - and _")
        return key

    @model_validator(mode="after")
    def _is_not_open_to_the_world(self) -> "ProxyConfig":
        if self.api_key is None and not is_loopback(self.host):
            raise PydanticCustomError("open_host", "needs proxy.api_key, because others can reach this host")
        return self


class ProviderConfig(Section):
    """One model provider. Without any, the embedded model serves."""

    name: str = Field(description="Its name in status, logs and `--set providers.NAME.key=value`.", examples=["openai"])
    kind: ProviderKind = Field(description="Its API; `embedded` is the model inside this program.", examples=["openai"])
    base_url: str | None = Field(
        default_factory=lambda known: _ADDRESS_OF_KIND.get(known.get("kind", "")),
        description="Its address: with `/v1` for openai, without for anthropic. Default: the vendor's own.",
        examples=["http://127.0.0.1:8000/v1"],
    )
    api_key: Secret | None = Field(
        default=None,
        description="Its key; `passthrough` forwards the caller's own credentials; absent sends none.",
        examples=["env:OPENAI_API_KEY"],
    )
    models: Names = Field(
        default=(),
        description="Models that go to this provider. A model that no provider lists goes to the first provider of its wire.",
    )
    wires: Wires = Field(
        default_factory=lambda known: WIRES_OF_KIND.get(known.get("kind", ""), ()),
        description='What it serves: `["chat", "responses"]` for openai (or only one of them), `["messages"]` for anthropic.',
        examples=[["chat"]],
    )
    timeout_s: Seconds = Field(default=600.0, description="Longest silence while waiting for the answer or its next piece.")
    connect_timeout_s: Seconds = Field(default=10.0, description="Longest wait for a connection.")
    max_concurrency: int = Field(
        default=1024, ge=1, le=65536, description="Calls to it at once; more wait their turn, and sessions take turns."
    )
    queue_timeout_s: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Longest wait for its turn. Then the next provider is asked; without one, 429 and `retry-after`.",
    )
    order: int | None = Field(
        default=None, ge=0, description="Place in the order of fallback, lowest first. Default: its position.", examples=[0]
    )

    @field_validator("name")
    @classmethod
    def _is_a_word(cls, name: str) -> str:
        if not _PROVIDER_NAME.fullmatch(name):
            raise PydanticCustomError(
                "provider_name", "is not a word of lower-case letters, digits, - and _ with at least one letter"
            )
        return name

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str | None, known: ValidationInfo) -> str | None:
        if url is None:
            return None
        if known.data.get("kind") == "embedded":
            raise PydanticCustomError("embedded_url", "does not belong to the embedded model; delete this line")
        if not is_http(url):
            raise PydanticCustomError("base_url", "is not an http:// or https:// address without query or fragment")
        if known.data.get("kind") == "anthropic" and url.rstrip("/").endswith("/v1"):
            raise PydanticCustomError("anthropic_url", "ends in /v1; an anthropic address is written without it")
        return url.rstrip("/")

    @field_validator("api_key")
    @classmethod
    def _is_for_a_server(cls, key: Secret | None, known: ValidationInfo) -> Secret | None:
        if key is not None and known.data.get("kind") == "embedded":
            raise PydanticCustomError("embedded_key", "does not belong to the embedded model; delete this line")
        return key

    @field_validator("wires")
    @classmethod
    def _are_its_own(cls, wires: tuple[Wire, ...], known: ValidationInfo) -> tuple[Wire, ...]:
        kind = known.data.get("kind", "")
        own = WIRES_OF_KIND.get(kind, ())
        if kind and (len(set(wires)) != len(wires) or not set(wires) <= set(own) or bool(own) != bool(wires)):
            words = " and ".join(wire.value for wire in own) or "none"
            raise PydanticCustomError("wires", "must be among {words} for this kind, each once", {"words": words})
        return wires


class SkillsConfig(Section):
    """Skills: what the agent is told to do in which situation."""

    enabled: bool = Field(default=True, description="Place skills into prompts.")
    dir: Path = Field(
        default=Path("{home}/skills"), strict=False, validate_default=True, description="Folder of `<name>/SKILL.md` files."
    )
    max_placed: int = Field(default=3, ge=0, le=16, description="Most skills placed in full for one task; 0 places and lists none.")
    budget_tokens: int = Field(
        default=1500,
        ge=0,
        le=100_000,
        description="Most tokens that skills placed in full may take, and most that the list of the others may take, estimated.",
    )
    rules_budget_tokens: int = Field(
        default=800,
        ge=0,
        le=100_000,
        description="Rules and facts are all placed while they take no more tokens than this; beyond it, those that match.",
    )
    retrieval: Literal["auto", "words", "hybrid", "lexical"] = Field(
        default="auto",
        description="How skills are found: by words and by meaning where the local model is installed; by words; by both."
        " `lexical` is the old name of `words`.",
    )
    embeddings_provider: str | None = Field(
        default=None,
        description="Which provider makes the vectors for the search by meaning, of kind openai. It gets what rules and skills are"
        " found by, and people's requests. Default: the local model; nothing is sent.",
        examples=["openai"],
    )
    embeddings_model: str | None = Field(
        default=None,
        description="Its embedding model; needed with `embeddings_provider`.",
        examples=["text-embedding-3-small"],
        min_length=1,
    )
    learn: bool = Field(default=True, description="Make skills from failures and standing instructions.")
    gate: Literal["off", "lint", "shadow", "full"] = Field(
        default="full",
        description="What a learned skill must pass: nothing; the draft checks; replays of recorded turns, too; a live trial, too.",
    )
    canary_share: float = Field(
        default=0.67, gt=0, le=1, allow_inf_nan=False, description="Share of matching tasks on which a skill on trial is placed."
    )
    holdout_share: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description='With `gate = "full"`: share of matching tasks on which a learned skill is withheld, to measure its uplift.',
    )

    @field_validator("dir", mode="before")
    @classmethod
    def _is_a_whole_path(cls, value: object, known: ValidationInfo) -> object:
        return whole_path(str(value), known) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _names_provider_and_model(self) -> "SkillsConfig":
        if (self.embeddings_provider is None) != (self.embeddings_model is None):
            missing = "embeddings_model" if self.embeddings_model is None else "embeddings_provider"
            raise PydanticCustomError("embeddings_half", "needs {missing} as well", {"missing": missing})
        return self


class JudgeConfig(Section):
    """The process reward model: asked about turns that no detector can decide."""

    provider: str | None = Field(
        default=None,
        description="Which provider answers. Default: the first with a key of its own; without one, no model judges turns.",
        examples=["openai"],
    )
    model: str | None = Field(
        default=None, description="Its model. Default: the model that made the turn.", examples=["gpt-5.1-mini"], min_length=1
    )
    votes: int = Field(
        default=3,
        ge=1,
        le=15,
        description="Most votes about one turn; one is asked for first, more where it is doubtful or says that the turn failed.",
    )
    max_share: float = Field(
        default=0.2, ge=0, le=1, allow_inf_nan=False, description="Most turns it is asked about, as a share of main turns."
    )
    timeout_s: Seconds = Field(default=60.0, description="How long one vote may take; one that takes longer is unknown.")


class ListenConfig(Section):
    """The model that reads what people say, for rules, facts and corrections."""

    provider: str | None = Field(
        default=None,
        description="Which provider answers. Default: as for the judge, if that is set; else the provider that served the"
        " conversation, if it has a key of its own. Without one, only sure phrases become rules.",
        examples=["openai"],
    )
    model: str | None = Field(
        default=None,
        description="Its model. Default: as for the judge, if that is set; else the model that served the conversation.",
        examples=["gpt-5.1-mini"],
        min_length=1,
    )
    timeout_s: Seconds = Field(default=30.0, description="How long its answer may take; then the message is read again later.")


class EvolverConfig(Section):
    """The model that writes skills from failures."""

    provider: str | None = Field(
        default=None,
        description="Which provider answers. Default: as for the judge; without one, only a person's own words become skills.",
        examples=["openai"],
    )
    model: str | None = Field(
        default=None, description="Its model. Default: the model that made the turns.", examples=["gpt-5.1"], min_length=1
    )
    min_failures: int = Field(
        default=3, ge=1, le=1000, description="Failures of one kind before it is asked; a person's own correction is enough alone."
    )
    max_new_skills: int = Field(default=3, ge=1, le=10, description="Most skills it may propose at once.")
    timeout_s: Seconds = Field(default=180.0, description="How long its answer may take.")


class PriceConfig(Section):
    """What a model costs, per million tokens, in the currency of `learning.daily_cost`."""

    model: str = Field(
        description="The model, or `provider/model` where providers charge differently.", examples=["gpt-5-mini"], min_length=1
    )
    input: float = Field(ge=0, allow_inf_nan=False, description="Per million input tokens.", examples=[0.25])
    output: float = Field(ge=0, allow_inf_nan=False, description="Per million output tokens.", examples=[2.0])
    cached: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Per million input tokens read from the provider's cache. Default: as `input`.",
        examples=[0.025],
    )


class LearningConfig(Section):
    """What learning may cost in a day, and whether agents' answers tell of it."""

    daily_tokens: int | None = Field(
        default=None,
        ge=0,
        le=10**15,
        description="Most tokens a day for calls of the program's own; then learning waits until midnight. Default: "
        "a tenth of the day's main turns (of the last days' average, if that is more), and at least 300,000. 0 makes no calls.",
        examples=[1_000_000],
    )
    daily_cost: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Most money a day, by `learning.prices`. If it is set and `daily_tokens` is not, only models "
        "without a price are limited in tokens.",
        examples=[2.0],
    )
    prices: Annotated[tuple[PriceConfig, ...], Field(strict=False)] = Field(
        default=(),
        description='Prices, before the built-in ones (docs/cost.md): `[{ model = "gpt-5-mini", input = 0.25, output = 2.0 }]`, or '
        "tables `[[learning.prices]]`.",
    )
    acknowledge: bool = Field(default=False, description="Say in one line at the end of the next answer what was noted.")

    @field_validator("prices")
    @classmethod
    def _price_each_model_once(cls, prices: tuple[PriceConfig, ...]) -> tuple[PriceConfig, ...]:
        models = [price.model for price in prices]
        twice = next((model for model in models if models.count(model) > 1), None)
        if twice is not None:
            raise PydanticCustomError("price_twice", "has two prices for {model}; keep one of them", {"model": twice})
        return prices


class TeamConfig(Section):
    """People who share skills."""

    name: str = Field(description="How a skill's `scope: team:NAME` calls it.", examples=["backend"], min_length=1)
    users: Names = Field(description="Their ids, as they come in `X-User-Id`.", examples=[["alice", "bob"]])


class PrivacyConfig(Section):
    """Secrets: what is removed before text leaves this machine."""

    redact: bool = Field(
        default=True,
        description="Before a turn is sent to a judge, an evolver or a trainer, also replace values from your environment "
        "and dotfiles; text that looks like a secret is always replaced.",
    )
    retention_days: int = Field(default=0, ge=0, le=36_500, description="Forget turns older than this; 0 keeps them.")


class SessionsConfig(Section):
    """Sessions: when a conversation is over."""

    silence_minutes: float = Field(
        default=60.0, gt=0, le=525_600, allow_inf_nan=False, description="A session without a turn for this long has ended."
    )


class StoreConfig(Section):
    """Where turns are kept."""

    url: SecretUrl = Field(
        default=SecretUrl("sqlite:///{home}/ledger.db"),
        validate_default=True,
        description="`sqlite:////whole/path.db` or `postgresql://user:password@host/database`; may be a secret reference.",
        examples=["sqlite:///{home}/ledger.db"],
    )
    max_gb: float = Field(
        default=0.0,
        ge=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="Size in GB that an SQLite database is kept below: the oldest sessions are removed, "
        "what was learned from them stays. 0 is no limit.",
    )

    @field_validator("url", mode="before")
    @classmethod
    def _is_a_database(cls, value: object, known: ValidationInfo) -> object:
        text = value.resolve() if isinstance(value, SecretUrl) and value.is_literal else value
        if not isinstance(text, str) or text.startswith(("env:", "file:")):
            return value
        url = text.replace("{home}", str(home_of(known)))
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in _STORE_SCHEMES:
            raise PydanticCustomError("store_url", "is not a sqlite:/// or postgresql:// address")
        if scheme == "sqlite" and not (rest.startswith("//") and len(rest) > 2):
            raise PydanticCustomError("store_path", "must name a file by its whole path, as sqlite:////folder/file.db does")
        return url


class EngineConfig(Section):
    """The embedded model. It serves where no provider is configured, or where one of kind `embedded` is."""

    threads: int = Field(default=0, ge=0, le=1024, description="Processor threads it may use; 0 decides by the machine.")
    max_batch: int = Field(default=8, ge=1, le=256, description="Requests it answers in one batch.")


class TelemetryConfig(Section):
    """Metrics."""

    prometheus: bool = Field(default=True, description="Serve `/metrics`.")


class LogConfig(Section):
    """The log."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least important thing that is logged."
    )


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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
