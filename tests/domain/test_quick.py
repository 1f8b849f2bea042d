"""Values that are made quickly are the values they would be otherwise."""

from dataclasses import FrozenInstanceError, dataclass, fields, replace
from typing import Any

import pytest

from metaclaw.domain.quick import quickly_made
from metaclaw.domain.turn import Exchange, Splice, Turn


@dataclass(frozen=True, slots=True)
class Plain:
    """What it is without."""

    first: int
    second: tuple[str, ...] = ("a",)


@quickly_made
@dataclass(frozen=True, slots=True)
class Quick:
    """The same, quickly."""

    first: int
    second: tuple[str, ...] = ("a",)


@pytest.mark.parametrize("given", [{"first": 1}, {"first": 1, "second": ()}])
def test_the_same_fields_come_of_the_same_words(given: dict[str, Any]) -> None:
    plain, quick = Plain(**given), Quick(**given)
    assert [getattr(plain, one.name) for one in fields(Plain)] == [getattr(quick, one.name) for one in fields(Quick)]
    assert quick == Quick(**given) == Quick(*(getattr(quick, one.name) for one in fields(Quick)))
    assert hash(quick) == hash(Quick(**given))


def test_they_stay_frozen_and_can_be_replaced() -> None:
    exchange = Exchange(b"body", splices=(Splice(0, b"x"),))
    with pytest.raises(FrozenInstanceError):
        exchange.request = b"other"  # type: ignore[misc]
    assert replace(exchange, said=b"said").sent == b"xbody"


def test_what_is_missing_or_unknown_is_refused() -> None:
    with pytest.raises(TypeError, match="session"):
        Turn(id="t_1")  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match="unknown"):
        Quick(1, unknown=2)  # type: ignore[call-arg]
