"""The hook between days: weights are trained with the turns there are, and proven, before the next day begins."""

import time
from typing import Final

import anyio

from metaclaw.bench.running.api import Api, at, rows
from metaclaw.bench.running.learned import Happened
from metaclaw.domain.chat import Json

_PAUSE_S: Final = 0.25
_CALM_S: Final = 2.0
_GRACE_S: Final = 5.0
_IDLE: Final = "waiting"


async def train(api: Api, most_s: float) -> list[Happened]:
    """Begin to train and wait until it is over; what went wrong, if anything did. No turn to train on is no trouble.

    Where there are turns for another batch, the proxy goes on with it at once: over is what stays over.
    """
    before = await _newest(api)
    status, answer = await api.post("policy", "train")
    if status >= 400:
        return [_trouble(f"training did not begin: {at(answer, 'error', 'message') or answer}")]
    if not answer.get("started"):
        return []
    began = busy_at = time.monotonic()
    seen_busy = False
    while True:
        now = time.monotonic()
        if not str(at(await api.get("status"), "training", "state") or "").startswith(_IDLE):
            busy_at, seen_busy = now, True
        # It may take a moment until the loop notices that it is wanted.
        if now - busy_at > (_CALM_S if seen_busy else _GRACE_S):
            break
        if now - began > most_s:
            return [_trouble(f"training was not over after {most_s:g} s")]
        await anyio.sleep(_PAUSE_S)
    if not seen_busy:
        return [_trouble("training was asked for and did not begin")]
    if await _newest(api) == before:
        return [_trouble(f"nothing came of training on {answer.get('turns')} turns; the proxy's log says why")]
    return []


async def _newest(api: Api) -> Json:
    """The newest version of the weights, whatever became of it; None where there is none."""
    return next((one.get("version") for one in rows(at(await api.get("policy", limit=1), "versions"))), None)


def _trouble(why: str) -> Happened:
    return Happened("trouble", why=why)
