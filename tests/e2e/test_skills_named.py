"""Skills for requests without tools, on the real program: the model that reads a person's message
names those that it needs, and they are in full from the session's next request on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_fast_loop import Talk, program_of
from tests.support.program import Program
from tests.support.provider import Json
from tests.support.teacher import HEARD_NOTHING, Teacher, message_of, prompt_text

SKILL = """---
name: {}
description: {}
---
1. Begin.
2. Look at the {} twice.
"""
SKILLS = {
    "deploy-checklist": "When deploying a service to production",
    "violin-bow": "When rehairing the bow of a violin",
}
SECTION = "== Skills there are\n"
ADA = {"X-User-Id": "ada"}
IN_FULL = "Look at the deploy-checklist twice."


def listen(prompt: str) -> Json:
    is_wanted = "the usual" in message_of(prompt) and SECTION in prompt
    named = ["deploy-checklist", "no-such-skill", "secret-skill"] if is_wanted else []
    return {**HEARD_NOTHING, "skills": named}


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(listen=listen)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def program(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    home = tmp_path / "home"
    for name, trigger in SKILLS.items():
        _write(home, name, SKILL.format(name, trigger, name))
    bobs = SKILL.format("secret-skill", "When doing what only bob does", "secret-skill")
    _write(home, "secret-skill", bobs.replace("\n---\n1.", "\nscope: user:bob\n---\n1."))
    running = program_of(teacher, home).start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def _write(home: Path, name: str, text: str) -> None:
    folder = home / "skills" / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text)


def settle(program: Program) -> None:
    program.wait_for("/api/status", lambda facts: not any(facts["learning"]["pending"].values()))


def newest(teacher: Teacher) -> str:
    return prompt_text(teacher.asked(None)[-1].json)


def test_the_session_has_a_named_skill_from_its_next_request_on_also_after_a_restart(
    program: Program, teacher: Teacher
) -> None:
    talk = Talk(program, **ADA)
    talk.say("please do the usual")
    assert talk.placed == []
    settle(program)
    shown = prompt_text(teacher.asked("listen")[-1].json).split(SECTION)[1].split("\n==")[0]
    assert sorted(shown.split("\n")[:-1]) == [f"- {one}: {why}" for one, why in SKILLS.items()]
    assert program.stop() == 0
    program.start()
    talk.headers |= program.auth
    talk.say("and now?")
    assert talk.placed == ["deploy-checklist"]
    talk.say("go on, the usual")
    settle(program)
    talk.say("and then?")
    assert talk.placed == ["deploy-checklist"]
    assert newest(teacher).count(IN_FULL) == 1
    shown = prompt_text(teacher.asked("listen")[-1].json)
    assert "- violin-bow: " in shown
    assert "- deploy-checklist: " not in shown.split(SECTION)[1].split("\n==")[0]


def test_nothing_is_named_for_requests_with_tools_or_without_need(
    program: Program, teacher: Teacher
) -> None:
    talk = Talk(program, **ADA)
    talk.say("how are you?")
    settle(program)
    talk.say("and now?")
    assert talk.placed == []
    headers = {**program.auth, **ADA, "X-Session-Id": "tools"}
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
    history: list[dict[str, Any]] = []
    for words in ("please do the usual", "and now?"):
        history.append({"role": "user", "content": words})
        body = {"model": "worker", "messages": history, "tools": [tool]}
        url = f"{program.url}/v1/chat/completions"
        answer = httpx.post(url, json=body, headers=headers, timeout=30)
        assert answer.headers["x-metaclaw-skills"] == ""
        history.append(answer.json()["choices"][0]["message"])
        settle(program)
    asked = [prompt_text(one.json) for one in teacher.asked("listen")]
    assert sum(SECTION in one for one in asked) == 2
    assert IN_FULL not in newest(teacher)
