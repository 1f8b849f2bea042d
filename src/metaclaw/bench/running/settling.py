"""The barrier between days: wait until the proxy has learned what it can from a day, so that the next one begins with all of it.

Nothing in the proxy waits for learning, but it says what it has still to learn from (`learning.pending` in its status). Only quiet
that lasts counts: what was learned may itself be something to learn from.
"""

import time
from dataclasses import dataclass
from typing import Final

import anyio

from metaclaw.bench.running.api import Api, at
from metaclaw.bench.running.plan import Patience
from metaclaw.domain.chat import Json

_PAUSE_S: Final = 0.05
_IN_WORDS: Final = {
    "turns": "turns without a verdict",
    "sessions": "sessions whose last turn has no verdict",
    "lessons": "failures and words that nobody has looked at",
    "evolutions": "kinds of failure with the evolver",
    "candidates": "skills at the gate",
}


@dataclass(frozen=True, slots=True)
class Settled:
    """How long it took, and what was still under way when patience ran out; empty where everything came to rest."""

    seconds: float
    left: tuple[str, ...] = ()


async def settle(api: Api, patience: Patience) -> Settled:
    """Return once nothing is being learned any more, or after `patience.most_s`."""
    began = since = time.monotonic()
    before: Json = None
    while True:
        status = await api.get("status")
        busy, now = under_way(status), _changes(status)
        if busy or now != before:
            since, before = time.monotonic(), now
        if time.monotonic() - since >= patience.calm_s:
            return Settled(time.monotonic() - began)
        if time.monotonic() - began >= patience.most_s:
            return Settled(time.monotonic() - began, busy or ("skills or verdicts still change",))
        await anyio.sleep(_PAUSE_S)


def under_way(status: dict[str, Json]) -> tuple[str, ...]:
    """What learning is busy with, in words."""
    pending = at(status, "learning", "pending")
    if not isinstance(pending, dict):
        return ("what there is to learn is not known yet",)
    return tuple(f"{count} {_IN_WORDS.get(name, name)}" for name, count in pending.items() if count)


def _changes(status: dict[str, Json]) -> Json:
    """What moves while something is learned."""
    return [
        status.get("generation"),
        at(status, "counts", "verdicts"),
        at(status, "counts", "support"),
        at(status, "counts", "candidates"),
        at(status, "learning", "asked"),
    ]
