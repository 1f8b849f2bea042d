"""`metaclaw feedback`: a person's word, told to a running proxy or put straight into the store."""

from pathlib import Path

import pytest

from metaclaw.domain.ids import TurnId, new_session_id
from metaclaw.domain.status import outcome_word
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.store import SqlVerdicts
from tests.cli.program import metaclaw
from tests.cli.recorded import record, store, turn
from tests.cli.scripted import scripted


@pytest.mark.parametrize(
    ("word", "outcome", "teaches"), [("fail", Outcome.FAIL, True), ("pass", Outcome.PASS, False)]
)
def test_without_a_proxy_the_word_is_recorded_and_outranks_a_judge(
    home: Path, word: str, outcome: Outcome, teaches: bool
) -> None:
    one = turn(new_session_id())
    record(home, one)
    judged = Verdict(one.id, Outcome.PASS, Source.JUDGE, 0.1)
    with store(home) as database:
        SqlVerdicts(database).record_verdict(judged)
    done = metaclaw("feedback", one.id, word, " Dates as YYYY-MM-DD. ")
    next_step = "It is examined once a proxy runs: metaclaw start --detach\n" if teaches else ""
    assert (done.code, done.out) == (0, f"Noted: {one.id} was {outcome_word(word)}.\n{next_step}")
    with store(home) as database:
        stands = SqlVerdicts(database).verdict_of(one.id)
    assert stands is not None
    assert (stands.outcome, stands.source, stands.teaches) == (outcome, Source.USER, teaches)
    assert stands.comment == "Dates as YYYY-MM-DD."
    assert stands.fault is (Fault.AGENT if teaches else None)


def test_what_was_recorded_is_printed_as_json_as_the_proxy_says_it(home: Path) -> None:
    one = turn(new_session_id())
    record(home, one)
    facts = metaclaw("feedback", one.id, "fail", "--json").facts
    assert facts["turn"] == one.id
    assert (facts["verdict"]["outcome"], facts["verdict"]["source"], facts["verdict"]["score"]) == (
        "fail",
        "user",
        -1.0,
    )


def test_a_turn_that_does_not_exist_is_said_with_where_to_look(home: Path) -> None:
    nothing = metaclaw("feedback", "t_nothing", "pass")
    assert (nothing.code, "there is no turn t_nothing" in nothing.err) == (1, True)
    assert "metaclaw sessions show" in nothing.err
    assert not home.exists()
    record(home, turn(new_session_id()))
    assert metaclaw("feedback", "t_nothing", "pass").code == 1


def test_a_running_proxy_is_told_what_the_person_said(home: Path) -> None:
    verdict = {"turn": "t_1", "verdict": {"outcome": "fail", "source": "user"}}
    with scripted(home, {"POST /api/feedback": (200, verdict)}) as asked:
        done = metaclaw("feedback", "t_1", "fail", "Wrong – as “before”.")
        assert done.out.startswith("Noted: t_1 was bad.\nIt is examined now; see metaclaw watch")
        assert metaclaw("feedback", "t_1", "pass", "--json").facts == verdict
    assert [one.said for one in asked] == [
        {"turn": "t_1", "outcome": "fail", "comment": "Wrong – as “before”."},
        {"turn": "t_1", "outcome": "pass", "comment": ""},
    ]


def test_what_the_proxy_refuses_is_told(home: Path) -> None:
    with scripted(
        home, {"POST /api/feedback": (404, {"error": {"message": "there is no turn t_2"}})}
    ):
        done = metaclaw("feedback", "t_2", "fail")
    assert (done.code, done.out) == (1, "")
    assert "there is no turn t_2; metaclaw sessions show --last lists turns" in done.err


@pytest.mark.parametrize("outcome", ["unknown", "FAIL", "", "maybe"])
def test_only_pass_and_fail_can_be_said(outcome: str) -> None:
    assert metaclaw("feedback", TurnId("t_1"), outcome).code == 2
