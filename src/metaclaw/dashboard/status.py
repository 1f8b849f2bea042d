"""How the program is, in one tree: what `metaclaw status` and `/api/status` tell."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import anyio.to_thread

from metaclaw import __version__
from metaclaw.dashboard.policy import UNTRAINED
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.skill import Skill, SkillKind
from metaclaw.domain.status import Health, SkippedSkill, StoreHealth, StoreSize
from metaclaw.errors import StoreError
from metaclaw.skills.checks import check_trouble
from metaclaw.skills.rule import rule_text
from metaclaw.skills.rules import can_hold, question_of
from metaclaw.store import LearningCounts, LedgerCounts
from metaclaw.upstream import ProviderFailure, Reachability

T = TypeVar("T")


class Shelf(Protocol):
    """The live skills, as far as status tells of them."""

    @property
    def generation(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def skills(self) -> Sequence[Skill]: ...
    @property
    def skipped(self) -> Sequence[SkippedSkill]: ...


@dataclass(frozen=True, slots=True)
class ProviderFacts:
    """One provider as it is shown."""

    name: str
    kind: str
    wires: tuple[str, ...]
    models: tuple[str, ...]
    state: Callable[[], str]
    failure: Callable[[], ProviderFailure | None] = lambda: None
    reachability: Reachability | None = None
    """For a provider over a network."""

    async def tell(self) -> dict[str, object]:
        """What status says of it. One that accepts no connection is failing, also before the first request."""
        trouble = None if self.reachability is None else await self.reachability.trouble()
        failure = self.failure()
        is_known = self.reachability is not None and self.reachability.is_known
        if trouble is not None:
            since, count = (failure.at, failure.in_a_row) if failure is not None else (datetime.now(UTC), 0)
            failure = ProviderFailure(trouble, since if count else datetime.now(UTC), max(count, 1), is_unreachable=True)
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
            else {"reason": failure.reason, "at": failure.at.isoformat(timespec="seconds"), "in_a_row": failure.in_a_row},
        }


@dataclass(frozen=True, slots=True)
class Status:
    """Asks every part how it is."""

    mode: str
    store_kind: str
    store_health: Callable[[], StoreHealth]
    counts: Callable[[], LedgerCounts]
    shelf: Callable[[], Shelf]
    shelf_trouble: Callable[[], str | None]
    providers: Sequence[ProviderFacts]
    engine_state: Callable[[], str] | None
    loops: Callable[[], Mapping[str, str]]
    active_sessions: Callable[[], int]
    learned: Callable[[], LearningCounts]
    learning: Callable[[], Mapping[str, object]]
    began: float
    policy_version: Callable[[], int] = lambda: BASE_POLICY
    training: Callable[[], Mapping[str, object]] = lambda: UNTRAINED
    rejections: Callable[[], Mapping[str, int]] = dict
    """Why turns may not train, counted; asked in a thread."""
    window: Callable[[], Mapping[str, object] | None] = lambda: None
    turned_away: Callable[[], Mapping[str, object]] = lambda: {"reasons": {}, "last": []}
    """Learned skills that were rejected: how many for each reason, and the last few. Asked in a thread."""
    pending: Callable[[], Mapping[str, int] | None] = lambda: None
    """What there is still to learn from, counted; None where that is not known yet. Asked in a thread."""

    retrieval: Callable[[], Mapping[str, str]] = dict
    """How skills are found: by words, or by words and meaning, and how the search by meaning is."""
    cost: Callable[[], Mapping[str, object]] = dict
    """The budget, and what learning cost. Asked in a thread."""
    noted: Callable[[], Sequence[Mapping[str, object]]] = tuple
    """What came into force or went lately, newest first. Asked in a thread."""

    enforcing: Callable[[], bool] = lambda: True
    """Whether held rules hold."""
    store_size: Callable[[], StoreSize | None] = lambda: None
    """Asked in a thread."""

    async def tell(self) -> dict[str, object]:
        """The whole tree; parts that cannot be read now are null."""
        store, shelf = self.store_health(), self.shelf()
        counts, learned, rejections = await _asked(self.counts), await _asked(self.learned), await _asked(self.rejections)
        pending, turned_away = await _asked(self.pending), await _asked(self.turned_away)
        kinds = Counter(skill.kind for skill in shelf.skills)
        broken_checks = await _asked(lambda: _broken_checks(shelf.skills))
        size, noted = await _asked(self.store_size), await _asked(self.noted)
        cost = await _asked(self.cost)
        providers = await asyncio.gather(*(one.tell() for one in self.providers))
        return {
            "version": __version__,
            "mode": self.mode,
            "uptime_s": round(time.monotonic() - self.began, 3),
            "degraded": store.health is Health.DEGRADED,
            "generation": shelf.generation,
            "policy_version": self.policy_version(),
            "training": dict(self.training()),
            "window": self.window(),
            "counts": {
                "turns": None if counts is None else counts.turns,
                "sessions": None if counts is None else counts.sessions,
                "active_sessions": self.active_sessions(),
                "verdicts": None if learned is None else {outcome.value: count for outcome, count in learned.verdicts.items()},
                "support": None if learned is None else learned.support,
                "query": None if learned is None else learned.query,
                "candidates": None if learned is None else {one.value: count for one, count in learned.candidates.items()},
                "rejections": None if rejections is None else dict(rejections),
                "skills": dict(Counter(skill.state.value for skill in shelf.skills if skill.is_skill)),
                "rules": kinds[SkillKind.RULE],
                "facts": kinds[SkillKind.FACT],
            },
            "learning": {
                **self.learning(),
                **(cost or {}),
                "pending": None if pending is None else dict(pending),
                "rejected": turned_away,
                "noted": None if noted is None else list(noted),
            },
            "skills": {
                "generation": shelf.generation,
                "count": shelf.count,
                "skipped": [{"path": skipped.path, "reason": skipped.reason} for skipped in shelf.skipped],
                "broken_checks": broken_checks,
                "trouble": self.shelf_trouble(),
                "retrieval": dict(self.retrieval()),
            },
            "questions": _questions(shelf.skills),
            "enforcement": {"on": self.enforcing(), "held_rules": _held_rules(shelf.skills)},
            "loops": dict(self.loops()),
            "store": {
                "kind": self.store_kind,
                "health": store.health.value,
                "reason": store.reason,
                "waiting_turns": store.waiting_turns,
                "lost_turns": store.lost_turns,
                "notice": store.notice,
                "size_bytes": None if size is None else size.size_bytes,
                "free_bytes": None if size is None else size.free_bytes,
                "max_bytes": None if size is None else size.max_bytes,
                "removed_sessions": None if size is None else size.removed_sessions,
            },
            "providers": list(providers),
            "engine": None if self.engine_state is None else {"state": self.engine_state()},
        }

    def unready(self) -> str | None:
        """Why requests cannot be served or kept now, or None."""
        store = self.store_health()
        if store.health is Health.DEGRADED:
            return f"turns are not being recorded: {store.reason}"
        state = self.engine_state() if self.engine_state is not None else "ready"
        return None if state == "ready" else f"the embedded model is {state}"


def _questions(skills: Sequence[Skill]) -> list[dict[str, str]]:
    """Rules about which a person is asked something, with the question and the command that answers."""
    asked = ((skill, question_of(skill)) for skill in skills if skill.kind is SkillKind.RULE)
    return [{"name": skill.name, "text": rule_text(skill), "question": question} for skill, question in asked if question]


def _held_rules(skills: Sequence[Skill]) -> list[str]:
    """Rules and skills that say `enforce: hold` and have a check of tool calls, without which nothing is held."""
    return [skill.name for skill in skills if skill.extra.get("enforce") == "hold" and can_hold(skill)]


def _broken_checks(skills: Sequence[Skill]) -> list[dict[str, str]]:
    """Skills whose check cannot be read, and why. Without it, only detectors and the judge tell whether the skill was followed."""
    troubles = ((skill.name, check_trouble(skill)) for skill in skills)
    return [{"name": name, "reason": trouble} for name, trouble in troubles if trouble]


async def _asked(read: Callable[[], T]) -> T | None:
    """What the store says; None where it cannot be read now."""
    try:
        return await anyio.to_thread.run_sync(read)
    except StoreError:
        return None
