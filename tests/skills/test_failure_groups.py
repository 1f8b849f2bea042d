"""Kinds of failure: the same mistake together, different ones apart, whatever the order."""

import json
import random
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Fault, Signal
from metaclaw.skills import Failure, group_failures, is_learnable
from metaclaw.skills.failure_groups import CORRECTION_READ, is_on_users_word
from tests.skills.made_failures import make_failure, make_step, make_verdict, not_taught_by
from tests.support.cases import each

_TASKS = (
    "deploy the web server to staging",
    "deploy the api server to staging",
    "write a haiku about rain",
    "sort the invoice table",
)


def _turns(failures: list[Failure]) -> list[set[str]]:
    return [set(kind.turns) for kind in group_failures(failures)]


def test_the_same_error_in_like_tasks_is_one_kind() -> None:
    failures = [
        make_failure("Deploy the web server to staging", turn="t_1", quote="ValueError: no port"),
        make_failure(
            "Deploy the api server to staging please", turn="t_2", quote="ValueError: no host"
        ),
        make_failure("Write a haiku about rain", turn="t_3", quote="ValueError: no rhyme"),
    ]

    assert _turns(failures) == [{"t_1", "t_2"}, {"t_3"}]
    assert group_failures(failures)[0].name == "tool-error-valueerror-deploy-server-staging"


def test_near_tasks_with_different_causes_stay_apart() -> None:
    task = "Deploy the web server to staging"
    failures = [
        make_failure(task, turn="t_1", quote="ValueError: no port"),
        make_failure(task, turn="t_2", quote="PermissionError: denied"),
        make_failure(task, turn="t_3", detector="repeated_call"),
        make_failure(task, "No, use blue-green deployment instead.", turn="t_4"),
    ]

    assert _turns(failures) == [{"t_1"}, {"t_2"}, {"t_3"}, {"t_4"}]


def test_corrections_are_told_apart_by_what_they_say() -> None:
    failures = [
        make_failure(
            "Write the invoice for May",
            "No, dates must be ISO 8601.",
            turn="t_1",
            detector="correction.wrong",
        ),
        make_failure(
            "Write the invoice for June",
            "Wrong, write dates as ISO 8601 instead.",
            turn="t_2",
            detector="correction.wrong",
        ),
        make_failure(
            "Write the invoice for July",
            "No, amounts must be in euros.",
            turn="t_3",
            detector="correction.wrong",
        ),
    ]

    assert _turns(failures) == [{"t_1", "t_2"}, {"t_3"}]


def test_people_are_kept_apart_and_generations_are_not() -> None:
    task = "Deploy the web server to staging"
    failures = [
        make_failure(task, turn="t_1", scope=Scope(user="ada")),
        make_failure(task, turn="t_2", scope=Scope(user="bob")),
        make_failure(task, turn="t_3", scope=Scope(user="ada"), generation=4),
        make_failure(task, turn="t_4", scope=Scope(user="ada")),
        make_failure(task, turn="t_5"),
    ]

    kinds = group_failures(failures)
    assert [set(kind.turns) for kind in kinds] == [{"t_1", "t_3", "t_4"}, {"t_2"}, {"t_5"}]
    assert [kind.scope for kind in kinds] == ["user:ada", "user:bob", "owner"]


def test_passes_unknowns_and_the_environments_faults_are_in_no_kind() -> None:
    assert (
        group_failures(not_taught_by(make_failure("Deploy it", "No, use port 80 instead."))) == []
    )


def test_a_turn_counts_once() -> None:
    failure = make_failure("Deploy the web server")

    assert [kind.turns for kind in group_failures([failure, failure])] == [("t_1",)]


def test_what_the_environment_did_does_not_name_the_cause() -> None:
    step = make_step("Deploy the web server")
    signals = (
        Signal("network", 5.0, "ConnectionError: refused", Fault.ENVIRONMENT),
        Signal("repeated_call", 1.0, "twice"),
    )

    (kind,) = group_failures([Failure(step, replace(make_verdict(step), signals=signals))])
    assert kind.cause == "repeated-call"


@given(st.randoms(use_true_random=False), st.lists(st.sampled_from(_TASKS), max_size=12))
def test_the_order_of_failures_does_not_matter(shuffle: random.Random, tasks: list[str]) -> None:
    failures = [make_failure(task, turn=f"t_{number:02}") for number, task in enumerate(tasks)]
    shuffled = failures.copy()
    shuffle.shuffle(shuffled)

    assert group_failures(shuffled) == group_failures(failures)


@given(st.lists(st.sampled_from(_TASKS), max_size=12))
def test_every_failure_is_in_exactly_one_kind(tasks: list[str]) -> None:
    failures = [make_failure(task, turn=f"t_{number:02}") for number, task in enumerate(tasks)]

    assert sorted(turn for kind in group_failures(failures) for turn in kind.turns) == [
        failure.step.turn for failure in failures
    ]
    assert all(
        kind.name == kind.name.strip("-").lower() and kind.name for kind in group_failures(failures)
    )


def test_enough_failures_make_a_kind_ripe() -> None:
    failures = [
        make_failure("Deploy the web server to staging", turn=f"t_{number}") for number in range(3)
    ]
    (kind,) = group_failures(failures)

    assert is_learnable(kind, 3)
    assert not is_learnable(kind, 4)


def test_the_persons_feedback_is_enough_alone() -> None:
    failure = make_failure("Deploy it", comment="bad")
    (kind,) = group_failures([failure])

    assert is_on_users_word(failure)
    assert is_learnable(kind, 100)


@each("said", [None, "wrong", "try again", "Thanks! Next one."])
def test_words_that_say_nothing_are_not_enough_alone(said: str | None) -> None:
    (kind,) = group_failures([make_failure("Deploy it", said)])

    assert not is_learnable(kind, 2)


def test_a_verdict_on_another_turn_is_refused() -> None:
    step, other = make_step("Deploy it", turn="t_1"), make_step("Deploy it", turn="t_2")

    with pytest.raises(ValueError, match="not about turn t_1"):
        Failure(step, make_verdict(other))


def test_a_correction_that_a_model_read_is_enough_alone() -> None:
    failure = make_failure("Make the label", "Labels are A6, you know.", detector=CORRECTION_READ)
    (kind,) = group_failures([failure])
    assert is_on_users_word(failure)
    assert is_learnable(kind, 100)
    assert not is_on_users_word(make_failure("Make the label", "Labels are A6, you know."))


def test_a_kind_is_told_in_words() -> None:
    task = "Deploy the web server to staging"
    again, failed, corrected = (
        group_failures([make_failure(task, detector="redo.same")])[0],
        group_failures(
            [make_failure(task, detector="tool_error.reported", quote="ValueError: no port")]
        )[0],
        group_failures(
            [
                make_failure(
                    task, "No, use blue-green deployment instead.", detector="correction.plain"
                )
            ]
        )[0],
    )
    assert (again.name, again.in_words) == (
        "redo-same-deploy-server-staging",
        "you asked for the same again (about: deploy, server, staging)",
    )
    assert failed.in_words == "a tool call failed (about: deploy, server)"
    assert corrected.in_words.startswith("you corrected the answer (about: ")


def test_every_detector_that_may_speak_against_an_answer_has_words() -> None:
    known = json.loads((files("metaclaw.outcome") / "weights.json").read_text())["signals"]
    for_it = ("accepted.", "progress.", "environment.", "tests.passed")
    for detector in (one for one in known if not one.startswith(for_it)):
        (kind,) = group_failures([make_failure("Deploy the web server", detector=detector)])
        assert "the answer failed" not in kind.in_words, detector
