"""Failing calls of real agents, as `scripts/record-failures` recorded them: each is found with the
call that worked instead, and has the same signature when other names stand in it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from metaclaw.domain.chat import Message, ToolCall, ToolResult, Wire
from metaclaw.outcome import episodes_of, failure_signature
from metaclaw.wires import wire_format

Json = dict[str, Any]
WIRES = {
    "chat/completions": Wire.CHAT,
    "responses": Wire.RESPONSES,
    "messages": Wire.MESSAGES,
}
NO_FAILURE = ("no_hit", "failing_tests")
"""Scenarios that teach nothing."""
OF_PROGRAMS = {
    "module": "shell · *.py · ModuleNotFoundError",
    "push": "shell · git push · error: failed to push some refs to name",
    "make": "shell · make · make: *** no rule to make target name. stop.",
}
"""Scenarios whose error is the words of a program: it has one signature in all agents."""


def pairs() -> list[Any]:
    """The two sessions of each agent, model and scenario."""
    path = Path(__file__).with_name("failing_results.json")
    found: dict[tuple[str, str, str], list[Json]] = {}
    for one in json.loads(path.read_text())["sessions"]:
        found.setdefault((one["agent"], one["model"], one["scenario"]), []).append(one)
    rows = []
    for (agent, model, scenario), sessions in found.items():
        rows.append(pytest.param(*sessions, id=f"{agent} {model} {scenario}"))
    return rows


def read(session: Json) -> tuple[Message, ...]:
    """The conversation, with a task before it."""
    key = "input" if session["wire"] == "responses" else "messages"
    items = [{"role": "user", "content": "Do the next task."}, *session["items"]]
    body = {"model": session["model"], "max_tokens": 100, key: items}
    return tuple(wire_format(WIRES[session["wire"]]).parse_request(body).messages)


def signatures(messages: tuple[Message, ...]) -> list[str]:
    """The signature of each result, as the proxy asks for it."""
    parts = [part for message in messages for part in message.parts]
    calls = {part.id: part for part in parts if isinstance(part, ToolCall)}
    results = [part for part in parts if isinstance(part, ToolResult)]
    return [failure_signature(calls[one.call_id], one) for one in results]


def last_call(messages: tuple[Message, ...]) -> ToolCall:
    parts = [part for message in messages for part in message.parts]
    return [part for part in parts if isinstance(part, ToolCall)][-1]


@pytest.mark.parametrize(("one", "other"), pairs())
def test_a_failure_is_found_with_its_fix_and_has_one_signature(one: Json, other: Json) -> None:
    if one["scenario"] in NO_FAILURE:
        assert episodes_of(read(one)) == episodes_of(read(other)) == []
        assert not any((*signatures(read(one)), *signatures(read(other))))
        return
    found = set()
    for session in (one, other):
        messages = read(session)
        [episode] = episodes_of(messages)
        if session["scenario"] == "unread":
            assert "settings.ini" in episode.fix.arguments
        else:
            assert episode.fix == last_call(messages)
        assert [text for text in signatures(messages) if text] == [str(episode.signature)]
        found.add(str(episode.signature))
    assert len(found) == 1
    [signature] = found
    assert signature == OF_PROGRAMS.get(one["scenario"], signature)
