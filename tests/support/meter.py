"""A meter that keeps its counts where a test can see them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from metaclaw.domain.chat import Usage
from metaclaw.ports import Purpose
from metaclaw.upstream import Charge, Spent


class CountingMeter:
    """Lets every call through. `spent` is by purpose, `expected` the size of each request as it was
    announced.
    """

    def __init__(self) -> None:
        self.spent: dict[Purpose, Spent] = {}
        self.expected: list[int] = []

    @asynccontextmanager
    async def charge(self, purpose: Purpose, model: str, tokens: int) -> AsyncIterator[Charge]:
        self.expected.append(tokens)
        yield _Charge(self, purpose)


class _Charge:
    def __init__(self, meter: CountingMeter, purpose: Purpose) -> None:
        self._meter, self._purpose = meter, purpose

    def add(self, spent: Spent) -> None:
        before = self._meter.spent.get(self._purpose, Spent())
        mine, more = before.usage, spent.usage
        usage = Usage(
            mine.input_tokens + more.input_tokens,
            mine.output_tokens + more.output_tokens,
            mine.cached_tokens + more.cached_tokens,
        )
        counts = (
            before.calls + spent.calls,
            before.failures + spent.failures,
            before.estimated + spent.estimated,
        )
        self._meter.spent[self._purpose] = Spent(*counts, usage)
