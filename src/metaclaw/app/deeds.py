"""What the serving process does for the learner: writing, publishing, announcing, and asking the models that only it has."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Final

from metaclaw.app.learning import Deed
from metaclaw.domain.chat import ChatRequest, Delta, Json
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import LearnedFrom, Skill
from metaclaw.errors import StoreError
from metaclaw.learn import Budget
from metaclaw.ports import ModelProvider
from metaclaw.skills import Shelf
from metaclaw.store import Database, SqlCandidates, SqlCompliance, SqlCursors, SqlLedger, SqlSpending, SqlUses, SqlVerdicts

_ANNOUNCED_WITHIN_S: Final = 10.0


def build_deeds(
    database: Database,
    ledger: SqlLedger,
    shelf: Shelf,
    inside: Mapping[str, ModelProvider],
    budget: Budget,
    loop: asyncio.AbstractEventLoop,
) -> Mapping[str, Deed]:
    """By name, as `learn.store_rpc` asks for them. They block; those that need the event loop are not to be called on it."""
    verdicts, candidates, cursors, uses = SqlVerdicts(database), SqlCandidates(database), SqlCursors(database), SqlUses(database)
    spending, compliance = SqlSpending(database), SqlCompliance(database)

    def publish(
        put: Sequence[Skill],
        gone: Sequence[SkillName],
        reason: str,
        expected: Mapping[SkillName, str | None],
        learned: LearnedFrom | None,
        by_person: bool,
    ) -> int:
        return shelf.publish(put, gone, reason, expected=expected, learned=learned, by_person=by_person).generation

    def announce(kind: str, data: dict[str, Json]) -> bool:
        try:
            return asyncio.run_coroutine_threadsafe(ledger.announce(kind, data), loop).result(_ANNOUNCED_WITHIN_S)
        except TimeoutError as error:
            raise StoreError(f"announcing {kind}: the ledger does not take it") from error

    def generate(provider: str, request: ChatRequest, version: int) -> tuple[Delta, ...]:
        return asyncio.run_coroutine_threadsafe(_whole(inside[provider], request, version), loop).result()

    return {
        "record_verdict": verdicts.record_verdict,
        "begin_attempt": candidates.begin_attempt,
        "end_attempt": candidates.end_attempt,
        "save_candidate": candidates.save_candidate,
        "move_cursor": cursors.move_cursor,
        "note_uses": uses.note,
        "begin_uses": uses.begin,
        "add_spending": spending.add,
        "add_served": budget.count_served,
        "forget_items_before": spending.forget_items_before,
        "record_compliance": compliance.record,
        "settle_compliance": compliance.settle,
        "publish": publish,
        "announce": announce,
        "generate": generate,
    }


async def _whole(provider: ModelProvider, request: ChatRequest, version: int) -> tuple[Delta, ...]:
    async with aclosing(provider.generate(request, version)) as deltas:
        return tuple([delta async for delta in deltas])
