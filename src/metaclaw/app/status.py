"""The state of the running program, for `/api/status`. Parts that cannot be read now are null."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from datetime import timedelta
from itertools import islice, takewhile
from typing import TypeVar

from anyio.to_thread import run_sync

from metaclaw import __version__
from metaclaw.api import change_view, held_rules, newest_version, picked, problems, summary
from metaclaw.app.parts import ProgramParts
from metaclaw.clock import utc_now
from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Wire
from metaclaw.domain.compliance import measured_hash
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.skill import Lesson, Skill, SkillKind
from metaclaw.domain.status import Health, StoreSize
from metaclaw.errors import OUT_OF_RESOURCES, StoreError
from metaclaw.learn import PENDING, UNLEARNED, Models, senses
from metaclaw.ports import ModelProvider
from metaclaw.skills import LibraryView, check_trouble, question_of
from metaclaw.store import SqlCandidates, SqlCompliance, SqlEpisodes, SqlPolicies
from metaclaw.upstream import HttpEndpoint, ProviderFailure, ProviderReachability

T = TypeVar("T")
_NOTED_SHOWN = 5
_MOST_QUESTIONS = 20
_WEEK = timedelta(days=7)


class ProgramStatus:
    """Collects the state of every part."""

    def __init__(self, app: ProgramParts) -> None:
        self._app = app
        self._began = time.monotonic()
        self._models = Models(app.providers)
        self._reachability = {
            one.name: ProviderReachability(one)
            for one in app.providers
            if isinstance(one, HttpEndpoint)
        }

    async def tell(self) -> dict[str, object]:
        """The whole status, with the current problems and a summary in words."""
        app, library = self._app, self._app.library.follow()
        skills, policy, store = library.skills, app.policy, app.ledger.health
        size = await _asked(app.upkeep.size)
        facts = {
            "version": __version__,
            "mode": app.config.mode,
            "uptime_s": round(time.monotonic() - self._began, 3),
            "degraded": store.health is Health.DEGRADED,
            "leads": app.leading.supervisor is not None,
            "generation": library.generation,
            "policy_version": BASE_POLICY if policy is None else policy.slot.serving.version,
            "training": dict(app.learning.training_state()),
            "newest_version": await _asked(lambda: newest_version(SqlPolicies(app.database))),
            "window": None if policy is None else policy.facts(),
            "counts": await self._counts(skills),
            "learning": await self._learning(),
            "lessons": await _asked(lambda: self._lesson_week(skills)),
            "skills": await self._skills(library),
            "questions": await _asked(lambda: questions(SqlCandidates(app.database), skills)),
            "enforcement": {"on": app.enforcer.is_on, "held_rules": held_rules(skills)},
            "loops": dict(app.loop_states()),
            "store": {
                "kind": app.database.kind,
                **asdict(store),
                **(
                    dict.fromkeys(field.name for field in fields(StoreSize))
                    if size is None
                    else asdict(size)
                ),
            },
            "providers": await asyncio.gather(*map(self._provider, app.providers)),
            "engine": None if app.embedded is None else {"state": app.embedded.state},
            "server": None
            if app.model_server is None
            else {"name": app.model_server.name, "state": app.model_server.state},
        }
        return {**facts, "problems": problems(facts), "summary": summary(facts)}

    def unready(self) -> str | None:
        """Why requests cannot be served or recorded now, or None."""
        store, embedded = self._app.ledger.health, self._app.embedded
        if store.health is Health.DEGRADED:
            return f"turns are not being recorded: {store.reason}"
        if embedded is None or embedded.state == "ready":
            return None if self._app.model_server is None else self._app.model_server.unready
        return f"the embedded model is {embedded.state}"

    async def _counts(self, skills: Sequence[Skill]) -> dict[str, object]:
        app = self._app
        counts, learned = await _asked(app.reader.counts), await _asked(app.reader.learning_counts)
        rejections = await _asked(app.learning.rejections)
        kinds = Counter(skill.kind for skill in skills)
        names = ("verdicts", "support", "query", "candidates")
        return {
            "turns": None if counts is None else counts.turns,
            "sessions": None if counts is None else counts.sessions,
            "active_sessions": app.origins.active,
            **(dict.fromkeys(names) if learned is None else picked(learned, *names)),
            "rejections": rejections,
            "skills": dict(Counter(skill.state for skill in skills if skill.is_skill)),
            "rules": kinds[SkillKind.RULE],
            "facts": kinds[SkillKind.FACT],
        }

    async def _learning(self) -> dict[str, object]:
        app, config = self._app, self._app.config
        is_sensing = senses(config)
        noted = await _asked(lambda: list(islice(app.rulebook.lately(), _NOTED_SHOWN)))
        return {
            "on": config.skills.learn,
            "gate": config.skills.gate,
            "listen": self._models.shown_listener(config.listen, config.judge),
            "judge": self._models.shown(config.judge),
            "evolver": self._models.shown(config.evolver),
            **UNLEARNED,
            **app.learner.facts,
            **(await _asked(app.cost.status) or {}),
            "pending": await _asked(app.pending.count) if is_sensing else dict.fromkeys(PENDING, 0),
            "rejected": await _asked(self._rejected),
            "noted": None if noted is None else [change_view(change) for change in noted],
        }

    def _rejected(self) -> object:
        from metaclaw.learn import rejected_proposals

        return rejected_proposals(SqlCandidates(self._app.database))

    def _lesson_week(self, skills: Sequence[Skill]) -> dict[str, int]:
        """How many lessons are in force, how many repeats they prevented in the last seven days,
        and how many went. Blocks.
        """
        since = utc_now() - _WEEK
        recent = takewhile(
            lambda change: change.published_at is not None and change.published_at >= since,
            self._app.rulebook.lately(),
        )
        return {
            "in_force": sum(isinstance(skill, Lesson) for skill in skills),
            "prevented": SqlEpisodes(self._app.database).avoided_since(since),
            "withdrawn": sum(
                isinstance(skill, Lesson) and name not in change.after
                for change in recent
                for name, skill in change.before.items()
            ),
        }

    async def _skills(self, library: LibraryView) -> dict[str, object]:
        return {
            **picked(library, "generation", "count"),
            "skipped": [picked(one, "path", "reason") for one in library.skipped],
            "broken_checks": await _asked(lambda: self._broken_checks(library.skills)),
            "trouble": self._app.library.trouble,
            "retrieval": dict(self._app.search.describe()),
        }

    def _broken_checks(self, skills: Sequence[Skill]) -> list[dict[str, str]]:
        """Skills whose check cannot be read, or failed on the last turn, and why. Only detectors
        and the judge decide whether such a skill was followed. Blocks."""
        with_check = [skill for skill in skills if skill.check is not None]
        troubles = {one.name: trouble for one in with_check if (trouble := check_trouble(one))}
        runnable = {one.name: measured_hash(one) for one in with_check if one.name not in troubles}
        if runnable:
            troubles |= SqlCompliance(self._app.database).failed_checks(runnable)
        return [{"name": name, "reason": trouble} for name, trouble in troubles.items()]

    async def _provider(self, provider: HttpEndpoint | ModelProvider) -> dict[str, object]:
        """The provider's entry. A provider that accepts no connection is failing, also before the
        first request.
        """
        failure = await self._failure(provider.name)
        is_failing = failure is not None and failure.in_a_row > 0
        kind, state, wires = "policy", "ready", list[str]()
        if isinstance(provider, HttpEndpoint):
            kind, state = provider.kind, f"open connections: {provider.open_connections}"
            wires = [wire for wire in Wire if wire in provider.wires]
        elif provider is self._app.embedded:
            kind, state = "embedded", self._app.embedded.state
        return {
            **picked(provider, "name", "models"),
            "kind": kind,
            "wires": wires,
            "state": "failing" if is_failing else state,
            "last_failure": failure
            and {
                **picked(failure, "reason", "in_a_row"),
                "at": failure.at.isoformat(timespec="seconds"),
            },
        }

    async def _failure(self, name: str) -> ProviderFailure | None:
        """The last failure of a provider; that it cannot be reached now, if so."""
        failure = self._app.provider_health.last_failure(name)
        reachability = self._reachability.get(name)
        trouble = None if reachability is None else await reachability.trouble()
        if trouble is not None:
            count = 0 if failure is None else failure.in_a_row
            at = failure.at if failure is not None and count else utc_now()
            return ProviderFailure(trouble, at, max(count, 1), is_unreachable=True)
        is_known = reachability is not None and reachability.is_known
        if failure is not None and failure.is_unreachable and is_known:
            return replace(failure, in_a_row=0)
        return failure


def questions(candidates: SqlCandidates, skills: Sequence[Skill]) -> list[dict[str, str | None]]:
    """What waits for the person: candidates, the newest first, then rules with a question,
    which includes the command that answers it. Blocks."""
    waiting = candidates.candidates(Standing.WAITING, _MOST_QUESTIONS)
    found: list[dict[str, str | None]] = [
        {
            "candidate": one.id,
            "name": one.proposal.skill.name,
            "text": one.proposal.skill.body,
            "question": f"{one.reason}: metaclaw candidates show {one.id}",
        }
        for one in waiting
    ]
    rules = ((skill, question_of(skill)) for skill in skills if skill.kind is SkillKind.RULE)
    found += [
        {"candidate": None, "name": rule.name, "text": rule.body, "question": question}
        for rule, question in rules
        if question
    ]
    return found


async def _asked(read: Callable[[], T]) -> T | None:
    """Read in a thread; None if the store cannot be read now, or no thread can be started."""
    try:
        return await run_sync(read)
    except (StoreError, *OUT_OF_RESOURCES):
        return None
