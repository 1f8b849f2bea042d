"""Skills found by meaning with a provider's embeddings, on the real program: also where they are
slow or fail.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_meaning import eventually_placed, placed
from tests.support.embeddings import EmbeddingProvider
from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml

pytest.importorskip("numpy")

SKILL = """---
name: travel-booking
description: When a trip must be arranged
examples: ["Book a hotel"]
---

1. Train under five hours, else plane.
"""
PARAPHRASE = "reserve lodging"
BY_WORDS = "When a trip must be arranged, book a hotel"
SETTINGS = '[skills]\nembeddings_provider = "openai"\nembeddings_model = "toy"\n'
ENV = {**NOT_LEARNING, "METACLAW__SKILLS__RETRIEVAL": "auto"}


@pytest.fixture
def provider() -> Iterator[EmbeddingProvider]:
    server = EmbeddingProvider()
    server.start()
    yield server
    server.stop()


def started(folder: Path, provider: EmbeddingProvider) -> Program:
    skill = folder / "home" / "skills" / "travel-booking" / "SKILL.md"
    skill.parent.mkdir(parents=True, exist_ok=True)
    skill.write_text(SKILL)
    return Program(folder / "home", SETTINGS + providers_toml(provider.url), env=ENV).start()


def state_of(program: Program) -> dict[str, str]:
    found: dict[str, str] = program.get("/api/status")["skills"]["retrieval"]
    return found


def ready(program: Program) -> None:
    program.wait_for("/api/status", lambda facts: facts["skills"]["retrieval"]["state"] == "ready")


def test_a_task_in_other_words_gets_the_skill_by_a_providers_embeddings(
    tmp_path: Path, provider: EmbeddingProvider
) -> None:
    program = started(tmp_path, provider)
    try:
        ready(program)
        assert state_of(program)["embeddings"] == "openai/toy"
        assert eventually_placed(program, PARAPHRASE)
        assert placed(program, "who painted the Mona Lisa") == []
        assert "openai/toy" in program.command("status", "--all").stdout
        doctor = program.command("doctor").stdout
        assert "with openai/toy, to which requests are sent" in doctor
        calls = [seen for seen in provider.requests if seen.path == "/v1/embeddings"]
        assert {seen.header("authorization") for seen in calls} == {"Bearer sk-openai"}
        assert {seen.json["model"] for seen in calls} == {"toy"}
    finally:
        program.stop()
    [vectors] = (tmp_path / "home" / "models" / "meaning").glob("vectors*")
    assert b"hotel" not in vectors.read_bytes()
    fetched = len(provider.embedded)
    program = started(tmp_path, provider)
    try:
        ready(program)
        assert len(provider.embedded) == fetched
    finally:
        program.stop()


def test_secrets_do_not_leave_with_a_request(tmp_path: Path, provider: EmbeddingProvider) -> None:
    secret = "ghp_" + "a8Kd93jfLs02mXq7Zt4vBn61RcYw5EhU0pGi"
    program = started(tmp_path, provider)
    try:
        ready(program)
        placed(program, f"reserve lodging with {secret}")
        ends = time.monotonic() + PATIENCE_S
        while not any(
            "lodging with" in text for call in provider.embedded for text in call["input"]
        ):
            assert time.monotonic() < ends
            time.sleep(0.02)
        assert not any(secret in text for call in provider.embedded for text in call["input"])
    finally:
        program.stop()


@pytest.mark.parametrize("is_slow", [True, False])
def test_slow_or_failing_embeddings_leave_the_decision_to_words(
    tmp_path: Path, provider: EmbeddingProvider, is_slow: bool
) -> None:
    program = started(tmp_path, provider)
    try:
        ready(program)
        if is_slow:
            provider.embedding_delay_s = 12.0
        else:
            provider.embedding_status = 500
        for number in range(8):
            began = time.monotonic()
            assert placed(program, f"{PARAPHRASE} {'x' * number}") == []
            assert is_slow is False or time.monotonic() - began < 10
        assert placed(program, BY_WORDS) == ["travel-booking"]
        if is_slow:
            provider.embedding_delay_s = 0.0
        else:
            program.wait_for(
                "/api/status",
                lambda facts: "no embeddings today" in facts["skills"]["retrieval"]["state"],
            )
            provider.embedding_status = 200
        assert eventually_placed(program, PARAPHRASE)
        assert state_of(program)["state"] == "ready"
    finally:
        program.stop()
    assert len(re.findall("embeddings_failed", program.log.read_text())) == (0 if is_slow else 1)


def test_a_provider_without_embeddings_is_asked_again_ever_more_rarely(
    tmp_path: Path, provider: EmbeddingProvider
) -> None:
    provider.embedding_status = 404
    program = started(tmp_path, provider)
    try:
        program.wait_for(
            "/api/status",
            lambda facts: facts["skills"]["retrieval"]["state"].startswith("words decide"),
        )
        assert placed(program, BY_WORDS) == ["travel-booking"]
        assert placed(program, PARAPHRASE) == []
        time.sleep(3)
        assert len(provider.embedded) <= 4
        assert program.log.read_text().count("embeddings_failed") == 1
        provider.embedding_status = 200
        ready(program)
        assert eventually_placed(program, PARAPHRASE)
    finally:
        program.stop()
