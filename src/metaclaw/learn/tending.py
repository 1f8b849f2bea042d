"""The library's upkeep, from live evidence: canaries promoted or demoted, harmful skills retired; and once a day the larger chores.

Cheap by design: only learned skills are looked at, a few of them at a time and the others the next time, and the list of them is
made anew only when the library has changed.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.learn.admitting import Admitting, accepted_candidate
from metaclaw.learn.shelf import SkillShelf, stay
from metaclaw.learn.stumbles import Stumbles, Workbook
from metaclaw.learn.worth import Worth
from metaclaw.skills import ShelfView, is_untouchable
from metaclaw.skills.gate import CanaryDecision, CanaryReport, CanaryRules
from metaclaw.skills.hygiene import Life, find_retirements
from metaclaw.store import LedgerReader, SqlCandidates, SqlCursors, SqlUses

log = logging.getLogger(__name__)

_EVERY_S: Final = 20.0
_AT_ONCE: Final = 100
_PAGE: Final = 500
_PAGES: Final = 10
_DAY: Final = timedelta(days=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Chore(Protocol):
    """Something to be done about the learned skills once a day."""

    @property
    def name(self) -> str: ...
    async def do(self, learned: Sequence[Skill], aside: TaskGroup) -> None:
        """Do it; what takes long goes aside."""


class Tending:
    """Looks at every learned skill in force, now and then."""

    def __init__(
        self,
        *,
        reader: LedgerReader,
        uses: SqlUses,
        cursors: SqlCursors,
        candidates: SqlCandidates,
        shelf: SkillShelf,
        admitting: Admitting,
        worth: Worth,
        chores: Sequence[Chore] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        catch_up: Callable[[], object] = stay,
        book: Workbook | None = None,
    ) -> None:
        """`catch_up` brings the shelf up to date, where it is not always so; it blocks."""
        self._reader = reader
        self._uses = uses
        self._cursors = cursors
        self._candidates = candidates
        self._shelf = shelf
        self._admitting = admitting
        self._worth = worth
        self._chores = chores
        self._now = now
        self._catch_up = catch_up
        self._stumbles = Stumbles("tending", book)
        self._seen: ShelfView | None = None
        self._learned = _Learned((), _Rotation(()), _Rotation(()))

    async def run(self) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as aside:
            while True:
                await anyio.sleep(_EVERY_S)
                await self.look(aside)

    async def look(self, aside: TaskGroup) -> None:
        """Count what was used, decide about some canaries, retire what harms, and do the chores whose day it is."""
        await run_sync(self._catch_up)
        await run_sync(self._count_uses)
        learned = await run_sync(self._list)
        for skill in (*learned.canaries.next(), *learned.live.next()):
            async with self._stumbles.taking(skill.name) as may:
                if may:
                    await (self._judge(skill) if skill.state is SkillState.CANARY else self._retire_if_harmful(skill))
        for chore in self._chores:
            if await run_sync(self._is_due, chore):
                await chore.do((await run_sync(self._list)).skills, aside)

    def _count_uses(self) -> None:
        for _ in range(_PAGES):
            rows = self._reader.turns_after(self._uses.cursor(), _PAGE)
            self._uses.note(rows)
            if len(rows) < _PAGE:
                return

    def _list(self) -> "_Learned":
        """The learned skills that the program may touch."""
        view = self._shelf.view
        if view is not self._seen:
            skills = sorted((one for one in view.index.skills() if not is_untouchable(one)), key=lambda one: one.name)
            canaries = self._learned.canaries.of([one for one in skills if one.state is SkillState.CANARY])
            live = self._learned.live.of([one for one in skills if one.state is SkillState.LIVE])
            self._learned, self._seen = _Learned(tuple(skills), canaries, live), view
        return self._learned

    def _is_due(self, chore: Chore) -> bool:
        """Whether a day has passed since it was done; then it counts as done, whatever comes of it."""
        cursor = f"chore {chore.name}"
        now_us = (self._now() - _EPOCH) // timedelta(microseconds=1)
        if now_us - self._cursors.cursor(cursor) < _DAY // timedelta(microseconds=1):
            return False
        self._cursors.move_cursor(cursor, now_us)
        return True

    async def _judge(self, skill: Skill) -> None:
        if skill.author is Authorship.INSTRUCTION:
            await self._settle(skill)
            return
        report = await run_sync(self._worth.canary, skill)
        match report.decision:
            case CanaryDecision.PROMOTE:
                await self._promote(skill, report)
            case CanaryDecision.DEMOTE:
                await self._admitting.retire(skill, report.reason)
            case CanaryDecision.WAIT:
                log.debug("canary_waits hash=%s reason=%s", skill.content_hash, report.reason)

    async def _promote(self, skill: Skill, report: CanaryReport) -> None:
        model = await run_sync(self._worth.model, skill)
        before = await run_sync(accepted_candidate, self._candidates, skill)
        earlier = None if before is None else before.certificate
        known = model or ("" if earlier is None else earlier.model)
        notes = () if earlier is None else (f"in shadow: {earlier.wins} wins, {earlier.losses} losses, e = {earlier.e_value:.3g}",)
        reason = f"promoted {skill.name}: {report.reason}"
        if await self._admitting.change_state(skill, SkillState.LIVE, reason, report.certificate(known, notes)):
            log.info("skill_promoted hash=%s reason=%s", skill.content_hash, report.reason)

    async def _settle(self, skill: Skill) -> None:
        """A person's instruction is always placed, so that nothing is to be learned from chance: where it has matched often enough
        and its test has shown no harm, it is live."""
        mine = await run_sync(accepted_candidate, self._candidates, skill)
        use = (await run_sync(self._uses.uses_of, [skill.name])).get(skill.name)
        is_tested = mine is not None and mine.certificate is not None and mine.certificate.stage is not SkillState.DRAFT
        if is_tested and use is not None and use.times >= CanaryRules().settle_after:
            reason = f"promoted {skill.name}: no harm was seen in {use.times} turns"
            await self._admitting.change_state(skill, SkillState.LIVE, reason)

    async def _retire_if_harmful(self, skill: Skill) -> None:
        uplift = await run_sync(self._worth.uplift, skill)
        for retirement in find_retirements([Life(skill, self._now(), 0, uplift)], self._now()):
            await self._admitting.retire(skill, retirement.reason)


class _Rotation:
    """A few of many at a time, in the order of their names, each as often as the others."""

    def __init__(self, skills: Sequence[Skill], last: str = "") -> None:
        self._skills = skills
        self._names = [str(skill.name) for skill in skills]
        self._last = last

    def next(self) -> list[Skill]:
        """The next few."""
        at = bisect_right(self._names, self._last)
        found = [*self._skills[at : at + _AT_ONCE]]
        found += self._skills[: min(at, _AT_ONCE - len(found))]
        self._last = str(found[-1].name) if found else ""
        return found

    def of(self, skills: Sequence[Skill]) -> "_Rotation":
        """The same among other skills, going on where this one is."""
        return _Rotation(skills, self._last)


@dataclass(frozen=True, slots=True)
class _Learned:
    """What is looked after: all of it by name, and whose turn it is among the canaries and the live ones."""

    skills: tuple[Skill, ...]
    canaries: _Rotation
    live: _Rotation
