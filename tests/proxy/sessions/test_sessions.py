"""Which session a request belongs to: by key, by the chain of prefixes, after retries, branches,
ends and restarts.
"""

import gc
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from metaclaw.domain.chat import Json, Text, ToolCall, Wire
from metaclaw.domain.ids import TurnId, new_turn_id
from metaclaw.domain.turn import Origin, Scope, SessionTrace, TurnEnd, TurnKind
from metaclaw.proxy.sessions import Origins
from metaclaw.proxy.sessions.registry import Session

UUID = "01a1dc98-5699-7411-9f18-0bae2f67e745"


class Desk:
    """Asks as a chat client does: texts alternate between user and assistant, the first is the
    user's.
    """

    def __init__(self, *, silence_s: float = 1800.0, max_sessions: int = 10_000) -> None:
        self.time = datetime(2026, 11, 15, tzinfo=UTC)
        self.origins = Origins(
            silence_s=silence_s, max_sessions=max_sessions, now=lambda: self.time
        )

    def ask(
        self,
        *texts: str,
        system: str = "You are a tester.",
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Json] | None = None,
        end: TurnEnd | None = TurnEnd.COMPLETED,
        peer: str | None = None,
        turn: TurnId | None = None,
    ) -> Origin:
        messages: list[Json] = [{"role": "system", "content": system}]
        messages += [
            {"role": ("user", "assistant")[at % 2], "content": text}
            for at, text in enumerate(texts)
        ]
        origin = self.origins.identify(
            Wire.CHAT, headers or {}, {"model": "m", "messages": messages, **(extra or {})}, peer
        )
        if end is not None:
            self.origins.finished(origin, turn or new_turn_id(), end)
        return origin


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_our_own_header_is_the_session_id(desk: Desk) -> None:
    origin = desk.ask("hi", headers={"x-session-id": "sess-1"})
    assert (origin.session, origin.key, origin.session_began) == ("sess-1", "sess-1", True)
    assert not desk.ask("something else", headers={"x-session-id": "sess-1"}).session_began


@pytest.mark.parametrize("value", ["a/b c", "ü\n", "x" * 500, "../../etc"])
def test_a_session_id_is_safe_for_urls_headers_and_files(desk: Desk, value: str) -> None:
    session = desk.ask("hi", headers={"x-session-id": value}).session
    assert session.isascii()
    assert len(session) <= 96
    assert not set(session) & set("/ \n\\")
    assert desk.ask("ho", headers={"x-session-id": value}).session == session


def test_two_values_that_are_made_safe_alike_are_two_sessions(desk: Desk) -> None:
    assert (
        desk.ask("hi", headers={"x-session-id": "a/b"}).session
        != desk.ask("hi", headers={"x-session-id": "a_b"}).session
    )


def test_two_users_with_the_same_session_id_have_two_sessions(desk: Desk) -> None:
    first = desk.ask("hi", headers={"x-session-id": "s", "x-user-id": "ada"})
    second = desk.ask("hi", headers={"x-session-id": "s", "x-user-id": "bob"})
    assert first.session == "s"
    assert second.session != "s"
    assert first.scope == Scope("ada")
    assert (
        desk.ask("on", headers={"x-session-id": "s", "x-user-id": "bob"}).session == second.session
    )
    assert desk.ask("on", headers={"x-session-id": "s", "x-user-id": "ada"}).session == "s"


def test_two_workspaces_and_two_credentials_with_one_key_have_a_session_each(desk: Desk) -> None:
    variants = [
        {"authorization": "Bearer a"},
        {"authorization": "Bearer b"},
        {"authorization": "Bearer a", "x-workspace-id": "w"},
        {"x-api-key": "a"},
    ]
    sessions = [
        desk.ask("hi", headers={"x-session-id": "s", **headers}).session for headers in variants
    ]
    assert len(set(sessions)) == len(variants)


def test_a_renewed_token_keeps_the_session_it_continues(desk: Desk) -> None:
    before = desk.ask(
        "hi", headers={"x-claude-code-session-id": UUID, "authorization": "Bearer old"}
    )
    renewed = desk.ask(
        "hi", "ho", "go", headers={"x-claude-code-session-id": UUID, "authorization": "Bearer new"}
    )
    assert renewed.session == before.session
    stranger = desk.ask(
        "quite another thing",
        headers={"x-claude-code-session-id": UUID, "authorization": "Bearer other"},
    )
    assert stranger.session != before.session


def test_no_credential_is_kept_as_it_came() -> None:
    desk = Desk()
    desk.ask("hi", headers={"authorization": "Bearer very-secret"})
    session = next(iter(desk.origins._sessions._active.values()))
    assert all("very-secret" not in repr(getattr(session, name)) for name in session.__slots__)


@pytest.mark.parametrize(
    ("headers", "extra", "key"),
    [
        ({"session-id": "c1", "thread-id": "c1", "originator": "codex_exec"}, {}, "c1"),
        ({"x-claude-code-session-id": UUID}, {"prompt_cache_key": "other"}, UUID),
        ({}, {"prompt_cache_key": UUID, "metadata": {"session_id": "m"}}, UUID),
        ({}, {"metadata": {"user_id": f'{{"device_id":"d","session_id":"{UUID}"}}'}}, UUID),
        (
            {},
            {"metadata": {"user_id": f"user_ab_account__session_{UUID}"}},
            f"user_ab_account__session_{UUID}",
        ),
        ({}, {"metadata": {"session_id": "m-1"}}, "m-1"),
        ({}, {"session_id": "b-1"}, "b-1"),
        ({}, {"conversation": {"id": "conv_1"}}, "conv_1"),
        ({}, {"conversation": "conv_2"}, "conv_2"),
        ({"x-session-id": "ours", "session-id": "theirs"}, {"prompt_cache_key": UUID}, "ours"),
    ],
)
def test_a_key_of_the_clients_own_is_the_session(
    desk: Desk, headers: dict[str, str], extra: dict[str, Json], key: str
) -> None:
    first = desk.ask("one thing", headers=headers, extra=extra)
    second = desk.ask("and quite another", headers=headers, extra=extra)
    assert first.key == second.key == key
    assert first.session == second.session


def test_a_cache_key_shared_by_a_whole_program_does_not_merge_its_conversations(desk: Desk) -> None:
    one = desk.ask("first talk", extra={"prompt_cache_key": "my-app"})
    two = desk.ask("second talk", extra={"prompt_cache_key": "my-app"})
    assert one.session != two.session
    assert (
        desk.ask("first talk", "yes", "go on", extra={"prompt_cache_key": "my-app"}).session
        == one.session
    )


def test_a_user_id_without_a_session_in_it_is_no_key(desk: Desk) -> None:
    assert desk.ask("a", extra={"metadata": {"user_id": "u-1"}}).key is None
    assert desk.ask("a", extra={"metadata": {"user_id": "{broken"}}).key is None


def test_sub_agents_are_sessions_of_their_own_with_a_parent(desk: Desk) -> None:
    main = {"x-claude-code-session-id": UUID}
    parent = desk.ask("use a helper", headers=main)
    helper = desk.ask("do it", headers={**main, "x-claude-code-agent-id": "a1"})
    nested = desk.ask(
        "do it",
        headers={**main, "x-claude-code-agent-id": "a2", "x-claude-code-parent-agent-id": "a1"},
    )
    assert len({parent.session, helper.session, nested.session}) == 3
    assert (parent.parent, helper.parent, nested.parent) == (None, parent.session, helper.session)


def test_sub_agents_stay_apart_under_a_static_header_too(desk: Desk) -> None:
    named = {"x-session-id": "sess-1", "x-claude-code-session-id": UUID}
    parent = desk.ask("use a helper", headers=named)
    helper = desk.ask("do it", headers={**named, "x-claude-code-agent-id": "a1"})
    assert parent.session == "sess-1"
    assert helper.session != "sess-1"
    assert helper.parent == "sess-1"


def test_a_parent_that_was_never_seen_has_the_id_it_will_have(desk: Desk) -> None:
    helper = desk.ask(
        "do it", headers={"x-claude-code-session-id": UUID, "x-claude-code-agent-id": "a1"}
    )
    child = desk.ask("do it", headers={"x-session-id": "ses_2", "x-parent-session-id": "ses_1"})
    assert desk.ask("hello", headers={"x-claude-code-session-id": UUID}).session == helper.parent
    assert desk.ask("hello", headers={"x-session-id": "ses_1"}).session == child.parent == "ses_1"


def test_codex_threads_of_one_session_are_helpers(desk: Desk) -> None:
    codex = {"session-id": "root", "originator": "codex_exec"}
    root = desk.ask("go", headers={**codex, "thread-id": "root"})
    child = desk.ask(
        "go", headers={**codex, "thread-id": "child", "x-codex-parent-thread-id": "root"}
    )
    assert child.session != root.session
    assert child.parent == root.session


def test_a_conversation_without_any_key_is_one_session(desk: Desk) -> None:
    first = desk.ask("hi")
    second = desk.ask("hi", "hello", "do it")
    third = desk.ask("hi", "hello", "do it", "done", "thanks")
    assert first.session == second.session == third.session
    assert [origin.session_began for origin in (first, second, third)] == [True, False, False]
    assert [origin.segment for origin in (first, second, third)] == [0, 1, 2]


def test_another_system_text_is_another_conversation(desk: Desk) -> None:
    assert desk.ask("hi", system="A").session != desk.ask("hi", "ho", "go", system="B").session


def test_the_same_request_again_is_a_retry_only_after_a_failure(desk: Desk) -> None:
    turn = new_turn_id()
    first = desk.ask("hi", end=TurnEnd.FAILED, turn=turn)
    retry = desk.ask("hi")
    again = desk.ask("hi")
    assert (retry.session, retry.retry_of, retry.segment, retry.segment_began) == (
        first.session,
        turn,
        0,
        False,
    )
    assert again.session != first.session
    assert again.retry_of is None


def test_a_failed_request_that_comes_from_another_machine_or_program_is_another_agent(
    desk: Desk,
) -> None:
    first = desk.ask("hi", peer="10.0.0.1", headers={"user-agent": "a"}, end=TurnEnd.FAILED)
    assert desk.ask("hi", peer="10.0.0.2", headers={"user-agent": "a"}).session != first.session
    assert desk.ask("hi", peer="10.0.0.1", headers={"user-agent": "b"}).session != first.session
    assert desk.ask("hi", peer="10.0.0.1", headers={"user-agent": "a"}).session == first.session


def test_the_same_request_in_flight_is_another_agent(desk: Desk) -> None:
    assert desk.ask("hi", end=None).session != desk.ask("hi", end=None).session


def test_the_same_request_under_a_key_is_the_same_session(desk: Desk) -> None:
    headers = {"x-session-id": "s"}
    turn = new_turn_id()
    desk.ask("hi", headers=headers)
    again = desk.ask("hi", headers=headers, end=TurnEnd.CANCELLED, turn=turn)
    retry = desk.ask("hi", headers=headers)
    assert again.retry_of is None
    assert retry.retry_of == turn
    assert again.segment == retry.segment == 0


def test_two_agents_with_the_same_words_each_keep_their_own_session(desk: Desk) -> None:
    ada = desk.ask("hi", peer="10.0.0.1")
    bob = desk.ask("hi", peer="10.0.0.2")
    assert ada.session != bob.session
    for _ in range(3):
        assert desk.ask("hi", "hello", "go", peer="10.0.0.2").session == bob.session
        assert desk.ask("hi", "hello", "go", peer="10.0.0.1").session == ada.session
        desk = Desk()
        ada, bob = desk.ask("hi", peer="10.0.0.1"), desk.ask("hi", peer="10.0.0.2")


def test_the_answer_tells_apart_who_cannot_be_told_apart_otherwise(desk: Desk) -> None:
    one, two = desk.ask("hi", end=None), desk.ask("hi", end=None)
    for origin, answer in ((one, "I am one"), (two, "I am two")):
        desk.origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        desk.origins.answered(origin, "r", (Text(answer),))
    assert desk.ask("hi", "I am one ", "go").session == one.session
    assert desk.ask("hi", "I am\ntwo", "go").session == two.session


def test_tool_call_ids_tell_agents_apart_also_where_a_client_strips_them(desk: Desk) -> None:
    one, two = desk.ask("hi", end=None), desk.ask("hi", end=None)
    for origin, call in ((one, "call_1"), (two, "call_2")):
        desk.origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        desk.origins.answered(origin, "", (ToolCall(call, "sh", "{}"),))
    for origin, call in ((one, "call1"), (two, "call_2")):
        messages: list[Json] = [
            {"role": "system", "content": "You are a tester."},
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call, "function": {"name": "sh", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": call, "content": "ok"},
        ]
        assert (
            desk.origins.identify(Wire.CHAT, {}, {"messages": messages}).session == origin.session
        )


def test_a_branch_from_an_older_point_is_a_session_with_a_parent(desk: Desk) -> None:
    desk.ask("hi")
    main = desk.ask("hi", "ho", "left")
    desk.ask("hi", "ho", "left", "ok", "on")
    branch = desk.ask("hi", "ho", "right")
    assert branch.session != main.session
    assert branch.parent == main.session
    assert desk.ask("hi", "ho", "right", "ok", "on").session == branch.session


def test_after_a_failure_a_client_may_go_on_from_where_it_was(desk: Desk) -> None:
    first = desk.ask("hi")
    desk.ask("hi", "ho", "too long", end=TurnEnd.FAILED)
    assert desk.ask("hi", "ho", "shorter").session == first.session


def test_a_cancelled_turn_may_be_continued_with_its_partial_answer(desk: Desk) -> None:
    first = desk.ask("hi", end=TurnEnd.CANCELLED)
    assert desk.ask("hi", "I was just", "stop, do this").session == first.session


def test_a_history_replaced_under_its_key_begins_a_segment_and_drops_the_old_anchors(
    desk: Desk,
) -> None:
    headers = {"x-session-id": "s"}
    desk.ask("hi", headers=headers)
    before = desk.ask("hi", "ho", "go", headers=headers)
    after = desk.ask("summary so far", headers=headers)
    assert (before.segment, after.segment, after.segment_began) == (1, 2, True)
    assert not {anchor.digest for anchor in after.anchors} & {
        anchor.digest for anchor in before.anchors
    }


def test_two_conversations_side_by_side_under_one_key_do_not_disturb_each_other(desk: Desk) -> None:
    headers = {"x-session-id": "s"}
    desk.ask("left", headers=headers)
    desk.ask("right", headers=headers)
    left = desk.ask("left", "ok", "on", headers=headers)
    right = desk.ask("right", "ok", "on", headers=headers)
    assert (left.segment, right.segment) == (2, 3)
    assert [anchor.index for anchor in left.anchors] == [1, 3]


def test_a_response_id_names_the_history(desk: Desk) -> None:
    def respond(text: str, previous: str | None = None) -> Origin:
        body: dict[str, Json] = {"model": "m", "input": text}
        if previous is not None:
            body["previous_response_id"] = previous
        origin = desk.origins.identify(Wire.RESPONSES, {}, body)
        desk.origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        return origin

    first = respond("hi")
    desk.origins.answered(first, "resp_1")
    other = respond("hi")
    desk.origins.answered(other, "resp_2")
    assert respond("on", "resp_2").session == other.session
    second = respond("on", "resp_1")
    assert (second.session, second.segment, second.task) == (first.session, 1, "on")
    fork = respond("elsewhere", "resp_1")
    assert fork.session not in (first.session, other.session)
    assert fork.parent == first.session
    assert respond("on", "resp_unknown").session_began


def test_silence_ends_a_session_and_a_late_request_revives_it_as_a_new_segment(desk: Desk) -> None:
    first = desk.ask("hi")
    desk.time += timedelta(seconds=1800)
    assert desk.origins.sweep() == []
    desk.time += timedelta(seconds=1)
    assert desk.origins.sweep() == [first.session]
    assert desk.origins.active == 0
    assert desk.origins.sweep() == []
    late = desk.ask("hi", "ho", "still there?")
    assert (late.session, late.segment, late.segment_began, desk.origins.active) == (
        first.session,
        1,
        True,
        1,
    )


def test_a_session_heard_of_while_the_clock_was_ahead_ends_after_the_usual_silence(
    desk: Desk,
) -> None:
    before = desk.time
    desk.time += timedelta(days=400)
    ahead = desk.ask("hi").session
    desk.time = before
    later = desk.ask("hello").session
    desk.time += timedelta(seconds=1)
    assert desk.origins.sweep() == []
    desk.time += timedelta(seconds=1801)
    assert desk.origins.sweep() == [ahead, later]


def test_a_tool_result_after_the_end_begins_a_segment_too(desk: Desk) -> None:
    headers = {"x-session-id": "s"}
    desk.ask("hi", headers=headers)
    assert desk.origins.end(desk.ask("hi", "ho", headers=headers).session)
    revived = desk.ask("hi", "ho", headers=headers)
    assert (revived.segment, revived.segment_began, revived.task) == (1, True, "hi")


def test_an_answer_that_takes_long_is_not_silence(desk: Desk) -> None:
    origin = desk.ask("hi", end=None)
    desk.time += timedelta(hours=1)
    assert desk.origins.sweep() == []
    desk.origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
    desk.time += timedelta(hours=1)
    assert desk.origins.sweep() == [origin.session]


def test_an_answer_that_never_ends_does_not_hold_a_session_for_ever(desk: Desk) -> None:
    origin = desk.ask("hi", end=None)
    desk.time += timedelta(days=1)
    assert desk.origins.sweep() == [origin.session]


def test_ending_a_session_twice_says_so(desk: Desk) -> None:
    session = desk.ask("hi").session
    assert desk.origins.end(session)
    assert not desk.origins.end(session)


@pytest.mark.parametrize("word", ["true", "1", "yes", "on", "TRUE"])
def test_a_client_may_say_that_it_is_done(desk: Desk, word: str) -> None:
    assert desk.ask("bye", headers={"x-session-id": "s", "x-session-done": word}).ends_session
    assert not desk.ask("hi", headers={"x-session-id": "s", "x-session-done": "no"}).ends_session


def test_side_turns_move_nothing(desk: Desk) -> None:
    main = desk.ask("hi")
    side = desk.ask("hi", "ho", "Give me a title", headers={"x-turn-type": "side"})
    assert (side.session, side.kind, side.segment, side.task) == (
        main.session,
        TurnKind.SIDE,
        0,
        "hi",
    )
    onward = desk.ask("hi", "ho", "work")
    assert (onward.session, onward.segment) == (main.session, 1)


def test_a_side_turn_may_come_first(desk: Desk) -> None:
    headers = {"x-session-id": "s"}
    title = desk.ask("title please", headers={**headers, "x-turn-type": "side"})
    main = desk.ask("work", headers=headers)
    assert (title.session_began, main.session_began) == (True, False)
    assert (title.segment, main.segment, main.segment_began) == (0, 0, True)


def test_sessions_are_taken_up_after_a_restart() -> None:
    before = Desk()
    user = {"x-user-id": "ada"}
    talks = [
        before.ask("no key"),
        before.ask("named", headers={"x-session-id": "s"}),
        before.ask("own key", headers={"x-claude-code-session-id": UUID}),
        before.ask("shared", extra={"prompt_cache_key": "app"}),
        before.ask("scoped", headers=user),
    ]
    traces = [
        SessionTrace(
            talk.session,
            talk.key,
            talk.agent,
            talk.scope,
            talk.head,
            talk.segment,
            new_turn_id(),
            before.time,
        )
        for talk in talks
    ]
    after = Desk()
    after.origins.restore(traces)
    resumed = [
        after.ask("no key", "ok", "on"),
        after.ask("named", "ok", "on", headers={"x-session-id": "s"}),
        after.ask("own key", "ok", "on", headers={"x-claude-code-session-id": UUID}),
        after.ask("shared", "ok", "on", extra={"prompt_cache_key": "app"}),
        after.ask("scoped", "ok", "on", headers=user),
    ]
    assert [talk.session for talk in resumed] == [talk.session for talk in talks]
    assert {talk.segment for talk in resumed} == {1}
    assert {len(talk.anchors) for talk in resumed} == {2}
    assert after.ask("scoped", "ok", "on", "ok", "further").session not in {
        talk.session for talk in talks
    }


def test_a_restored_session_goes_on_within_its_segment(desk: Desk) -> None:
    other = Desk()
    other.ask("do it")
    talk = other.ask("do it", "running", "and this")
    desk.origins.restore(
        [
            SessionTrace(
                talk.session,
                None,
                talk.agent,
                talk.scope,
                talk.head,
                talk.segment,
                TurnId("t"),
                desk.time - timedelta(days=2),
            )
        ]
    )
    assert desk.origins.sweep() == [talk.session]
    desk.origins.restore([])
    onward = desk.ask("do it", "running", "and this", "a tool call")
    assert (onward.session, onward.task, [anchor.index for anchor in onward.anchors]) == (
        talk.session,
        "and this",
        [1, 3],
    )


def test_memory_is_bounded_and_what_was_forgotten_is_reported_as_ended() -> None:
    desk = Desk(max_sessions=3)
    first = desk.ask("0")
    ended = desk.ask("1")
    desk.origins.end(ended.session)
    for text in "2345":
        desk.ask(text)
    assert desk.origins.active == 3
    assert first.session in desk.origins.sweep()
    assert desk.ask("0", "ok", "on").session != first.session
    for number in range(50):
        desk.origins.answered(desk.ask(f"n{number}"), f"r{number}")
    memory = desk.origins._sessions
    assert len(memory._past) <= 24
    assert len(memory._responses) <= 12
    assert sum(len(heads._standing) for heads in memory._spaces.values()) <= 3


def test_keyed_sessions_are_forgotten_whole_and_come_back_under_the_same_id() -> None:
    desk = Desk(max_sessions=2)
    first = desk.ask("hi", headers={"x-claude-code-session-id": UUID})
    for number in range(4):
        desk.ask("hi", headers={"x-session-id": f"s{number}"})
    assert len(desk.origins._sessions._keyed) == 2
    assert (
        desk.ask("hi", "ho", "on", headers={"x-claude-code-session-id": UUID}).session
        == first.session
    )


def test_finishing_a_turn_of_a_forgotten_session_is_no_error() -> None:
    desk = Desk(max_sessions=1)
    first = desk.ask("hi", end=None)
    desk.ask("other")
    desk.origins.finished(first, new_turn_id(), TurnEnd.FAILED)
    desk.origins.answered(first, "r", (Text("late"),))
    assert desk.origins.active == 1


def test_a_forgotten_session_is_freed_without_waiting_for_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        desk = Desk(max_sessions=5)
        for number in range(50):
            desk.ask(f"hello {number}")
        # By type: isinstance would ask foreign objects, of whichever library is loaded, for their
        # class.
        alive = [thing for thing in gc.get_objects() if type(thing) is Session]
    finally:
        gc.enable()
    assert 5 <= len(alive) < 20


def test_a_load_of_identical_requests_stays_cheap_and_apart(desk: Desk) -> None:
    sessions = {desk.ask("ping").session for _ in range(300)}
    assert len(sessions) == 300
    assert desk.ask("ping", "pong", "again").session in sessions
