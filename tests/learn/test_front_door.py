"""What the package offers to others can be imported."""

import pytest

import metaclaw.learn


@pytest.mark.parametrize("name", metaclaw.learn.__all__)
def test_every_name_that_the_package_offers_is_there(name: str) -> None:
    assert getattr(metaclaw.learn, name) is not None
