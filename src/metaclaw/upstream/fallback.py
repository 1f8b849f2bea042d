"""Try providers in turn, while nothing has come that could be relayed."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from metaclaw.errors import UpstreamError
from metaclaw.upstream.failures import UNREACHABLE
from metaclaw.upstream.health import ProviderHealth

_MOVES_ON = frozenset({408, 409, 425, 429})


class Named(Protocol):
    """Something to try."""

    @property
    def name(self) -> str: ...


class Opened(Protocol):
    """What a try gives: an answer with a status that can be given up."""

    @property
    def status(self) -> int: ...
    async def aclose(self) -> None: ...


C = TypeVar("C", bound=Named)
R = TypeVar("R", bound=Opened)


def moves_on(status: int) -> bool:
    """Whether an answer with this status makes us try the next: 408, 409, 425, 429 (what official SDKs retry) and every 5xx."""
    return status in _MOVES_ON or status >= 500


async def open_first(candidates: Sequence[C], open_call: Callable[[C], Awaitable[R]], health: ProviderHealth) -> tuple[C, R]:
    """The first candidate that gives an answer worth relaying, and the answer.

    Moves on when a candidate gives nothing (UpstreamError) or a status that `moves_on`. When none is left, the last answer that
    did come is passed through as it is; if none came at all, the last error is raised. Candidates that rest after a failed
    connection are skipped unless all of them do.
    """
    failed: UpstreamError | None = None
    refusal: tuple[C, R] | None = None
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
    raise failed or UpstreamError("no provider can answer this request", status=503, code="no_provider")


def _in_turn(candidates: Sequence[C], health: ProviderHealth) -> Iterable[C]:
    """Those that do not rest; where all of them do, all."""
    if not health.has_resting:
        return candidates
    return _admitted(candidates, health)


def _admitted(candidates: Sequence[C], health: ProviderHealth) -> Iterator[C]:
    is_any_tried = False
    for candidate in candidates:
        if health.admits(candidate.name):
            is_any_tried = True
            yield candidate
    if not is_any_tried:
        yield from candidates
