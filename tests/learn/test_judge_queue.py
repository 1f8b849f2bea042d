"""How often the judge may be asked: never more than the share and what is in hand, whatever comes in which order."""

import math

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.learn.outcomes import JudgeAllowance

IN_HAND = 20
shares = st.floats(0.0, 1.0, allow_nan=False)
events = st.lists(st.booleans(), max_size=300)
"""True: a turn was made; False: a question is wanted."""


@given(shares, events)
def test_questions_never_exceed_the_share_of_turns_and_what_was_in_hand(share: float, happened: list[bool]) -> None:
    allowance = JudgeAllowance(share)
    granted = turns = 0
    for is_turn in happened:
        if is_turn:
            allowance.earn()
            turns += 1
        elif allowance.take():
            granted += 1
        assert granted <= turns * share + IN_HAND + 1e-6
    assert (allowance.turns, allowance.questions) == (turns, granted)


@given(shares.filter(lambda share: share >= 0.01))
def test_a_long_quiet_time_saves_up_no_more_than_what_was_in_hand_at_first(share: float) -> None:
    allowance = JudgeAllowance(share)
    for _ in range(5_000):
        allowance.earn()
    assert sum(allowance.take() for _ in range(1_000)) == IN_HAND


@given(shares.filter(lambda share: share >= 0.01))
def test_what_was_used_up_is_earned_again_at_the_share(share: float) -> None:
    allowance = JudgeAllowance(share)
    while allowance.take():
        pass
    needed = 0
    while not allowance.take():
        allowance.earn()
        needed += 1
    assert math.isclose(needed, 1 / share, rel_tol=0.02, abs_tol=1.01)


def test_a_share_of_nothing_asks_nothing() -> None:
    allowance = JudgeAllowance(0.0)
    for _ in range(100):
        allowance.earn()
        assert not allowance.take()


def test_a_question_that_is_given_back_may_be_taken_again() -> None:
    allowance = JudgeAllowance(0.2)
    while allowance.take():
        pass
    allowance.give_back()
    assert (allowance.take(), allowance.take()) == (True, False)
