"""How a transcript shows tool calls, and what was placed beside a turn."""

import json
from dataclasses import replace
from typing import Any

import pytest

from metaclaw.api.web.calls import patch_lines, shown_call
from metaclaw.domain.ids import new_turn_id
from metaclaw.domain.person import HOME
from metaclaw.domain.turn import Exchange, Placement
from tests.api.recorded import record
from tests.api.stage import Stage
from tests.api.test_access import ask
from tests.support.cases import each

pytestmark = pytest.mark.anyio
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch"


@each(
    "arguments",
    [{"command": "make test"}, {"cmd": "make test"}, {"command": ["bash", "-lc", "make test"]}],
)
def test_a_command_is_shown_as_one(arguments: dict[str, Any]) -> None:
    assert shown_call(json.dumps(arguments)) == {"command": "make test"}


def test_an_edit_is_shown_as_the_lines_that_change() -> None:
    given = {"file_path": "a.py", "old_string": "a\nb\nc", "new_string": "a\nB\nc"}
    shown = shown_call(json.dumps(given))
    assert shown["path"] == "a.py"
    assert shown["lines"] == [("same", " a"), ("del", "-b"), ("add", "+B"), ("same", " c")]
    several = {"filePath": "a.py", "edits": [{"oldText": "a", "newText": "b"}, {"oldText": "c"}]}
    assert shown_call(json.dumps(several))["lines"] == [("del", "-a"), ("add", "+b")]


def test_a_new_file_and_a_long_one_are_shown_as_added_lines() -> None:
    given = {"file_path": "a.py", "content": "\n".join(map(str, range(300)))}
    shown = shown_call(json.dumps(given))
    assert (shown["lines"][0], len(shown["lines"]), shown["more"]) == (("add", "+0"), 200, 100)


@each("arguments", [PATCH, json.dumps({"patch": PATCH}), json.dumps({"command": PATCH})])
def test_a_patch_is_shown_line_by_line(arguments: str) -> None:
    marks = [mark for mark, _ in shown_call(arguments)["lines"]]
    assert marks == ["head", "head", "head", "del", "add", "head"]


@each("arguments", ["", "not json", "[1]", '{"query": "x"}', '{"path": "a.py"}', "{" * 100_000])
def test_another_call_is_shown_as_it_is(arguments: str) -> None:
    assert shown_call(arguments) == {}


def test_only_a_patch_is_shown_as_one() -> None:
    assert patch_lines("diff --git a/x b/x\n+1")[-1] == ("add", "+1")
    assert patch_lines("- a list\n+ of things") == []


async def test_what_was_placed_stands_beside_the_turn_that_had_it_first(stage: Stage) -> None:
    asked = {"text": "Use tabs.", "scope": "user:ann"}
    rule = (await stage.http.post("/api/rules", json=asked)).json()["name"]
    place = Placement(b"", (rule,), "Use tabs.")
    call = {"id": "1", "function": {"name": "Bash", "arguments": '{"command": "make <b>"}'}}
    said = {"choices": [{"message": {"role": "assistant", "tool_calls": [call]}}]}
    first = await record(stage)
    request = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Go."}]}).encode()
    for _ in range(2):
        exchange = Exchange(request=request, said=json.dumps(said).encode())
        await stage.record(
            replace(
                first,
                id=new_turn_id(),
                stamp=replace(first.stamp, generation=1, skills=(rule,)),
                exchange=exchange,
                placements=(place,),
            )
        )
    status, page = await ask(stage, HOME, "GET", f"/ui/sessions/{first.session}")
    text = page.decode()
    assert status == 200
    assert text.count("placed by MetaClaw") == 1
    assert text.count("The prompt has 1 item of MetaClaw, as before") == 1
    assert '<span class="sign" aria-hidden="true">$ </span>make &lt;b&gt;</pre>' in text
