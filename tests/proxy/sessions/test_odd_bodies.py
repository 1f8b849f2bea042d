"""Whatever comes as a body, somebody is speaking: nothing raises, and equal nonsense is still told
apart from other nonsense.
"""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.ids import new_turn_id
from metaclaw.domain.turn import TurnEnd
from metaclaw.proxy.sessions import Origins
from tests.support.depth import tries

FIELDS = """
    role content type text messages input system instructions tools tool_calls function id name arguments tool_call_id call_id
    output tool_use_id metadata user_id session_id prompt_cache_key previous_response_id conversation client_metadata max_tokens
    output_config format schema properties model stream
"""
NAMES = FIELDS.split()
WORDS = (
    "user",
    "assistant",
    "system",
    "tool",
    "developer",
    "text",
    "tool_result",
    "tool_use",
    "function_call",
    "function_call_output",
    "",
    "\ud800",
    "{",
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from(WORDS)
)
VALUES: st.SearchStrategy[Json] = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=8,
)
BLOCKS = st.dictionaries(
    st.sampled_from(("type", "text", "content", "id", "input", "tool_use_id")), VALUES, max_size=4
)
ENTRY_FIELDS = {
    "role": VALUES,
    "type": VALUES,
    "content": VALUES | st.lists(BLOCKS | VALUES, max_size=3),
    "tool_calls": VALUES,
    "output": VALUES,
}
ENTRIES = st.lists(st.fixed_dictionaries({}, optional=ENTRY_FIELDS) | VALUES, max_size=4)
BODIES = st.builds(
    lambda body, items: {**body, "messages": items, "input": items},
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
    ENTRIES,
)
HEADERS = st.dictionaries(
    st.sampled_from(
        (
            "x-session-id",
            "x-user-id",
            "user-agent",
            "session-id",
            "thread-id",
            "x-claude-code-session-id",
            "x-claude-code-agent-id",
        )
    ),
    st.text(max_size=12),
    max_size=4,
)


@settings(max_examples=tries(33, nightly=500), deadline=None)
@given(st.sampled_from(Wire), st.lists(st.tuples(HEADERS, BODIES), min_size=1, max_size=4))
def test_no_body_is_too_odd(
    wire: Wire, requests: list[tuple[dict[str, str], dict[str, Json]]]
) -> None:
    origins = Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    for headers, body in requests:
        origin = origins.identify(wire, headers, body, "127.0.0.1")
        assert origin.session
        assert len(origin.head) == 32
        origins.finished(origin, new_turn_id(), TurnEnd.FAILED)
        origins.answered(origin, "r")
    assert 1 <= origins.active <= len(requests)


def _nested(depth: int) -> Json:
    value: Json = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("odd", ["\ud800", 2**70, _nested(50_000)])
def test_what_cannot_be_compared_is_a_conversation_of_its_own(odd: Json) -> None:
    origins = Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    call: Json = {"type": "tool_use", "id": "t", "name": "n", "input": odd}
    body: dict[str, Json] = {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [call]}]
    }
    first = origins.identify(Wire.CHAT, {}, body)
    origins.finished(first, new_turn_id(), TurnEnd.FAILED)
    assert origins.identify(Wire.CHAT, {}, body).session != first.session


@pytest.mark.parametrize(
    "text",
    [
        "<system-reminder>" * 20_000,
        "<command-name" * 50_000,
        "<user_instructions>" * 20_000,
        "```json\n" * 50_000,
    ],
)
def test_no_text_makes_reading_slow(text: str) -> None:
    origins = Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    system = "<!-- openclaw:attempt:STABLE -->"
    began = time.process_time()
    origins.identify(
        Wire.CHAT,
        {},
        {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]},
    )
    assert time.process_time() - began < 5
