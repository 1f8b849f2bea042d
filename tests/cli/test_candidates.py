"""`metaclaw candidates`: read from a real store, decided by a running proxy."""

from pathlib import Path
from typing import Any

import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.ids import new_session_id
from tests.cli.program import metaclaw
from tests.cli.recorded import (
    asking,
    candidate,
    helped_by,
    keep,
    lesson,
    record,
    skill,
    stated,
    turn,
)
from tests.cli.scripted import scripted


@pytest.fixture
def two(home: Path) -> Path:
    """A home in which one candidate waits and one was turned away."""
    taught = turn(new_session_id())
    record(home, taught)
    keep(
        home,
        candidate(skill("uses-a-host"), taught.id),
        candidate(
            skill("evil", trigger="When \x1b[31m"), taught.id, Standing.REJECTED, "no steps " * 20
        ),
    )
    return home


def test_nothing_learned_is_said_and_makes_no_database(home: Path) -> None:
    assert metaclaw("candidates", "list").out == "No candidates.\n"
    assert (
        metaclaw("candidates", "list", "--standing", "waiting").out
        == "No candidates are waiting.\n"
    )
    assert metaclaw("candidates", "list", "--json").facts == {"candidates": []}
    assert metaclaw("candidates", "show", "c_x").code == 1
    assert not home.exists()


@pytest.mark.usefixtures("two")
def test_candidates_are_listed_newest_first_and_by_standing() -> None:
    listed = metaclaw("candidates", "list", "--json").facts["candidates"]
    assert [(one["id"], one["standing"]) for one in listed] == [
        ("c_evil", "rejected"),
        ("c_uses-a-host", "waiting"),
    ]
    assert [
        one["skill"]
        for one in metaclaw("candidates", "list", "--limit", "1", "--json").facts["candidates"]
    ] == ["evil"]
    waiting = metaclaw("candidates", "list", "--standing", "waiting").out.splitlines()
    assert waiting[0].split() == ["CANDIDATE", "SKILL", "SCOPE", "STANDING", "MADE", "WHY"]
    assert len(waiting) == 2
    for words in ("c_uses-a-host", "user:ann", "waiting", "it adds a host"):
        assert words in waiting[1]
    assert metaclaw("candidates", "list", "--standing", "no-such").code == 2


@pytest.mark.usefixtures("two")
def test_a_candidate_is_shown_with_its_text_and_how_to_decide() -> None:
    out = metaclaw("candidates", "show", "c_uses-a-host").out
    for words in (
        "When writing release notes with dates",
        "some-model",
        "1 turn",
        "2. Write them as YYYY-MM-DD.",
        "metaclaw candidates approve c_uses-a-host",
    ):
        assert words in out
    facts = metaclaw("candidates", "show", "c_uses-a-host", "--json").facts
    assert facts["body"].startswith("1. Find the dates.")
    assert len(facts["support"]) == 1


@pytest.mark.usefixtures("two")
def test_one_that_does_not_wait_is_shown_plainly_and_asks_for_nothing() -> None:
    out = metaclaw("candidates", "show", "c_evil").out
    assert "\x1b" not in out
    assert "approve" not in out
    assert metaclaw("candidates", "show", "c_nothing").err.startswith(
        "metaclaw: there is no candidate c_nothing"
    )


def test_what_a_person_said_in_doubt_is_a_question_and_not_a_skill(home: Path) -> None:
    plain = asking(new_session_id(), "Sure, and from now on deploy on Fridays only.")
    loose = asking(new_session_id(), "I really like it when you are brief, you know.")
    record(home, plain, loose)
    keep(
        home,
        stated("fridays", "Deploy on Fridays only.", plain.id),
        stated("be-brief", "Keep answers short.", loose.id),
    )
    out = metaclaw("candidates", "show", "fridays").out
    assert "! You said: “Deploy on Fridays only.” — keep it as a rule?" in out
    assert "Asked because: a second reading disagrees: it was a joke" in out
    assert "metaclaw candidates approve c_fridays, or reject c_fridays" in out
    listed = metaclaw("candidates", "list", "--json").facts["candidates"]
    assert {one["question"] for one in listed} == {
        "You said: “Deploy on Fridays only.” — keep it as a rule?",
        "You said: “I really like it when you are brief, you know.” — keep this as a rule:"
        " “Keep answers short.”?",
    }


def test_why_tells_the_failed_call_that_a_lesson_stands_behind(home: Path) -> None:
    made = lesson("run-with-uv", "Run tests with `uv run pytest`.")
    taught = turn(new_session_id())
    record(home, taught)
    keep(home, candidate(made, taught.id, Standing.ACCEPTED, "kept"))
    helped = helped_by(made, new_session_id(), generation=1)
    record(home, helped)
    out = metaclaw("why", helped.id).out
    for words in (
        "lesson run-with-uv: Run tests with `uv run pytest`.",
        "the call call_7 failed in its way; it is behind that result",
        'call: shell {"command": "pytest -q"}',
        "result: ModuleNotFoundError: No module named 'app'",
    ):
        assert words in out


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("how", ["approve", "reject"])
def test_deciding_needs_a_running_proxy_and_says_so(how: str) -> None:
    done = metaclaw("candidates", how, "c_uses-a-host")
    assert (done.code, done.out) == (1, "")
    assert "no proxy runs for" in done.err
    assert "metaclaw start --detach" in done.err


def test_a_decision_is_asked_of_the_proxy_and_told(home: Path) -> None:
    passed = {
        "id": "c_1",
        "skill": "dates",
        "standing": "accepted",
        "reason": "a person let it pass",
    }
    answers: dict[str, tuple[int, dict[str, Any]]] = {
        "POST /api/candidates/c_1/approve": (200, passed),
        "POST /api/candidates/c_2/reject": (
            200,
            {"id": "c_2", "skill": "hosts", "standing": "rejected", "reason": "no"},
        ),
        "POST /api/candidates/c_2/approve": (
            409,
            {"error": {"message": "candidate c_2 does not wait for a person"}},
        ),
    }
    with scripted(home, answers):
        assert metaclaw("candidates", "approve", "c_1").out == "dates is in force now (c_1).\n"
        assert metaclaw("candidates", "approve", "c_1", "--json").facts == passed
        assert metaclaw("candidates", "reject", "c_2").out == "hosts was rejected (c_2).\n"
        refused, unknown = (
            metaclaw("candidates", "approve", "c_2"),
            metaclaw("candidates", "reject", "../c"),
        )
    assert (refused.code, refused.err) == (
        1,
        "metaclaw: candidate c_2 does not wait for a person\n",
    )
    assert (unknown.code, "metaclaw candidates list" in unknown.err) == (1, True)


def test_an_approved_candidate_that_cannot_be_put_in_force_is_a_failure(home: Path) -> None:
    turned = {
        "id": "c_1",
        "skill": "dates",
        "standing": "rejected",
        "reason": "skill dates is another than when it was looked at",
    }
    with scripted(home, {"POST /api/candidates/c_1/approve": (200, turned)}):
        told, as_json = (
            metaclaw("candidates", "approve", "c_1"),
            metaclaw("candidates", "approve", "c_1", "--json"),
        )
    assert (told.code, "could not be put in force" in told.err) == (1, True)
    assert (as_json.code, as_json.facts["standing"]) == (1, "rejected")
