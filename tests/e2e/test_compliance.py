"""Compliance on the running program: its numbers equal the truth of a scripted provider that breaks
rules on a schedule.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from metaclaw.domain.compliance import measured_hash
from metaclaw.proxy.reminders import is_left_out
from metaclaw.skills import read_skill
from tests.support.program import PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider

AGENTS = {"codex": "codex_cli_rs/0.60", "claude-code": "claude-cli/2.1", "opencode": "opencode/1.0"}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
CAUGHT_UP = ("turns", "sessions", "listening")


@pytest.fixture
def program(provider: Provider, tmp_path: Path) -> Iterator[Program]:
    running = Program(tmp_path / "home", providers_toml(provider.url)).start()
    yield running
    running.kill()


def add(program: Program, **fields: object) -> str:
    made = httpx.post(
        f"{program.url}/api/rules", json=fields, headers=program.auth, timeout=PATIENCE_S
    )
    made.raise_for_status()
    return str(made.json()["name"])


def ask(
    program: Program, agent: str, wire: str, text: str, session: str, *, tools: int, stream: bool
) -> str:
    """One request; with tools, the provider calls all of them (`danger` second), and says nothing.
    The turn's id.
    """
    names = ("safe", "danger")[:tools]
    body: dict[str, Any] = {"model": "tools" if tools else "echo", "stream": stream}
    match wire:
        case "chat":
            body |= {"messages": [{"role": "user", "content": text}]}
            body |= (
                {
                    "tools": [
                        {"type": "function", "function": {"name": name, "parameters": {}}}
                        for name in names
                    ]
                }
                if tools
                else {}
            )
        case "responses":
            body |= {"input": [{"role": "user", "content": text}]}
            body |= (
                {"tools": [{"type": "function", "name": name, "parameters": {}} for name in names]}
                if tools
                else {}
            )
        case _:
            body |= {"max_tokens": 99, "messages": [{"role": "user", "content": text}]}
            body |= (
                {"tools": [{"name": name, "input_schema": {"type": "object"}} for name in names]}
                if tools
                else {}
            )
    headers = {
        **program.auth,
        "user-agent": AGENTS[agent],
        "x-session-id": session,
        "x-turn-type": "main",
    }
    answer = httpx.post(
        f"{program.url}{PATHS[wire]}", json=body, headers=headers, timeout=PATIENCE_S
    )
    assert answer.status_code == 200, answer.text
    return answer.headers["x-metaclaw-turn"]


def counted_up(program: Program) -> None:
    program.wait_for(
        "/api/status",
        lambda status: not any(status["learning"]["pending"][name] for name in CAUGHT_UP),
    )


def test_the_numbers_equal_what_the_provider_did(program: Program) -> None:
    # The scripted provider repeats what it is told, so that a reminder would be answered with the
    # word.
    no_colour = add(
        program, text="Never write the word colour.", check="not: (?i)colour", enforce="off"
    )
    one_call = add(program, text="Call one tool at a time.", check='not in calls: "n":\\s*1')
    never_danger = add(program, text="Never call danger.", check="not in calls of danger: n")
    unchecked = add(program, text="Be kind.")
    ben = add(program, text="Say hello to Ben.", scope="user:ben", check="pattern: hello")
    chance = random.Random(7)
    truth: dict[str, Counter[tuple[str, str]]] = {
        name: Counter() for name in (no_colour, one_call, never_danger, unchecked)
    }
    last_broken = ""
    for number in range(60):
        agent, wire = chance.choice(list(AGENTS)), chance.choice(list(PATHS))
        tools, stream, breaks = (
            chance.choice((0, 0, 1, 2)),
            chance.random() < 0.5,
            chance.random() < 0.3,
        )
        text = f"Paint it in {'colour' if breaks else 'grey'} {number}."
        turn = ask(program, agent, wire, text, f"s{number}", tools=tools, stream=stream)
        truth[unchecked][agent, "unknown"] += 1
        if tools:
            truth[one_call][agent, "broken" if tools == 2 else "followed"] += 1
            truth[never_danger][agent, "broken"] += tools == 2
        else:
            truth[no_colour][agent, "broken" if breaks else "followed"] += 1
            last_broken = turn if breaks else last_broken
        if number == 20:
            program.kill()
            program.start()
    counted_up(program)
    shown = {rule["name"]: rule["compliance"] for rule in program.get("/api/rules")["rules"]}
    for name, results in truth.items():
        sums = Counter[str]()
        for (_, result), times in results.items():
            sums[result] += times
        assert shown[name] == {
            "applied": sums.total(),
            "not_held": sums["followed"] + sums["broken"],
            "followed": sums["followed"],
            "broken": sums["broken"],
            "held": 0,
            "unknown": sums["unknown"],
        }
        detail = program.get(f"/api/rules/{name}")
        by_agent = {
            (agent, key): one[key]
            for agent, one in detail["by_agent"].items()
            for key in ("followed", "broken", "unknown")
        }
        assert +Counter(by_agent) == +results
        assert sum(one["applied"] for one in detail["by_model"].values()) == sums.total()
        assert sum(one["applied"] for one in detail["by_day"].values()) == sums.total()
    assert shown[ben]["applied"] == 0
    assert program.get(f"/api/rules/{no_colour}")["violations"][0]["turn"] == last_broken
    told_of(program, no_colour, truth[no_colour])


def told_of(program: Program, name: str, results: "Counter[tuple[str, str]]") -> None:
    """Watch and the commands tell of it, too."""
    followed = sum(times for (_, result), times in results.items() if result == "followed")
    line = next(
        line for line in program.command("rules").stdout.splitlines() if line.startswith(name)
    )
    assert f"followed in {followed} of {results.total()}; " in line
    words = program.command("rules", "show", name).stdout
    assert f"followed in {followed} of {results.total()}" in words
    assert words.count("the pattern was found") == min(5, results.total() - followed)
    shown = json.loads(program.command("rules", "show", name, "--json").stdout)
    assert shown["compliance"]["broken"] == results.total() - followed
    events = [json.loads(line) for line in events_of(program)]
    mine = [event for event in events if event.get("rule") == name]
    assert [event["times"] for event in mine] == list(range(1, results.total() - followed + 1))
    assert sum(event.get("skill") == name for event in events) == 1  # one notice a day


def events_of(program: Program) -> list[str]:
    last, found = newest(program), list[str]()
    with httpx.stream(
        "GET", f"{program.url}/api/events?after=0", headers=program.auth, timeout=PATIENCE_S
    ) as stream:
        seen = 0
        for line in stream.iter_lines():
            seen = int(line.removeprefix("id: ")) if line.startswith("id: ") else seen
            if line.startswith("data: "):
                found.append(line.removeprefix("data: "))
                if seen >= last:
                    return found
    return found


def newest(program: Program) -> int:
    with httpx.stream(
        "GET", f"{program.url}/api/events?after=now", headers=program.auth, timeout=PATIENCE_S
    ) as stream:
        return next(
            int(line.removeprefix(": from "))
            for line in stream.iter_lines()
            if line.startswith(": from ")
        )


def reminded_rule(program: Program, **fields: str) -> str:
    """A rule of which reminders are placed today and tomorrow, and not left out to compare."""
    today = datetime.now(UTC).astimezone().date()
    for number in range(100):
        name = add(program, text=f"Call one tool at a time, please ({number}).", **fields)
        hash_ = measured_hash(read_skill(program.home / "skills" / name / "SKILL.md"))
        if not any(is_left_out(hash_, today + timedelta(days=more)) for more in (0, 1)):
            return name
        httpx.delete(
            f"{program.url}/api/rules/{name}", headers=program.auth, timeout=PATIENCE_S
        ).raise_for_status()
    raise AssertionError("all of them are left out")


def results(wire: str) -> list[dict[str, Any]]:
    """What an agent sends after the provider has called its tools: the calls, and what they
    gave.
    """
    ids = ("call_0", "call_1") if wire != "messages" else ("toolu_0", "toolu_1")
    named = list(zip(ids, ("safe", "danger"), strict=True))
    match wire:
        case "chat":
            calls = [
                {"id": one, "type": "function", "function": {"name": name, "arguments": '{"n": 0}'}}
                for one, name in named
            ]
            given = [
                {"role": "tool", "tool_call_id": one, "content": f"done {name}"}
                for one, name in named
            ]
            return [{"role": "assistant", "content": None, "tool_calls": calls}, *given]
        case "responses":
            calls = [
                {"type": "function_call", "call_id": one, "name": name, "arguments": '{"n": 0}'}
                for one, name in named
            ]
            return [
                *calls,
                *(
                    {"type": "function_call_output", "call_id": one, "output": f"done {name}"}
                    for one, name in named
                ),
            ]
        case _:
            calls = [
                {"type": "tool_use", "id": one, "name": name, "input": {"n": 0}}
                for one, name in named
            ]
            given = [
                {"type": "tool_result", "tool_use_id": one, "content": f"done {name}"}
                for one, name in named
            ]
            return [{"role": "assistant", "content": calls}, {"role": "user", "content": given}]


@pytest.mark.parametrize("wire", list(PATHS))
def test_a_broken_rule_is_reminded_of_once_at_the_end_of_every_later_request(
    program: Program, provider: Provider, wire: str
) -> None:
    name = reminded_rule(program, check='not in calls: "n":\\s*1')
    ask(program, "codex", wire, "Begin.", "first", tools=2, stream=False)
    counted_up(program)
    history: list[dict[str, Any]] = [{"role": "user", "content": "Do it."}]
    tools = [{"name": one, "input_schema": {"type": "object"}} for one in ("safe", "danger")]
    if wire != "messages":
        tools = [
            {"type": "function", "name": one, "function": {"name": one}}
            for one in ("safe", "danger")
        ]
    sessions: set[str] = set()
    turns: list[str] = []
    for number in range(4):
        key = "input" if wire == "responses" else "messages"
        body = {
            "model": "tools",
            key: history,
            "tools": tools,
            **({"max_tokens": 9} if wire == "messages" else {}),
        }
        answer = httpx.post(
            f"{program.url}{PATHS[wire]}",
            json=body,
            headers={**program.auth, "user-agent": AGENTS["opencode"]},
            timeout=PATIENCE_S,
        )
        assert answer.status_code == 200, answer.text
        sessions.add(answer.headers["x-metaclaw-session"])
        turns.append(answer.headers["x-metaclaw-turn"])
        asked = [
            seen
            for seen in provider.requests
            if b"Do it." in seen.body and seen.header("x-metaclaw-purpose") is None
        ]
        got = asked[-1].json
        assert json.dumps(got).count("Reminder, keep to") == 1
        assert "Reminder, keep to" in json.dumps(got[key][-1])
        history += [*results(wire)]
        if number == 1:
            program.kill()
            program.start()
            counted_up(program)
    assert len(sessions) == 1
    shown = program.get(f"/api/turns/{turns[-1]}")
    assert (
        "Reminder, keep to" in json.dumps(shown["sent"]),
        "Reminder" in json.dumps(shown["request"]),
    ) == (True, False)
    counted_up(program)
    record = program.get(f"/api/rules/{name}")
    assert (
        record["compliance"]["broken"],
        record["reminders"]["placed"]["broken"],
        record["reminders"]["state"],
    ) == (
        5,
        4,
        "comparing",
    )
    assert "with a reminder" in program.command("rules", "show", name).stdout
    assert name in program.get(f"/api/turns/{turns[-1]}/why")["reminded"]
    assert (
        f"reminded of at the end of the conversation: {name}"
        in program.command("why", turns[-1]).stdout
    )


def test_a_forgotten_session_is_no_longer_counted(program: Program) -> None:
    name = add(program, text="Never write the word colour.", check="not: (?i)colour")
    for session in ("kept", "gone"):
        ask(program, "codex", "chat", "What colour?", session, tools=0, stream=False)
    counted_up(program)
    assert program.get(f"/api/rules/{name}")["compliance"]["broken"] == 2
    session = next(
        one["id"] for one in program.get("/api/sessions")["sessions"] if one["id"].endswith("gone")
    )
    httpx.post(
        f"{program.url}/api/sessions/{session}/forget", headers=program.auth, timeout=PATIENCE_S
    ).raise_for_status()
    assert program.get(f"/api/rules/{name}")["compliance"]["broken"] == 1


def test_counts_begin_anew_with_another_check(program: Program) -> None:
    name = add(program, text="Never write the word colour.")
    ask(program, "codex", "chat", "What colour?", "one", tools=0, stream=False)
    counted_up(program)
    assert program.get(f"/api/rules/{name}")["compliance"]["unknown"] == 1
    changed = {"check": "not: (?i)colour"}
    httpx.patch(
        f"{program.url}/api/rules/{name}", json=changed, headers=program.auth, timeout=PATIENCE_S
    ).raise_for_status()
    ask(program, "codex", "chat", "What colour?", "two", tools=0, stream=False)
    counted_up(program)
    assert program.get(f"/api/rules/{name}")["compliance"] == {
        "applied": 1,
        "not_held": 1,
        "followed": 0,
        "broken": 1,
        "held": 0,
        "unknown": 0,
    }
