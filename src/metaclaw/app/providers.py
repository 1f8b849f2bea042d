"""Providers of models from their configuration: endpoints over HTTP, the embedded model, and the
search for skills by meaning.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from metaclaw.config import Config, ProviderConfig
from metaclaw.ports import ModelProvider
from metaclaw.upstream import (
    PASSTHROUGH,
    GeminiEndpoint,
    HttpEmbeddings,
    HttpEndpoint,
    PoolLimits,
    Timeouts,
)

if TYPE_CHECKING:
    # Imported where they are used: most programs have neither weights nor a library, and the start
    # should be quick.
    from metaclaw.engine import EmbeddedModel, MeaningSearch, ModelPlace
    from metaclaw.privacy import Redactor

log = logging.getLogger(__name__)


def build_endpoint(provider: ProviderConfig) -> HttpEndpoint:
    """The provider; nothing is connected yet."""
    assert provider.kind != "embedded"
    key = None
    if provider.api_key is not None:
        secret = provider.api_key
        key = PASSTHROUGH if secret.is_passthrough else secret.resolve()
    timeouts = Timeouts(
        connect_s=provider.connect_timeout_s,
        first_byte_s=provider.timeout_s,
        idle_s=provider.timeout_s,
    )
    limits = PoolLimits(connections=provider.max_concurrency, queue_s=provider.queue_timeout_s)
    endpoint = GeminiEndpoint if provider.kind == "gemini" else HttpEndpoint
    return endpoint(
        provider.name,
        provider.kind,
        provider.base_url or "",
        api_key=key,
        models=provider.models,
        wires=provider.wires,
        timeouts=timeouts,
        limits=limits,
    )


def redaction(config: Config) -> Callable[[Sequence[str]], Sequence[str]]:
    """Replaces secrets in texts that leave for a provider. What it needs is read at the first call,
    which belongs in a thread.
    """

    @cache
    def redactor() -> "Redactor":
        from metaclaw.privacy import KnownSecrets, Redactor, secrets_of

        return Redactor(
            KnownSecrets(secrets_of(os.environ, Path.home(), config))
            if config.privacy.redact
            else KnownSecrets()
        )

    return lambda texts: [redactor().text(text).text for text in texts]


class ConfiguredProviders:
    """The providers in the order of fallback, and the embedded model among them, if it is one.
    `model_place` is where its weights are.
    """

    def __init__(self, config: Config, home: Path) -> None:
        self._config = config
        self._home = home
        self.embedded: EmbeddedModel | None = None
        configured = config.fallback_order or (ProviderConfig(name="embedded", kind="embedded"),)
        self.all = [self._build(one) for one in configured]

    @property
    def model_place(self) -> "ModelPlace":
        """Where the embedded model's weights are: the model that comes with the program, or
        `policy.base_model`.
        """
        from metaclaw.engine import locate_model

        policy = self._config.policy
        trained = policy if policy is not None and policy.backend == "embedded" else None
        return locate_model(self._home / "models", None if trained is None else trained.base_model)

    @property
    def over_http(self) -> Mapping[str, HttpEndpoint]:
        return {one.name: one for one in self.all if isinstance(one, HttpEndpoint)}

    @property
    def passthrough(self) -> frozenset[str]:
        """Names of the providers that are asked with the client's own key."""
        configured = self._config.providers
        return frozenset(
            one.name for one in configured if one.api_key is not None and one.api_key.is_passthrough
        )

    @property
    def assumed_wires(self) -> frozenset[str]:
        """Names of the providers whose configuration does not say which wires they serve."""
        return frozenset(
            one.name for one in self._config.providers if "wires" not in one.model_fields_set
        )

    def _build(self, provider: ProviderConfig) -> HttpEndpoint | ModelProvider:
        if provider.kind != "embedded":
            return build_endpoint(provider)
        from metaclaw.engine import EmbeddedModel, ensure_packages

        engine, policy, place = self._config.engine, self._config.policy, self.model_place
        self.embedded = EmbeddedModel(
            place.folder,
            name=provider.name,
            device="cpu" if policy is None else policy.device,
            convert=place.convert,
            threads=engine.threads or None,
            slots=engine.max_batch,
            install=partial(ensure_packages, with_weights=place.convert is True),
        )
        return self.embedded


class SkillSearch:
    """The search for skills by meaning; `meaning` is None where it is not configured. It starts when
    its packages are there.
    """

    def __init__(self, config: Config, home: Path) -> None:
        self._config = config
        self.endpoint: HttpEndpoint | None = None
        self.meaning = self._build(home / "models" / "meaning")

    def _build(self, folder: Path) -> "MeaningSearch | None":
        skills = self._config.skills
        if not skills.enabled or skills.retrieval == "words":
            return None
        from metaclaw.engine import MeaningSearch

        provider = next(
            (one for one in self._config.providers if one.name == skills.embeddings_provider), None
        )
        if (missing := self._missing) and (skills.retrieval == "hybrid" or provider is not None):
            log.warning("retrieval_by_words_only missing=%s", ",".join(missing))
        if provider is None or skills.embeddings_model is None:
            return MeaningSearch(folder)
        # Connections of its own: a slow embedding model must not take those of requests.
        self.endpoint = build_endpoint(provider)
        embeddings = HttpEmbeddings(self.endpoint, skills.embeddings_model, redaction(self._config))
        return MeaningSearch(folder, embeddings=embeddings, key=provider.base_url or "")

    @property
    def _missing(self) -> Sequence[str]:
        from metaclaw.engine import missing_packages

        return missing_packages(has_provider=self._config.skills.embeddings_provider is not None)

    def describe(self) -> Mapping[str, str]:
        """How skills are found, for `status`."""
        skills = self._config.skills
        by = (
            "local model"
            if skills.embeddings_provider is None
            else f"{skills.embeddings_provider}/{skills.embeddings_model}"
        )
        if self.meaning is not None and not self._missing:
            return {"mode": "hybrid", "embeddings": by, "state": self.meaning.state}
        if skills.retrieval == "words":
            return {"mode": "words", "state": "as configured"}
        from metaclaw.engine import INSTALL, INSTALL_FOR_PROVIDER

        install = INSTALL if skills.embeddings_provider is None else INSTALL_FOR_PROVIDER
        return {"mode": "words", "state": f"to search by meaning as well: {install}"}
