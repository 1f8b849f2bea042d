"""What a person wanted instead of an answer, and for which later turns it counts."""

from dataclasses import replace

import pytest

from metaclaw.domain.chat import Text
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Scope, Stamp, TurnEnd
from metaclaw.learn.slow.references import References, wanted_answer


def asked(turn: str, task: str, answer: str = "", said_after: str | None = None, user: str | None = None) -> Step:
    stamp = Stamp(1, 0, "", ())
    said = (Text(answer),)
    return Step(TurnId(turn), SessionId("s"), Scope(user), stamp, "m", task, (), (), said, TurnEnd.COMPLETED, said_after=said_after)


@pytest.mark.parametrize(
    ("answer", "said", "wanted"),
    [
        ("March 7, 2051", "No, it must be 2051-03-07/nb", "2051-03-07/nb"),
        ("March 7, 2051", "No, that's wrong. It should be 2051-03-07/nb.", "2051-03-07/nb"),
        ("March 7, 2051", 'No, it should be "the seventh of March".', "the seventh of March"),
        ("The Cat sat on the mat", "No, that's wrong, it should be The cat sat on the mat.", "The cat sat on the mat"),
        ("def f(): return 1", "No, that is wrong:\n```python\ndef f(): return 2\n```", "def f(): return 2"),
        ("March 7, 2051", "No, it must be in ISO format.", None),
        ("March 7, 2051", "No, that's wrong.", None),
        ("March 7, 2051", "Thanks! And now the 2051-03-08", None),
        ("March 7, 2051", None, None),
    ],
)
def test_a_correction_that_gives_the_answer_is_a_reference(answer: str, said: str | None, wanted: str | None) -> None:
    assert wanted_answer(asked("t", "When?", answer, said)) == wanted


def references(*steps: Step) -> References:
    by_turn = {step.turn: step for step in steps}
    return References(
        failures=lambda: list(reversed(by_turn)), step=by_turn.get, is_before=lambda one, other: one < other, clock=lambda: 0.0
    )


CORRECTED = asked("t1", "When is the party?", "March 7, 2051", "No, it must be 2051-03-07/nb")


def test_later_turns_that_ask_the_same_have_the_reference() -> None:
    found = references(CORRECTED, asked("t2", "Other?", "x", "No, it must be a-b"))

    assert found.of(asked("t5", " when is the  party?")) == "2051-03-07/nb"
    assert found.of(asked("t5", "When is the fair?")) is None


def test_the_corrected_turn_earlier_ones_and_other_people_have_none() -> None:
    found = references(CORRECTED)

    assert found.of(CORRECTED) is None
    assert found.of(asked("t0", "When is the party?")) is None
    assert found.of(asked("t5", "When is the party?", user="somebody else")) is None


def test_the_newest_correction_counts() -> None:
    newer = replace(CORRECTED, turn=TurnId("t3"), said_after="No, it must be 2051-03-07/xx")

    assert references(CORRECTED, newer).of(asked("t5", "When is the party?")) == "2051-03-07/xx"
