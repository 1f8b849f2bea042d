"""OpenTelemetry traces and metrics of MetaClaw by OTLP/HTTP: the entry point `otlp` of
`metaclaw.telemetry`. Names are those of the semantic conventions for generative AI.
"""

from datetime import datetime
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.util.types import AttributeValue

from metaclaw.domain.chat import Usage, Wire
from metaclaw.domain.turn import Turn, TurnEnd
from metaclaw.telemetry import Observer, OwnCalls, TelemetrySettings, TrainingSpan

__version__ = "0.1.0"

Attributes = dict[str, AttributeValue]

_SPANS_EVERY_MS: Final = 1000
_METRICS_EVERY_MS: Final = 10_000
_LONGEST_S: Final = 5
_SECONDS: Final = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
_TOKENS: Final = tuple(4**power for power in range(14))


def connect(settings: TelemetrySettings) -> Observer:
    """Begin to export. Nothing is sent before something was observed. Headers, such as a key, come
    from OTEL_EXPORTER_OTLP_HEADERS, and more attributes from OTEL_RESOURCE_ATTRIBUTES."""
    return OtlpObserver(settings)


class OtlpObserver:
    """Exports in threads of its own. What cannot be delivered is dropped."""

    def __init__(self, settings: TelemetrySettings) -> None:
        resource = Resource.create(
            {"service.name": "metaclaw", "service.version": settings.version}
        )
        endpoint = settings.endpoint.rstrip("/")
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._traces.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=_LONGEST_S),
                schedule_delay_millis=_SPANS_EVERY_MS,
            )
        )
        self._tracer = self._traces.get_tracer("metaclaw", settings.version)
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{endpoint}/v1/metrics", timeout=_LONGEST_S),
            export_interval_millis=_METRICS_EVERY_MS,
        )
        self._metrics = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._metrics.get_meter("metaclaw", settings.version)
        self._durations = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", explicit_bucket_boundaries_advisory=_SECONDS
        )
        self._first_chunks = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            "s",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", explicit_bucket_boundaries_advisory=_TOKENS
        )

    def turn(self, turn: Turn) -> None:
        """A span for the request, and in it one for the provider's part."""
        times = turn.times
        began, ended = _ns(times.received_at), _ns(times.received_at, times.duration_s)
        request = self._span(
            f"POST /v1{turn.path}",
            SpanKind.SERVER,
            began,
            {
                "http.request.method": "POST",
                "url.path": f"/v1{turn.path}",
                "http.response.status_code": turn.status,
                "gen_ai.conversation.id": turn.session,
                "gen_ai.agent.name": turn.agent,
                "metaclaw.turn.id": turn.id,
                "metaclaw.turn.kind": turn.kind.value,
                "metaclaw.turn.end": turn.end.value,
                "metaclaw.generation": turn.stamp.generation,
                "metaclaw.policy_version": turn.stamp.policy_version,
                "metaclaw.skills.placed": len(turn.stamp.skills),
                "metaclaw.rules.held": len(turn.enforcement.rules) if turn.enforcement else 0,
            },
        )
        fault = None if turn.end is TurnEnd.COMPLETED and turn.status < 400 else _fault(turn)
        if times.asked_s is not None:
            named = _named("chat", turn.provider, turn.model, turn.provider_wire)
            call = self._span(
                f"chat {turn.model}",
                SpanKind.CLIENT,
                _ns(times.received_at, times.asked_s),
                {
                    **named,
                    **_usage(turn.usage),
                    "gen_ai.conversation.id": turn.session,
                    "gen_ai.request.stream": turn.stream,
                    "gen_ai.response.finish_reasons": [turn.finish.value] if turn.finish else [],
                },
                inside=request,
            )
            _end(call, ended, fault)
            self._measure(named, times.duration_s - times.asked_s, turn.usage, fault)
            if times.first_byte_s is not None and turn.stream:
                self._first_chunks.record(times.first_byte_s - times.asked_s, named)
        _end(request, ended, fault)

    def own_calls(self, calls: OwnCalls) -> None:
        """A span for each request of learning."""
        provider, _, model = calls.model.partition("/")
        named = _named("chat", provider, model) | {"metaclaw.purpose": calls.purpose}
        fault = "failed" if calls.failures and calls.failures >= calls.calls else None
        attributes = named | _usage(calls.usage) | {"metaclaw.calls": calls.calls}
        span = self._span(f"chat {model}", SpanKind.CLIENT, _ns(calls.began), attributes)
        _end(span, _ns(calls.ended), fault)
        self._measure(named, (calls.ended - calls.began).total_seconds(), calls.usage, fault)

    def training(self, span: TrainingSpan) -> None:
        """A span for each batch."""
        attributes: Attributes = {"metaclaw.batch": span.batch}
        if span.version is not None:
            attributes["metaclaw.policy_version"] = span.version
        made = self._span("train", SpanKind.INTERNAL, _ns(span.began), attributes)
        _end(made, _ns(span.ended), span.error)

    def close(self) -> None:
        """Send what is left."""
        self._traces.shutdown()
        self._metrics.shutdown(timeout_millis=1000 * _LONGEST_S)

    def _span(
        self,
        name: str,
        kind: SpanKind,
        began_ns: int,
        attributes: Attributes,
        inside: Span | None = None,
    ) -> Span:
        context = None if inside is None else set_span_in_context(inside)
        return self._tracer.start_span(
            name, context, kind, attributes=attributes, start_time=began_ns
        )

    def _measure(
        self, named: Attributes, seconds: float, usage: Usage | None, fault: str | None
    ) -> None:
        self._durations.record(seconds, named | ({"error.type": fault} if fault else {}))
        if usage is not None:
            self._tokens.record(usage.input_tokens, named | {"gen_ai.token.type": "input"})
            self._tokens.record(usage.output_tokens, named | {"gen_ai.token.type": "output"})


def _named(operation: str, provider: str, model: str, wire: Wire | None = None) -> Attributes:
    """What spans and metrics share."""
    makers = {None: provider, Wire.MESSAGES: "anthropic", Wire.GEMINI: "gcp.gemini"}
    maker = makers.get(wire, "openai")
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": maker,
        "gen_ai.request.model": model,
        "metaclaw.provider": provider,
    }


def _usage(usage: Usage | None) -> Attributes:
    if usage is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }


def _fault(turn: Turn) -> str:
    """The kind of a failure: never its message, which may quote a prompt."""
    return str(turn.status) if turn.status >= 400 else turn.end.value


def _end(span: Span, ended_ns: int, fault: str | None) -> None:
    if fault is not None:
        span.set_attribute("error.type", fault)
        span.set_status(Status(StatusCode.ERROR))
    span.end(ended_ns)


def _ns(instant: datetime, after_s: float = 0.0) -> int:
    return int((instant.timestamp() + after_s) * 1e9)
