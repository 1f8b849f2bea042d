"""Commands of the learner process that the serving process carries out: it alone writes, publishes and has the embedded model."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

from metaclaw.domain.chat import ChatRequest, Delta, Json
from metaclaw.domain.compliance import MeasuredTurn, RuleResult
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import LearnedFrom, Skill
from metaclaw.errors import StoreError
from metaclaw.learn.budget import Budget
from metaclaw.ports import ModelProvider
from metaclaw.proxy import Acknowledgements, Reminders
from metaclaw.skills import Shelf, is_rule
from metaclaw.store import Database, SqlCandidates, SqlCompliance, SqlCursors, SqlLedger, SqlSpending, SqlUses, SqlVerdicts

Command: TypeAlias = Callable[..., object]
_ANNOUNCED_WITHIN_S: Final = 10.0


class WorkerCommands:
    """The commands by name, as `learn.store_rpc` sends them. All block; call them in a thread."""

    def __init__(
        self,
        database: Database,
        ledger: SqlLedger,
        shelf: Shelf,
        models: Mapping[str, ModelProvider],
        budget: Budget,
        reminders: Reminders | None = None,
        acknowledgements: Acknowledgements | None = None,
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._shelf = shelf
        self._models = models
        self._budget = budget
        self._reminders = reminders
        self._acknowledgements = acknowledgements
        self._compliance = SqlCompliance(database)
        self._counting = threading.Lock()

    def by_name(self, loop: asyncio.AbstractEventLoop) -> Mapping[str, Command]:
        """The commands; those that need the event loop run on `loop`."""
        verdicts, candidates = SqlVerdicts(self._database), SqlCandidates(self._database)
        cursors, uses, spending = SqlCursors(self._database), SqlUses(self._database), SqlSpending(self._database)

        def announce(kind: str, data: dict[str, Json]) -> bool:
            try:
                return asyncio.run_coroutine_threadsafe(self._ledger.announce(kind, data), loop).result(_ANNOUNCED_WITHIN_S)
            except TimeoutError as error:
                raise StoreError(f"announcing {kind}: the ledger does not take it") from error

        def generate(provider: str, request: ChatRequest, version: int) -> tuple[Delta, ...]:
            return asyncio.run_coroutine_threadsafe(_whole(self._models[provider], request, version), loop).result()

        return {
            "record_verdict": verdicts.record_verdict,
            "begin_attempt": candidates.begin_attempt,
            "end_attempt": candidates.end_attempt,
            "save_candidate": candidates.save_candidate,
            "move_cursor": cursors.move_cursor,
            "note_uses": uses.note,
            "begin_uses": uses.begin,
            "add_spending": spending.add,
            "add_served": self._budget.count_served,
            "forget_items_before": spending.forget_items_before,
            "record_compliance": self._record_compliance,
            "settle_compliance": self._compliance.settle,
            "publish": self._publish,
            "announce": announce,
            "generate": generate,
        }

    def compliance_cursor(self) -> int | None:
        """Up to which turn compliance is counted and reminders are up to date. Blocks."""
        with self._counting:
            return self._compliance.cursor()

    def acknowledge_rules(self, put: Sequence[Skill], gone: Sequence[Skill], turns: Sequence[TurnId]) -> None:
        """Have the sessions of these turns told in their next answer which rules they have added or retracted."""
        rules, retracted = ([skill for skill in skills if is_rule(skill)] for skills in (put, gone))
        if self._acknowledgements is not None and (rules or retracted):
            self._acknowledgements.noted(rules, retracted, turns)

    def _record_compliance(self, measured: Sequence[MeasuredTurn], upto: int) -> None:
        """Count how rules are followed; a broken rule is reminded of from the next request on."""
        with self._counting:
            self._compliance.record(measured, upto)
            is_broken = any(outcome.result is RuleResult.BROKEN for one in measured for outcome in one.outcomes)
            if is_broken and self._reminders is not None:
                self._reminders.refresh()

    def _publish(
        self,
        put: Sequence[Skill],
        gone: Sequence[SkillName],
        reason: str,
        expected: Mapping[SkillName, str | None],
        learned: LearnedFrom | None,
        by_person: bool,
    ) -> int:
        view = self._shelf.view
        before = [skill for name in gone if (skill := view.get(name)) is not None]
        # A rule that only got another example has the same content.
        new = [skill for skill in put if (known := view.get(skill.name)) is None or known.content_hash != skill.content_hash]
        published = self._shelf.publish(put, gone, reason, expected=expected, learned=learned, by_person=by_person)
        if learned is not None:
            self.acknowledge_rules(new, before, learned.turns)
        return published.generation


async def _whole(provider: ModelProvider, request: ChatRequest, version: int) -> tuple[Delta, ...]:
    async with aclosing(provider.generate(request, version)) as deltas:
        return tuple([delta async for delta in deltas])
