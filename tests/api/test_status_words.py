"""The status in words: problems with what to do, and a summary."""

from typing import Any

import pytest

from metaclaw.api.status_words import budget_words, problems, summary
from metaclaw.api.views import followed_words
from metaclaw.domain.compliance import Compliance
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Rule
from tests.support.cases import each

AT = "2026-11-17T07:00:00+00:00"
BUDGET: dict[str, Any] = {
    "limit": 300_000,
    "used": 45_000,
    "reading": 0,
    "limit_cost": None,
    "used_cost": 0.25,
    "unpriced_tokens": 0,
    "resets_at": "2026-11-17T00:00:00+01:00",
    "waiting": [],
}
LEARNING: dict[str, Any] = {
    "on": True,
    "gate": "lint",
    "listen": "world/reader",
    "judge": "world/judge-model",
    "evolver": None,
    "pending": {"turns": 0, "sessions": 2, "evolutions": 1},
    "noted": [{"at": AT, "reason": "noted use-uv", "put": [{"text": "Use uv."}], "gone": []}],
    "counted": [{"failures": 2, "needed": 3, "words": "wrong dates", "kind": "x"}],
    "rejected": {"reasons": {"broke a replay": 2}, "last": []},
    "budget": {"words": ["45,000 of 300,000 tokens used today (15%)"]},
    "judged_today": {"turns": 6, "of": 48},
    "listener": {"unread": 0, "failing": [], "not_understood": []},
    "unusable": [],
    "refused": [],
    "set_aside": [],
    "asked": {"judge": {"calls": 30, "failures": 2, "input_tokens": 9000, "output_tokens": 600}},
}
STATUS: dict[str, Any] = {
    "generation": 7,
    "degraded": False,
    "policy_version": 0,
    "training": {"state": "off"},
    "newest_version": None,
    "window": None,
    "counts": {
        "turns": 50,
        "sessions": 9,
        "active_sessions": 1,
        "verdicts": {"pass": 30, "fail": 4, "unknown": 6},
        "support": 3,
        "candidates": {"draft": 0, "waiting": 2, "accepted": 3},
        "rejections": {"no verdict": 4},
        "skills": {"live": 4},
        "rules": 1,
        "facts": 2,
    },
    "learning": LEARNING,
    "lessons": {"in_force": 5, "prevented": 12, "withdrawn": 3},
    "skills": {
        "trouble": None,
        "skipped": [],
        "broken_checks": [],
        "retrieval": {"mode": "words", "state": "as configured"},
    },
    "enforcement": {"on": True, "held_rules": []},
    "loops": {"sweep": "running"},
    "store": {
        "kind": "sqlite",
        "health": "healthy",
        "reason": None,
        "notice": None,
        "waiting_turns": 0,
        "lost_turns": 0,
        "size_bytes": 2_000_000_000,
        "max_bytes": None,
        "removed_sessions": 0,
    },
    "providers": [],
    "engine": None,
    "server": None,
}


def told(**changed: Any) -> str:
    """The summary as text, one line for each."""
    lines = summary({**STATUS, **changed})
    return "\n".join(f"{one['label']}: {one['text']}" for one in lines)


def wrong(**changed: Any) -> list[dict[str, Any]]:
    return problems({**STATUS, **changed})


def test_learning_is_told_in_words() -> None:
    for words in (
        "skills: 4 skills, generation 7",
        "recorded: 50 turns in 9 sessions, 1 of them open",
        "lessons: 5 in force; this week: 12 repeats prevented, 3 lessons withdrawn",
        "learned skills serve once their text is sound",
        "to learn: 2 ended sessions, 1 skill in writing",
        "noted: 2026-11-17 07:00  noted use-uv: Use uv.",
        "2 of the 3 failures from which a skill is written: wrong dates",
        "30 good, 4 bad, 6 unclear; 3 turns taught skills",
        "candidates: 2 waiting, 3 accepted",
        "world/judge-model, asked about 6 of 48 turns today",
        "budget: 45,000 of 300,000 tokens used today (15%)",
        "none; only your own words become skills",
        "judge: 30 calls, 2 failed, 9000 → 600 tokens",
        "store: sqlite, healthy, 2.00 GB",
    ):
        assert words in told()


def test_what_is_not_known_and_what_is_off_is_told() -> None:
    learning = {
        **LEARNING,
        "judge": None,
        "pending": None,
        "noted": None,
    }
    unread = {**STATUS["counts"], "turns": None, "verdicts": None, "candidates": None}
    words = told(learning=learning, counts=unread, lessons=None)
    assert "judge: none" in words
    assert words.count("cannot be counted now") == 3
    assert "AUROC" not in words
    off = told(learning={**learning, "on": False})
    assert "learning: off (skills.learn)" in off
    assert "evolver" not in off


def test_only_the_important_lines_are_brief() -> None:
    brief = {one["label"] for one in summary(STATUS) if one["is_brief"]}
    assert {"recorded", "rules", "lessons", "budget", "policy"} <= brief
    assert not brief & {"verdicts", "judge", "store", "loops"}


def test_the_budget_is_told_in_words() -> None:
    (line,) = budget_words(BUDGET)
    assert line == "45,000 of 300,000 tokens used today (15%), $0.25; renewed at 00:00"
    (line,) = budget_words({**BUDGET, "used_cost": 0.0, "reading": 9_000})
    assert "(15%), and 9,000 to read what you say; renewed" in line
    waiting = [{"purpose": "judge", "count": 3}, {"purpose": "evolve", "count": 1}]
    used_up = {"used": 300_000, "limit_cost": 2.0, "used_cost": 1.9, "waiting": waiting}
    first, second = budget_words({**BUDGET, **used_up})
    assert first.endswith("(100%), $1.90 of $2.00; renewed at 00:00")
    assert second.startswith(
        "learning waits because the budget is used up: judge (3), evolve (1). To go on now, raise"
        " learning.daily_tokens"
    )
    (none,) = budget_words({**BUDGET, "limit": 0})
    assert none.startswith("0 tokens a day: learning is off")
    _, short = budget_words({**BUDGET, "limit": 2000})
    assert short.startswith("short: reading one message takes up to 1,500 tokens")


def test_weights_are_told_in_words() -> None:
    training = {
        "state": "training",
        "step": 2,
        "steps": 4,
        "paused_reason": "you are back",
    }
    rejected = {
        "version": 5,
        "state": "rejected",
        "report": {"reasons": ["not shown better", "better in 3 of 80"]},
    }
    busy = {"policy_version": 3, "training": training}
    words = told(**busy, newest_version=rejected)
    assert (
        "version 3; version 5 was rejected, so nothing changes: not shown"
        " better (metaclaw policy show 5)" in words
    )
    assert "training, step 2 of at most 4; paused: you are back" in words
    assert "set aside: 4 no verdict" in words
    tested = {"version": 6, "state": "candidate", "report": None}
    assert "version 6 is being tested" in told(**busy, newest_version=tested)
    assert "policy: off; no weights are trained" in told()
    assert "set aside" not in told()


def test_nothing_wrong_is_no_problem() -> None:
    assert wrong() == []


@pytest.mark.parametrize(
    "state", ["ready", "starting", "starting: converting 40%", "starting: loading"]
)
def test_an_embedded_model_that_is_ready_or_starting_is_no_problem(state: str) -> None:
    assert wrong(engine={"state": state}) == []


def test_an_embedded_model_that_stopped_is_a_problem() -> None:
    (problem,) = wrong(engine={"state": "stopped"})
    assert problem["what"] == "The embedded model does not answer"


def test_a_provider_that_cannot_be_reached_comes_first_with_what_to_do() -> None:
    failing = {"reason": "it could not be reached", "at": AT, "in_a_row": 2}
    found = wrong(
        providers=[{"name": "openai", "last_failure": failing}],
        loops={"judging": "failed 3 times"},
    )
    assert [one["what"] for one in found] == [
        "Provider openai does not answer",
        "The background task judging is in trouble",
    ]
    assert "base_url" in found[0]["do"]
    recovered = {**failing, "in_a_row": 0}
    assert wrong(providers=[{"name": "openai", "last_failure": recovered}]) == []


def test_messages_that_are_not_read_or_not_understood_are_problems() -> None:
    failing = {"model": "openai/gpt-5", "reason": "status 500", "since": AT, "failures": 4}
    unusable = {
        "model": "openai/tiny",
        "messages": 9,
        "in_a_row": 4,
        "reason": "no JSON",
        "at": AT,
    }
    listener = {"unread": 3, "failing": [failing], "not_understood": [unusable]}
    unread, misread = wrong(learning={**LEARNING, "listener": listener})
    assert (unread["what"], unread["at"]) == ("What you say is not being read", AT)
    assert unread["why"] == "openai/gpt-5: status 500 (3 messages unread)"
    assert "openai/tiny gave no usable answer to the last 4 messages" in misread["why"]
    assert "listen.model" in misread["do"]
    listener = {"unread": 0, "failing": [], "not_understood": [{**unusable, "in_a_row": 0}]}
    assert wrong(learning={**LEARNING, "listener": listener}) == []


@pytest.mark.parametrize(("role", "work"), [("judge", "judges"), ("evolver", "writes skills")])
def test_a_model_whose_answers_cannot_be_used_is_a_problem_with_what_to_do(
    role: str, work: str
) -> None:
    one = {"role": role, "model": "world/tiny", "answers": 9, "reason": "no verdict", "at": AT}
    (problem,) = wrong(learning={**LEARNING, "unusable": [one]})
    assert problem["what"] == f"The model that {work} gives unusable answers"
    (problem,) = wrong(learning={**LEARNING, "unusable": [one], "unwritten": 2})
    assert ("2 failures to ask about again" in problem["why"]) == (work == "writes skills")
    assert "world/tiny: 9 of the last 9" in problem["why"]
    assert f"metaclaw config set {role}.model" in problem["do"]


def test_a_refused_model_is_a_problem_that_says_what_is_asked_instead_and_what_to_do() -> None:
    asked = {"listen": "", "confirm": "", "evolve": "anthropic/claude"}
    one = {"model": "openai/claude", "reason": "no such model", "at": AT, "instead": asked}
    reading, writing = wrong(learning={**LEARNING, "refused": [one]})
    assert reading["what"] == "Learning cannot ask the model openai/claude"
    assert reading["why"] == "no such model; what you say is not read"
    assert "metaclaw config set listen.model MODEL" in reading["do"]
    assert writing["why"] == "no such model; anthropic/claude is asked instead"
    assert "metaclaw config set evolver.provider PROVIDER" in writing["do"]


def test_a_signal_in_trouble_is_a_problem_and_no_other() -> None:
    fine = {"name": "input (X11)", "why": "input 3 s ago", "trouble": False}
    away = {"name": "calendar 1 (ics)", "why": "it cannot be reached", "trouble": True}
    (problem,) = wrong(window={"signals": [fine, away]})
    assert problem["what"] == "The signal calendar 1 (ics) says nothing"


RULE = Rule(SkillName("no-sudo"), "always", "Never use sudo.")


def followed(check: str | None, **by_agent: tuple[int, int, int, int]) -> str:
    """A rule's compliance in words, from followed, broken, held and unknown of each agent."""
    counts = {agent: Compliance(*one) for agent, one in by_agent.items()}
    rule = Rule(RULE.name, RULE.trigger, RULE.body, check=check)
    return followed_words(rule, sum(counts.values(), Compliance()), counts)


def test_a_rule_of_which_nothing_is_known_says_why() -> None:
    assert followed(None) == "no answer to check yet"
    assert (
        followed(None, codex=(0, 0, 0, 515))
        == "applied to 515 answers; it has no check that says whether it was followed"
    )
    assert (
        followed("not in calls of shell: x", codex=(0, 0, 0, 515))
        == "applied to 515 answers; its check decided none of them"
    )


CHECK = "not in calls of shell: sudo"


@each(
    ("by_agent", "words"),
    [
        ({"claude": (0, 2, 2, 0), "codex": (0, 3, 3, 0)}, "5 held back (codex 3, claude 2)"),
        (
            {"claude": (0, 2, 2, 0), "codex": (6, 4, 3, 0), "opencode": (4, 1, 0, 0)},
            "followed in 10 of 12; opencode 4 of 5; 5 held back (codex 3, claude 2)",
        ),
        (
            {"codex": (11, 3, 0, 0), "opencode": (30, 0, 0, 0), "idle": (0, 0, 0, 0)},
            "followed in 41 of 44; codex 11 of 14",
        ),
        ({"codex": (0, 2, 0, 0), "opencode": (0, 1, 0, 0)}, "followed in 0 of 3"),
    ],
)
def test_held_calls_are_no_failures_and_the_worst_agent_is_named(
    by_agent: dict[str, tuple[int, int, int, int]], words: str
) -> None:
    assert followed(CHECK, **by_agent) == words
