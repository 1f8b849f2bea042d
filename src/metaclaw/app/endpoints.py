"""Providers over HTTP, from their configuration: the serving process and its learner each have their own connections."""

from metaclaw.config import ProviderConfig
from metaclaw.upstream import PASSTHROUGH, HttpEndpoint, Limits, Timeouts


def build_endpoint(one: ProviderConfig) -> HttpEndpoint:
    """The provider; nothing is connected yet."""
    assert one.kind != "embedded"
    key = None if one.api_key is None else PASSTHROUGH if one.api_key.is_passthrough else one.api_key.resolve()
    timeouts = Timeouts(connect_s=one.connect_timeout_s, first_byte_s=one.timeout_s, idle_s=one.timeout_s)
    limits = Limits(connections=one.max_concurrency, queue_s=one.queue_timeout_s)
    return HttpEndpoint(
        one.name, one.kind, one.base_url or "", api_key=key, models=one.models, wires=one.wires, timeouts=timeouts, limits=limits
    )
