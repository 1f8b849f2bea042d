"""Does memory stay flat? A fresh proxy through many requests, then through more clients than it can
serve.
"""

import time
from collections.abc import Iterator

from .procfs import pss_mb
from .results import MemoryPoint, Start
from .suites import Bench, Suite
from .targets import Target

_STEADY = Suite("steady", "", "load", "short", 32)
_OVERLOAD = Suite("overload", "", "load", "short", 512)
_STEPS = 5
_SETTLE_S = 1.0


def memory_points(
    bench: Bench, target: Target, started: Start, *, requests: int, overload_s: float
) -> Iterator[MemoryPoint]:
    """Memory at the start, after each fifth of the requests, at the overload's peak, and once it
    drained.
    """
    yield MemoryPoint(target.name, "start", 0, started.pss_mb)
    sent = 0
    for _ in range(_STEPS):
        sent += bench.load(target, _STEADY, seconds=240, requests=requests // _STEPS).ok
        yield _settled(target, "requests", sent)
    client = bench.loading(target, _OVERLOAD, seconds=overload_s)
    peak = 0.0
    while client.poll() is None:
        peak = max(peak, pss_mb(target.pid))
        time.sleep(0.1)
    sent += bench.finished(client, target, _OVERLOAD).ok
    yield MemoryPoint(target.name, "overload-peak", sent, peak)
    yield _settled(target, "drained", sent)


def _settled(target: Target, when: str, sent: int) -> MemoryPoint:
    time.sleep(_SETTLE_S)
    return MemoryPoint(target.name, when, sent, pss_mb(target.pid))
