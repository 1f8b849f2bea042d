"""What a person wanted is read from their corrections, in any language, and trains."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.chat import Text
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.policy import PolicyState
from metaclaw.domain.turn import Scope, Stamp, Step, TurnEnd
from metaclaw.training.references import (
    Correction,
    References,
    correction_of,
    edit_distance,
    frames_of,
    is_near,
    similarity,
    stated_answer,
)
from metaclaw.training.training_turns import LeastTurns
from tests.support.cases import each
from tests.support.softmax import encode
from tests.support.toy_backend import ToyBackend
from tests.training.stage import UNCHECKED, Stage

pytestmark = pytest.mark.anyio
TIME = "Write 2:17 pm for the roster."
HALF_PAST = "14:17+05:30"
DAY = "March 7, 2051"


@each(
    ("answer", "said", "wanted"),
    [
        (DAY, "No, it must be 2051-03-07/nb", "2051-03-07/nb"),
        (DAY, "No, that's wrong. It should be 2051-03-07/nb.", "2051-03-07/nb"),
        (DAY, "Nein, das ist falsch. Richtig ist 2051-03-07/nb.", "2051-03-07/nb"),
        (DAY, "No, está mal: 2051-03-07/nb", "2051-03-07/nb"),
        (DAY, "不对，应该是2051-03-07/nb。", "2051-03-07/nb"),
        (DAY, "違います。2051-03-07/nb", "2051-03-07/nb"),
        (DAY, "No, it should be 2051-03-07/nb, not March 7, 2051.", "2051-03-07/nb"),
        (DAY, 'No, it should be "the seventh of March".', "the seventh of March"),
        (DAY, "Nein, falsch. Es muss „der siebte März 2051“ heißen", None),
        ("2:17 pm", "Wrong, 14:17+05:30.", "14:17+05:30"),
        ("Tuesday", "No, that is wrong. Thursday.", "Thursday"),
        (
            "The Cat sat on the mat",
            "No, that's wrong, it should be The cat sat on the mat.",
            "The cat sat on the mat",
        ),
        (
            "La réunion est mardi",
            "Non, c'est faux. La réunion est jeudi.",
            "La réunion est jeudi",
        ),
        (
            "def f(): return 1",
            "No, that is wrong:\n```python\ndef f(): return 2\n```",
            "def f(): return 2",
        ),
        (DAY, "No, it must be in ISO format.", None),
        (DAY, "No, that's wrong, use ISO-8601.", None),
        (DAY, "No, that's wrong.", None),
        ("Open the door.", 'No, that is wrong, always say "please".', None),
        ("The meeting is on Tuesday.", "No, wrong, the meeting is not on Tuesday.", None),
        ("Tuesday", "No, that is wrong, not Tuesday", None),
    ],
)
def test_a_correction_that_states_the_answer_is_a_reference(
    answer: str, said: str, wanted: str | None
) -> None:
    assert stated_answer(Correction(said, answer, "When?"), {}) == wanted


def test_what_stands_behind_words_that_corrections_share_is_the_answer() -> None:
    told = [f"Nej, det är fel. Det ska vara {word}." for word in ("hund", "häst", "igel", "orm")]
    frames = frames_of(told)

    found = [stated_answer(Correction(said, "katt", "Vad är det?"), frames) for said in told]
    assert found == ["hund", "häst", "igel", "orm"]
    assert stated_answer(Correction(told[0], "katt", "Vad är det?"), frames_of(told[:2])) is None
    # A remark on the manner is no answer: it has another length.
    manner = "Nej, det är fel. Det ska vara i ett helt annat och vänligare tonfall."
    assert stated_answer(Correction(manner, "katt", "?"), frames_of([*told, manner])) is None


@each(
    ("task", "other", "near"),
    [
        (TIME, " write  2:17 pm for the roster", True),
        (TIME, "Please write 2:17 pm for the roster.", True),
        (TIME, "Write 2:18 pm for the roster.", False),
        (TIME, "Write 2:17 pm for the roster of room 9.", False),
        (TIME, "Write 2:17 am for the roster.", False),
        ("Why?", "Why not?", False),
        ("", "", False),
    ],
)
def test_tasks_are_near_if_they_differ_in_a_few_words_around_them(
    task: str, other: str, near: bool
) -> None:
    assert is_near(task, other) is near
    assert is_near(other, task) is near


def asked(
    turn: str, task: str, answer: str = "", said_after: str | None = None, user: str | None = None
) -> Step:
    return Step(
        TurnId(turn),
        SessionId("s"),
        Scope(user),
        Stamp(1, 0, "", ()),
        "m",
        task,
        (),
        (),
        (Text(answer),),
        TurnEnd.COMPLETED,
        said_after=said_after,
    )


def references(
    *steps: Step, support: str = "", held_out: str = "", read: str | None = None
) -> References:
    by_turn = {step.turn: step for step in steps}

    def correction(turn: TurnId) -> tuple[Step, Correction] | None:
        found = correction_of(by_turn[turn], read)
        return None if found is None else (by_turn[turn], found)

    return References(
        failures=lambda: list(reversed(by_turn)),
        correction=correction,
        is_support=lambda turn: turn == support,
        is_held_out=lambda turn: turn == held_out,
        clock=lambda: 0.0,
    )


CORRECTED = asked("t1", "When is the party?", DAY, "No, that's wrong, it must be 2051-03-07/nb")


def test_a_reference_is_for_its_own_turn_and_for_those_that_ask_the_same() -> None:
    found = references(CORRECTED, asked("t2", "Other?", "x", "No, that's wrong"))

    assert found.of(CORRECTED) == "2051-03-07/nb"
    assert found.of(asked("t0", " when is the  party?")) == "2051-03-07/nb"
    assert found.of(asked("t5", "When is the fair?")) is None
    assert found.of(asked("t2", "Other?", "x", "No, that's wrong")) is None
    assert found.of(asked("t5", "When is the party?", user="somebody else")) is None


def test_a_correction_that_comes_later_is_found_and_counted() -> None:
    now, said = [0.0], list[Step]()
    found = replace(
        references(CORRECTED),
        failures=lambda: [step.turn for step in said],
        clock=lambda: now[0],
    )
    assert (found.count(), found.of(CORRECTED)) == (0, None)

    said.append(CORRECTED)
    now[0] += 20.0
    assert found.count() == 1
    assert found.of(CORRECTED) == "2051-03-07/nb"


def test_the_newest_correction_counts() -> None:
    newer = replace(CORRECTED, turn=TurnId("t3"), said_after="That's wrong, 2051-03-07/xx")

    assert references(CORRECTED, newer).of(asked("t5", "When is the party?")) == "2051-03-07/xx"


def test_what_an_evolver_saw_and_what_the_gate_keeps_lend_no_reference() -> None:
    again = asked("t5", "When is the party?")

    assert references(CORRECTED, support="t1").of(again) is None
    assert references(CORRECTED, held_out="t1").of(again) is None
    assert references(CORRECTED, held_out="t5").of(again) is None
    assert references(CORRECTED, held_out="t1").of(CORRECTED) == "2051-03-07/nb"


def test_what_a_listening_model_read_states_the_answer_where_the_message_does_not() -> None:
    odd = replace(CORRECTED, said_after="Hm, other way round, and our suffix")

    assert references(odd).of(odd) is None
    assert references(odd, read="wanted 2051-03-07/nb").of(odd) == "2051-03-07/nb"


async def test_corrections_alone_teach_and_held_out_ones_prove_the_version(
    tmp_path: Path,
) -> None:
    stage = Stage(
        tmp_path,
        policy={"hindsight": True, "batch_most": 64, "steps": 60},
        skill=UNCHECKED,
    )
    corrected = stage.talk_corrected(80, "No, that is wrong. It should be ab-1.", "ab1")

    assert stage.turns.waiting(80).turns > 40
    assert await stage.slow.once(LeastTurns(8))

    (version,) = stage.policies.versions()
    assert version.state is PolicyState.SERVING, version.note
    assert version.report is not None
    assert version.report.held_out is not None
    assert version.report.held_out.better > version.report.held_out.worse
    held_out = [turn for turn in corrected if stage.turns.is_held_out(turn)]
    assert not set(stage.batches.turns_of(1)) & set(held_out)
    drawn = await ToyBackend(tmp_path / "policies").sample(
        [encode("unseen:")], stage.drawing(40), version.weights
    )
    assert sum(one.text == "ab-1" for one in drawn[0]) > 20


def slowly(one: str, two: str) -> int:
    """Cell by cell."""
    row = list(range(len(two) + 1))
    for at, sign in enumerate(one, 1):
        before, row = row, [at]
        for place, other in enumerate(two, 1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (sign != other)))
    return row[-1]


@given(st.text("abc", max_size=90), st.text("abc", max_size=90))
def test_the_distance_is_the_same_as_cell_by_cell(one: str, two: str) -> None:
    assert edit_distance(one, two) == slowly(one, two)


@each(
    ("one", "two", "alike"),
    [
        ("", "", 1.0),
        ("abc", "", 0.0),
        ("", "abc", 0.0),
        ("2051-03-07", "2051-03-07/nb", 10 / 13),
        ("abc", "xyz", 0.0),
    ],
)
def test_similarity_is_the_share_that_stays(one: str, two: str, alike: float) -> None:
    assert similarity(one, two) == pytest.approx(alike)
