"""Steps: every text that a judge may see is looked at, what cannot be shown is left out, and a
secret cut in two is whole again.
"""

import json
from dataclasses import replace

from metaclaw.domain.chat import (
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Wire,
)
from metaclaw.privacy import Redactor
from tests.privacy.stage import Used, redacted_arguments, redacted_parts, step

KEY = "sk-proj-Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF"


def test_every_place_of_a_step_is_looked_at() -> None:
    everywhere = step(
        f"task {KEY}",
        used=[
            Used(
                "bash", {"command": f"echo {KEY}", "env": {"API_TOKEN": "a1b2c3d4e5"}}, f"out {KEY}"
            ),
            Used(KEY, {}, "x"),
        ],
        answer=f"answer {KEY}",
        said_after=f"after {KEY}",
        tools=[Tool("t", f"described {KEY}", {"default": KEY}, extra={"x": [KEY]})],
        after=[
            Message(
                Role.USER,
                (Text("hi", {"note": KEY}), Opaque(Wire.CHAT, {"deep": [{"k": KEY}]})),
                name=KEY,
                extra={KEY: KEY},
            )
        ],
    )
    unshown: tuple[Part, ...] = (
        Reasoning(f"thought {KEY}", signature=KEY),
        Image(f"https://x.example/a.png?token={KEY}"),
    )
    done = Redactor().step(
        replace(everywhere, answer=(*unshown, *everywhere.answer), previous=everywhere)
    )
    assert KEY not in repr(done)
    assert "a1b2c3d4e5" not in repr(done)
    assert done.answer == (Text("answer <API_KEY:openai>"),)


def test_one_secret_has_one_placeholder_through_a_whole_step() -> None:
    done = Redactor().step(step(f"use {KEY}", answer=f"I used {KEY}, not {KEY[:-4]}WXYZ"))
    assert done.task == "use <API_KEY:openai>"
    assert done.answer == (Text("I used <API_KEY:openai>, not <API_KEY:openai#2>"),)


def test_a_step_without_secrets_is_the_same_step() -> None:
    plain = step(
        "Fix it.", used=[Used("bash", {"command": "make  test", "n": 1}, "ok")], said_after="thanks"
    )
    assert Redactor().step(plain) == plain


def test_arguments_stay_json_and_keep_their_other_fields() -> None:
    arguments = {"command": f"curl -H 'X-Api-Key: {KEY}' x", "password": "hunter2", "timeout": 5}
    value = json.loads(redacted_arguments(json.dumps(arguments)))
    assert value["timeout"] == 5
    assert value["password"] == "<PASSWORD>"
    assert KEY not in value["command"]


def test_a_value_is_judged_by_the_name_or_flag_before_it() -> None:
    value = {
        "args": ["--user", "jo", "--password", "hunter2", "run"],
        "pin_password": 83019274,
        "count": 83019274,
        "secret": True,
    }
    assert json.loads(redacted_arguments(json.dumps(value))) == {
        "args": ["--user", "jo", "--password", "<PASSWORD:command>", "run"],
        "pin_password": "<PASSWORD>",
        "count": 83019274,
        "secret": True,
    }


def test_arguments_that_are_no_json_or_nested_without_end_keep_no_secret() -> None:
    for arguments in (f'{{"command": "echo {KEY}', "[" * 200 + json.dumps(KEY) + "]" * 200):
        assert KEY not in redacted_arguments(arguments)


def test_a_key_cut_by_the_end_of_a_part_is_found() -> None:
    for at in range(1, len(KEY)):
        left = "".join(redacted_parts(f"it is {KEY[:at]}", f"{KEY[at:]} I think"))
        assert not any(KEY[start : start + 10] in left for start in range(8, len(KEY) - 10)), at


def test_a_password_is_found_behind_a_name_in_the_part_before() -> None:
    assert "tiger77" not in "".join(redacted_parts("DB_PASSWORD=", "tiger77 is set"))


def test_a_whole_key_at_the_end_of_a_part_leaves_the_next_part_alone() -> None:
    assert redacted_parts(f"key {KEY}", "Thanks for it")[1] == "Thanks for it"


def test_texts_of_a_tool_result_are_read_together() -> None:
    halves = ToolResult(
        "c",
        (Text(f"it is {KEY[:20]}"), Text(f"{KEY[20:]} I think"), Image(f"data:text/plain,{KEY}")),
    )
    done = Redactor().step(
        step(
            "Go.",
            after=[
                Message(Role.ASSISTANT, (ToolCall("c", "t", "{}"),)),
                Message(Role.TOOL, (halves,)),
            ],
        )
    )
    assert KEY[10:20] not in repr(done)
    assert KEY[20:30] not in repr(done)
