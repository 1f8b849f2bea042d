"""`metaclaw candidates`: read from a real store, decided by a running proxy; and what `status` says
of learning.
"""

from pathlib import Path
from typing import Any

import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.ids import new_session_id
from tests.cli.program import Done, metaclaw
from tests.cli.recorded import candidate, keep, record, skill, turn
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


STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "mode": "skills_only",
    "uptime_s": 3.0,
    "generation": 7,
    "policy_version": 0,
    "counts": {
        "turns": 50,
        "sessions": 9,
        "active_sessions": 0,
        "verdicts": {"pass": 30, "fail": 4, "unknown": 6},
        "support": 3,
        "query": 0,
        "candidates": {"draft": 0, "shadow": 1, "waiting": 2, "accepted": 3, "rejected": 0},
        "skills": {"live": 3, "canary": 1},
    },
    "learning": {
        "on": True,
        "gate": "lint",
        "judge": "world/judge-model",
        "evolver": None,
        "judged_today": {"turns": 6, "of": 48},
        "budget": {
            "day": "2026-11-16",
            "limit": 300_000,
            "used": 45_000,
            "left": 255_000,
            "limit_cost": None,
            "used_cost": 0.25,
            "left_cost": None,
            "resets_at": "2026-11-17T00:00:00+01:00",
            "waiting": [],
        },
        "trust": {"turns": 40, "auroc": 0.9312, "ece": 0.0211},
        "asked": {
            "judge": {"calls": 30, "failures": 2, "input_tokens": 9000, "output_tokens": 600}
        },
    },
    "loops": {},
    "store": {"kind": "sqlite", "health": "healthy"},
    "providers": [],
    "engine": None,
}


def status_of(home: Path, **changed: object) -> Done:
    with scripted(home, {"GET /api/status": (200, {**STATUS, **changed})}):
        return metaclaw("status", "--all")


def test_status_tells_how_learning_is_in_words(home: Path) -> None:
    out = status_of(home).out
    for words in (
        "4 skills (1 canary, 3 live), generation 7",
        "learned skills serve once their text is sound",
        "30 good, 4 bad, 6 unclear; 3 turns taught skills",
        "1 shadow, 2 waiting, 3 accepted",
        "world/judge-model, asked about 6 of 48 turns today",
        "45,000 of 300,000 tokens used today (15%), $0.25; renewed at 00:00",
        "none; only your own words become skills",
        "AUROC 0.93, ECE 0.021 on 40 turns of which the truth is known",
        "judge: 30 calls, 2 failed, 9000 → 600 tokens",
    ):
        assert words in out


def test_status_says_that_learning_waits_for_the_budget_and_what_to_do(home: Path) -> None:
    used_up = {
        **STATUS["learning"]["budget"],
        "used": 300_000,
        "left": 0,
        "limit_cost": 2.0,
        "used_cost": 1.9,
    }
    used_up["waiting"] = [{"purpose": "judge", "count": 3}, {"purpose": "evolve", "count": 1}]
    out = status_of(home, learning={**STATUS["learning"], "budget": used_up}).out
    assert "300,000 of 300,000 tokens used today (100%), $1.90 of $2.00; renewed at 00:00" in out
    assert (
        "learning waits because the budget is used up: judge (3), evolve (1). To go on now, raise"
        " learning.daily_tokens" in out
    )


def test_status_says_that_messages_are_not_read_and_why(home: Path) -> None:
    failing = {
        "model": "world/reader",
        "reason": "it answered with status 500",
        "since": "2026-11-17T07:00:00+00:00",
        "failures": 4,
    }
    unusable = {
        "model": "world/tiny",
        "messages": 821,
        "in_a_row": 12,
        "reason": "no JSON",
        "at": "2026-11-17T08:00:00+00:00",
    }
    listener = {"unread": 3, "failing": [failing], "not_understood": [unusable]}
    out = status_of(home, learning={**STATUS["learning"], "listener": listener}).out
    assert (
        "! your messages are not read since 2026-11-17T07:00:00+00:00: world/reader does not answer"
        in out
    )
    assert "Unread: 3 messages" in out
    assert "! world/tiny read the last 12 messages and gave no usable answer" in out
    assert "world/tiny gave no usable answer to 821 messages" in out


def test_status_calls_for_a_decision_before_anything_else(home: Path) -> None:
    lines = status_of(home).out.splitlines()
    assert lines[1].startswith("! 2 learned skills wait for your decision")
    assert "metaclaw candidates list --standing waiting" in lines[2]
    assert "metaclaw candidates approve ID" in lines[3]
    counts = {**STATUS["counts"], "candidates": {"waiting": 0}}
    assert "decision" not in status_of(home, counts=counts).out


def test_status_says_what_is_not_known_and_what_is_off(home: Path) -> None:
    learning = {
        **STATUS["learning"],
        "judge": None,
        "trust": {"turns": 3, "auroc": None, "ece": None},
        "asked": {},
    }
    unread = {**STATUS["counts"], "verdicts": None, "candidates": None}
    out = status_of(home, learning=learning, counts=unread).out
    assert "judge       none\n" in out
    assert "verdicts    cannot be counted now" in out
    assert "AUROC" not in out
    off = status_of(home, learning={**learning, "on": False}).out
    assert "learning  off (skills.learn)" in off
    assert "evolver" not in off
