"""The learning budget on the real program: used up, learning waits and says so; raised, it goes on;
everything is counted once.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.test_fast_loop import SKILL, TASK, Talk, program_of, work
from tests.support.program import PATIENCE_S, Program
from tests.support.teacher import Teacher

TINY = ("--set", "learning.daily_tokens=10")


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Teacher(work=work, evolve=lambda prompt: {"skills": [SKILL]})
    running.start()
    yield running
    running.stop()


def say_fails(talk: Talk) -> None:
    body = {"turn": talk.turn, "outcome": "fail", "comment": ""}
    httpx.post(
        f"{talk.program.url}/api/feedback", json=body, headers=talk.program.auth, timeout=PATIENCE_S
    ).raise_for_status()


def calls_of(program: Program) -> dict[str, tuple[int, int]]:
    """Calls and tokens by purpose, as the program tells."""
    found: dict[str, tuple[int, int]] = {}
    for one in program.get("/api/cost")["calls"]:
        calls, tokens = found.get(one["purpose"], (0, 0))
        found[one["purpose"]] = (
            calls + one["calls"],
            tokens + one["input_tokens"] + one["output_tokens"],
        )
    return found


def test_learning_waits_when_the_budget_is_used_up_and_goes_on_when_it_is_raised(
    teacher: Teacher, tmp_path: Path
) -> None:
    program = program_of(teacher, tmp_path / "home").start(*TINY)
    judged, corrected = Talk(program), Talk(program)
    for number, talk in enumerate((judged, corrected)):
        talk.say(TASK.format(number))
    say_fails(corrected)  # before it ends: of what a person has judged no judge is asked
    for talk in (judged, corrected):
        talk.end()
    waiting = [{"purpose": purpose, "count": 1} for purpose in ("evolve", "judge")]
    status = program.wait_for(
        "/api/status",
        lambda facts: (
            all(one in facts["learning"]["budget"]["waiting"] for one in waiting)
            and set(facts["learning"]["pending"].values()) == {0}
        ),
    )
    budget = status["learning"]["budget"]
    assert (budget["limit"], budget["used"], budget["left"]) == (10, 0, 10)
    assert not [purpose for purpose in ("judge", "evolve", "listen") if teacher.asked(purpose)]
    words = program.command("status", "--all").stdout
    assert "0 of 10 tokens used today" in words
    assert "learning waits because the budget is used up" in words
    assert judged.say("And who is it for?") == "Released on 01/02/2026."  # serving never waits

    assert program.stop() == 0, program.log.read_text()[-4000:]
    program.start()
    program.wait_for(
        "/api/skills",
        lambda facts: [skill["name"] for skill in facts["skills"]] == ["iso-release-dates"],
    )
    turn = program.wait_for(
        f"/api/turns/{corrected.turn}", lambda facts: facts["verdict"] is not None
    )
    assert turn["verdict"]["source"] == "user"
    program.wait_for(
        "/api/status",
        lambda facts: facts["learning"]["judged_today"]["turns"] == len(teacher.asked("judge")) > 0,
    )
    assert program.get("/api/status")["learning"]["budget"]["waiting"] == []
    assert program.stop() == 0, program.log.read_text()[-4000:]


def test_every_call_is_counted_once_and_survives_a_kill(teacher: Teacher, tmp_path: Path) -> None:
    program = program_of(teacher, tmp_path / "home").start()
    talk = Talk(program)
    talk.say(TASK.format(1))
    talk.end()
    other = Talk(program)
    other.say(TASK.format(2))
    other.end()
    say_fails(other)
    program.wait_for(
        "/api/skills",
        lambda facts: [skill["name"] for skill in facts["skills"]] == ["iso-release-dates"],
    )
    program.wait_for("/api/status", lambda facts: set(facts["learning"]["pending"].values()) == {0})
    program.kill()
    program.start()
    # The scripted provider counts 11 tokens in and 7 out for each call.
    heard = {purpose: len(teacher.asked(purpose)) for purpose in ("listen", "judge", "evolve")}
    assert calls_of(program) == {purpose: (calls, 18 * calls) for purpose, calls in heard.items()}
    day = program.get("/api/cost")["days"][0]
    assert (day["traffic"]["turns"], day["traffic"]["input_tokens"]) == (2, 22)
    assert program.get("/api/status")["learning"]["asked"]["judge"]["calls"] == heard["judge"]
    shown = program.command("cost").stdout
    assert "tokens used today" in shown
    assert "world/judge-model" in shown
    assert "unpriced" in shown
    assert program.stop() == 0, program.log.read_text()[-4000:]
