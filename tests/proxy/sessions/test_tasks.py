"""The person's own words, where tasks begin, and what of a history counts."""

from datetime import UTC, datetime

import pytest

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.ids import new_turn_id
from metaclaw.domain.turn import Origin, TurnEnd
from metaclaw.proxy.sessions import Origins
from tests.support.cases import each

OPENCLAW = "<!-- openclaw:attempt:STABLE -->\nYou are a personal assistant running inside OpenClaw."
AIDER = "Act as an expert software developer."
CLAUDE = {"x-claude-code-session-id": "01a1dc98-5699-7411-9f18-0bae2f67e745"}
CODEX = {"originator": "codex_exec", "session-id": "s"}
HERMES = "You are Hermes Agent, an intelligent AI assistant created by Nous Research."
FLOATING: Json = {
    "role": "user",
    "content": [
        {
            "type": "text",
            "text": (
                "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnone\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
            ),
        }
    ],
}
CACHED: Json = {"type": "ephemeral"}


def user(content: Json) -> Json:
    return {"role": "user", "content": content}


def said(content: Json) -> Json:
    return {"role": "assistant", "content": content}


class Desk:
    """One client's successive requests."""

    def __init__(
        self, wire: Wire = Wire.CHAT, system: str = "S", headers: dict[str, str] | None = None
    ) -> None:
        self.origins = Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
        self.wire = wire
        self.system = system
        self.headers = headers or {}

    def send(self, *items: Json) -> Origin:
        body: dict[str, Json] = {"model": "m", "max_tokens": 100}
        if self.wire is Wire.MESSAGES:
            body |= {"system": self.system, "messages": list(items)}
        else:
            system: Json = {"role": "system", "content": self.system}
            body["input" if self.wire is Wire.RESPONSES else "messages"] = [system, *items]
        origin = self.origins.identify(self.wire, self.headers, body)
        self.origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        return origin


@each(
    ("system", "headers", "content", "task"),
    [
        (
            OPENCLAW,
            {},
            (
                "[Sun 2026-11-15 00:40 UTC] say hello\n\nRuntime: agent=main | session=agent:main:x"
                " | sessionId=s-1 | x"
            ),
            "say hello",
        ),
        (
            OPENCLAW,
            {},
            (
                'Conversation info (untrusted metadata):\n```json\n{"message_id": "1"}\n```\n\n'
                'Sender (untrusted metadata):\n```json\n{"id": 2}\n```\n\n'
                "[message_id: abc]\n[Sun 2026-11-15 00:40 UTC] water the plants"
            ),
            "water the plants",
        ),
        (
            AIDER,
            {},
            (
                "make it print hello\n\nTo suggest changes to a file you MUST return the entire"
                " content."
            ),
            "make it print hello",
        ),
        (AIDER, {}, "fix it\n\n# *SEARCH/REPLACE block* Rules:\n\nEvery block …", "fix it"),
        (
            "You are a helpful assistant that can interact with a computer.",
            {},
            (
                "Please solve this issue: say hello\nand bye\n\nYou can execute bash commands and"
                " edit files"
            ),
            "say hello\nand bye",
        ),
        (
            "# AGENTS.md\n\n# SOUL.md",
            {},
            "# 🌟 BOOTSTRAP MODE ACTIVATED\n\n…\n\n**Original user message:**\nsay hello",
            "say hello",
        ),
        (
            "# AGENTS.md\n\n# SOUL.md",
            {},
            "# 🌟 引导模式已激活\n\n…\n\n**用户的原始消息：**\n你好",
            "你好",
        ),
        (
            "CoPaw",
            {},
            "# BOOTSTRAP MODE\n\n`BOOTSTRAP.md` exists — first-time setup.\n\n---\n\nsay hello",
            "say hello",
        ),
        (
            "CoPaw",
            {},
            "# 引导模式\n\n工作目录中存在 `BOOTSTRAP.md` — 首次设置。\n\n---\n\n你好",
            "你好",
        ),
        ("You are opencode", {}, '"say hello"', "say hello"),
        ("You are Qwen Code, an interactive CLI agent", {}, "say hello", "say hello"),
        (
            HERMES,
            {},
            (
                '[IMPORTANT: The user has invoked the "ops" skill, …]\n\nNever stop.\nThe user has'
                " provided the following instruction alongside the skill invocation: say"
                " hello\n\n[Runtime note: x]"
            ),
            "say hello",
        ),
        (
            HERMES,
            {},
            (
                '[IMPORTANT: The user has invoked the "a" skill bundle, …]\nUser instruction: say'
                " hello\n\n[Loaded as part of the a] x"
            ),
            "say hello",
        ),
        (
            HERMES,
            {},
            "say hello\n\n<memory-context>\n[System note: recalled]\nalways\n</memory-context>",
            "say hello",
        ),
        ("You are opencode", {}, '"a" or "b"', '"a" or "b"'),
        (
            "S",
            CLAUDE,
            "<command-name>/review</command-name><command-args>the parser</command-args>",
            "the parser",
        ),
        ("S", CLAUDE, "<ide_opened_file>a.py</ide_opened_file>fix this file", "fix this file"),
        ("S", {}, "<system-reminder>be brief</system-reminder>\nfix it", "fix it"),
        (
            "S",
            {"user-agent": "Mozilla/5.0 (Macintosh; x)", "accept-encoding": "identity"},
            "Make a plan.\n\n## Learned Skills from Prior Runs\n### arc-x",
            "Make a plan.",
        ),
        (
            "S",
            {"user-agent": "Mozilla/5.0 (Macintosh; x)", "accept-encoding": "identity"},
            (
                "Make a plan.\n\n## Lessons from Prior Runs\nx\n## Learned Skills from Prior"
                " Runs\ny\n## Matched Domain Skills\nz"
            ),
            "Make a plan.",
        ),
        ("S", {}, "if a < b and b > c, say so", "if a < b and b > c, say so"),
    ],
)
def test_the_task_is_what_the_person_said(
    system: str, headers: dict[str, str], content: str, task: str
) -> None:
    origin = Desk(system=system, headers=headers).send(user(content))
    assert origin.task == task
    assert [anchor.index for anchor in origin.anchors] == [1]


@each(
    ("headers", "content"),
    [
        (CODEX, "<environment_context>\n  <cwd>/tmp</cwd>\n</environment_context>"),
        (CODEX, "# AGENTS.md instructions for /tmp\n\n<INSTRUCTIONS>"),
        (CODEX, "Another language model started to solve this problem and produced a summary"),
        (
            CLAUDE,
            "<system-reminder>\n[SYSTEM NOTIFICATION - NOT USER INPUT]\nThis is an automated event",
        ),
        (CLAUDE, "[SYSTEM NOTIFICATION - NOT USER INPUT] a job is done"),
        (CLAUDE, "[Request interrupted by user]"),
        (CLAUDE, "<local-command-stdout>ok</local-command-stdout>"),
        (
            CLAUDE,
            "This session is being continued from a previous conversation that ran out of context.",
        ),
        ({}, [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]),
        ({}, [{"type": "image", "source": {}}]),
    ],
)
def test_a_program_speaking_in_the_users_place_begins_no_task(
    headers: dict[str, str], content: Json
) -> None:
    desk = Desk(Wire.MESSAGES, headers=headers)
    first = desk.send(user("real work"))
    onward = desk.send(user("real work"), said("ok"), user(content))
    assert (onward.session, onward.segment, onward.segment_began) == (first.session, 0, False)
    assert onward.task == "real work"
    assert [anchor.index for anchor in onward.anchors] == [0]


@pytest.mark.parametrize(
    "content",
    [
        "[Continuing toward your standing goal]\nGoal: ship it",
        "[IMPORTANT: Background process 7 matched x]",
        (
            '[IMPORTANT: The "ops" skill is auto-loaded. Follow its instructions for this'
            " session.]\n\nNever stop."
        ),
        (
            "You've reached the maximum number of tool-calling iterations allowed. Please provide a"
            " final response"
        ),
    ],
)
def test_what_hermes_says_in_a_persons_place_begins_no_task(content: str) -> None:
    desk = Desk(system=HERMES)
    desk.send(user("real work"))
    assert desk.send(user("real work"), said("ok"), user(content)).task == "real work"


def test_setting_up_a_chat_is_no_task() -> None:
    set_up = (
        "This is the Qwen Code. We are setting up the context for our chat.\nMy operating system"
        " is: linux"
    )
    desk = Desk(system="You are Qwen Code, an interactive CLI agent")
    origin = desk.send(user(set_up), said("Got it. Thanks for the context!"), user("Make a file."))
    assert (origin.task, origin.segment, origin.agent) == ("Make a file.", 0, "qwen-code")
    assert [anchor.index for anchor in origin.anchors] == [3]


def test_a_person_may_interrupt_in_the_same_message_as_a_tools_output() -> None:
    desk = Desk(Wire.MESSAGES)
    desk.send(user("count"))
    parts: Json = [
        {"type": "tool_result", "tool_use_id": "t", "content": "1"},
        {"type": "text", "text": "stop at ten"},
    ]
    onward = desk.send(
        user("count"),
        said([{"type": "tool_use", "id": "t", "name": "n", "input": {}}]),
        user(parts),
    )
    assert (onward.segment, onward.task) == (1, "stop at ten")


def test_tool_rounds_stay_in_their_segment() -> None:
    desk = Desk()
    call: Json = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "function": {"name": "n", "arguments": "{}"}}],
    }
    result: Json = {"role": "tool", "tool_call_id": "call_1", "content": "1"}
    first = desk.send(user("count"))
    second = desk.send(user("count"), call, result)
    third = desk.send(user("count"), call, result, said("done"), user("again"))
    assert [origin.segment_began for origin in (first, second, third)] == [True, False, True]
    assert [origin.segment for origin in (first, second, third)] == [0, 0, 1]
    assert third.anchors[0] == second.anchors[0] == first.anchors[0]
    assert [anchor.index for anchor in third.anchors] == [1, 5]


def test_a_floating_message_never_counts() -> None:
    desk = Desk(system=OPENCLAW)
    call: Json = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call1", "function": {"name": "n", "arguments": "{}"}}],
    }
    result: Json = {"role": "tool", "tool_call_id": "call1", "content": "1"}
    first = desk.send(user("count"), FLOATING)
    second = desk.send(user("count"), call, result, FLOATING)
    assert second.session == first.session
    assert second.anchors == first.anchors
    assert second.task == "count"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (user("hi"), user([{"type": "text", "text": "hi", "cache_control": CACHED}])),
        (
            user(
                [
                    {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                    {"type": "text", "text": "hi"},
                ]
            ),
            user("hi"),
        ),
        (
            said(
                [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "hi"},
                ]
            ),
            said("hi"),
        ),
        (
            said([{"type": "tool_use", "id": "toolu_ab-1", "name": "n", "input": {"a": 1}}]),
            said(
                [
                    {
                        "type": "tool_use",
                        "id": "tooluab1",
                        "name": "n",
                        "input": {"a": 1},
                        "cache_control": CACHED,
                    }
                ]
            ),
        ),
        (
            user(
                [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": "a long output",
                        "cache_control": CACHED,
                    }
                ]
            ),
            user(
                [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": "[Old tool result content cleared]",
                    }
                ]
            ),
        ),
    ],
)
def test_what_clients_rewrite_does_not_break_the_chain(before: Json, after: Json) -> None:
    desk = Desk(Wire.MESSAGES)
    first = desk.send(user("begin"), before)
    assert desk.send(user("begin"), after, said("ok"), user("on")).session == first.session


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (user("hi"), user("ho")),
        (user("hi"), said("hi")),
        (
            said([{"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}}]),
            said([{"type": "tool_use", "id": "t", "name": "n", "input": {"a": 2}}]),
        ),
        (user(["a", "b"]), user("ab")),
    ],
)
def test_what_differs_breaks_the_chain(before: Json, after: Json) -> None:
    desk = Desk(Wire.MESSAGES)
    first = desk.send(user("begin"), before)
    assert desk.send(user("begin"), after, said("ok"), user("on")).session != first.session


def test_responses_items_are_read_like_messages() -> None:
    desk = Desk(Wire.RESPONSES)
    question: Json = {
        "type": "message",
        "id": "msg_1",
        "role": "user",
        "content": [{"type": "input_text", "text": "count"}],
    }
    first = desk.send(question)
    answer: list[Json] = [
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "ok", "annotations": []}],
            "status": "completed",
        },
        {"type": "function_call", "call_id": "call_1", "name": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "1"},
    ]
    second = desk.send({"role": "user", "content": "count"}, *answer)
    third = desk.send({"role": "user", "content": "count"}, *answer[1:], user("more"))
    assert first.session == second.session == third.session
    assert (third.segment, [anchor.index for anchor in third.anchors]) == (1, [1, 5])


def test_instructions_a_string_input_and_the_other_wires_say_the_same() -> None:
    origins = Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    bodies: list[tuple[Wire, dict[str, Json]]] = [
        (Wire.RESPONSES, {"instructions": "S", "input": "hi"}),
        (Wire.RESPONSES, {"input": [{"role": "developer", "content": "S"}, user("hi")]}),
        (
            Wire.CHAT,
            {
                "messages": [
                    {"role": "system", "content": [{"type": "text", "text": "S"}]},
                    user("hi"),
                ]
            },
        ),
        (
            Wire.MESSAGES,
            {
                "system": [{"type": "text", "text": "S", "cache_control": CACHED}],
                "messages": [user("hi")],
            },
        ),
        (
            Wire.MESSAGES,
            {
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: a"},
                    {"type": "text", "text": "S"},
                ],
                "messages": [user("hi")],
            },
        ),
    ]
    assert len({origins.identify(wire, {}, body).head for wire, body in bodies}) == 1


def test_aider_keeps_its_session_while_its_files_move_behind_the_history() -> None:
    desk = Desk(system=AIDER)
    files: list[Json] = [
        user("I have *added these files to the chat* …"),
        said("Ok, any changes I propose will be to those files."),
    ]
    example: list[Json] = [user("Change the greeting to be more casual"), said("Ok, I will: …")]
    reminder = (
        "\n\nTo suggest changes to a file you MUST return the entire content of the updated file."
    )
    first = desk.send(*example, *files, user("print hello" + reminder))
    second = desk.send(
        *example, user("print hello"), said("done"), *files, user("print bye" + reminder)
    )
    assert second.session == first.session
    assert (second.segment, second.task) == (1, "print bye")
    assert [anchor.index for anchor in first.anchors] == [5]
    assert [anchor.index for anchor in second.anchors] == [3, 7]


def test_a_very_long_text_is_cut() -> None:
    assert len(Desk().send(user("word " * 100_000)).task) == 16_000
