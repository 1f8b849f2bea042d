"""An item that ends its loop again and again is passed over; others, and those that were finished, never are."""

from metaclaw.learn.stumbles import Stumbles


def test_an_item_that_is_never_finished_is_passed_over_after_three_tries() -> None:
    stumbles = Stumbles("sensing")
    assert [stumbles.may_begin("t_1") for _ in range(5)] == [True, True, True, False, False]


def test_an_item_that_is_finished_each_time_is_taken_up_for_ever() -> None:
    stumbles = Stumbles("sensing")
    for _ in range(10):
        assert stumbles.may_begin("t_1")
        stumbles.finished("t_1")


def test_one_items_failures_say_nothing_of_another() -> None:
    stumbles = Stumbles("sensing")
    for _ in range(4):
        stumbles.may_begin("t_1")
    assert stumbles.may_begin("t_2")
