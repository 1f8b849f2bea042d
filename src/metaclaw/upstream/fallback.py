"""Try providers in turn, while nothing has come that could be relayed."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from metaclaw.errors import UpstreamError
from metaclaw.upstream.failures import UNREACHABLE

log = logging.getLogger(__name__)

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


class Cooldown:
    """Remembers who could not be reached, so that a dead provider costs one connect timeout now and then, not on every request."""

    def __init__(self, seconds: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[str, float] = {}

    @property
    def has_any(self) -> bool:
        """Whether anybody rests, or has just rested."""
        return bool(self._until)

    def admits(self, name: str) -> bool:
        """Whether to try it. After its rest one caller is let through to probe, and the rest begins anew for all others."""
        until = self._until.get(name)
        if until is None:
            return True
        now = self._clock()
        if now < until:
            return False
        self._until[name] = now + self._seconds
        return True

    def rest(self, name: str) -> None:
        """It could not be reached."""
        self._until[name] = self._clock() + self._seconds

    def clear(self, name: str) -> None:
        """It was reached."""
        self._until.pop(name, None)


def moves_on(status: int) -> bool:
    """Whether an answer with this status makes us try the next: 408, 409, 425, 429 (what official SDKs retry) and every 5xx."""
    return status in _MOVES_ON or status >= 500


async def open_first(candidates: Sequence[C], open_call: Callable[[C], Awaitable[R]], cooldown: Cooldown) -> tuple[C, R]:
    """The first candidate that gives an answer worth relaying, and the answer.

    Moves on when a candidate gives nothing (UpstreamError) or a status that `moves_on`. When none is left, the last answer that
    did come is passed through as it is; if none came at all, the last error is raised. Candidates that rest after a failed
    connection are skipped unless all of them do.
    """
    failed: UpstreamError | None = None
    refusal: tuple[C, R] | None = None
    try:
        for candidate in _in_turn(candidates, cooldown):
            try:
                answer = await open_call(candidate)
            except UpstreamError as error:
                failed = error
                _note(cooldown, candidate.name, error)
                continue
            cooldown.clear(candidate.name)
            if not moves_on(answer.status):
                return candidate, answer
            log.info("provider refused name=%s status=%d", candidate.name, answer.status)
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


def _in_turn(candidates: Sequence[C], cooldown: Cooldown) -> Iterable[C]:
    """Those that do not rest; where all of them do, all."""
    if not cooldown.has_any:
        return candidates
    return _admitted(candidates, cooldown)


def _admitted(candidates: Sequence[C], cooldown: Cooldown) -> Iterator[C]:
    is_any_tried = False
    for candidate in candidates:
        if cooldown.admits(candidate.name):
            is_any_tried = True
            yield candidate
    if not is_any_tried:
        yield from candidates


def _note(cooldown: Cooldown, name: str, error: UpstreamError) -> None:
    log.info("provider failed name=%s code=%s error=%s", name, error.code, error)
    if error.code == UNREACHABLE:
        cooldown.rest(name)
