"""What arrives at a collector. The collector here is an HTTP server that reads the messages with the
official protobuf definitions (opentelemetry-proto); the real one is not in the package indexes.
"""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from metaclaw.clock import utc_now
from metaclaw.telemetry import TelemetrySettings, TrainingSpan
from metaclaw_otlp import connect
from tests.support.program import KEY, PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider

WORD = "albatross"


class Collector:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.spans: list[Span] = []
        self.metrics: dict[str, list[Any]] = {}
        self.services: set[str] = set()
        collector = self

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.services.add(facts(resource.resource.attributes)["service.name"])
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            assert path == "/v1/metrics"
            for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in measured.scope_metrics:
                    for metric in scope.metrics:
                        self.metrics[metric.name] = list(metric.histogram.data_points)

    def wait_for(self, which: Callable[[Span], bool], count: int = 1) -> list[Span]:
        deadline = time.monotonic() + PATIENCE_S
        while len(found := [span for span in list(self.spans) if which(span)]) < count:
            assert time.monotonic() < deadline, [span.name for span in self.spans]
            time.sleep(0.05)
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def value(found: AnyValue) -> Any:
    if found.WhichOneof("value") == "array_value":
        return [value(one) for one in found.array_value.values]
    return getattr(found, found.WhichOneof("value") or "string_value")


def facts(attributes: "list[KeyValue] | Any") -> dict[str, Any]:
    return {one.key: value(one.value) for one in attributes}


def ask(program: Program, model: str, *, stream: bool) -> httpx.Response:
    return httpx.post(
        f"{program.url}/v1/chat/completions",
        json={
            "model": model,
            "stream": stream,
            "stream_options": {"include_usage": True} if stream else None,
            "messages": [{"role": "user", "content": f"From now on always say {WORD}."}],
        },
        headers={"authorization": f"Bearer {KEY}"},
        timeout=PATIENCE_S,
    )


def test_requests_calls_of_providers_and_of_learning_arrive(
    collector: Collector, home: Path
) -> None:
    provider = Provider().start()
    program = Program(
        home, f'{providers_toml(provider.url)}\n[telemetry]\notlp = "{collector.url}/"\n'
    ).start()
    try:
        streamed = ask(program, "openai/echo", stream=True)
        ask(program, "anthropic/echo", stream=False)
        ask(program, "openai/status-400", stream=False)
        requests = collector.wait_for(lambda span: span.kind == Span.SPAN_KIND_SERVER, 3)
        collector.wait_for(lambda span: "metaclaw.purpose" in facts(span.attributes))
    finally:
        assert program.stop() == 0, program.log.read_text()[-4000:]
        provider.stop()
    assert collector.services == {"metaclaw"}
    turn = streamed.headers["x-metaclaw-turn"]
    first = next(one for one in requests if facts(one.attributes)["metaclaw.turn.id"] == turn)
    assert first.name == "POST /v1/chat/completions"
    about = facts(first.attributes)
    assert about["http.response.status_code"] == 200
    assert about["gen_ai.conversation.id"] == streamed.headers["x-metaclaw-session"]
    call = next(one for one in collector.spans if one.parent_span_id == first.span_id)
    assert call.trace_id == first.trace_id
    assert first.start_time_unix_nano <= call.start_time_unix_nano
    assert call.start_time_unix_nano < call.end_time_unix_nano <= first.end_time_unix_nano
    assert (call.name, call.kind) == ("chat echo", Span.SPAN_KIND_CLIENT)
    about = facts(call.attributes)
    assert about["gen_ai.operation.name"] == "chat"
    assert about["gen_ai.provider.name"] == "openai"
    assert about["gen_ai.request.model"] == "echo"
    assert about["gen_ai.usage.input_tokens"] == 11
    assert about["gen_ai.usage.output_tokens"] == 7
    assert about["gen_ai.usage.cache_read.input_tokens"] == 3
    assert about["gen_ai.response.finish_reasons"] == ["stop"]
    makers = {facts(one.attributes).get("gen_ai.provider.name") for one in collector.spans}
    assert {"openai", "anthropic"} <= makers
    failed = [one for one in requests if one.status.code == Status.STATUS_CODE_ERROR]
    assert [facts(one.attributes)["error.type"] for one in failed] == ["400"]
    own = [one for one in collector.spans if "metaclaw.purpose" in facts(one.attributes)]
    assert "listen" in {facts(one.attributes)["metaclaw.purpose"] for one in own}
    tokens = {
        facts(point.attributes)["gen_ai.token.type"]
        for point in collector.metrics["gen_ai.client.token.usage"]
    }
    assert tokens == {"input", "output"}
    durations = collector.metrics["gen_ai.client.operation.duration"]
    assert sum(point.count for point in durations) >= 3
    assert collector.metrics["gen_ai.client.operation.time_to_first_chunk"]
    assert not any(WORD.encode() in body for body in collector.bodies)


def test_training_arrives_and_a_collector_that_is_gone_holds_nothing_up(
    collector: Collector,
) -> None:
    observer = connect(TelemetrySettings(collector.url, "1"))
    ended = utc_now()
    observer.training(TrainingSpan(7, ended - timedelta(seconds=5), ended, 3, None))
    observer.close()
    [span] = collector.spans
    assert (span.name, facts(span.attributes)) == (
        "train",
        {"metaclaw.batch": 7, "metaclaw.policy_version": 3},
    )
    assert span.end_time_unix_nano - span.start_time_unix_nano == 5_000_000_000
    gone = connect(TelemetrySettings("http://127.0.0.1:9", "1"))
    began = time.monotonic()
    gone.training(TrainingSpan(8, ended, ended, None, "TrainingError"))
    assert time.monotonic() - began < 1
    gone.close()
    assert time.monotonic() - began < PATIENCE_S
