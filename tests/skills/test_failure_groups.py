"""Which failures are shown to the evolver together."""

from metaclaw.domain.turn import Scope
from metaclaw.skills import FailureGroup, group_failures
from metaclaw.skills.failure_groups import CORRECTION_READ
from tests.skills.made_failures import make_failure, not_taught_by


def turns(kinds: list[FailureGroup]) -> list[tuple[str, ...]]:
    return [kind.turns for kind in kinds]


def test_failures_with_one_cause_in_one_project_are_one_kind_whatever_the_task() -> None:
    shop = Scope("ada", "shop")
    failures = [
        make_failure("Write the report", turn="t_2", scope=shop),
        make_failure("Draw a map", turn="t_1", scope=shop),
        make_failure("Draw a map", turn="t_3", scope=Scope("ada", "lab")),
        make_failure("Draw a map", turn="t_4", scope=Scope("bob", "shop")),
        make_failure("Draw a map", turn="t_5", scope=shop, detector="undone"),
    ]
    assert turns(group_failures(failures)) == [("t_1", "t_2"), ("t_3",), ("t_4",), ("t_5",)]


def test_the_class_of_an_error_tells_causes_apart() -> None:
    failures = [
        make_failure("Do it", turn=f"t_{number}", quote=quote)
        for number, quote in enumerate(("KeyError: 'a'", "KeyError: 'b'", "TypeError: c"))
    ]
    assert turns(group_failures(failures)) == [("t_0", "t_1"), ("t_2",)]


def test_what_the_person_objected_to_is_a_kind_of_its_own_and_one_is_enough_if_they_said_what() -> (
    None
):
    (said,) = group_failures([make_failure("Do it", comment="Dates are ISO.")])
    (read,) = group_failures([make_failure("Do it", detector=CORRECTION_READ)])
    (felt,) = group_failures([make_failure("Do it", detector="correction.plain")])
    assert said.cause == read.cause == felt.cause == "correction"
    assert (said.is_learnable(3), read.is_learnable(3), felt.is_learnable(3)) == (True, True, False)
    assert said.in_words == "you corrected the answer"


def test_passes_unknown_outcomes_the_environment_and_tool_calls_make_no_kind() -> None:
    assert group_failures(not_taught_by(make_failure("Do it"))) == []
    assert group_failures([make_failure("Do it", detector="tool_error")]) == []
    assert group_failures([make_failure("Do it", detector="exit", quote="exit code 1")]) == []
    assert group_failures([make_failure("Do it", detector="repeat.loop")]) == []
