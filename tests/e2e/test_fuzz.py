"""A schema-driven fuzzer: bodies made from the wires' schemas, then bent; and every route of our
own API.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.depth import tries
from tests.support.program import Program
from tests.support.schema import values

_TEXT = {"type": "string", "maxLength": 20}
_ANY: dict[str, Any] = {}
_PART = {
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "type": {
                    "enum": [
                        "text",
                        "input_text",
                        "image",
                        "image_url",
                        "tool_use",
                        "tool_result",
                        "thinking",
                        "odd",
                    ]
                },
                "text": _TEXT,
                "id": _TEXT,
                "name": _TEXT,
                "input": _ANY,
                "tool_use_id": _TEXT,
                "content": _TEXT,
                "image_url": _ANY,
                "source": _ANY,
            },
        },
        _TEXT,
        {"type": "null"},
    ]
}
_CONTENT = {
    "oneOf": [
        _TEXT,
        {"type": "array", "items": _PART, "maxItems": 3},
        {"type": "null"},
        {"type": "integer"},
    ]
}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {
            "enum": ["system", "developer", "user", "assistant", "tool", "function", "martian"]
        },
        "type": {"enum": ["message", "function_call", "function_call_output", "reasoning", "odd"]},
        "content": _CONTENT,
        "tool_call_id": _TEXT,
        "tool_calls": _ANY,
        "call_id": _TEXT,
        "name": _TEXT,
        "arguments": _TEXT,
        "output": _CONTENT,
        "summary": _ANY,
    },
}
_TOOL = {
    "type": "object",
    "properties": {
        "type": {"enum": ["function", "custom", "namespace", "odd"]},
        "name": _TEXT,
        "function": {"type": "object", "properties": {"name": _TEXT, "parameters": _ANY}},
        "parameters": _ANY,
        "input_schema": _ANY,
    },
}
_LIST = {"oneOf": [{"type": "array", "items": _MESSAGE, "maxItems": 4}, _TEXT, {"type": "null"}]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "model": {
            "enum": [
                "echo",
                "tools",
                "reason",
                "chatonly/echo",
                "chatonly/tools",
                "anthropic/echo",
                "anthropic/reason",
                "openai/echo",
                "",
                5,
                None,
            ]
        },
        "messages": _LIST,
        "input": _LIST,
        "system": _CONTENT,
        "instructions": {"oneOf": [_TEXT, {"type": "null"}, {"type": "integer"}]},
        "tools": {
            "oneOf": [{"type": "array", "items": _TOOL, "maxItems": 3}, {"type": "null"}, _TEXT]
        },
        "tool_choice": _ANY,
        "stream": {"enum": [True, False, None, 1, "yes"]},
        "stream_options": _ANY,
        "max_tokens": {"enum": [1, 0, -5, 10**30, "5", None, 1.5]},
        "temperature": {"enum": [0, 1, 2.5, "hot", None]},
        "stop": _ANY,
        "metadata": _ANY,
        "response_format": _ANY,
        "thinking": _ANY,
        "reasoning": _ANY,
        "prompt_cache_key": _ANY,
        "previous_response_id": _ANY,
    },
    "required": ["model", "messages", "input"],
}
PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"]
CALM = settings(
    max_examples=tries(50, nightly=750),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@CALM
@given(
    path=st.sampled_from(PATHS),
    body=values(SCHEMA),
    headers=st.dictionaries(
        st.sampled_from(
            ["x-session-id", "x-user-id", "x-turn-type", "x-session-done", "session-id"]
        ),
        st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12),
        max_size=2,
    ),
)
def test_no_body_that_fits_or_nearly_fits_a_schema_ever_breaks_the_program(
    program: Program, path: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    answer = httpx.post(
        program.url + path,
        content=json.dumps(body).encode(),
        headers={**program.auth, **headers},
        timeout=20,
    )
    # 500 may be relayed: the scripted provider itself breaks on some of these where it speaks the
    # wire. Ours names itself.
    assert "MetaClaw failed to handle" not in answer.text
    assert answer.status_code in (200, 400, 404, 413, 422, 500, 502)
    if answer.status_code >= 400 and answer.headers["content-type"] == "application/json":
        assert answer.json()["error"]["message"]


@CALM
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=200))
def test_no_bytes_ever_break_the_program(program: Program, path: str, body: bytes) -> None:
    answer = httpx.post(program.url + path, content=body, headers=program.auth, timeout=20)
    assert answer.status_code in (200, 400, 500, 502)
    assert "MetaClaw failed to handle" not in answer.text


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """One for all requests: to make one takes longer than to use it."""
    with httpx.Client(timeout=20) as made:
        yield made


@pytest.fixture(scope="module")
def described(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = program.get("/api/openapi.json")["paths"]
    return found


@CALM
@given(data=st.data())
def test_every_route_of_our_own_description_answers_anything_with_json_or_a_clear_error(
    program: Program, client: httpx.Client, described: dict[str, Any], data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted(described)))
    method = data.draw(st.sampled_from(sorted(described[path])))
    operation = described[path][method]
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
        lambda value: value not in (".", "..")
    )
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", quote(data.draw(text), safe=""))
    asked = [
        parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"
    ]
    query = {
        name: data.draw(text | st.integers(-1, 3).map(str))
        for name in asked
        if data.draw(st.booleans())
    }
    body = data.draw(_bodies(operation))
    with client.stream(
        method, program.url + path, params=query, content=body, headers=program.auth
    ) as answer:
        assert answer.status_code in (200, 400, 404, 405, 409, 503)
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert next(answer.iter_raw()).startswith(b": ")  # it goes on for ever
            return
        answer.read()
    if answer.headers["content-type"] == "application/json":
        answer.json()
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"]
        assert "MetaClaw failed to handle" not in answer.text


def _bodies(operation: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """What fits the described body, what nearly fits it, and what does not at all; now and then one
    where none is described.
    """
    described = operation.get("requestBody")
    if described is None:
        return st.just(b"") | st.binary(max_size=20)
    schema = described["content"]["application/json"]["schema"]
    loose = {
        **schema,
        "properties": {name: {} for name in (*schema["properties"], "unknown")},
        "required": [],
    }
    return (values(schema) | values(loose)).map(
        lambda value: json.dumps(value).encode()
    ) | st.binary(max_size=20)
