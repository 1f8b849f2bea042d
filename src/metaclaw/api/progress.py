"""The route that tells whether it gets better: what the page Progress shows."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from itertools import takewhile
from typing import Any, Final

from metaclaw.api.cost import kind_of, spending_view
from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiRequest, route
from metaclaw.api.views import time_view
from metaclaw.clock import local_today
from metaclaw.domain.compliance import Compliance, RuleResult, measured_hash
from metaclaw.domain.skill import GenerationChange, Lesson
from metaclaw.domain.status import SERVED, Spending
from metaclaw.store import DayOfAnswers, DayOfRule, ProgressFilter, SqlPolicies

_PERIODS: Final = {"day": 30, "week": 12, "month": 12}
_MOST_SERIES: Final = 5
_MOST_VERSIONS: Final = 100
Numbers = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Plot:
    """Numbers by period and by what they are of. A number is None where there is nothing to tell.
    `unit` is count, share, tokens, money or seconds; `kind` is lines, bars or stack.
    """

    name: str
    title: str
    unit: str
    kind: str
    series: Mapping[str, Numbers]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number by period; `of` is what it is a part of. `good` is where it should go."""

    name: str
    unit: str
    good: str
    values: Numbers
    of: Numbers | None = None


class Periods:
    """The days, weeks or months that are shown. The last one has not ended yet."""

    def __init__(self, by: str, today: date) -> None:
        self.first = [_start(by, today)]
        """Their first days."""
        while len(self.first) < _PERIODS[by]:
            self.first.insert(0, _start(by, self.first[0] - timedelta(days=1)))

    def sums(self, numbers: Iterable[tuple[str, date, float]]) -> dict[str, list[float]]:
        """Numbers added up by name and period."""
        found: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(self.first))
        for name, day, number in numbers:
            if (at := self.at(day)) >= 0:
                found[name][at] += number
        return dict(found)

    def at(self, day: date) -> int:
        """The place of the period of a day; -1 before the first."""
        return bisect_right(self.first, day) - 1


def _start(by: str, day: date) -> date:
    if by == "day":
        return day
    return day.replace(day=1) if by == "month" else day - timedelta(days=day.weekday())


@dataclass(frozen=True, slots=True)
class ProgressRoutes:
    """The route for progress."""

    home: HomeRoutes

    @route(
        "GET",
        "/api/progress",
        "Whether it gets better: repeats, rules, lessons, cost, answers, by day, week or month",
        ("by", "agent", "model", "project", "person"),
    )
    def _progress(self, request: ApiRequest) -> object:
        home, by = self.home, request.choice("by", _PERIODS) or "day"
        wanted = ProgressFilter(
            *(request.query.get(name, "") for name in ("agent", "model", "project", "person"))
        )
        periods = Periods(by, local_today())
        since, owner = periods.first[0], home.person.is_owner
        stored = home.progress
        found = stored.repeats(since, wanted)
        repeats = [
            ("prevented" if one.is_prevented else "came again", one.at.astimezone().date(), 1.0)
            for one in found
        ]
        prevented = Counter(one.signature for one in found if one.is_prevented)
        rules = stored.rules(since, wanted)
        parts = [
            _repeats(periods.sums(repeats), len(periods.first)),
            _rules(periods, rules),
            *(
                [_lessons(periods, self._changes(since, wanted))]
                if not (wanted.agent or wanted.model)
                else []
            ),
            *([self._cost(periods, wanted.model)] if owner and not _is_narrow(wanted) else []),
            _answers(periods, stored.answers(since, wanted)),
        ]
        versions = SqlPolicies(home.database).versions(_MOST_VERSIONS) if owner else []
        return {
            "by": by,
            "wanted": asdict(wanted),
            "choices": asdict(stored.choices()),
            "periods": [day.isoformat() for day in periods.first],
            "figures": [asdict(figure) for figures, _ in parts for figure in figures],
            "plots": [asdict(plot) for _, plots in parts for plot in plots],
            "versions": [
                {
                    "version": one.number,
                    "state": one.state,
                    "made_at": time_view(one.made),
                    "at": at,
                }
                for one in versions
                if (at := periods.at(one.made.astimezone().date())) >= 0
            ],
            "best_lesson": self._best_lesson(prevented),
            "most_broken": _most_broken(self._in_force(rules)),
            "learning": self._learning(since, wanted) if owner else None,
        }

    def _changes(self, since: date, wanted: ProgressFilter) -> Iterable[tuple[str, date, float]]:
        """What came into force and what was withdrawn, for this project and person."""

        def is_since(change: GenerationChange) -> bool:
            at = change.published_at
            return at is not None and at.astimezone().date() >= since

        for change in takewhile(is_since, self.home.rulebook.lately()):
            for name, one in (change.before | change.after).items():
                is_there = not wanted.project or wanted.project == one.workspace
                is_theirs = not wanted.person or one.scope == f"user:{wanted.person}"
                is_new, is_gone = name not in change.before, name not in change.after
                if (is_new or is_gone) and is_there and is_theirs and change.published_at:
                    day = change.published_at.astimezone().date()
                    yield "learned" if is_new else "withdrawn", day, 1.0

    def _cost(self, periods: Periods, model: str) -> tuple[list[Figure], list[Plot]]:
        spent = [
            (key.purpose, date.fromisoformat(key.day), one)
            for key, one in self.home.cost.spending.sums(periods.first[0].isoformat()).items()
            if key.purpose != SERVED and (not model or key.model.partition("/")[2] == model)
        ]
        cost = periods.sums((purpose, day, one.cost) for purpose, day, one in spent)
        tokens = periods.sums((purpose, day, one.tokens) for purpose, day, one in spent)
        own = [(day, one) for purpose, day, one in spent if kind_of(purpose) == "learning"]
        total = periods.sums(("cost", day, one.cost) for day, one in own)
        is_priced = any(one.cost for _, one in own)
        if not is_priced:
            total = periods.sums(("tokens", day, one.tokens) for day, one in own)
        name, unit = (
            ("cost of learning", "money") if is_priced else ("tokens for learning", "tokens")
        )
        values = next(iter(total.values()), [0.0] * len(periods.first))
        return [Figure(name, unit, "down", values)], [
            Plot("cost", "Cost by purpose", "money", "stack", cost),
            Plot("tokens", "Tokens by purpose", "tokens", "stack", tokens),
        ]

    def _learning(self, since: date, wanted: ProgressFilter) -> dict[str, object] | None:
        """What learning cost this week, and in all periods that are shown."""
        if _is_narrow(wanted):
            return None
        week, spent = _start("week", local_today()), [Spending(), Spending()]
        for key, one in self.home.cost.spending.sums(min(since, week).isoformat()).items():
            is_of = not wanted.model or key.model.partition("/")[2] == wanted.model
            if kind_of(key.purpose) == "learning" and is_of:
                spent[0] += one if key.day >= week.isoformat() else Spending()
                spent[1] += one if key.day >= since.isoformat() else Spending()
        return {"week": spending_view(spent[0]), "all": spending_view(spent[1])}

    def _in_force(self, rows: Iterable[DayOfRule]) -> list[DayOfRule]:
        """The results of rules as they are now, with the check that they have."""
        hashes = {rule.name: measured_hash(rule) for rule in self.home.rulebook.skills()}
        return [row for row in rows if hashes.get(row.rule) == row.hash]

    def _best_lesson(self, prevented: Counter[str]) -> dict[str, object] | None:
        """The lesson in force that prevented the most."""
        found = [
            (prevented[skill.name], skill)
            for skill in self.home.rulebook.skills()
            if isinstance(skill, Lesson)
        ]
        times, best = max(found, key=lambda one: one[0], default=(0, None))
        if best is None or not times:
            return None
        return {"name": best.name, "text": best.body, "workspace": best.workspace, "times": times}


def _is_narrow(wanted: ProgressFilter) -> bool:
    """Whether only some turns are wanted; calls for learning belong to no agent or person."""
    return bool(wanted.agent or wanted.project or wanted.person)


def _repeats(sums: Mapping[str, list[float]], count: int) -> tuple[list[Figure], list[Plot]]:
    nothing = [0.0] * count
    series = {name: sums.get(name, nothing) for name in ("prevented", "came again")}
    total = [sum(pair) for pair in zip(*series.values(), strict=True)]
    return [Figure("repeats prevented", "count", "up", series["prevented"], total)], [
        Plot("repeats", "Failures that were known already", "count", "stack", series)
    ]


def _rules(periods: Periods, rows: Sequence[DayOfRule]) -> tuple[list[Figure], list[Plot]]:
    count = len(periods.first)

    def followed(mine: Iterable[DayOfRule]) -> list[Compliance]:
        results: list[Counter[RuleResult]] = [Counter() for _ in range(count)]
        for row in mine:
            results[periods.at(row.day)][row.result] += row.times
        return list(map(Compliance.of, results))

    def plot(name: str, title: str, key: str, names: Iterable[str]) -> Plot:
        shares = {
            one: [
                part.followed / part.not_held if part.not_held else None
                for part in followed(row for row in rows if getattr(row, key) == one)
            ]
            for one in names
        }
        return Plot(name, title, "share", "lines", shares)

    agents, broken = Counter[str](), Counter[str]()
    for row in rows:
        agents[row.agent] += row.times
        broken[row.rule] += row.times * (row.result in (RuleResult.BROKEN, RuleResult.HELD))
    by_agent = [name for name, _ in agents.most_common(_MOST_SERIES)]
    by_rule = [name for name, _ in broken.most_common(_MOST_SERIES)]
    total = followed(rows)
    figure = Figure(
        *("rules followed", "count", "up"),
        [part.followed for part in total],
        [part.not_held for part in total],
    )
    return [figure], [
        plot("agents", "Rules followed, by agent", "agent", by_agent),
        plot("rules", "Rules followed, those broken most", "rule", by_rule),
    ]


def _lessons(
    periods: Periods, changes: Iterable[tuple[str, date, float]]
) -> tuple[list[Figure], list[Plot]]:
    sums, nothing = periods.sums(changes), [0.0] * len(periods.first)
    series = {name: sums.get(name, nothing) for name in ("learned", "withdrawn")}
    return [Figure("lessons, rules and skills learned", "count", "", series["learned"])], [
        Plot("lessons", "Learned and withdrawn", "count", "bars", series)
    ]


def _answers(periods: Periods, rows: Sequence[DayOfAnswers]) -> tuple[list[Figure], list[Plot]]:
    took: dict[str, list[Counter[float]]] = defaultdict(lambda: [Counter() for _ in periods.first])
    for row in rows:
        if row.seconds is not None:
            for name in ("", row.provider):
                took[name][periods.at(row.day)][row.seconds] += row.times
    everything = [(row.provider, row.day, row.times) for row in rows]
    failed = [(row.provider, row.day, row.times) for row in rows if row.seconds is None]
    tokens = periods.sums((row.provider, row.day, row.tokens) for row in rows)
    medians = {name: [_quantile(one, 0.5) for one in by_period] for name, by_period in took.items()}
    slow = {name: [_quantile(one, 0.95) for one in by_period] for name, by_period in took.items()}
    typical = medians.pop("", [None] * len(periods.first))
    slow.pop("", None)
    nothing = [0.0] * len(periods.first)
    errors = periods.sums(("", day, times) for _, day, times in failed).get("", nothing)
    of = periods.sums(("", day, times) for _, day, times in everything).get("", nothing)
    return [
        Figure("answers failed", "count", "down", errors, of),
        Figure("typical answer", "seconds", "down", typical),
    ], [
        Plot("latency", "Typical answer, by provider", "seconds", "lines", medians),
        Plot("slowest", "Slowest 5 % of answers begin here", "seconds", "lines", slow),
        Plot("errors", "Failed answers, by provider", "count", "stack", periods.sums(failed)),
        Plot("traffic", "Tokens by provider, with side requests", "tokens", "stack", tokens),
    ]


def _quantile(times: Counter[float], share: float) -> float | None:
    """The duration that this share of the answers does not exceed."""
    left = share * times.total()
    for seconds in sorted(times):
        left -= times[seconds]
        if left <= 0:
            return seconds
    return None


def _most_broken(rows: Sequence[DayOfRule]) -> dict[str, Any] | None:
    """The rule that was broken most, and the agent that broke it most."""
    results: dict[tuple[str, str], Compliance] = defaultdict(Compliance)
    broken = Counter[str]()
    for row in rows:
        one = Compliance.of({row.result: row.times})
        results[row.rule, row.agent] += one
        broken[row.rule] += one.broken
    for rule, times in broken.most_common(1):
        agents = {agent: one for (of, agent), one in results.items() if of == rule}
        agent = max(agents, key=lambda name: agents[name].broken)
        mine = agents[agent]
        if times:
            by = {"agent": agent, "by_agent": mine.broken, "of": mine.checked}
            return {"name": rule, "times": times, **by}
    return None
