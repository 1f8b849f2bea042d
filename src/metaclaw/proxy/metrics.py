"""What is counted on the request path."""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, TypeAlias

from metaclaw.domain.turn import Turn, TurnKind
from metaclaw.telemetry import Observer, tell

if TYPE_CHECKING:
    from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric


class Attendant(Protocol):
    """Called at the beginning and end of every request, so that training can make room for it. Must
    not block.
    """

    def began(self, kind: TurnKind) -> None: ...
    def ended(self) -> None: ...


class NoAttendant:
    """For a program that does not train."""

    def began(self, kind: TurnKind) -> None:
        return

    def ended(self) -> None:
        return


# The counters of prometheus_client take a lock and several calls for every number. Ours are plain
# integers that only the event loop changes; they are converted when metrics are requested. Only
# then is the library imported, because it imports a web server.
_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)
_BOUNDS = (*(str(float(bound)) for bound in _SECONDS), "+Inf")


@dataclass(slots=True)
class _Counter:
    """A counter and its creation time."""

    value: int = 0
    began: float = field(default_factory=time.time)


@dataclass(slots=True)
class _Histogram:
    """A histogram of durations."""

    buckets: list[int] = field(default_factory=lambda: [0] * len(_BOUNDS))
    total_s: float = 0.0
    began: float = field(default_factory=time.time)

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(_SECONDS, seconds)] += 1
        self.total_s += seconds


_Counters: TypeAlias = defaultdict[tuple[str, ...], _Counter]
_Histograms: TypeAlias = defaultdict[str, _Histogram]


class Metrics:
    """Observes the request path: counts, and tells `attendant` of every request and `observer` of
    every turn. Two programs in one process have separate ones."""

    def __init__(self, attendant: Attendant, observer: Observer | None = None) -> None:
        self._attendant = attendant
        self._observer = observer
        self._turns, self._refused, self._tokens = (
            _Counters(_Counter),
            _Counters(_Counter),
            _Counters(_Counter),
        )
        self._placed, self._unrecorded = (
            _Counters(_Counter, {(): _Counter()}),
            _Counters(_Counter, {(): _Counter()}),
        )
        self._durations, self._first_bytes = _Histograms(_Histogram), _Histograms(_Histogram)
        self.in_flight = 0
        """Turns being served now."""

    def began(self, kind: TurnKind) -> None:
        """A request begins."""
        self.in_flight += 1
        self._attendant.began(kind)

    def ended(self) -> None:
        """A request ends, with a turn or without."""
        self.in_flight -= 1
        self._attendant.ended()

    def served(self, turn: Turn, *, durable: bool) -> None:
        """Count a recorded turn."""
        times, usage, wire = turn.times, turn.usage, turn.wire
        self._turns[wire, turn.kind, turn.end].value += 1
        self._durations[wire].add(times.duration_s)
        if times.first_byte_s is not None:
            self._first_bytes[wire].add(times.first_byte_s)
        if usage is not None:
            # A provider may send any number as its usage; a count never falls.
            self._tokens[turn.provider, "input"].value += max(0, usage.input_tokens)
            self._tokens[turn.provider, "output"].value += max(0, usage.output_tokens)
        self._placed[()].value += len(turn.stamp.skills)
        if not durable:
            self._unrecorded[()].value += 1
        if self._observer is not None:
            tell(self._observer.turn, turn)

    def refused(self, status: int) -> None:
        """Count a request that was answered with an error of our own."""
        self._refused[(str(status),)].value += 1

    def collect(self) -> "Iterator[Metric]":
        """Everything counted so far, as a collector of prometheus_client."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        yield _family("metaclaw_turns", "Turns served", ("wire", "kind", "end"), self._turns)
        yield _histogram("metaclaw_turn_seconds", "From request to end of answer", self._durations)
        yield _histogram(
            "metaclaw_first_byte_seconds", "From request to first byte", self._first_bytes
        )
        yield _family(
            "metaclaw_tokens",
            "Tokens as providers counted them",
            ("provider", "direction"),
            self._tokens,
        )
        yield _family("metaclaw_skills_placed", "Skills placed in prompts", (), self._placed)
        yield _family(
            "metaclaw_turns_unrecorded",
            "Answers released before their turn was on disk",
            (),
            self._unrecorded,
        )
        yield _family(
            "metaclaw_requests_refused",
            "Requests answered with an error of our own",
            ("status",),
            self._refused,
        )
        yield GaugeMetricFamily(
            "metaclaw_turns_in_flight", "Turns being served now", value=self.in_flight
        )


def _family(
    name: str, help_text: str, labels: tuple[str, ...], counts: _Counters
) -> "CounterMetricFamily":
    from prometheus_client.metrics_core import CounterMetricFamily

    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in list(counts.items()):
        family.add_metric(values, count.value, created=count.began)
    return family


def _histogram(name: str, help_text: str, histograms: _Histograms) -> "HistogramMetricFamily":
    from prometheus_client.metrics_core import HistogramMetricFamily

    family = HistogramMetricFamily(name, help_text, labels=("wire",))
    for label, histogram in list(histograms.items()):
        family.add_metric(
            (label,),
            list(zip(_BOUNDS, map(float, accumulate(histogram.buckets)), strict=True)),
            histogram.total_s,
        )
        family.add_sample(f"{name}_created", {"wire": label}, histogram.began)
    return family
