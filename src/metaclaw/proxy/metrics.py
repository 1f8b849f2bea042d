"""What is counted on the request path, for Prometheus and for `status`.

The library's own counters take a lock and several calls for every number. Ours are plain integers that only the event loop
changes; they become the library's when metrics are requested. It is imported then, too: it brings a web server along.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from metaclaw.domain.turn import Turn

if TYPE_CHECKING:
    from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric

_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)
_BOUNDS = (*(str(float(bound)) for bound in _SECONDS), "+Inf")


class _Count:
    """A number that only grows, and when it began to."""

    __slots__ = ("began", "value")

    def __init__(self) -> None:
        self.value = 0
        self.began = time.time()


class _Spread:
    """How often a duration fell between two bounds."""

    __slots__ = ("began", "buckets", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * len(_BOUNDS)
        self.total_s = 0.0
        self.began = time.time()

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(_SECONDS, seconds)] += 1
        self.total_s += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """How many were at most as long as each bound."""
        found, so_far = [], 0
        for bound, count in zip(_BOUNDS, self.buckets, strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return found


class Metrics:
    """Counters of one program; two in one process never share numbers."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, ...], _Count] = {}
        self._refused: dict[tuple[str, ...], _Count] = {}
        self._tokens: dict[tuple[str, ...], _Count] = {}
        self._placed: dict[tuple[str, ...], _Count] = {(): _Count()}
        self._unrecorded: dict[tuple[str, ...], _Count] = {(): _Count()}
        self._durations: dict[str, _Spread] = {}
        self._first_bytes: dict[str, _Spread] = {}
        self.in_flight = 0
        """Turns being served now."""

    def served(self, turn: Turn, *, durable: bool) -> None:
        """Count one finished turn."""
        times, usage = turn.times, turn.usage
        wire = turn.wire.value
        _count(self._turns, (wire, turn.kind.value, turn.end.value), 1)
        _spread(self._durations, wire).add(times.duration_s)
        if times.first_byte_s is not None:
            _spread(self._first_bytes, wire).add(times.first_byte_s)
        if usage is not None:
            _count(self._tokens, (turn.provider, "input"), usage.input_tokens)
            _count(self._tokens, (turn.provider, "output"), usage.output_tokens)
        if turn.stamp.skills:
            self._placed[()].value += len(turn.stamp.skills)
        if not durable:
            self._unrecorded[()].value += 1

    def refused(self, status: int) -> None:
        """Count a request that was answered with an error of our own."""
        _count(self._refused, (str(status),), 1)

    def collect(self) -> "Iterator[Metric]":
        """Everything counted so far, as the library wants it of a registry."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        yield _family("metaclaw_turns", "Turns served", ("wire", "kind", "end"), self._turns)
        yield _histogram("metaclaw_turn_seconds", "From request to end of answer", self._durations)
        yield _histogram("metaclaw_first_byte_seconds", "From request to first byte", self._first_bytes)
        yield _family("metaclaw_tokens", "Tokens as providers counted them", ("provider", "direction"), self._tokens)
        yield _family("metaclaw_skills_placed", "Skills placed in prompts", (), self._placed)
        yield _family("metaclaw_turns_unrecorded", "Answers released before their turn was on disk", (), self._unrecorded)
        yield _family("metaclaw_requests_refused", "Requests answered with an error of our own", ("status",), self._refused)
        yield GaugeMetricFamily("metaclaw_turns_in_flight", "Turns being served now", value=self.in_flight)


def _count(counts: dict[tuple[str, ...], _Count], labels: tuple[str, ...], more: int) -> None:
    found = counts.get(labels)
    if found is None:
        found = counts[labels] = _Count()
    if more > 0:  # a provider may send any number as its usage; a count never falls
        found.value += more


def _spread(spreads: dict[str, _Spread], label: str) -> _Spread:
    found = spreads.get(label)
    if found is None:
        found = spreads[label] = _Spread()
    return found


def _family(name: str, help_text: str, labels: tuple[str, ...], counts: dict[tuple[str, ...], _Count]) -> "CounterMetricFamily":
    from prometheus_client.metrics_core import CounterMetricFamily

    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in list(counts.items()):
        family.add_metric(values, count.value, created=count.began)
    return family


def _histogram(name: str, help_text: str, spreads: dict[str, _Spread]) -> "HistogramMetricFamily":
    from prometheus_client.metrics_core import HistogramMetricFamily

    family = HistogramMetricFamily(name, help_text, labels=("wire",))
    for label, spread in list(spreads.items()):
        family.add_metric((label,), spread.cumulated(), spread.total_s)
        family.add_sample(f"{name}_created", {"wire": label}, spread.began)
    return family
