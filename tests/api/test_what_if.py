"""Trying a check on what is recorded: counts by agent and project, the newest turns, and limits."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from metaclaw.api import what_if
from metaclaw.domain.ids import SkillName, new_session_id, new_turn_id
from metaclaw.domain.turn import EnforcedRule, Enforcement, HoldEnd, Scope, Turn, TurnKind
from tests.api.recorded import record
from tests.api.stage import Stage
from tests.api.test_access import BOB, ask

pytestmark = pytest.mark.anyio
NO_PIP = "not in calls of shell: pip install"


def answering(turn: Turn, command: str | None, said: str = "Done.", **changes: Any) -> Turn:
    """The turn of another session, with this command as its tool call, or this text."""
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if command is not None:
        arguments = json.dumps({"command": command})
        call = {"id": "c1", "type": "function"}
        function = {"name": "shell", "arguments": arguments}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [call | {"function": function}],
        }
    finish = "stop" if command is None else "tool_calls"
    answer = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    asked = {
        "model": "m-1",
        "messages": [{"role": "user", "content": "Install the package attrs."}],
    }
    exchange = replace(
        turn.exchange, request=json.dumps(asked).encode(), said=json.dumps(answer).encode()
    )
    fresh = {"id": new_turn_id(), "session": new_session_id(), "exchange": exchange}
    return replace(turn, **{**fresh, **changes})


async def a_month(stage: Stage) -> dict[str, Turn]:
    """Five turns: two that install with pip, one with uv, one without a call, one long ago."""
    first = await record(stage)
    old = replace(first.times, received_at=datetime.now(UTC) - timedelta(days=40))
    shop = Scope(user="ann", workspace="/shop")
    found = {
        "old": answering(first, "pip install attrs", times=old),
        "pip": answering(first, "pip install attrs", agent="codex", scope=shop),
        "uv": answering(first, "uv add attrs", agent="codex", scope=shop),
        "words": answering(first, None),
        "bob": answering(first, "pip install rich", agent="claude-code", scope=Scope(user="bob")),
    }
    for turn in found.values():
        await stage.record(turn)
    return found


async def test_a_new_check_is_counted_by_agent_and_project(stage: Stage) -> None:
    turns = await a_month(stage)
    before = await stage.get("/api/rules")
    found = (await stage.http.post("/api/whatif", json={"check": NO_PIP})).json()
    assert (found["read"], found["applied"], found["broken"], found["unknown"]) == (5, 3, 2, 0)
    assert (found["can_hold"], found["stopped"], found["days"]) == (True, None, 30)
    assert found["by_agent"] == {
        "claude-code": {"applied": 1, "broken": 1},
        "codex": {"applied": 2, "broken": 1},
    }
    assert found["by_project"]["/shop"] == {"applied": 2, "broken": 1}
    assert [one["turn"] for one in found["turns"]] == [turns["bob"].id, turns["pip"].id]
    assert "pip install" in found["turns"][0]["answer"]
    assert await stage.get("/api/rules") == before
    whole = (await stage.http.post("/api/whatif", json={"check": NO_PIP, "days": 60})).json()
    assert (whole["broken"], whole["turns"][-1]["turn"]) == (3, turns["old"].id)


async def test_a_rule_is_tried_where_it_applies_with_its_own_check_or_another(
    stage: Stage,
) -> None:
    await a_month(stage)
    fields = {"text": "Use uv.", "check": NO_PIP, "workspace": "/shop", "name": "use-uv"}
    assert (await stage.http.post("/api/rules", json=fields)).status_code == 200
    mine = (await stage.http.post("/api/whatif", json={"rule": "use-uv"})).json()
    assert (mine["applied"], mine["broken"]) == (2, 1)
    other = {"rule": "use-uv", "check": "not in calls of shell: uv add"}
    assert (await stage.http.post("/api/whatif", json=other)).json()["broken"] == 1
    words = {"check": "pattern: ^Never", "workspace": None}
    await stage.refused(400, "POST", "/api/whatif", json=words)
    said = (await stage.http.post("/api/whatif", json={"check": "pattern: ^Never"})).json()
    assert (said["can_hold"], said["applied"], said["broken"]) == (False, 1, 1)


async def test_calls_that_were_held_count_as_well(stage: Stage) -> None:
    base = answering(await record(stage), "pip install attrs")
    attempt = replace(base, kind=TurnKind.SIDE, kind_reason="attempt")
    rule = EnforcedRule(SkillName("use-uv"), 1, HoldEnd.COMPLIED)
    complied = answering(base, "uv add attrs", enforcement=Enforcement((rule,), (attempt,)))
    await stage.record(replace(complied, session=base.session))
    found = (await stage.http.post("/api/whatif", json={"check": NO_PIP})).json()
    assert (found["applied"], found["broken"]) == (1, 1)


async def test_it_stops_at_its_limits_and_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_month(stage)
    asked = {"check": NO_PIP, "turns": 2}
    found = (await stage.http.post("/api/whatif", json=asked)).json()
    assert (found["read"], found["stopped"]) == (2, "only the newest 2 turns were read")
    monkeypatch.setattr(what_if, "_MOST_S", 0.0)
    found = (await stage.http.post("/api/whatif", json={"check": NO_PIP})).json()
    assert (found["read"], found["stopped"]) == (1, "only 1 turns could be read in 0 s")
    with what_if._running:
        busy = await stage.refused(429, "POST", "/api/whatif", json={"check": NO_PIP})
    assert "being tried" in busy


async def test_what_cannot_be_tried_is_refused_with_the_reason(stage: Stage) -> None:
    await stage.http.post("/api/rules", json={"text": "Be kind."})
    refused = await stage.refused(409, "POST", "/api/whatif", json={"rule": "be-kind"})
    assert "be-kind has no check" in refused
    await stage.refused(409, "POST", "/api/whatif", json={"rule": "nothing"})
    await stage.refused(409, "POST", "/api/whatif", json={"check": "not in calls of shell: ("})


async def test_a_members_trial_reads_only_their_own_turns(stage: Stage) -> None:
    turns = await a_month(stage)
    status, found = await ask(stage, BOB, "POST", "/api/whatif", {"check": NO_PIP})
    assert status == 200
    assert (found["read"], found["broken"]) == (1, 1)
    assert [one["turn"] for one in found["turns"]] == [turns["bob"].id]
    program = {"check": "program: |\n  print(1)"}
    assert (await ask(stage, BOB, "POST", "/api/whatif", program))[0] == 409


async def test_a_rule_for_a_situation_is_tried_only_there_and_a_program_sees_the_task(
    stage: Stage,
) -> None:
    await a_month(stage)
    check = "program: |\n  import sys; sys.exit('Install' not in sys.stdin.read())"
    installing = {"check": check, "when": "When a package is installed"}
    found = (await stage.http.post("/api/whatif", json=installing)).json()
    assert (found["applied"], found["broken"]) == (1, 0)
    cooking = {"check": check, "when": "When soup is cooked"}
    assert (await stage.http.post("/api/whatif", json=cooking)).json()["applied"] == 0
