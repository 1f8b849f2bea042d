"""A provider that serves fewer wires than its kind: every client gets its answer, and the log says
what to set.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from metaclaw.upstream import is_missing_route
from tests.support.cases import each
from tests.support.program import NOT_LEARNING, Program
from tests.support.provider import Provider


@pytest.fixture
def provider() -> Iterator[Provider]:
    running = Provider(missing=("/responses",), models=("echo",)).start()
    yield running
    running.stop()


def started(tmp_path: Path, provider: Provider, more: str = "") -> Program:
    config = (
        f'[[providers]]\nname = "local"\nkind = "openai"\nbase_url = "{provider.url}/v1"\n{more}'
    )
    return Program(tmp_path, config, env=NOT_LEARNING).start()


def respond(program: Program, **more: object) -> httpx.Response:
    asked = {"model": "echo", "input": "hello there", **more}
    return httpx.post(f"{program.url}/v1/responses", json=asked, headers=program.auth, timeout=30)


def paths(provider: Provider) -> list[str]:
    return [seen.path for seen in provider.requests if seen.method == "POST"]


def test_a_server_without_responses_is_asked_in_chat_and_only_once_in_vain(
    tmp_path: Path, provider: Provider
) -> None:
    program = started(tmp_path, provider)
    try:
        for stream in (False, True):
            answer = respond(program, stream=stream)
            assert (answer.status_code, "echo: hello there" in answer.text) == (200, True)
        turn = program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")
        assert (turn["end"], turn["provider"]) == ("completed", "local")
        assert paths(provider) == ["/v1/responses", "/v1/chat/completions", "/v1/chat/completions"]
    finally:
        program.stop()
    assert "metaclaw config set providers.local.wires '[\"chat\"]'" in program.log.read_text()


def test_a_request_that_cannot_be_translated_is_refused_with_what_to_set(
    tmp_path: Path, provider: Provider
) -> None:
    program = started(tmp_path, provider)
    try:
        answer = respond(program, previous_response_id="resp_1")
        assert answer.status_code == 400
        assert "metaclaw config set providers.local.wires" in answer.json()["error"]["message"]
    finally:
        program.stop()


def test_an_unknown_model_is_no_missing_wire(tmp_path: Path, provider: Provider) -> None:
    provider.missing = ()
    program = started(tmp_path, provider)
    try:
        refused = respond(program, model="nameless")
        assert (refused.status_code, "does not exist" in refused.text) == (404, True)
        assert paths(provider) == ["/v1/responses"]
        assert respond(program).status_code == 200
    finally:
        program.stop()


def test_a_provider_whose_wires_are_written_is_believed(tmp_path: Path, provider: Provider) -> None:
    program = started(tmp_path, provider, 'wires = ["chat", "responses"]\n')
    try:
        assert respond(program).json() == {"detail": "Not Found"}
        assert paths(provider) == ["/v1/responses"]
    finally:
        program.stop()


def test_an_address_that_has_no_path_at_all_is_refused_as_it_refuses(
    tmp_path: Path, provider: Provider
) -> None:
    provider.missing = ("/responses", "/chat/completions")
    program = started(tmp_path, provider)
    try:
        for _ in range(2):
            refused = respond(program)
            assert (refused.status_code, refused.json()) == (404, {"detail": "Not Found"})
    finally:
        program.stop()


@each(
    ("status", "body", "is_missing"),
    [
        (404, b'{"detail":"Not Found"}', True),
        (404, b"404 page not found", True),
        (404, b"", True),
        (
            404,
            (
                b'{"error":{"message":"Unknown request URL: POST'
                b' /v1/responses","type":"invalid_request_error"}}'
            ),
            True,
        ),
        (404, b"<pre>Cannot POST /v1/responses</pre>", True),
        (405, b"", True),
        (501, b"not implemented", True),
        (
            404,
            (
                b'{"error":{"message":"The model `x` does not'
                b' exist.","type":"NotFoundError","param":"model","code":404}}'
            ),
            False,
        ),
        (
            404,
            (
                b'{"error":{"message":"model \\"x\\" not found, try pulling it'
                b' first","type":"api_error"}}'
            ),
            False,
        ),
        (404, b'{"error":{"message":"no such thing","code":"model_not_found"}}', False),
        (404, b'{"error":{"message":"Conversation with id \'conv_1\' not found."}}', False),
        (400, b'{"detail":"Not Found"}', False),
        (500, b"", False),
    ],
)
def test_what_a_refusal_means(status: int, body: bytes, is_missing: bool) -> None:
    assert is_missing_route(status, body) is is_missing
