"""The hook between days: weights are trained with the turns there are, and proven, before the next day begins."""

import time
from typing import Final

import anyio

from metaclaw.bench.running.api import Api, at
from metaclaw.bench.running.learned import Happened

_PAUSE_S: Final = 0.25
_GRACE_S: Final = 5.0
_BUSY: Final = ("training", "proving", "finding out")


async def train(api: Api, most_s: float) -> list[Happened]:
    """Begin to train and wait until it is over; what went wrong, if anything did. No turn to train on is no trouble."""
    status, answer = await api.post("policy", "train")
    if status >= 400:
        return [_trouble(f"training did not begin: {at(answer, 'error', 'message') or answer}")]
    if not answer.get("started"):
        return []
    began, seen_busy = time.monotonic(), False
    while True:
        busy = str(at(await api.get("status"), "training", "state") or "").startswith(_BUSY)
        seen_busy = seen_busy or busy
        waited = time.monotonic() - began
        # It may take a moment until the loop notices that it is wanted.
        if not busy and (seen_busy or waited > _GRACE_S):
            return [] if seen_busy else [_trouble("training was asked for and did not begin")]
        if waited > most_s:
            return [_trouble(f"training was not over after {most_s:g} s")]
        await anyio.sleep(_PAUSE_S)


def _trouble(why: str) -> Happened:
    return Happened("trouble", why=why)
