"""What the page shows as wrong."""

from typing import Any

import pytest

from metaclaw.api.web.content import problems


def status(**changed: Any) -> dict[str, Any]:
    """Facts of `/api/status` in which nothing is wrong but what is given."""
    right: dict[str, Any] = {
        "providers": [],
        "degraded": False,
        "store": {"reason": None, "notice": None},
        "skills": {"trouble": None, "skipped": [], "broken_checks": []},
        "loops": {"listening": "running"},
        "engine": {"state": "ready"},
        "training": {},
        "learning": {"listener": {"unread": 0, "failing": [], "not_understood": []}},
    }
    return {**right, **changed}


@pytest.mark.parametrize(
    "state", ["ready", "starting", "starting: converting 40%", "starting: loading"]
)
def test_an_embedded_model_that_is_ready_or_starting_is_no_problem(state: str) -> None:
    assert problems(status(engine={"state": state})) == []


def test_an_embedded_model_that_stopped_is_a_problem() -> None:
    (problem,) = problems(status(engine={"state": "stopped"}))
    assert problem["what"] == "The embedded model does not answer"


def test_a_provider_that_cannot_be_reached_comes_first_with_what_to_do() -> None:
    failing = {
        "reason": "it could not be reached",
        "at": "2026-11-17T07:00:00+00:00",
        "in_a_row": 2,
    }
    provider = {"name": "openai", "last_failure": failing}
    found = problems(status(providers=[provider], loops={"judging": "failed 3 times"}))
    assert [one["what"] for one in found] == [
        "Provider openai does not answer",
        "The background task judging is in trouble",
    ]
    assert "base_url" in found[0]["do"]


def test_a_provider_that_has_recovered_is_no_problem() -> None:
    recovered = {
        "reason": "it could not be reached",
        "at": "2026-11-17T07:00:00+00:00",
        "in_a_row": 0,
    }
    assert problems(status(providers=[{"name": "openai", "last_failure": recovered}])) == []


def test_messages_that_are_not_read_are_a_problem_until_their_reader_answers() -> None:
    failing = {
        "model": "openai/gpt-5",
        "reason": "it answered with status 500",
        "since": "2026-11-17T07:00:00+00:00",
        "failures": 4,
    }
    listener = {"unread": 3, "failing": [failing], "not_understood": []}
    (problem,) = problems(status(learning={"listener": listener}))
    assert problem["what"] == "What you say is not being read"
    assert "openai/gpt-5" in problem["why"]
    assert "3 messages unread" in problem["why"]
    assert problem["at"] == failing["since"]


def test_answers_about_messages_that_cannot_be_used_are_a_problem_until_one_can() -> None:
    unusable = {
        "model": "openai/tiny",
        "messages": 9,
        "in_a_row": 4,
        "reason": "no JSON",
        "at": "2026-11-17T07:00:00+00:00",
    }
    listener: dict[str, Any] = {"unread": 0, "failing": [], "not_understood": [unusable]}
    (problem,) = problems(status(learning={"listener": listener}))
    assert "openai/tiny gave no usable answer to the last 4 messages" in problem["why"]
    assert "listen.model" in problem["do"]
    listener["not_understood"] = [{**unusable, "in_a_row": 0}]
    assert problems(status(learning={"listener": listener})) == []


@pytest.mark.parametrize(("role", "work"), [("judge", "judges"), ("evolver", "writes skills")])
def test_a_model_whose_answers_cannot_be_used_is_a_problem_with_what_to_do(
    role: str, work: str
) -> None:
    one = {
        "role": role,
        "model": "world/tiny",
        "answers": 9,
        "reason": "no verdict",
        "at": "2026-11-17T08:00:00+00:00",
    }
    (problem,) = problems(status(learning={"unusable": [one]}))
    assert problem["what"] == f"The model that {work} gives unusable answers"
    assert "world/tiny: 9 of the last 9" in problem["why"]
    assert f"metaclaw config set {role}.model" in problem["do"]
