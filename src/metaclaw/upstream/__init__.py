"""Providers over HTTP: connections, routing and fallback, the program's own calls to models, and the policy slot."""

from metaclaw.upstream.connection import Timeouts, pour
from metaclaw.upstream.endpoint import PASSTHROUGH, ApiKey, HttpEndpoint, Kind, has_credentials, reply_headers
from metaclaw.upstream.missing_routes import is_missing_route, may_lack_route
from metaclaw.upstream.models import (
    UNMETERED,
    Charge,
    HttpEmbeddings,
    HttpModel,
    LocalModel,
    Meter,
    Spent,
    learned_item,
    spending_on,
    waits_for_budget,
    without_waiting,
)
from metaclaw.upstream.pool import PoolLimits
from metaclaw.upstream.routing import (
    Destination,
    PolicySlot,
    ProviderCandidate,
    ProviderFailure,
    ProviderHealth,
    ProviderReachability,
    candidates,
    moves_on,
    open_first,
)
from metaclaw.upstream.transport import MALFORMED, TIMEOUT, UNREACHABLE
from metaclaw.upstream.wire_probe import WireProbe, list_models, probe_wires

__all__ = [
    "MALFORMED",
    "PASSTHROUGH",
    "TIMEOUT",
    "UNMETERED",
    "UNREACHABLE",
    "ApiKey",
    "Charge",
    "Destination",
    "HttpEmbeddings",
    "HttpEndpoint",
    "HttpModel",
    "Kind",
    "LocalModel",
    "Meter",
    "PolicySlot",
    "PoolLimits",
    "ProviderCandidate",
    "ProviderFailure",
    "ProviderHealth",
    "ProviderReachability",
    "Spent",
    "Timeouts",
    "WireProbe",
    "candidates",
    "has_credentials",
    "is_missing_route",
    "learned_item",
    "list_models",
    "may_lack_route",
    "moves_on",
    "open_first",
    "pour",
    "probe_wires",
    "reply_headers",
    "spending_on",
    "waits_for_budget",
    "without_waiting",
]
