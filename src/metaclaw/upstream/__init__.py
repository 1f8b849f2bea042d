"""Who answers: providers reached over HTTP, which of them to ask, and what to do when one fails."""

from metaclaw.upstream.asking import HttpModel, LocalModel
from metaclaw.upstream.connection import Timeouts, pour
from metaclaw.upstream.embeddings import HttpEmbeddings
from metaclaw.upstream.fallback import moves_on, open_first
from metaclaw.upstream.headers import has_credentials, reply_headers
from metaclaw.upstream.health import ProviderFailure, ProviderHealth
from metaclaw.upstream.http import PASSTHROUGH, ApiKey, HttpEndpoint, Kind
from metaclaw.upstream.metering import UNMETERED, Charge, Meter, Spent, learned_item, spending_on, waits_for_budget, without_waiting
from metaclaw.upstream.pool import Limits
from metaclaw.upstream.reachability import Reachability
from metaclaw.upstream.route import Candidate, Destination, candidates
from metaclaw.upstream.slot import PolicySlot

__all__ = [
    "PASSTHROUGH",
    "UNMETERED",
    "ApiKey",
    "Candidate",
    "Charge",
    "Destination",
    "HttpEmbeddings",
    "HttpEndpoint",
    "HttpModel",
    "Kind",
    "Limits",
    "LocalModel",
    "Meter",
    "PolicySlot",
    "ProviderFailure",
    "ProviderHealth",
    "Reachability",
    "Spent",
    "Timeouts",
    "candidates",
    "has_credentials",
    "learned_item",
    "moves_on",
    "open_first",
    "pour",
    "reply_headers",
    "spending_on",
    "waits_for_budget",
    "without_waiting",
]
