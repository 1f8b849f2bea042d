"""Listening on the real program: what a person says once is in force for their next request, also
if the program is killed.
"""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_fast_loop import TASK, Talk, program_of, wait_until, work
from tests.support.program import Program
from tests.support.provider import Json
from tests.support.teacher import HEARD_NOTHING, Teacher, message_of, prompt_text, understood

ADA = {"X-User-Id": "ada"}
MEANT = "Write release dates as YYYY-MM-DD"
SAID = "hm, we write release dates like 2026-02-01 here, YYYY-MM-DD"


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(
        work=work,
        listen=lambda prompt: (
            understood(MEANT) if "YYYY-MM-DD" in message_of(prompt) else HEARD_NOTHING
        ),
    )
    running.start()
    yield running
    running.stop()


@pytest.fixture
def program(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def is_settled(facts: dict[str, Any]) -> bool:
    return not any(facts["learning"]["pending"][kind] for kind in ("turns", "listening", "lessons"))


def rules(program: Program) -> list[str]:
    return [rule["text"] for rule in program.get("/api/rules")["rules"]]


def test_what_is_said_once_is_followed_replaced_and_taken_back(
    program: Program, teacher: Teacher
) -> None:
    talk = Talk(program, **ADA)
    talk.say(TASK.format(1))
    talk.say(SAID)
    program.wait_for("/api/status", is_settled)
    assert rules(program) == [MEANT]
    assert Talk(program, **ADA).say(TASK.format(2)) == "Released on 2026-02-01."
    assert Talk(program, **{"X-User-Id": "bob"}).say(TASK.format(2)) == "Released on 01/02/2026."

    (name,) = (rule["name"] for rule in program.get("/api/rules")["rules"])
    changed = understood("Write release dates as 1 Feb 2026", op="replace", targets=[name])
    teacher.listen = lambda prompt: changed if "mind" in message_of(prompt) else HEARD_NOTHING
    Talk(program, **ADA).say("I changed my mind: release dates like 1 Feb 2026")
    program.wait_for(
        "/api/rules",
        lambda facts: (
            [rule["text"] for rule in facts["rules"]] == ["Write release dates as 1 Feb 2026"]
        ),
    )

    # Only the listener says that it replaces the other; the second opinion takes it for new.
    told = (
        f"replaced “{MEANT}” by “Write release dates as 1 Feb 2026”; to have both: metaclaw skills"
        f" restore {name}"
    )
    assert told in program.command("rules").stdout
    assert told in program.command("status").stdout
    assert program.command("skills", "restore", name).returncode == 0
    assert sorted(rules(program)) == sorted((MEANT, "Write release dates as 1 Feb 2026"))
    assert told not in program.command("rules").stdout
    assert program.command("undo").returncode == 0

    (name,) = (rule["name"] for rule in program.get("/api/rules")["rules"])
    back = understood("", op="retract", targets=[name])
    teacher.listen = lambda prompt: back if "forget" in message_of(prompt) else HEARD_NOTHING
    Talk(program, **ADA).say("forget about release dates")
    program.wait_for("/api/rules", lambda facts: facts["rules"] == [])
    Talk(program, **ADA).say(TASK.format(3))
    assert "release dates as" not in prompt_text(teacher.asked(None)[-1].json)


def test_a_message_is_read_after_the_program_was_killed_between_word_and_rule(
    teacher: Teacher, tmp_path: Path
) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    async def hangs(prompt: str) -> Json:
        is_asked.set()
        while not may_answer.is_set():
            await asyncio.sleep(0.01)
        return HEARD_NOTHING

    knows, teacher.listen = teacher.listen, hangs
    program = program_of(teacher, tmp_path / "home").start()
    Talk(program, **ADA).say(SAID)
    assert is_asked.wait(60)
    assert program.get("/api/status")["learning"]["pending"]["listening"] > 0
    program.kill()
    may_answer.set()
    teacher.listen = knows
    again = program_of(teacher, tmp_path / "home").start()
    again.wait_for("/api/status", is_settled)
    assert rules(again) == [MEANT]
    assert again.stop() == 0


def test_a_rule_taken_back_stays_away_after_the_program_was_killed(
    teacher: Teacher, tmp_path: Path
) -> None:
    program = program_of(teacher, tmp_path / "home").start()
    Talk(program, **ADA).say(SAID)
    facts = program.wait_for("/api/rules", lambda facts: facts["rules"] != [])
    name = facts["rules"][0]["name"]
    teacher.listen = lambda prompt: (
        understood("", op="retract", targets=[name])
        if "forget" in message_of(prompt)
        else understood(MEANT)
    )
    Talk(program, **ADA).say("forget about dates")
    program.wait_for("/api/rules", lambda facts: facts["rules"] == [])
    program.kill()
    again = program_of(teacher, tmp_path / "home").start()
    again.wait_for("/api/status", is_settled)
    assert rules(again) == []
    assert again.stop() == 0


def test_a_reader_that_is_down_delays_nobody_and_reads_later(
    program: Program, teacher: Teacher
) -> None:
    knows, teacher.listen = teacher.listen, lambda prompt: 500
    talk = Talk(program, **ADA)
    assert talk.say(SAID) == "Released on 2026-02-01."
    wait_until(lambda: teacher.asked("listen"))
    assert rules(program) == []
    program.wait_for("/api/status", lambda facts: facts["learning"]["listener"]["failing"])
    assert "! What you say is not being read: " in program.command("status").stdout
    teacher.listen = knows
    program.wait_for(
        "/api/rules", lambda facts: [rule["text"] for rule in facts["rules"]] == [MEANT]
    )
    program.wait_for("/api/status", lambda facts: not facts["learning"]["listener"]["failing"])
    assert "not read" not in program.command("status").stdout


def test_a_passthrough_home_takes_sure_phrases_and_says_who_would_read_the_rest(
    teacher: Teacher, tmp_path: Path
) -> None:
    provider = (
        f'[[providers]]\nname = "world"\nkind = "openai"\nbase_url = "{teacher.url}/v1"\nwires ='
        ' ["chat"]\n'
    )
    program = Program(tmp_path / "home", f'{provider}api_key = "passthrough"\n').start()
    headers = {
        "Authorization": "Bearer theirs",
        "X-Metaclaw-Key": program.auth["authorization"].removeprefix("Bearer "),
    }
    Talk(program, **headers, **ADA).say("From now on, always write release dates as YYYY-MM-DD.")
    program.wait_for("/api/rules", lambda facts: len(facts["rules"]) == 1)
    Talk(program, **headers, **ADA).say(SAID)
    program.wait_for("/api/status", is_settled)
    assert len(rules(program)) == 1
    assert teacher.asked("listen") == []
    assert "listen.provider" in program.command("status").stdout
    assert program.stop() == 0
