"""What is counted on the request path, for Prometheus and for `status`."""

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from metaclaw.domain.turn import Turn

_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)


class Metrics:
    """Counters with a registry of their own, so that two programs in one process never share numbers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._turns = Counter("metaclaw_turns", "Turns served", ["wire", "kind", "end"], registry=self.registry)
        self._duration = Histogram(
            "metaclaw_turn_seconds", "From request to end of answer", ["wire"], buckets=_SECONDS, registry=self.registry
        )
        self._first = Histogram(
            "metaclaw_first_byte_seconds", "From request to first byte", ["wire"], buckets=_SECONDS, registry=self.registry
        )
        self._tokens = Counter(
            "metaclaw_tokens", "Tokens as providers counted them", ["provider", "direction"], registry=self.registry
        )
        self._placed = Counter("metaclaw_skills_placed", "Skills placed in prompts", registry=self.registry)
        self._unrecorded = Counter(
            "metaclaw_turns_unrecorded", "Answers released before their turn was on disk", registry=self.registry
        )
        self.refused = Counter(
            "metaclaw_requests_refused", "Requests answered with an error of our own", ["status"], registry=self.registry
        )
        self.in_flight = Gauge("metaclaw_turns_in_flight", "Turns being served now", registry=self.registry)

    def served(self, turn: Turn, *, durable: bool) -> None:
        """Count one finished turn."""
        self._member(self._turns, turn.wire, turn.kind, turn.end).inc()
        self._observed(self._duration, turn.wire).observe(turn.times.duration_s)
        if turn.times.first_byte_s is not None:
            self._observed(self._first, turn.wire).observe(turn.times.first_byte_s)
        if turn.usage is not None:
            self._member(self._tokens, turn.provider, "input").inc(turn.usage.input_tokens)
            self._member(self._tokens, turn.provider, "output").inc(turn.usage.output_tokens)
        if turn.stamp.skills:
            self._placed.inc(len(turn.stamp.skills))
        if not durable:
            self._unrecorded.inc()

    @cache  # noqa: B019 - as many as there are labels; the library's own look-up takes a lock and copies them every time
    def _member(self, family: Counter, *labels: str) -> Counter:
        return family.labels(*labels)

    @cache  # noqa: B019
    def _observed(self, family: Histogram, *labels: str) -> Histogram:
        return family.labels(*labels)
