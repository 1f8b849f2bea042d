"""What an agent remembers of a day, and what it lets go when that grows beyond its budget.

The system prompt and the question at hand always stay, and a tool's result stays with its call. Let
go are, in this order: earlier rounds, the oldest first; the oldest tool traffic of the round at
hand, but for the newest; the day's opening messages."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from metaclaw_bench.agent.chat import Message

Unit = tuple[Message, ...]
"""Messages that stay or go together: an answer, or an answer that calls tools with all their
results.
"""

KEPT_SHARE = 0.75
"""How much of the budget is used after earlier rounds were let go: not all, so that the prompt's
beginning holds for a while.
"""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and what followed it."""

    question: Message
    units: tuple[Unit, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of it in order."""
        return (self.question, *(message for unit in self.units for message in unit))


@dataclass(frozen=True, slots=True)
class History:
    """A day so far. The last exchange is the one at hand."""

    system: Message
    opening: tuple[Message, ...] = ()
    exchanges: tuple[Exchange, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of it in order, as a model is sent it."""
        return (
            self.system,
            *self.opening,
            *(message for exchange in self.exchanges for message in exchange.messages),
        )

    def ask(self, question: Message) -> "History":
        """The same with another question at hand."""
        return replace(self, exchanges=(*self.exchanges, Exchange(question)))

    def add(self, unit: Unit) -> "History":
        """The same with more said to the question at hand."""
        *earlier, current = self.exchanges
        return replace(self, exchanges=(*earlier, replace(current, units=(*current.units, unit))))

    def fitted(
        self, budget_tokens: int, count: Callable[[Sequence[Message]], int]
    ) -> "History | None":
        """The same where it fits, else a shorter one, or None where even the shortest does not."""
        if count(self.messages) <= budget_tokens:
            return self
        for shorter in self._without_earlier_rounds():
            if count(shorter.messages) <= budget_tokens * KEPT_SHARE:
                return shorter
        return next(
            (shorter for shorter in self._at_hand() if count(shorter.messages) <= budget_tokens),
            None,
        )

    def _without_earlier_rounds(self) -> "Iterator[History]":
        for at in range(1, len(self.exchanges)):
            yield replace(self, exchanges=self.exchanges[at:])

    def _at_hand(self) -> "Iterator[History]":
        """The round at hand, ever shorter."""
        current = self.exchanges[-1]
        for at in range(max(1, len(current.units))):
            yield replace(self, exchanges=(replace(current, units=current.units[at:]),))
        yield replace(self, opening=(), exchanges=(replace(current, units=current.units[-1:]),))
