"""Providers over HTTP, from their configuration: the serving process and its learner each have their own connections."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from metaclaw.config import Config, ProviderConfig
from metaclaw.upstream import PASSTHROUGH, HttpEndpoint, PoolLimits, Timeouts

if TYPE_CHECKING:
    from metaclaw.privacy import Redactor


def build_endpoint(one: ProviderConfig) -> HttpEndpoint:
    """The provider; nothing is connected yet."""
    assert one.kind != "embedded"
    key = None if one.api_key is None else PASSTHROUGH if one.api_key.is_passthrough else one.api_key.resolve()
    timeouts = Timeouts(connect_s=one.connect_timeout_s, first_byte_s=one.timeout_s, idle_s=one.timeout_s)
    limits = PoolLimits(connections=one.max_concurrency, queue_s=one.queue_timeout_s)
    return HttpEndpoint(
        one.name, one.kind, one.base_url or "", api_key=key, models=one.models, wires=one.wires, timeouts=timeouts, limits=limits
    )


def redaction(config: Config) -> Callable[[Sequence[str]], Sequence[str]]:
    """Replaces secrets in texts that leave for a provider. What it needs is read at the first call, which belongs in a thread."""

    @cache
    def redactor() -> "Redactor":
        from metaclaw.privacy import KnownSecrets, Redactor

        return Redactor(KnownSecrets.collect(os.environ, Path.home(), config) if config.privacy.redact else KnownSecrets())

    return lambda texts: [redactor().text(text).text for text in texts]
