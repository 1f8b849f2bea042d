"""What the program's own calls cost: `GET /api/cost`, and the budget in `/api/status`."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import anyio.to_thread

from metaclaw.dashboard.routes import Ask, Route
from metaclaw.domain.spending import SERVED, Spending
from metaclaw.learn import PRICES_AS_OF, Budget
from metaclaw.store import SqlSpending

_MOST_DAYS = 3660
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Cost:
    """Reads what was spent. `waiting` is how many requests wait for the budget, by purpose."""

    budget: Budget
    spending: SqlSpending
    waiting: Callable[[], Mapping[str, int]] = dict

    def table(self) -> list[Route]:
        """The routes."""
        summary = "What the program's own calls cost, by day, purpose, model and learned item"
        return [Route("GET", "/api/cost", self._cost, summary, ("days",))]

    def status(self) -> dict[str, object]:
        """The budget, what was spent on which purpose, and how many turns the judge was asked about today. Blocks."""
        budget = self._budget()
        sums = self.spending.sums()
        purposes = _grouped((key.purpose, spent) for key, spent in sums.items())
        today = _grouped((key.purpose, spent) for key, spent in sums.items() if key.day == budget["day"])
        served, judged = purposes.pop(SERVED, Spending()), today.get("judge", Spending()).turns
        turns = today.get(SERVED, Spending()).turns
        return {
            "budget": budget,
            "asked": {purpose: spending_view(spent) for purpose, spent in purposes.items()},
            "served": spending_view(served),
            "judged_today": {"turns": judged, "of": turns},
        }

    def _budget(self) -> dict[str, object]:
        facts = self.budget.account().facts()
        return {**facts, "waiting": [{"purpose": purpose, "count": count} for purpose, count in self.waiting().items()]}

    async def _cost(self, ask: Ask) -> object:
        return await anyio.to_thread.run_sync(self.report, ask.number("days", 7, _MOST_DAYS))

    def report(self, days: int) -> dict[str, object]:
        """The last days, today the last of them. Blocks."""
        budget = self._budget()
        sums = self.spending.sums(self.budget.first_day(days), by_item=True)
        own = {key: spent for key, spent in sums.items() if key.purpose != SERVED}
        items = _grouped((key.item, spent) for key, spent in own.items() if key.item)
        return {
            "budget": budget,
            "prices_as_of": PRICES_AS_OF,
            "days": [
                {
                    "day": day,
                    "learning": spending_view(_total(spent for key, spent in own.items() if key.day == day)),
                    "traffic": spending_view(
                        _total(spent for key, spent in sums.items() if key.day == day and key.purpose == SERVED)
                    ),
                }
                for day in sorted({key.day for key in sums}, reverse=True)
            ],
            "calls": [
                {"day": day, "purpose": purpose, "model": model, **spending_view(spent)}
                for (day, purpose, model), spent in _grouped(
                    ((key.day, key.purpose, key.model), spent) for key, spent in own.items()
                ).items()
            ],
            "items": [{"item": item, **spending_view(spent)} for item, spent in items.items()],
        }


def spending_view(spent: Spending) -> dict[str, object]:
    """A sum as JSON; `cost` is null where no model of it has a price."""
    is_unpriced = spent.unpriced_tokens and not spent.cost
    return {
        "turns": spent.turns,
        "calls": spent.calls,
        "failures": spent.failures,
        "estimated": spent.estimated,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "cached_tokens": spent.cached_tokens,
        "unpriced_tokens": spent.unpriced_tokens,
        "cost": None if is_unpriced else round(spent.cost, 6),
    }


def _total(spent: Iterable[Spending]) -> Spending:
    return sum(spent, Spending())


def _grouped(pairs: Iterable[tuple[Key, Spending]]) -> dict[Key, Spending]:
    found: dict[Key, Spending] = {}
    for key, spent in pairs:
        found[key] = found.get(key, Spending()) + spent
    return found
