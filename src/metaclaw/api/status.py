"""The state of the program (`/api/status`) and the cost of its own calls (`/api/cost`)."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import TypeVar

import anyio.to_thread

from metaclaw import __version__
from metaclaw.api.router import ApiRequest, route
from metaclaw.api.status_words import budget_words, problems, summary
from metaclaw.api.views import picked
from metaclaw.domain.compliance import measured_hash
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Lesson, Skill, SkillKind
from metaclaw.domain.status import ENFORCED, SERVED, Health, Spending, StoreHealth, StoreSize
from metaclaw.errors import OUT_OF_RESOURCES, StoreError
from metaclaw.learn import PRICES_AS_OF, Budget
from metaclaw.skills import LibraryView, Rulebook, can_hold, check_trouble, question_of
from metaclaw.store import LearningCounts, LedgerCounts, SqlEpisodes, SqlSpending
from metaclaw.upstream import ProviderFailure, ProviderReachability

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProviderFacts:
    """One provider in the status."""

    name: str
    kind: str
    wires: tuple[str, ...]
    models: tuple[str, ...]
    state: Callable[[], str]
    failure: Callable[[], ProviderFailure | None] = lambda: None
    reachability: ProviderReachability | None = None
    """For a provider over a network."""

    async def tell(self) -> dict[str, object]:
        """The provider's entry. A provider that accepts no connection is failing, also before the
        first request.
        """
        trouble = None if self.reachability is None else await self.reachability.trouble()
        failure = self.failure()
        is_known = self.reachability is not None and self.reachability.is_known
        if trouble is not None:
            since, count = (
                (failure.at, failure.in_a_row) if failure is not None else (datetime.now(UTC), 0)
            )
            failure = ProviderFailure(
                trouble, since if count else datetime.now(UTC), max(count, 1), is_unreachable=True
            )
        elif failure is not None and failure.is_unreachable and is_known:
            failure = replace(failure, in_a_row=0)
        is_failing = failure is not None and failure.in_a_row > 0
        return {
            "name": self.name,
            "kind": self.kind,
            "wires": self.wires,
            "models": self.models,
            "state": "failing" if is_failing else self.state(),
            "last_failure": None
            if failure is None
            else {
                "reason": failure.reason,
                "at": failure.at.isoformat(timespec="seconds"),
                "in_a_row": failure.in_a_row,
            },
        }


@dataclass(frozen=True, slots=True)
class Status:
    """Collects the state of every part."""

    mode: str
    store_kind: str
    store_health: Callable[[], StoreHealth]
    counts: Callable[[], LedgerCounts]
    library: Callable[[], LibraryView]
    library_trouble: Callable[[], str | None]
    providers: Sequence[ProviderFacts]
    engine_state: Callable[[], str] | None
    loops: Callable[[], Mapping[str, str]]
    active_sessions: Callable[[], int]
    learned: Callable[[], LearningCounts]
    learning: Callable[[], Mapping[str, object]]
    began: float
    policy_version: Callable[[], int]
    training: Callable[[], Mapping[str, object]]
    failed_checks: Callable[[Mapping[SkillName, str]], Mapping[SkillName, str]]
    """Which rules and skills with these hashes have a check that failed to run, and why. Called in
    a thread.
    """
    rejections: Callable[[], Mapping[str, int]]
    """The number of turns that may not train, by reason. Called in a thread."""
    window: Callable[[], Mapping[str, object] | None]
    turned_away: Callable[[], Mapping[str, object]]
    """Rejected candidates: the number for each reason, and the last few. Called in a thread."""
    pending: Callable[[], Mapping[str, int] | None]
    """Counts of turns and sessions that wait for learning; None if not known yet. Called in a
    thread.
    """
    retrieval: Callable[[], Mapping[str, str]]
    """How skills are found (by words, or by words and meaning), and the state of the search by
    meaning.
    """
    cost: Callable[[], Mapping[str, object]]
    """The budget, and the cost of learning. Called in a thread."""
    noted: Callable[[], Sequence[Mapping[str, object]]]
    """The latest lessons, newest first. Called in a thread."""
    enforcing: Callable[[], bool]
    """Whether enforcement is on."""
    store_size: Callable[[], StoreSize | None]
    """Called in a thread."""
    lessons: Callable[[], Mapping[str, int]]
    """What lessons did in the last week. Called in a thread."""
    newest_version: Callable[[], Mapping[str, object] | None]
    """The newest version of the weights. Called in a thread."""

    async def tell(self) -> dict[str, object]:
        """The whole status; parts that cannot be read now are null."""
        store, library = self.store_health(), self.library()
        facts = {
            "version": __version__,
            "mode": self.mode,
            "uptime_s": round(time.monotonic() - self.began, 3),
            "degraded": store.health is Health.DEGRADED,
            "generation": library.generation,
            "policy_version": self.policy_version(),
            "training": dict(self.training()),
            "window": self.window(),
            "counts": await self._counts(library),
            "learning": await self._learning(),
            "skills": await self._skills(library),
            "questions": _questions(library.skills),
            "enforcement": {"on": self.enforcing(), "held_rules": held_rules(library.skills)},
            "loops": dict(self.loops()),
            "store": _store_view(self.store_kind, store, await _asked(self.store_size)),
            "providers": await asyncio.gather(*(provider.tell() for provider in self.providers)),
            "engine": None if self.engine_state is None else {"state": self.engine_state()},
            "lessons": await _asked(self.lessons),
            "newest_version": await _asked(self.newest_version),
        }
        return {**facts, "problems": problems(facts), "summary": summary(facts)}

    async def _counts(self, library: LibraryView) -> dict[str, object]:
        counts, learned, rejections = (
            await _asked(self.counts),
            await _asked(self.learned),
            await _asked(self.rejections),
        )
        kinds = Counter(skill.kind for skill in library.skills)
        return {
            "turns": None if counts is None else counts.turns,
            "sessions": None if counts is None else counts.sessions,
            "active_sessions": self.active_sessions(),
            "verdicts": None
            if learned is None
            else {outcome.value: count for outcome, count in learned.verdicts.items()},
            "support": None if learned is None else learned.support,
            "query": None if learned is None else learned.query,
            "candidates": None
            if learned is None
            else {standing.value: count for standing, count in learned.candidates.items()},
            "rejections": None if rejections is None else dict(rejections),
            "skills": dict(
                Counter(skill.state.value for skill in library.skills if skill.is_skill)
            ),
            "rules": kinds[SkillKind.RULE],
            "facts": kinds[SkillKind.FACT],
        }

    async def _learning(self) -> dict[str, object]:
        pending, noted = await _asked(self.pending), await _asked(self.noted)
        return {
            **self.learning(),
            **(await _asked(self.cost) or {}),
            "pending": None if pending is None else dict(pending),
            "rejected": await _asked(self.turned_away),
            "noted": None if noted is None else list(noted),
        }

    async def _skills(self, library: LibraryView) -> dict[str, object]:
        return {
            "generation": library.generation,
            "count": library.count,
            "skipped": [picked(one, "path", "reason") for one in library.skipped],
            "broken_checks": await _asked(lambda: self._broken_checks(library.skills)),
            "trouble": self.library_trouble(),
            "retrieval": dict(self.retrieval()),
        }

    def _broken_checks(self, skills: Sequence[Skill]) -> list[dict[str, str]]:
        """Skills whose check cannot be read, or failed on the last turn, and why. Only detectors
        and the judge decide whether such a skill was followed."""
        with_check = [skill for skill in skills if skill.check is not None]
        troubles = {
            skill.name: trouble for skill in with_check if (trouble := check_trouble(skill))
        }
        runnable = {
            skill.name: measured_hash(skill) for skill in with_check if skill.name not in troubles
        }
        troubles |= self.failed_checks(runnable) if runnable else {}
        return [{"name": name, "reason": trouble} for name, trouble in troubles.items()]

    def unready(self) -> str | None:
        """Why requests cannot be served or recorded now, or None."""
        store = self.store_health()
        if store.health is Health.DEGRADED:
            return f"turns are not being recorded: {store.reason}"
        state = self.engine_state() if self.engine_state is not None else "ready"
        return None if state == "ready" else f"the embedded model is {state}"


def _store_view(kind: str, store: StoreHealth, size: StoreSize | None) -> dict[str, object]:
    sizes = [field.name for field in fields(StoreSize)]
    return {
        "kind": kind,
        **asdict(store),
        **(dict.fromkeys(sizes) if size is None else asdict(size)),
    }


def _questions(skills: Sequence[Skill]) -> list[dict[str, str]]:
    """Rules with a question to the person, which includes the command that answers it."""
    asked = ((skill, question_of(skill)) for skill in skills if skill.kind is SkillKind.RULE)
    return [
        {"name": skill.name, "text": skill.body, "question": question}
        for skill, question in asked
        if question
    ]


def lesson_week(
    rulebook: Rulebook, episodes: SqlEpisodes, skills: Sequence[Skill]
) -> Mapping[str, int]:
    """How many lessons are in force, how many repeats they prevented in the last seven days, and
    how many went. Blocks.
    """
    since = datetime.now(UTC) - timedelta(days=7)
    recent = takewhile(
        lambda change: change.published_at is not None and change.published_at >= since,
        rulebook.lately(),
    )
    return {
        "in_force": sum(isinstance(skill, Lesson) for skill in skills),
        "prevented": episodes.avoided_since(since),
        "withdrawn": sum(
            isinstance(skill, Lesson) and name not in change.after
            for change in recent
            for name, skill in change.before.items()
        ),
    }


def held_rules(skills: Sequence[Skill]) -> list[str]:
    """Rules and skills with `enforce: hold` and a check of tool calls, without which nothing is
    held.
    """
    return [skill.name for skill in skills if skill.enforce == "hold" and can_hold(skill)]


async def _asked(read: Callable[[], T]) -> T | None:
    """Read in a thread; None if the store cannot be read now, or no thread can be started."""
    try:
        return await anyio.to_thread.run_sync(read)
    except (StoreError, *OUT_OF_RESOURCES):
        return None


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
        "What the program's own calls cost, by day, purpose, model and learned item",
        ("days",),
    )
    async def _cost(self, request: ApiRequest) -> object:
        return await anyio.to_thread.run_sync(self.report, request.number("days", 7, _MOST_DAYS))

    def report(self, days: int) -> dict[str, object]:
        """The cost of the last `days`, including today. Blocks."""
        budget = self._budget()
        sums = self.spending.sums(self.budget.first_day(days), by_item=True)
        own = {key: spent for key, spent in sums.items() if key.purpose != SERVED}
        items = _grouped((key.item, spent) for key, spent in own.items() if key.item)
        kinds = defaultdict(
            Spending,
            _grouped(((key.day, _kind(key.purpose)), spent) for key, spent in sums.items()),
        )
        return {
            "budget": budget,
            "prices_as_of": PRICES_AS_OF,
            "days": [
                {
                    "day": day,
                    "learning": spending_view(kinds[day, "learning"]),
                    "traffic": spending_view(kinds[day, "traffic"]),
                    "enforcement": spending_view(kinds[day, "enforcement"]),
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


def _kind(purpose: str) -> str:
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
