"""Text that is made to be slow to redact, through the whole program: it is learned from all the
same, and soon.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.test_fast_loop import CORRECTION, SKILL, TASK, program_of, work
from tests.support.program import Program
from tests.support.teacher import Teacher

HOSTILE = "密码是" * 40_000  # 120 KB of characters, 360 KB of UTF-8


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Program]:
    teacher = Teacher(work=work, evolve=lambda prompt: {"skills": [SKILL]})
    teacher.start()
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]
    teacher.stop()


def test_a_hostile_tool_result_does_not_keep_the_learner_from_its_work(learner: Program) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": TASK.format(3)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": HOSTILE},
    ]
    for said in (CORRECTION, "Thank you."):
        body = {"model": "worker", "messages": messages}
        answer = httpx.post(
            f"{learner.url}/v1/chat/completions", json=body, headers=learner.auth, timeout=60
        )
        assert answer.status_code == 200, answer.text
        text = answer.json()["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": said}]
    learner.wait_for(
        "/api/skills",
        lambda facts: [skill["name"] for skill in facts["skills"]] == ["iso-release-dates"],
        60,
    )
