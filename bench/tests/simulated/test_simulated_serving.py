"""A mind over HTTP: whole and streamed answers, tool calls, failures, and always the name
`simulated`.
"""

import json
from dataclasses import dataclass

import httpx
import pytest

from metaclaw_bench.simulated.model import Broken, Call, Prompt, Said, SimulatedModel, Thought
from metaclaw_bench.simulated.server import serving
from tests.support.cases import each

pytestmark = pytest.mark.anyio
MESSAGES = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": " there"}],
    }
]
TOOLS = [{"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}]


@dataclass
class Fixed:
    thought: Thought
    seen: Prompt | None = None

    def answer(self, prompt: Prompt) -> Thought:
        self.seen = prompt
        return self.thought


async def ask(
    mind: SimulatedModel, *, stream: bool = False, headers: dict[str, str] | None = None
) -> httpx.Response:
    async with serving(mind) as url, httpx.AsyncClient() as client:
        body = {"model": "any", "messages": MESSAGES, "tools": TOOLS, "stream": stream}
        return await client.post(f"{url}/chat/completions", json=body, headers=headers)


async def test_an_answer_is_called_simulated_whatever_was_asked_for() -> None:
    mind = Fixed(Said("Hi."))
    answer = (await ask(mind, headers={"x-metaclaw-purpose": "judge"})).json()
    assert (answer["model"], answer["system_fingerprint"]) == ("simulated", "simulated")
    assert answer["choices"][0]["message"]["content"] == "Hi."
    assert answer["usage"]["completion_tokens"] > 0
    assert mind.seen is not None
    assert (mind.seen.text, mind.seen.tools, mind.seen.purpose) == (
        "Hello there",
        frozenset({"write"}),
        "judge",
    )


async def test_a_vendors_client_reads_calls_and_streams() -> None:
    from openai import AsyncOpenAI  # only who asks waits for an SDK

    mind = Fixed(Said("", (Call("write", {"path": "a", "content": "é"}),)))
    async with serving(mind) as url, AsyncOpenAI(base_url=url, api_key="none") as client:
        whole = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "x"}]
        )
        (call,) = whole.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"path": "a", "content": "é"}
        stream = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "x"}], stream=True
        )
        deltas = [chunk.choices[0] async for chunk in stream if chunk.choices]
        (called,) = deltas[0].delta.tool_calls or []
        assert called.function is not None
        assert called.function.name == "write"
        assert deltas[-1].finish_reason == "tool_calls"
        assert [model.id async for model in await client.models.list()] == ["simulated"]


async def test_a_mind_that_fails_is_a_provider_that_fails() -> None:
    answer = await ask(Fixed(Broken(503)))
    assert answer.status_code == 503
    assert "on purpose" in answer.json()["error"]["message"]


@each("body", [b"no json", b"[]", b"{}", b'{"messages": [1]}'])
async def test_nonsense_is_refused_and_the_connection_lives_on(body: bytes) -> None:
    async with serving(Fixed(Said("Hi."))) as url, httpx.AsyncClient() as client:
        assert (await client.post(f"{url}/chat/completions", content=body)).status_code == 400
        assert (await client.get(f"{url}/embeddings")).status_code == 404
        assert (
            await client.post(f"{url}/chat/completions", json={"messages": []})
        ).status_code == 200
