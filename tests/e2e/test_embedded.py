"""With no provider configured the program answers by itself, in every wire, with exact tokens on
record.
"""

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from metaclaw.engine import MODEL_ID
from metaclaw.engine.convert import ensure_model
from tests.support.program import KEY, Program

QUESTION = "What is the capital of France? Answer in one short sentence."


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    root = Path(
        os.environ.get("METACLAW_TEST_CACHE") or Path(__file__).resolve().parents[2] / ".cache"
    )
    converted = ensure_model(root / "engine" / MODEL_ID, lambda share: None)
    home = tmp_path_factory.mktemp("embedded") / "home"
    shutil.copytree(converted, home / "models" / MODEL_ID, copy_function=os.symlink)
    program = Program(home).start()
    program.wait_for(
        "/api/status", lambda status: status["engine"]["state"] == "ready", within_s=120
    )
    yield program
    assert program.stop() == 0


def turn_of(program: Program, headers: Any) -> Any:
    return program.get(f"/api/turns/{headers['x-metaclaw-turn']}")


def test_it_answers_in_every_wire_streamed_and_whole(embedded: Program) -> None:
    import anthropic  # only who asks waits for an SDK
    import openai

    with (
        openai.OpenAI(base_url=f"{embedded.url}/v1", api_key=KEY, max_retries=0) as oai,
        anthropic.Anthropic(base_url=embedded.url, api_key=KEY, max_retries=0) as claude,
    ):
        chat = oai.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=8,
            temperature=0,
        )
        said = chat.choices[0].message.content
        assert said
        stream = oai.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=8,
            temperature=0,
            stream=True,
        )
        assert (
            "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            == said
        )
        assert (
            oai.responses.create(
                model="any", input=QUESTION, max_output_tokens=8, temperature=0
            ).output_text
            == said
        )
        message = claude.messages.create(
            model="any",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=8,
            extra_body={"temperature": 0},
        )
        assert "".join(block.text for block in message.content if block.type == "text") == said
        assert MODEL_ID in {model.id for model in oai.models.list()}


def test_the_ledger_has_every_sampled_token_and_its_log_probability(embedded: Program) -> None:
    asked = {
        "model": "any",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 12,
        "seed": 7,
        "logprobs": True,
    }
    answer = httpx.post(
        f"{embedded.url}/v1/chat/completions", json=asked, headers=embedded.auth, timeout=60
    )
    turn = turn_of(embedded, answer.headers)
    tokens = turn["tokens"]
    assert len(tokens["sampled_ids"]) == len(tokens["logprobs"]) == turn["usage"]["output_tokens"]
    assert len(tokens["prompt_ids"]) == turn["usage"]["input_tokens"]
    assert all(value <= 0 for value in tokens["logprobs"])
    shown = [entry["logprob"] for entry in answer.json()["choices"][0]["logprobs"]["content"]]
    assert shown == pytest.approx(tokens["logprobs"][: len(shown)], abs=1e-6)
    again = httpx.post(
        f"{embedded.url}/v1/chat/completions", json=asked, headers=embedded.auth, timeout=60
    )
    assert turn_of(embedded, again.headers)["tokens"]["sampled_ids"] == tokens["sampled_ids"]


def test_many_at_once_get_the_answers_they_would_get_alone(embedded: Program) -> None:
    def ask(number: int) -> str:
        asked = {
            "model": "any",
            "messages": [{"role": "user", "content": f"Count from {number}."}],
            "max_tokens": 6,
            "temperature": 0,
        }
        answer = httpx.post(
            f"{embedded.url}/v1/chat/completions", json=asked, headers=embedded.auth, timeout=120
        )
        return str(answer.json()["choices"][0]["message"]["content"])

    alone = [ask(number) for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, range(3))) == alone


def test_a_client_that_leaves_stops_the_model(embedded: Program) -> None:
    asked = {
        "model": "any",
        "messages": [{"role": "user", "content": "Tell me a very long story."}],
        "max_tokens": 1000,
        "stream": True,
    }
    with httpx.stream(
        "POST", f"{embedded.url}/v1/chat/completions", json=asked, headers=embedded.auth, timeout=60
    ) as answer:
        next(answer.iter_raw())
        turn = answer.headers["x-metaclaw-turn"]
    deadline_s = time.monotonic() + 60
    while (
        found := httpx.get(f"{embedded.url}/api/turns/{turn}", headers=embedded.auth)
    ).status_code == 404:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert found.json()["end"] == "cancelled"


def test_what_it_cannot_do_is_a_clear_error(embedded: Program) -> None:
    long = {"model": "any", "messages": [{"role": "user", "content": "word " * 20_000}]}
    answer = httpx.post(
        f"{embedded.url}/v1/chat/completions", json=long, headers=embedded.auth, timeout=60
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    picture = [{"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}]
    refused = httpx.post(
        f"{embedded.url}/v1/chat/completions",
        json={"model": "any", "messages": [{"role": "user", "content": picture}]},
        headers=embedded.auth,
    )
    assert refused.status_code == 400
    nowhere = httpx.post(
        f"{embedded.url}/v1/embeddings", json={"model": "any", "input": "x"}, headers=embedded.auth
    )
    assert nowhere.status_code == 404
    assert "embedded" in nowhere.json()["error"]["message"]


def test_without_any_provider_a_persons_standing_words_still_become_a_skill_at_once(
    embedded: Program,
) -> None:
    def ask(words: str) -> httpx.Response:
        body = {
            "model": "any",
            "messages": [{"role": "user", "content": words}],
            "max_tokens": 4,
            "temperature": 0,
        }
        answer = httpx.post(
            f"{embedded.url}/v1/chat/completions", json=body, headers=embedded.auth, timeout=60
        )
        assert answer.status_code == 200, answer.text
        return answer

    assert ask("Which sauce goes with a birthday cake?").headers["x-metaclaw-skills"] == ""
    ask("From now on, always bake a birthday cake with oat flour.")
    embedded.wait_for("/api/skills", lambda facts: len(facts["skills"]) == 1)
    assert (
        ask("Bake a birthday cake for nine guests.")
        .headers["x-metaclaw-skills"]
        .startswith("bake-a-birthday-cake")
    )
    learning = embedded.get("/api/status")["learning"]
    assert (learning["judge"], learning["listen"]) == (None, None)
    assert "no model reads" in embedded.command("status").stdout
