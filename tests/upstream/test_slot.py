"""The policy slot: which weights answer."""

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import Serving
from metaclaw.upstream import PolicySlot


def test_until_something_is_trained_the_base_answers() -> None:
    assert PolicySlot("embedded").serving.version == 0


def test_what_a_version_absorbed_is_known_of_that_version_alone() -> None:
    slot = PolicySlot("embedded")
    slot.flip(Serving(version=4, absorbed={4: frozenset({SkillName("dates")})}))
    assert slot.absorbed(4) == {"dates"}
    assert slot.absorbed(3) == slot.absorbed(0) == frozenset()
