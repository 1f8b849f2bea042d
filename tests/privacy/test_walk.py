"""Conversations: every string of a step is looked at, what is not text stays, and a secret cut in two is whole again."""

import json
from dataclasses import replace

import pytest

from metaclaw.domain.chat import Image, Message, Opaque, Reasoning, Role, Text, Tool, ToolCall, ToolResult, Wire
from metaclaw.privacy import Redactor
from tests.privacy.stage import Used, step

KEY = "sk-proj-Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF"
PICTURE = "data:image/png;base64,iVBORw0KGgoAb3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF2hJ5lM8oP1r"


def test_every_place_of_a_step_is_looked_at() -> None:
    everywhere = step(
        f"task {KEY}",
        used=[Used("bash", {"command": f"echo {KEY}", "env": {"API_TOKEN": "a1b2c3d4e5"}}, f"out {KEY}")],
        answer=f"answer {KEY}",
        said_after=f"after {KEY}",
        tools=[Tool("t", f"described {KEY}", {"default": KEY}, extra={"x": [KEY]})],
        after=[
            Message(Role.USER, (Text("hi", {"note": KEY}), Opaque(Wire.CHAT, {"deep": [{"k": KEY}]})), name=KEY, extra={KEY: KEY})
        ],
    )
    with_reasoning = replace(everywhere, answer=(Reasoning(f"thought {KEY}", signature="sealed"), *everywhere.answer))
    done = Redactor().step(replace(with_reasoning, previous=with_reasoning))
    assert KEY not in repr(done)
    assert "a1b2c3d4e5" not in repr(done)
    assert done.previous is not None
    assert KEY not in repr(done.previous)
    assert isinstance(done.answer[0], Reasoning)
    assert done.answer[0].signature is None


def test_one_secret_has_one_placeholder_through_a_whole_step() -> None:
    done = Redactor().step(step(f"use {KEY}", answer=f"I used {KEY}, not {KEY[:-4]}WXYZ"))
    assert done.task == "use <API_KEY:openai>"
    assert done.answer == (Text("I used <API_KEY:openai>, not <API_KEY:openai#2>"),)


def test_a_step_without_secrets_is_the_same_step() -> None:
    plain = step("Fix it.", used=[Used("bash", {"command": "make  test", "n": 1}, "ok")], said_after="thanks")
    assert Redactor().step(plain) == plain


def test_arguments_stay_json_and_keep_their_other_fields() -> None:
    call = ToolCall("c", "bash", json.dumps({"command": f"curl -H 'X-Api-Key: {KEY}' x", "password": "hunter2", "timeout": 5}))
    (done,) = Redactor().rewriter().parts((call,))
    assert isinstance(done, ToolCall)
    value = json.loads(done.arguments)
    assert value["timeout"] == 5
    assert value["password"] == "<PASSWORD>"
    assert KEY not in value["command"]


def test_a_value_is_judged_by_the_name_or_flag_before_it() -> None:
    value = {"args": ["--user", "jo", "--password", "hunter2", "run"], "pin_password": 83019274, "count": 83019274, "secret": True}
    assert Redactor().rewriter().value(value) == {  # type: ignore[arg-type]
        "args": ["--user", "jo", "--password", "<PASSWORD:command>", "run"],
        "pin_password": "<PASSWORD>",
        "count": 83019274,
        "secret": True,
    }


def test_arguments_that_are_no_json_are_read_as_text() -> None:
    (done,) = Redactor().rewriter().parts((ToolCall("c", "bash", f'{{"command": "echo {KEY}'),))
    assert isinstance(done, ToolCall)
    assert KEY not in done.arguments


@pytest.mark.parametrize("at", range(1, len(KEY)))
def test_a_key_cut_by_the_end_of_a_part_is_found(at: int) -> None:
    one, other = Redactor().rewriter().parts((Text(f"it is {KEY[:at]}"), Text(f"{KEY[at:]} I think")))
    assert isinstance(one, Text)
    assert isinstance(other, Text)
    left = one.text + other.text
    assert not any(KEY[start : start + 10] in left for start in range(8, len(KEY) - 10))


def test_a_password_is_found_behind_a_name_in_the_part_before() -> None:
    done = Redactor().rewriter().parts((Text("DB_PASSWORD="), Text("tiger77 is set")))
    assert "tiger77" not in repr(done)


def test_a_whole_key_at_the_end_of_a_part_leaves_the_next_part_alone() -> None:
    done = (
        Redactor()
        .rewriter()
        .messages((Message(Role.USER, (Text(f"key {KEY}"),)), Message(Role.ASSISTANT, (Text("Thanks for it"),))))
    )
    assert done[1].parts == (Text("Thanks for it"),)


def test_pictures_stay_and_their_addresses_are_read() -> None:
    inside = ToolResult("c", (Image(PICTURE), Text(KEY)))
    done = Redactor().rewriter().parts((Image(PICTURE), Image(f"https://x.example/a.png?token={KEY}"), inside))
    assert done[0] == Image(PICTURE)
    assert KEY not in repr(done)
    assert isinstance(done[2], ToolResult)
    assert done[2].parts[0] == Image(PICTURE)


def test_text_in_a_data_url_is_read() -> None:
    (done,) = Redactor().rewriter().parts((Image(f"data:text/plain,password={'hunter2'}&key={KEY}"),))
    assert KEY not in repr(done)


def test_json_that_is_nested_without_end_is_left_out_rather_than_followed() -> None:
    value: object = KEY
    for _ in range(200):
        value = [value]
    done = Redactor().rewriter().value(value)  # type: ignore[arg-type]
    assert KEY not in repr(done)
