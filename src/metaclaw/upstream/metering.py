"""Metering: the program's own calls to models are counted and limited by the budget."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

from metaclaw.domain.chat import Usage
from metaclaw.ports import Purpose

_item: Final[ContextVar[str]] = ContextVar("learned_item", default="")
_waits: Final[ContextVar[bool]] = ContextVar("waits_for_budget", default=True)
_NO_TOKENS: Final = Usage(0, 0)


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of calls. `estimated` is the number of calls whose provider reported no tokens."""

    calls: int = 0
    failures: int = 0
    estimated: int = 0
    usage: Usage = _NO_TOKENS


class Charge(Protocol):
    """The account of one request, which may take several calls."""

    def add(self, spent: Spent) -> None:
        """Count a call."""


class Meter(Protocol):
    """Counts the program's own calls."""

    def charge(self, purpose: Purpose, model: str, tokens: int) -> AbstractAsyncContextManager[Charge]:
        """Make calls inside, for a request that will take about this many tokens. Counted durably when it is left.

        Waits for the budget. For a purpose that must not wait, and inside `without_waiting`, raises BudgetError instead.
        """


class Unmetered:
    """Lets everything through and counts nothing."""

    @asynccontextmanager
    async def charge(self, purpose: Purpose, model: str, tokens: int) -> AsyncIterator[Charge]:
        yield self

    def add(self, spent: Spent) -> None:
        """Do not count."""


UNMETERED: Final = Unmetered()


@contextmanager
def spending_on(item: str) -> Iterator[None]:
    """Calls made inside, and in tasks started there, are counted for this skill or rule."""
    token = _item.set(item)
    try:
        yield
    finally:
        _item.reset(token)


def learned_item() -> str:
    """The skill or rule that calls are counted for here; empty for none."""
    return _item.get()


@contextmanager
def without_waiting() -> Iterator[None]:
    """Requests made inside, and in tasks started there, raise BudgetError instead of waiting for the budget."""
    token = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(token)


def waits_for_budget() -> bool:
    """Whether a request made here may wait."""
    return _waits.get()
