"""The route that tells the cost of the program's own calls."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

from metaclaw.api.router import ApiRequest, route
from metaclaw.api.status_words import budget_words
from metaclaw.api.views import picked
from metaclaw.domain.status import ENFORCED, SERVED, Spending
from metaclaw.learn import PRICES_AS_OF, Budget
from metaclaw.store import SqlSpending

_MOST_DAYS = 3660
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Cost:
    """Reads the cost of calls. `waiting` returns the number of requests that wait for the budget,
    by purpose.
    """

    budget: Budget
    spending: SqlSpending
    waiting: Callable[[], Mapping[str, int]] = dict

    def status(self) -> dict[str, object]:
        """The budget, the cost by purpose, and the number of turns that the judge was asked about
        today. Blocks.
        """
        budget = self._budget()
        sums = self.spending.sums()
        purposes = _grouped((key.purpose, spent) for key, spent in sums.items())
        today = _grouped(
            (key.purpose, spent) for key, spent in sums.items() if key.day == budget["day"]
        )
        served, judged = purposes.pop(SERVED, Spending()), today.get("judge", Spending()).turns
        turns = today.get(SERVED, Spending()).turns
        return {
            "budget": budget,
            "asked": {purpose: spending_view(spent) for purpose, spent in purposes.items()},
            "served": spending_view(served),
            "judged_today": {"turns": judged, "of": turns},
        }

    def _budget(self) -> dict[str, object]:
        waiting = [{"purpose": name, "count": count} for name, count in self.waiting().items()]
        facts = {**self.budget.account().facts(), "waiting": waiting}
        return {**facts, "words": list(budget_words(facts))}

    @route(
        "GET",
        "/api/cost",
        "What the program's own calls cost, by day, purpose and model",
        ("days",),
    )
    def _cost(self, request: ApiRequest) -> object:
        days, budget = request.number("days", 7, _MOST_DAYS), self._budget()
        sums = self.spending.sums(self.budget.first_day(days))
        own = {key: spent for key, spent in sums.items() if key.purpose != SERVED}
        purposes = _grouped((key.purpose, spent) for key, spent in own.items())
        kinds = _grouped(((key.day, kind_of(key.purpose)), spent) for key, spent in sums.items())
        return {
            "budget": budget,
            "prices_as_of": PRICES_AS_OF,
            "days": [
                {
                    "day": day,
                    **{
                        kind: spending_view(kinds.get((day, kind), Spending()))
                        for kind in ("learning", "traffic", "enforcement")
                    },
                }
                for day in sorted({key.day for key in sums}, reverse=True)
            ],
            "calls": [
                {**picked(key, "day", "purpose", "model"), **spending_view(spent)}
                for key, spent in own.items()
            ],
            "purposes": {purpose: spending_view(spent) for purpose, spent in purposes.items()},
        }


def kind_of(purpose: str) -> str:
    return {SERVED: "traffic", ENFORCED: "enforcement"}.get(purpose, "learning")


def spending_view(spent: Spending) -> dict[str, object]:
    """A sum as JSON; `cost` is null where no model of it has a price."""
    is_unpriced = spent.unpriced_tokens and not spent.cost
    return {**asdict(spent), "cost": None if is_unpriced else round(spent.cost, 6)}


def _grouped(pairs: Iterable[tuple[Key, Spending]]) -> dict[Key, Spending]:
    found: dict[Key, Spending] = {}
    for key, spent in pairs:
        found[key] = found.get(key, Spending()) + spent
    return found
