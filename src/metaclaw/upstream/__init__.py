"""Providers over HTTP: connections, routing and fallback, the program's own calls to models, and
the policy slot.
"""

from metaclaw.upstream.connection import Timeouts, pour
from metaclaw.upstream.endpoint import (
    PASSTHROUGH,
    ApiKey,
    GeminiEndpoint,
    HttpEndpoint,
    Kind,
    ProviderReachability,
    WireProbe,
    gather_body,
    has_credentials,
    list_models,
    listed_models,
    models_status,
    probe_wires,
    reply_headers,
)
from metaclaw.upstream.models import (
    UNMETERED,
    Charge,
    HttpEmbeddings,
    HttpModel,
    LocalModel,
    Meter,
    Spent,
    waits_for_budget,
    without_waiting,
)
from metaclaw.upstream.pool import PoolLimits
from metaclaw.upstream.routing import (
    AssumedWires,
    Destination,
    PolicySlot,
    ProviderCandidate,
    ProviderFailure,
    ProviderHealth,
    candidates,
    is_missing_route,
    may_lack_route,
    moves_on,
    open_first,
)
from metaclaw.upstream.transport import MALFORMED, TIMEOUT, UNREACHABLE
