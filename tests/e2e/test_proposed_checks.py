"""Checks that a model proposes, on the real program: 25 right ones are taken, 15 wrong ones
refused, and the rule says why.
"""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.proposed_checks import (
    FINE_ANSWERS,
    FINE_COMMANDS,
    FINE_FILES,
    RIGHT,
    WRONG,
    ProposedCheck,
)
from tests.e2e.test_fast_loop import program_of
from tests.e2e.test_listening import ADA, is_settled
from tests.support.depth import IS_NIGHTLY
from tests.support.program import PATIENCE_S, Program
from tests.support.provider import Json, Seen, _json
from tests.support.teacher import FAIL, HEARD_NOTHING, PASS, Teacher, message_of, understood

ALL = (*RIGHT, *WRONG)
# Each night all of them; for every change one of each kind of check, and of each kind of mistake.
TRIED_RIGHT = (
    RIGHT
    if IS_NIGHTLY
    else tuple({(one.check.partition(":")[0], bool(one.did)): one for one in RIGHT}.values())
)
TRIED_WRONG = WRONG if IS_NIGHTLY else tuple({one.wrong: one for one in WRONG}.values())
EMOJIS = "not: [\U0001f300-\U0001faff✅]"
PROGRAM = (
    "program: |\n  import json, sys\n  sys.exit(1 if 'maybe' in json.load(sys.stdin)['text']"
    " else 0)"
)


def said(one: ProposedCheck) -> str:
    return f"From here on: {one.text}"


def heard(prompt: str) -> Json:
    """What a scripted reader makes of a message."""
    message = message_of(prompt)
    if "maybe" in message:
        return understood("Never say maybe")
    if "emojis already" in message:
        return understood("Never use emojis", correction="it used emojis")
    for one in ALL:
        if one.text in message:
            correction = "it did what it should not do" if one.did else None
            return understood(one.text, correction=correction)
    return HEARD_NOTHING


def proposed(prompt: str) -> Json:
    """The check that a scripted model proposes for a rule."""
    others = (
        ProposedCheck("Never say maybe", PROGRAM, "maybe", "yes"),
        ProposedCheck("Never use emojis", EMOJIS, "Done 🎉", "Done"),
    )
    one = next(one for one in (*ALL, *others) if one.text in prompt)
    return {"check": one.check, "violates": one.violates, "complies": one.complies}


def pass_a_day(program: Program) -> None:
    """Restart with all rules a day older, and give the learner something to do."""
    assert program.stop() == 0
    with sqlite3.connect(program.home / "ledger.db") as database:
        database.execute("UPDATE generations SET published_us = published_us - 90000000000")
    database.close()
    program.start()
    Agent(program).say("Hello.")


class Worker(Teacher):
    """Does what it is told in words: runs a command, writes a file, or says something."""

    async def _answer(self, seen: Seen, receive: Any, send: Any) -> None:
        if seen.header("x-metaclaw-purpose") is not None:
            await super()._answer(seen, receive, send)
            return
        last = seen.json["messages"][-1]
        told = (
            last["content"]
            if isinstance(last["content"], str)
            else "".join(part["text"] for part in last["content"])
        )
        message: Json = {"role": "assistant", "content": "All right."}
        if last["role"] == "tool":
            message["content"] = "It is done."
        elif told.startswith("Please run: "):
            message = called("bash", {"command": told.removeprefix("Please run: ")})
        elif told.startswith("Please write: "):
            path, _, text = told.removeprefix("Please write: ").partition("\n")
            message = called("write", {"path": path, "content": text})
        elif told.startswith("Please say: "):
            message["content"] = told.removeprefix("Please say: ")
        finish = "tool_calls" if "tool_calls" in message else "stop"
        whole: Json = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "worker",
        }
        choice: Json = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        usage: Json = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        await _json(send, 200, {**whole, "choices": [choice], "usage": usage})


def called(name: str, arguments: Json) -> Json:
    call: Json = {
        "id": "call_1",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class Agent:
    """One conversation of an agent that runs the tools it is asked to run."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.messages: list[Json] = [{"role": "system", "content": "You are a careful assistant."}]

    def say(self, words: str) -> httpx.Response:
        self.messages.append({"role": "user", "content": words})
        while True:
            body = {"model": "worker", "messages": self.messages}
            headers = {**self.program.auth, **ADA}
            answer = httpx.post(
                f"{self.program.url}/v1/chat/completions",
                json=body,
                headers=headers,
                timeout=PATIENCE_S,
            )
            assert answer.status_code == 200, answer.text
            message = answer.json()["choices"][0]["message"]
            self.messages.append(message)
            calls = message.get("tool_calls") or []
            if not calls:
                return answer
            self.messages += [
                {"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in calls
            ]


def task_of(did: str, check: str) -> str:
    if "calls of edit" in check:
        return f"Please write: {did}"
    return f"Please run: {did}" if "calls" in check else f"Please say: {did}"


@pytest.fixture
def teacher() -> Iterator[Teacher]:
    running = Worker(listen=heard, check=proposed)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def program(teacher: Teacher, tmp_path: Path) -> Iterator[Program]:
    running = program_of(teacher, tmp_path / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def rules(program: Program) -> dict[str, dict[str, Any]]:
    return {rule["text"]: rule for rule in program.get("/api/rules")["rules"]}


@pytest.mark.slow
def test_right_checks_are_taken_and_wrong_ones_refused(program: Program) -> None:
    assert (len(RIGHT), len(WRONG)) == (25, 15)
    for command in FINE_COMMANDS:
        Agent(program).say(f"Please run: {command}")
    for file in FINE_FILES:
        Agent(program).say(f"Please write: {file}")
    for words in FINE_ANSWERS:
        Agent(program).say(f"Please say: {words}")
    tried = (*TRIED_RIGHT, *TRIED_WRONG)
    for one in tried:
        agent = Agent(program)
        if one.did:
            agent.say(task_of(one.did, one.check))
        agent.say(said(one))
    program.wait_for("/api/status", is_settled, 4 * PATIENCE_S)
    pass_a_day(program)
    program.wait_for(
        "/api/rules",
        lambda facts: all(rule["check"] or rule["check_note"] for rule in facts["rules"]),
        4 * PATIENCE_S,
    )
    found = rules(program)
    assert set(found) == {one.text for one in tried}
    for one in TRIED_RIGHT:
        rule = found[one.text]
        assert (rule["check"], rule["check_state"]) == (one.check, "proposed"), (
            one.text,
            rule["check_note"],
        )
    for one in TRIED_WRONG:
        rule = found[one.text]
        assert (rule["check"], rule["check_state"]) == (None, None), one.text
        assert one.wrong is not None
        assert one.wrong in rule["check_note"], (one.text, rule["check_note"])
    answer = Agent(program).say("Please run: git status")
    placed = program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}/why")["placed"]
    assert any("was proposed and not taken" in one.get("check_note", "") for one in placed)


def test_a_real_turn_confirms_a_check_and_a_program_waits_for_a_person(program: Program) -> None:
    force = RIGHT[0]
    Agent(program).say(said(force))
    Agent(program).say("From here on: Never say maybe")
    program.wait_for("/api/rules", lambda facts: len(facts["rules"]) == 2)
    program.wait_for("/api/status", is_settled)
    assert rules(program)[force.text]["check_state"] is None
    pass_a_day(program)
    program.wait_for(
        "/api/rules",
        lambda facts: all(rule["check"] or rule["check_note"] for rule in facts["rules"]),
    )
    assert rules(program)[force.text]["check_state"] == "proposed"
    agent = Agent(program)
    answer = agent.say("Please run: git push origin feature")
    assert rules(program)[force.text]["name"] in answer.headers["x-metaclaw-skills"]
    agent.say("Thanks, go on.")
    program.wait_for(
        "/api/rules",
        lambda facts: any(rule["check_state"] == "confirmed" for rule in facts["rules"]),
    )

    waiting = rules(program)["Never say maybe"]
    assert (waiting["check"], "a program that a model wrote" in waiting["check_note"]) == (
        None,
        True,
    )
    (candidate,) = program.get("/api/candidates?standing=waiting")["candidates"]
    assert "sys.exit" in program.command("candidates", "show", candidate["id"]).stdout
    approved = program.command("candidates", "approve", candidate["id"])
    assert approved.returncode == 0, approved.stderr
    rule = rules(program)["Never say maybe"]
    assert (rule["check"], rule["check_state"], rule["check_note"]) == (PROGRAM, "confirmed", None)


def test_a_rule_that_ends_a_habit_gets_its_check_although_earlier_answers_show_the_habit(
    program: Program, teacher: Teacher
) -> None:
    teacher.judge = lambda prompt: (
        FAIL if "followed one rule" in prompt and "🎉" in prompt else PASS
    )
    for number in range(3):
        Agent(program).say(f"Please say: Part {number} is done 🎉")
    agent = Agent(program)
    agent.say("Please say: All is done 🎉")
    agent.say("stop with the emojis already")
    program.wait_for(
        "/api/rules", lambda facts: [rule["check"] for rule in facts["rules"]] == [EMOJIS]
    )
    rule = rules(program)["Never use emojis"]
    assert (rule["check"], rule["check_state"], rule["check_note"]) == (EMOJIS, "proposed", None)
