"""Sections of serving: the proxy, its providers, sessions, the store, the embedded model, metrics
and the log.
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from metaclaw.config.section import (
    Names,
    Seconds,
    Secret,
    SecretUrl,
    Section,
    home_of,
    is_http,
    whole_path,
)
from metaclaw.domain.chat import Wire

MIB = 1024 * 1024
ProviderKind: TypeAlias = Literal["openai", "anthropic", "gemini", "embedded"]
WIRES_OF_KIND: dict[str, tuple[Wire, ...]] = {
    "openai": (Wire.CHAT, Wire.RESPONSES),
    "anthropic": (Wire.MESSAGES,),
    "gemini": (Wire.GEMINI,),
}
_ADDRESS_OF_KIND = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
_PROVIDER_NAME = re.compile(r"(?=.*[a-z])[a-z0-9][a-z0-9_-]{0,63}")
_KEY_TEXT = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@-]+")
_STORE_SCHEMES = ("sqlite", "postgresql", "postgresql+psycopg")

Wires: TypeAlias = Annotated[tuple[Annotated[Wire, Field(strict=False)], ...], Field(strict=False)]


class ProxyConfig(Section):
    """The address to which agents send requests, and its limits."""

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. Any address but loopback requires `api_key`.",
    )
    port: int = Field(
        default=30000, ge=0, le=65535, description="Port to listen on; 0 takes any free port."
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=256,
        description=(
            "Processes that serve on this port, for more requests than one processor core answers."
            " One of them learns. Not with the embedded model, which has one process."
        ),
    )
    api_key: Secret | None = Field(
        default=None,
        description=(
            "The key that callers must send. The first start generates it and stores it here."
        ),
        examples=["env:METACLAW_KEY"],
    )
    tls_cert: Path | None = Field(
        default=None,
        description=(
            "PEM file of the certificate, with the chain behind it: the proxy then speaks HTTPS"
            " only. A changed file is taken up at the next connection."
        ),
        examples=["/etc/metaclaw/cert.pem"],
    )
    tls_key: Path | None = Field(
        default=None,
        description=("PEM file of the certificate's private key. Default: `tls_cert` contains it."),
        examples=["/etc/metaclaw/key.pem"],
    )
    max_body_bytes: int = Field(
        default=64 * MIB,
        ge=1024,
        le=1024 * MIB,
        description="A larger request is answered with 413.",
    )
    max_items: int = Field(
        default=20_000,
        ge=1,
        le=10_000_000,
        description=(
            "Most messages, content parts and tools in one request; more are answered with 413."
        ),
    )
    max_concurrency: int = Field(
        default=1024,
        ge=1,
        le=65536,
        description="Most requests answered at once; further ones get 429 and `retry-after`.",
    )
    max_subscribers: int = Field(
        default=1024,
        ge=1,
        le=65536,
        description="Most clients that follow `/api/events` at once; further ones get 429.",
    )
    write_timeout_s: Seconds = Field(
        default=120.0,
        description="A client that reads nothing of its answer for this long is disconnected.",
    )
    enforce_opt_out: bool = Field(
        default=False,
        description=(
            "A client may turn held rules off for a request with `X-Metaclaw-Enforce: off`."
        ),
    )
    drain_s: Seconds = Field(
        default=30.0,
        description="Seconds that running answers may take to finish after SIGTERM or Ctrl-C.",
    )

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if not host or not host.isascii() or any(char.isspace() or char in "/@[]" for char in host):
            raise PydanticCustomError("host", "is not a host name or an IP address")
        return host

    @field_validator("api_key")
    @classmethod
    def _check_key(cls, key: Secret | None) -> Secret | None:
        if key is not None and key.is_passthrough:
            raise PydanticCustomError(
                "proxy_key", "cannot be passthrough: that word belongs to a provider's api_key"
            )
        if key is not None and key.is_literal and not _KEY_TEXT.fullmatch(key.resolve()):
            raise PydanticCustomError(
                "proxy_key",
                "has characters that a URL cannot contain; use letters, digits, - and _",
            )
        return key

    @field_validator("tls_cert", "tls_key", mode="before")
    @classmethod
    def _read_path(cls, value: object, known: ValidationInfo) -> object:
        return whole_path(str(value), known) if isinstance(value, str | Path) else value

    @property
    def scheme(self) -> Literal["http", "https"]:
        """The scheme of the proxy's URL."""
        return "http" if self.tls_cert is None else "https"

    @model_validator(mode="after")
    def _check_certificate(self) -> "ProxyConfig":
        if self.tls_cert is None and self.tls_key is not None:
            raise PydanticCustomError("tls_half", "has tls_key, and needs tls_cert as well")
        return self

    @model_validator(mode="after")
    def _check_open_host(self) -> "ProxyConfig":
        if self.api_key is None and not is_loopback(self.host):
            raise PydanticCustomError(
                "open_host", "needs proxy.api_key, because others can reach this host"
            )
        return self


class ProviderConfig(Section):
    """One model provider. Without providers, the embedded model serves."""

    name: str = Field(
        description="Its name, also in `--set providers.NAME.key=value`.",
        examples=["openai"],
    )
    kind: ProviderKind = Field(
        description="The provider's API; `embedded` is the model inside this program.",
        examples=["openai"],
    )
    base_url: str | None = Field(
        default_factory=lambda known: _ADDRESS_OF_KIND.get(known.get("kind", "")),
        description=(
            "The provider's address: with `/v1` for openai, without a version for the others. Default:"
            " the vendor's address."
        ),
        examples=["http://127.0.0.1:8000/v1"],
    )
    api_key: Secret | None = Field(
        default=None,
        description=(
            "The provider's key. `passthrough` forwards the caller's own credentials. Default: no"
            " credentials are sent."
        ),
        examples=["env:OPENAI_API_KEY"],
    )
    models: Names = Field(
        default=(),
        description=(
            "Models that go to this provider. A model that no provider lists goes to the first"
            " provider of its wire."
        ),
    )
    wires: Wires = Field(
        default_factory=lambda known: WIRES_OF_KIND.get(known.get("kind", ""), ()),
        description=(
            'The wires it serves: `["chat", "responses"]` for openai (or one of them),'
            ' `["messages"]` for anthropic, `["gemini"]` for gemini. Default: all of its kind;'
            " what the server lacks is translated."
        ),
        examples=[["chat"]],
    )
    timeout_s: Seconds = Field(
        default=600.0, description="Longest wait for the answer or its next piece, in seconds."
    )
    connect_timeout_s: Seconds = Field(
        default=10.0, description="Longest wait for a connection, in seconds."
    )
    max_concurrency: int = Field(
        default=1024,
        ge=1,
        le=65536,
        description="Most calls at once; further ones wait in a queue.",
    )
    queue_timeout_s: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        description=(
            "Longest wait in the queue, in seconds; then the next provider is asked, or 429 is"
            " answered."
        ),
    )
    order: int | None = Field(
        default=None,
        ge=0,
        description="Place in the order of fallback, lowest first. Default: its position here.",
        examples=[0],
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _PROVIDER_NAME.fullmatch(name):
            raise PydanticCustomError(
                "provider_name",
                "is not a word of lower-case letters, digits, - and _ with at least one letter",
            )
        return name

    @field_validator("base_url")
    @classmethod
    def _check_address(cls, url: str | None, known: ValidationInfo) -> str | None:
        if url is None:
            return None
        if known.data.get("kind") == "embedded":
            raise PydanticCustomError(
                "embedded_url", "does not apply to the embedded model; delete this line"
            )
        if not is_http(url):
            raise PydanticCustomError(
                "base_url", "is not an http:// or https:// address without query or fragment"
            )
        if known.data.get("kind") == "anthropic" and url.rstrip("/").endswith("/v1"):
            raise PydanticCustomError(
                "anthropic_url", "ends in /v1; an anthropic address is written without it"
            )
        return url.rstrip("/")

    @field_validator("api_key")
    @classmethod
    def _check_key(cls, key: Secret | None, known: ValidationInfo) -> Secret | None:
        if key is not None and known.data.get("kind") == "embedded":
            raise PydanticCustomError(
                "embedded_key", "does not apply to the embedded model; delete this line"
            )
        return key

    @field_validator("wires")
    @classmethod
    def _check_wires(cls, wires: tuple[Wire, ...], known: ValidationInfo) -> tuple[Wire, ...]:
        kind = known.data.get("kind", "")
        own = WIRES_OF_KIND.get(kind, ())
        if kind and (
            len(set(wires)) != len(wires) or not set(wires) <= set(own) or bool(own) != bool(wires)
        ):
            words = " and ".join(wire.value for wire in own) or "none"
            raise PydanticCustomError(
                "wires", "must be among {words} for this kind, each once", {"words": words}
            )
        return wires


class SessionsConfig(Section):
    """Sessions: when a conversation is over."""

    silence_minutes: float = Field(
        default=60.0,
        gt=0,
        le=525_600,
        description="A session without a turn for this long has ended.",
    )


class StoreConfig(Section):
    """Where turns are kept."""

    url: SecretUrl = Field(
        default=SecretUrl("sqlite:///{home}/ledger.db"),
        validate_default=True,
        description=(
            "`sqlite:////absolute/path.db` or `postgresql://user:password@host/database`, or"
            " `env:NAME` or `file:PATH`."
        ),
        examples=["sqlite:///{home}/ledger.db"],
    )
    max_gb: float = Field(
        default=0.0,
        ge=0,
        le=1_000_000,
        description=(
            "Size limit of an SQLite database in GB, above which the oldest sessions are"
            " removed; 0 is no limit."
        ),
    )

    @field_validator("url", mode="before")
    @classmethod
    def _check_url(cls, value: object, known: ValidationInfo) -> object:
        text = value.resolve() if isinstance(value, SecretUrl) and value.is_literal else value
        if not isinstance(text, str) or text.startswith(("env:", "file:")):
            return value
        url = text.replace("{home}", str(home_of(known)))
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in _STORE_SCHEMES:
            raise PydanticCustomError("store_url", "is not a sqlite:/// or postgresql:// address")
        if scheme == "sqlite" and not (rest.startswith("//") and len(rest) > 2):
            raise PydanticCustomError(
                "store_path",
                "must name a file by its absolute path, such as sqlite:////folder/file.db",
            )
        return url


class EngineConfig(Section):
    """The embedded model. It serves if no provider is configured, or if a provider has the kind
    `embedded`.
    """

    threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Processor threads it may use; 0 chooses a number for the machine.",
    )
    max_batch: int = Field(
        default=8, ge=1, le=256, description="Most requests that it answers in one batch."
    )


class TelemetryConfig(Section):
    """Metrics and traces."""

    prometheus: bool = Field(default=True, description="Serve `/metrics`.")
    otlp: str | None = Field(
        default=None,
        description=(
            "Address of an OpenTelemetry collector (OTLP over HTTP) that gets traces and metrics,"
            " without the words of prompts and answers. Needs the plugin `otlp`."
        ),
        examples=["http://127.0.0.1:4318"],
    )

    @field_validator("otlp")
    @classmethod
    def _check_otlp(cls, url: str | None) -> str | None:
        if url is not None and not is_http(url):
            raise PydanticCustomError(
                "otlp", "is not an http:// or https:// address without query or fragment"
            )
        return url


class LogConfig(Section):
    """The log."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level of messages that are logged."
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
