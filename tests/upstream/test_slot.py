"""The policy slot: which weights answer a session."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.policy import Serving
from metaclaw.upstream import PolicySlot

SESSIONS = [SessionId(f"s_{number}") for number in range(4_000)]


def test_until_something_is_trained_the_base_answers_everybody() -> None:
    assert {PolicySlot("embedded").pick(session) for session in SESSIONS} == {0}


def test_after_a_flip_the_new_version_answers_everybody() -> None:
    slot = PolicySlot("embedded")
    slot.flip(Serving(version=3))
    assert {slot.pick(session) for session in SESSIONS} == {3}


@given(share=st.floats(0.02, 0.98))
def test_a_canary_answers_its_share_of_the_sessions(share: float) -> None:
    slot = PolicySlot("embedded")
    slot.flip(Serving(version=3, canary=4, canary_share=share))
    tried = sum(slot.pick(session) == 4 for session in SESSIONS)
    assert tried / len(SESSIONS) == pytest.approx(share, abs=0.05)


def test_a_session_stays_with_its_side_while_a_canary_is_tried() -> None:
    slot = PolicySlot("embedded")
    slot.flip(Serving(version=3, canary=4, canary_share=0.3))
    first = [slot.pick(session) for session in SESSIONS]
    slot.flip(Serving(version=3, canary=4, canary_share=0.3))
    assert [slot.pick(session) for session in SESSIONS] == first


def test_the_next_canary_is_tried_on_other_sessions() -> None:
    slot = PolicySlot("embedded")
    slot.flip(Serving(version=3, canary=4, canary_share=0.3))
    first = {session for session in SESSIONS if slot.pick(session) == 4}
    slot.flip(Serving(version=3, canary=5, canary_share=0.3))
    second = {session for session in SESSIONS if slot.pick(session) == 5}
    assert 0.2 < len(first & second) / len(first) < 0.4


def test_what_a_version_absorbed_is_known_of_that_version_alone() -> None:
    slot = PolicySlot("embedded")
    slot.flip(
        Serving(
            version=3, canary=4, canary_share=0.5, absorbed={4: frozenset({SkillName("dates")})}
        )
    )
    assert slot.absorbed(4) == {"dates"}
    assert slot.absorbed(3) == slot.absorbed(0) == frozenset()
