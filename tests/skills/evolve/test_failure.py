"""Which failures are enough to learn from alone."""

from metaclaw.skills import group_failures, ripe_groups
from metaclaw.skills.evolve.failures import CORRECTION_READ, is_on_users_word
from tests.skills.evolve.building import make_failure


def test_a_correction_that_a_model_read_is_enough_alone() -> None:
    failure = make_failure("Make the label", "Labels are A6, you know.", detector=CORRECTION_READ)
    (kind,) = group_failures([failure])
    assert is_on_users_word(failure)
    assert ripe_groups(kind, 100)
    assert not is_on_users_word(make_failure("Make the label", "Labels are A6, you know."))
