"""Maintenance of the skills in force, from live evidence: trials end, harmful skills are retired; larger chores run once a day.

Only learned skills are looked at, a few at a time, and the list of them is made anew only when the library has changed.
"""

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Certificate
from metaclaw.domain.skill import Skill, SkillKind, SkillState
from metaclaw.domain.verdict import Outcome
from metaclaw.learn.admission import CandidateAdmission, accepted_candidate
from metaclaw.learn.retention import microseconds
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import AttemptLog, RetryGuard
from metaclaw.skills import (
    LibraryView,
    LiveTask,
    TaskCounts,
    TrialDecision,
    TrialReport,
    Uplift,
    is_harmful,
    is_untouchable,
    judge_trial,
    measure_uplift,
    replays_in_words,
    trial_prior,
)
from metaclaw.store import DrawnTurn, LedgerReader, SqlCandidates, SqlCursors, SqlGenerations, SqlUses

log = logging.getLogger(__name__)

_LEAST_TURNS: Final = 20
_RECENT: Final = 60
_MOST_OF: Final = 2 / 3
_ORDER: Final = (Outcome.UNKNOWN, Outcome.PASS, Outcome.FAIL)

_EVERY_S: Final = 20.0
_AT_ONCE: Final = 100
_PAGE: Final = 500
_PAGES: Final = 10
DAY_US: Final = 86_400_000_000


class UpliftReader:
    """Reads the ledger. Blocks."""

    def __init__(self, reader: LedgerReader, generations: SqlGenerations) -> None:
        self._reader = reader
        self._generations = generations

    def uplift(self, skill: Skill) -> Uplift:
        """The difference it makes on matching tasks, from all draws since it has this text."""
        since = self._generations.in_force(skill.name)
        return measure_uplift([] if since is None else self._tasks(skill, since.text_since))

    def trial(self, skill: Skill, certificate: Certificate | None) -> TrialReport:
        """The result of its live trial: the tasks since it is on trial, with the replays as the prior."""
        since = self._generations.in_force(skill.name)
        return judge_trial([] if since is None else self._tasks(skill, since.generation), trial_prior(certificate))

    def harm(self, skill: Skill, certificate: Certificate | None) -> TaskCounts | None:
        """The tasks of a live skill that show that it does harm; None where they do not."""
        since = self._generations.in_force(skill.name)
        counts = TaskCounts.of([] if since is None else self._tasks(skill, since.generation))
        return counts if is_harmful(counts, trial_prior(certificate)) else None

    def _tasks(self, skill: Skill, since: int) -> list[LiveTask]:
        return tasks_of(self._reader.drawn_turns(skill.name, since=since))

    def model(self, skill: Skill) -> str | None:
        """The model that serves most of the tasks it matches now; None where no model clearly does, or there were too few."""
        return model_of_most(self._reader.drawn_turns(skill.name, _RECENT))


def tasks_of(drawn: Sequence[DrawnTurn]) -> list[LiveTask]:
    """Turns, newest first, as tasks, oldest first: a task's turns share one draw, so they count as one; it failed if any did."""
    tasks: dict[tuple[str, int], LiveTask] = {}
    for one in reversed(drawn):
        key, outcome = (one.session, one.segment), one.outcome or Outcome.UNKNOWN
        before = tasks.get(key)
        worse = outcome if before is None else max(before.outcome, outcome, key=_ORDER.index)
        tasks[key] = LiveTask(one.placed, one.propensity, worse)
    return list(tasks.values())


def model_of_most(drawn: Sequence[DrawnTurn]) -> str | None:
    """The model of at least two thirds of these turns."""
    if len(drawn) < _LEAST_TURNS:
        return None
    model, turns = Counter(one.model for one in drawn).most_common(1)[0]
    return model if turns >= _MOST_OF * len(drawn) else None


class Chore(Protocol):
    """Something to be done about the learned skills once a day."""

    @property
    def name(self) -> str: ...
    async def do(self, learned: Sequence[Skill], background: TaskGroup) -> None:
        """Do it; start what takes long in the background."""


@dataclass(eq=False, kw_only=True)
class Maintenance:
    """Looks at every learned skill in force, now and then."""

    reader: LedgerReader
    uses: SqlUses
    cursors: SqlCursors
    candidates: SqlCandidates
    library: AnyLibrary
    admission: CandidateAdmission
    uplift: UpliftReader
    chores: Sequence[Chore] = ()
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    attempt_log: AttemptLog | None = None

    def __post_init__(self) -> None:
        self._guard = RetryGuard("tending", self.attempt_log)
        self._seen: LibraryView | None = None
        self._learned = _Learned((), _Rotation(()), _Rotation(()))

    async def run(self) -> None:
        """Run until cancelled."""
        async with anyio.create_task_group() as background:
            while True:
                await anyio.sleep(_EVERY_S)
                await self.look(background)

    async def look(self, background: TaskGroup) -> None:
        """Count what was used, decide about some trials, retire what does harm, and do the chores that are due."""
        await run_sync(self.library.follow)
        await run_sync(self._count_uses)
        learned = await run_sync(self._list)
        for skill in (*learned.canaries.next(), *learned.live.next()):
            async with self._guard.attempt(skill.name) as may:
                if may:
                    await (self._judge(skill) if skill.state is SkillState.CANARY else self._retire_if_harmful(skill))
        for chore in self.chores:
            if await run_sync(self._is_due, chore):
                await chore.do((await run_sync(self._list)).skills, background)

    def _count_uses(self) -> None:
        for _ in range(_PAGES):
            rows = self.reader.turns_after(self.uses.cursor(), _PAGE)
            self.uses.note(rows)
            if len(rows) < _PAGE:
                return

    def _list(self) -> "_Learned":
        """The learned skills that the program may touch."""
        view = self.library.view
        if view is not self._seen:
            skills = sorted((one for one in view.index.skills() if not is_untouchable(one)), key=lambda one: one.name)
            canaries = self._learned.canaries.of([one for one in skills if one.state is SkillState.CANARY])
            live = self._learned.live.of([one for one in skills if one.state is SkillState.LIVE])
            self._learned, self._seen = _Learned(tuple(skills), canaries, live), view
        return self._learned

    def _is_due(self, chore: Chore) -> bool:
        """Whether a day has passed since the chore was last started; it then counts as started."""
        cursor = f"chore {chore.name}"
        now_us = microseconds(self.now())
        # Done in the future means that the clock was ahead then.
        if 0 <= now_us - self.cursors.cursor(cursor) < DAY_US:
            return False
        self.cursors.move_cursor(cursor, now_us)
        return True

    async def _judge(self, skill: Skill) -> None:
        if skill.kind is not SkillKind.SKILL:
            # Homes from before rules had a kind may hold some that were on trial.
            await self.admission.change_state(skill, SkillState.LIVE, f"{skill.name} is a person's rule and not on trial")
            return
        certificate = await run_sync(self._certificate, skill)
        report = await run_sync(self.uplift.trial, skill, certificate)
        match report.decision:
            case TrialDecision.PROMOTE:
                await self._promote(skill, report, certificate)
            case TrialDecision.WITHDRAW:
                await self.admission.retire(skill, report.reason)
            case TrialDecision.CONTINUE:
                log.debug("trial_continues hash=%s", skill.content_hash)

    async def _promote(self, skill: Skill, report: TrialReport, earlier: Certificate | None) -> None:
        model = await run_sync(self.uplift.model, skill) or ("" if earlier is None else earlier.model)
        notes = () if earlier is None or not earlier.replays else (f"before that: {replays_in_words(earlier.replays)}",)
        certificate = report.certificate(model, notes, earlier)
        if await self.admission.change_state(skill, SkillState.LIVE, f"kept {skill.name}: {report.reason}", certificate):
            log.info("skill_promoted hash=%s", skill.content_hash)

    async def _retire_if_harmful(self, skill: Skill) -> None:
        if skill.kind is not SkillKind.SKILL:
            return
        certificate = await run_sync(self._certificate, skill)
        counts = await run_sync(self.uplift.harm, skill, certificate)
        if counts is not None:
            await self.admission.retire(skill, f"it does harm: {counts.in_words()}")

    def _certificate(self, skill: Skill) -> Certificate | None:
        mine = accepted_candidate(self.candidates, skill)
        return None if mine is None else mine.certificate


class _Rotation:
    """Takes a few skills at a time, in the order of their names, round and round."""

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
    """The learned skills by name, and rotations over the canaries and the live ones."""

    skills: tuple[Skill, ...]
    canaries: _Rotation
    live: _Rotation
