"""Routing: the providers that may answer a request, in order; fallback between them, their health
and wires, and the policy slot."""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from metaclaw.clock import utc_now
from metaclaw.config import WIRES_OF_KIND
from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import BASE_POLICY, Serving
from metaclaw.errors import UpstreamError
from metaclaw.ports import HttpProvider
from metaclaw.upstream.transport import UNREACHABLE
from metaclaw.wires import decode_json, parse_error

log = logging.getLogger(__name__)
_VENDORS = tuple(map(frozenset, WIRES_OF_KIND.values()))


@dataclass(frozen=True, slots=True)
class Destination:
    """The routing properties of a provider. Without `models` it accepts any model; without `wires`
    every request is translated for it.

    `own` are models that only this provider has, although it accepts any. A provider that `leads`
    has the trained weights: it comes first for the models it lists and for models that no provider
    lists."""

    name: str
    models: tuple[str, ...] = ()
    wires: frozenset[Wire] = frozenset()
    is_passthrough: bool = False
    leads: bool = False
    own: tuple[str, ...] = ()

    def offers(self, model: str) -> bool:
        """Whether it lists the model, also as `provider/model`."""
        return model in self.models or f"{self.name}/{model}" in self.models or model in self.own

    def local_name(self, model: str) -> str:
        """The model's name at this provider: without the prefix `provider/`."""
        return model.removeprefix(f"{self.name}/")


@dataclass(frozen=True, slots=True)
class ProviderCandidate:
    """A provider to try, and the model name to send to it."""

    name: str
    model: str


def candidates(
    providers: Sequence[Destination], wire: Wire, model: str
) -> tuple[ProviderCandidate, ...]:
    """The providers to try, first to last.

    First come the providers that list the model, in configured order. If none lists it, the first
    is the provider of a prefix `provider/`, else the one that leads, else the first that speaks the
    request's wire, else the first of all. Then follow, in configured order, all providers that list
    the model without that prefix or accept any model. The prefix is not sent.

    A passthrough provider is never a fallback for a request of another vendor's wire, because the
    caller's credentials belong to that vendor."""
    if not providers:
        return ()
    listing = sorted(
        (provider for provider in providers if provider.offers(model)),
        key=lambda provider: not provider.leads,
    )
    if not listing:
        listing = [_pick(providers, wire, model)]
    bare = listing[0].local_name(model)
    listing += [
        provider for provider in providers if provider.offers(bare) and provider not in listing
    ]
    fallbacks = [
        provider
        for provider in providers
        if (provider.leads or not provider.models) and provider not in listing
    ]
    first, *rest = [*listing, *fallbacks]
    followers = [
        provider for provider in rest if not provider.is_passthrough or _same_vendor(provider, wire)
    ]
    return tuple(
        ProviderCandidate(provider.name, provider.local_name(bare))
        for provider in (first, *followers)
    )


def _pick(providers: Sequence[Destination], wire: Wire, model: str) -> Destination:
    by_name = (provider for provider in providers if provider.local_name(model) != model)
    leading = (provider for provider in providers if provider.leads)
    by_wire = (provider for provider in providers if wire in provider.wires)
    return next(by_name, None) or next(leading, None) or next(by_wire, providers[0])


def _same_vendor(provider: Destination, wire: Wire) -> bool:
    vendor = next(wires for wires in _VENDORS if wire in wires)
    return not provider.wires.isdisjoint(vendor)


@dataclass(frozen=True, slots=True)
class ProviderFailure:
    """The last failure of a provider. `in_a_row` is 0 once it has answered again; `is_unreachable`:
    no connection could be made.
    """

    reason: str
    at: datetime
    in_a_row: int
    is_unreachable: bool = False


class ProviderHealth:
    """Keeps the last failure of each provider. An unreachable provider is skipped for `rest_s`, so
    that not every request waits for its connect timeout."""

    def __init__(self, rest_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest_s = rest_s
        self._clock = clock
        self._rests_until: dict[str, float] = {}
        self._failures: dict[str, ProviderFailure] = {}

    def admits(self, name: str) -> bool:
        """Whether to try the provider. After `rest_s` one caller may try it; for all others the
        rest starts again.
        """
        until = self._rests_until.get(name)
        if until is None:
            return True
        now = self._clock()
        if now < until:
            return False
        self._rests_until[name] = now + self._rest_s
        return True

    def failed(self, name: str, reason: str, *, rests: bool = False) -> None:
        """Record a failure; with `rests` the provider is skipped for a while."""
        before = self._failures.get(name)
        in_a_row = 1 if before is None else before.in_a_row + 1
        self._failures[name] = ProviderFailure(reason, utc_now(), in_a_row, rests)
        log.log(
            logging.WARNING if in_a_row == 1 else logging.INFO,
            "provider_failed name=%s reason=%s",
            name,
            reason,
        )
        if rests:
            self._rests_until[name] = self._clock() + self._rest_s

    def reached(self, name: str) -> None:
        self._rests_until.pop(name, None)

    def answered(self, name: str) -> None:
        failure = self._failures.get(name)
        if failure is not None and failure.in_a_row:
            self._failures[name] = ProviderFailure(
                failure.reason, failure.at, 0, failure.is_unreachable
            )
            log.info("provider_recovered name=%s failures=%d", name, failure.in_a_row)

    def last_failure(self, name: str) -> ProviderFailure | None:
        return self._failures.get(name)


_MOVES_ON = frozenset({408, 409, 425, 429})


class _Opened(Protocol):
    """An opened response."""

    @property
    def status(self) -> int: ...
    async def aclose(self) -> None: ...


R = TypeVar("R", bound=_Opened)


def moves_on(status: int) -> bool:
    """Whether to try the next candidate after this status: 408, 409, 425, 429 (which official SDKs
    retry) and every 5xx.
    """
    return status in _MOVES_ON or status >= 500


async def open_first(
    candidates: Sequence[ProviderCandidate],
    open_call: Callable[[ProviderCandidate], Awaitable[R]],
    health: ProviderHealth,
) -> tuple[ProviderCandidate, R]:
    """Open candidates in turn; return the first with a response to relay, and the response.

    The next candidate is tried after an UpstreamError or a status that `moves_on`. When none is
    left, the last response is returned; if there was none, the last error is raised. Candidates
    that rest after a failed connection are skipped unless all of them rest."""
    failed: UpstreamError | None = None
    refusal: tuple[ProviderCandidate, R] | None = None
    try:
        for candidate in _in_turn(candidates, health):
            try:
                answer = await open_call(candidate)
            except UpstreamError as error:
                failed = error
                health.failed(candidate.name, str(error), rests=error.code == UNREACHABLE)
                continue
            health.reached(candidate.name)
            if not moves_on(answer.status):
                return candidate, answer
            health.failed(candidate.name, f"it answered with status {answer.status}")
            refusal, superseded = (candidate, answer), refusal
            if superseded is not None:
                await superseded[1].aclose()
        if refusal is not None:
            last, refusal = refusal, None
            return last
    finally:
        if refusal is not None:
            await refusal[1].aclose()
    raise failed or UpstreamError(
        "no provider can answer this request", status=503, code="no_provider"
    )


def _in_turn(
    candidates: Sequence[ProviderCandidate], health: ProviderHealth
) -> Iterator[ProviderCandidate]:
    """The candidates that do not rest, or all if all of them rest."""
    is_any_tried = False
    for candidate in candidates:
        if health.admits(candidate.name):
            is_any_tried = True
            yield candidate
    if not is_any_tried:
        yield from candidates


_NONE: frozenset[SkillName] = frozenset()


class PolicySlot:
    """Decides which policy version answers a session. Only `provider` has the policy's versions.

    `model_of` returns the model name of a version, for an HTTP provider that serves each version as
    a separate model. A provider that exists only for the policy `leads`: it is asked before the
    configured providers, which are its fallbacks."""

    def __init__(
        self, provider: str, model_of: Callable[[int], str] | None = None, *, leads: bool = False
    ) -> None:
        self.provider = provider
        self.model_of = model_of
        self.leads = leads
        self._serving = Serving()

    @property
    def serving(self) -> Serving:
        """The versions in use."""
        return self._serving

    def flip(self, serving: Serving) -> None:
        """Serve these versions from the next request on. Running responses are finished with the
        weights they began with.
        """
        self._serving = serving

    def absorbed(self, version: int) -> frozenset[SkillName]:
        """The skills that a version has absorbed and does not need in its prompts."""
        return _NONE if version == BASE_POLICY else self._serving.absorbed.get(version, _NONE)


_NO_ROUTE = frozenset({404, 405, 501})
# Words in the message of a 404 about a missing model or object, on a path that exists.
_ABOUT_AN_OBJECT = re.compile(
    r"\b(?:models?|deployment|id|ids|previous|response with|conversation|item)\b", re.IGNORECASE
)


def may_lack_route(status: int) -> bool:
    """Whether a response with this status can mean that the path does not exist."""
    return status in _NO_ROUTE


def is_missing_route(status: int, body: bytes) -> bool:
    """Whether an error response means that the path does not exist; a 404 may also be about a model
    or object in the request.
    """
    if status != 404:
        return status in _NO_ROUTE
    try:
        value = decode_json(body)
    except (ValueError, RecursionError):
        value = None
    error = value.get("error") if isinstance(value, Mapping) else None
    if isinstance(error, Mapping) and error.get("param"):
        return False
    message, code = parse_error(status, body)
    return not body.strip() or not (_ABOUT_AN_OBJECT.search(message) or "model" in code.lower())


class AssumedWires:
    """The wires of providers whose configuration names none (`names`): all of their kind, until one
    is found missing.
    """

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self._names = names
        self._confirmed: set[tuple[str, Wire]] = set()
        self._missing: dict[str, frozenset[Wire]] = {}

    def of(self, provider: HttpProvider) -> frozenset[Wire]:
        """The wires to ask this provider in."""
        missing = self._missing.get(provider.name)
        return provider.wires if missing is None else provider.wires - missing

    def is_doubtful(self, provider: HttpProvider, wire: Wire) -> bool:
        """Whether the wire is assumed, and the provider has not answered in it yet."""
        return provider.name in self._names and (provider.name, wire) not in self._confirmed

    def confirm(self, provider: HttpProvider, wire: Wire) -> None:
        """Record that the provider has answered in this wire."""
        self._confirmed.add((provider.name, wire))

    def drop(self, provider: HttpProvider, wire: Wire) -> None:
        """Record that the provider does not have this wire; it is not used again."""
        self._missing[provider.name] = self._missing.get(provider.name, frozenset()) | {wire}
        log.warning(
            "wire_missing provider=%s wire=%s note=%s",
            provider.name,
            wire.value,
            self.remedy(provider, wire),
        )

    def remedy(self, provider: HttpProvider, wire: Wire) -> str:
        """The setting that the owner should change."""
        left = ", ".join(f'"{other.value}"' for other in sorted(provider.wires - {wire}))
        return (
            f"provider {provider.name} does not serve {wire.value}; "
            f"configure that with: metaclaw config set providers.{provider.name}.wires '[{left}]'"
        )
