"""Rare turns of the machinery that finds sessions."""

import json
from datetime import UTC, datetime

import pytest

from metaclaw.domain.chat import Json, Part, Text, ToolCall, Wire
from metaclaw.domain.ids import new_turn_id
from metaclaw.domain.turn import Origin, TurnEnd
from metaclaw.proxy.http.body import read
from metaclaw.proxy.sessions import Origins
from metaclaw.proxy.sessions.conversation import DigestCache, MessageChain


@pytest.fixture
def origins() -> Origins:
    return Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))


def chat(*texts: str) -> dict[str, Json]:
    return {
        "messages": [
            {"role": ("user", "assistant")[at % 2], "content": text}
            for at, text in enumerate(texts)
        ]
    }


def ask(
    origins: Origins, body: dict[str, Json], *said: Part, wire: Wire = Wire.CHAT, **headers: str
) -> Origin:
    origin = origins.identify(
        wire, {name.replace("_", "-"): value for name, value in headers.items()}, body
    )
    origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
    origins.answered(origin, "", said)
    return origin


def test_a_client_that_rewrites_the_answer_keeps_its_session(origins: Origins) -> None:
    first = ask(origins, chat("hi"), Text("<think>hm</think>hello"))
    assert ask(origins, chat("hi", "hello", "on")).session == first.session


def test_a_client_that_leaves_the_answer_out_keeps_its_session(origins: Origins) -> None:
    first = ask(origins, chat("hi"), Text("hello"))
    body: dict[str, Json] = {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "user", "content": "are you there?"},
        ]
    }
    assert ask(origins, body).session == first.session


def test_a_branch_is_not_taken_for_the_continuation_of_a_shorter_twin(origins: Origins) -> None:
    """Two talks began alike; one went on. A branch of the long one does not belong to the short
    one, whose answer was another.
    """
    ask(origins, chat("hi"), Text("short"))
    long = ask(origins, chat("hi"), Text("long"))
    assert ask(origins, chat("hi", "long", "go"), Text("ok")).session == long.session
    ask(origins, chat("hi", "long", "go", "ok", "left"))
    branch = ask(origins, chat("hi", "long", "go", "ok", "right"))
    assert branch.session_began
    assert branch.parent == long.session


def test_a_history_left_with_the_provider_is_continued_whatever_the_answer_was(
    origins: Origins,
) -> None:
    first = origins.identify(Wire.RESPONSES, {}, {"input": "hi"})
    origins.finished(first, new_turn_id(), TurnEnd.COMPLETED)
    origins.answered(first, "resp_1", (Text("hello"),))
    assert (
        ask(origins, {"input": "on", "previous_response_id": "resp_1"}, wire=Wire.RESPONSES).session
        == first.session
    )


def test_calls_of_responses_tell_agents_apart(origins: Origins) -> None:
    one = origins.identify(Wire.RESPONSES, {}, {"input": "hi"})
    two = origins.identify(Wire.RESPONSES, {}, {"input": "hi"})
    for origin, call in ((one, "call_a"), (two, "call_b")):
        origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        origins.answered(origin, "", (ToolCall(call, "n", "{}"),))
    for origin, call in ((one, "call_a"), (two, "call_b")):
        items: list[Json] = [
            {"role": "user", "content": "hi"},
            {"type": "custom_tool_call", "call_id": call, "name": "n", "input": "x"},
            {
                "type": "custom_tool_call_output",
                "call_id": call,
                "output": [{"type": "input_text", "text": "ok"}],
            },
        ]
        assert ask(origins, {"input": items}, wire=Wire.RESPONSES).session == origin.session


@pytest.mark.parametrize("wire", [Wire.CHAT, Wire.RESPONSES, Wire.MESSAGES])
def test_tool_outputs_tell_agents_apart_whose_words_and_ids_are_the_same(
    origins: Origins, wire: Wire
) -> None:
    def body(output: str, *more: Json) -> dict[str, Json]:
        question: Json = {"role": "user", "content": "look"}
        match wire:
            case Wire.CHAT:
                call: Json = {
                    "role": "assistant",
                    "tool_calls": [{"id": "call_0", "type": "custom", "custom": {"name": "n"}}],
                }
                return {
                    "messages": [
                        question,
                        call,
                        {"role": "tool", "tool_call_id": "call_0", "content": output},
                        *more,
                    ]
                }
            case Wire.RESPONSES:
                call = {
                    "type": "function_call",
                    "call_id": "call_0",
                    "name": "n",
                    "arguments": "{}",
                }
                return {
                    "input": [
                        question,
                        call,
                        {"type": "function_call_output", "call_id": "call_0", "output": output},
                        *more,
                    ]
                }
            case _:
                call = {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "call_0", "name": "n", "input": {}}],
                }
                result: Json = {
                    "type": "tool_result",
                    "tool_use_id": "call_0",
                    "content": [{"type": "text", "text": output}],
                }
                return {
                    "max_tokens": 9,
                    "messages": [question, call, {"role": "user", "content": [result]}, *more],
                }

    one, two = ask(origins, body("one"), wire=wire), ask(origins, body("two"), wire=wire)
    more: tuple[Json, ...] = (
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "on"},
    )
    assert ask(origins, body("one", *more), wire=wire).session == one.session
    assert ask(origins, body("two", *more), wire=wire).session == two.session


def test_another_tool_output_is_no_retry(origins: Origins) -> None:
    def body(output: str) -> dict[str, Json]:
        call: Json = {
            "role": "assistant",
            "tool_calls": [{"id": "call_0", "function": {"name": "n", "arguments": "{}"}}],
        }
        return {
            "messages": [
                {"role": "user", "content": "look"},
                call,
                {"role": "tool", "tool_call_id": "call_0", "content": output},
            ]
        }

    failed = origins.identify(Wire.CHAT, {}, body("one"))
    origins.finished(failed, new_turn_id(), TurnEnd.FAILED)
    assert ask(origins, body("two")).session != failed.session
    assert ask(origins, body("one")).session == failed.session


def test_a_trace_that_spans_a_run_tells_agents_apart(origins: Origins) -> None:
    one = ask(
        origins, chat("hi"), traceparent="00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-1111111111111111-01"
    )
    ask(origins, chat("hi"), traceparent="00-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb-1111111111111111-01")
    onward = ask(
        origins,
        chat("hi", "ho", "on"),
        traceparent="00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-2222222222222222-01",
    )
    assert onward.session == one.session


def test_only_so_many_conversations_run_side_by_side_under_one_key(origins: Origins) -> None:
    for number in range(12):
        ask(origins, chat(f"talk {number}"), x_session_id="s")
    newest = ask(origins, chat("talk 11", "ok", "on"), x_session_id="s")
    oldest = ask(origins, chat("talk 0", "ok", "on"), x_session_id="s")
    assert newest.task == oldest.task == "on"
    session = origins._sessions.get(newest.session)
    assert session is not None
    assert len(session.threads) == 8


def test_callers_with_one_key_are_forgotten_one_by_one() -> None:
    origins = Origins(max_sessions=2, now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    ask(origins, chat("a"), x_session_id="s", authorization="1")
    two = ask(origins, chat("b"), x_session_id="s", authorization="2")
    ask(origins, chat("c"), x_session_id="other")
    assert (
        ask(origins, chat("b", "ok", "on"), x_session_id="s", authorization="2").session
        == two.session
    )


def test_one_of_two_restored_namesakes_is_chosen_by_what_it_said(origins: Origins) -> None:
    first = ask(origins, chat("a"), x_session_id="s", authorization="1")
    second = ask(origins, chat("b"), x_session_id="s", authorization="2")
    assert ask(origins, chat("a", "ok", "on"), x_session_id="s").session == first.session
    assert ask(origins, chat("b", "ok", "on"), x_session_id="s").session == second.session


def test_housekeeping_that_shows_an_older_point_belongs_to_that_session(origins: Origins) -> None:
    ask(origins, chat("hi"))
    main = ask(origins, chat("hi", "ho", "on"))
    ask(origins, chat("hi", "ho", "on", "ok", "further"))
    assert ask(origins, chat("hi", "ho", "summarise"), x_turn_type="side").session == main.session
    assert ask(origins, chat("something else"), x_turn_type="side").session != main.session


def test_the_cache_of_digests_is_bounded_and_changes_nothing() -> None:
    small, large = DigestCache(limit=4), DigestCache()
    body = chat(*(f"message {number}" for number in range(20)))
    chains = [
        MessageChain(Wire.CHAT, body, cache).digests for cache in (small, large, small, large)
    ]
    assert all(chain == chains[0] for chain in chains)
    assert len(set(chains[0])) == 20
    assert len(small._known) <= 4


@pytest.mark.parametrize("grown_by", [1, 2, 4, 5])
def test_a_long_conversation_has_the_chain_that_it_has_without_its_past(grown_by: int) -> None:
    cache = DigestCache()
    for length in range(10, 60, grown_by):
        texts = [f"message {number}" for number in range(length)]
        body: dict[str, Json] = {"messages": [{"role": "system", "content": "You help."}]}
        body["messages"] += [  # type: ignore[operator]
            *chat(*texts)["messages"],  # type: ignore[misc]
            {"role": "tool", "tool_call_id": f"call_{length}", "content": [{}] * length},
        ]
        chain, alone = (MessageChain(Wire.CHAT, body, one) for one in (cache, DigestCache()))
        assert (chain.digests, chain.indices) == (alone.digests, alone.indices)
        assert (chain.users, chain.head) == (alone.users, alone.head)
    other = {"messages": [{"role": "system", "content": "No."}, *body["messages"][1:]]}  # type: ignore[index, misc]
    assert MessageChain(Wire.CHAT, other, cache).head != chain.head


def test_a_message_without_a_digest_stays_without_one_in_a_long_conversation() -> None:
    cache = DigestCache()
    block = '{"type": "tool_use", "id": "t", "name": "add", "input": {"n": %s}}'
    for number, is_same in (("1", True), ("1" + 30 * "0", False)):
        told = '{"role": "assistant", "content": [' + block % number + "]}"
        said = ", ".join(json.dumps({"role": "user", "content": "more " * 200}) for _ in range(30))
        body = read(Wire.CHAT, f'{{"messages": [{said}, {told}]}}'.encode())
        assert body.listed is not None
        heads = [MessageChain(Wire.CHAT, body, cache).head for _ in range(2)]
        assert (heads[0] == heads[1]) is is_same


def test_what_is_known_of_programs_is_bounded(origins: Origins) -> None:
    for number in range(1500):
        ask(origins, {"messages": [{"role": "system", "content": f"You are program {number}."}]})
    assert 0 < len(origins._clients._by_system) <= 1024


def test_a_request_without_any_message_is_a_session_that_nobody_continues(origins: Origins) -> None:
    first = ask(origins, {"messages": []})
    assert ask(origins, {"messages": []}).session != first.session
    assert ask(origins, chat("hi")).session != first.session
