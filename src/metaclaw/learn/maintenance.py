"""Maintenance of the skills in force: decide live trials, retire harmful skills, and run the daily
chores.

Only learned skills are examined, at most 100 at a time. They are listed again only when the library
has changed."""

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
from metaclaw.domain.skill import Skill, SkillState
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
from metaclaw.store import (
    DrawnTurn,
    LedgerReader,
    SqlCandidates,
    SqlCursors,
    SqlGenerations,
    SqlUses,
)

log = logging.getLogger(__name__)

_LEAST_TURNS: Final = 20
_RECENT_TURNS: Final = 60
_SHARE_OF_MOST: Final = 2 / 3
_ORDER: Final = (Outcome.UNKNOWN, Outcome.PASS, Outcome.FAIL)

_EVERY_S: Final = 20.0
_SKILLS_AT_ONCE: Final = 100
_PAGE: Final = 500
_MOST_PAGES: Final = 10
DAY_US: Final = 86_400_000_000


class UpliftReader:
    """Measures skills by the turns of the ledger. Blocks."""

    def __init__(self, reader: LedgerReader, generations: SqlGenerations) -> None:
        self._reader = reader
        self._generations = generations

    def uplift(self, skill: Skill) -> Uplift:
        """The uplift of a skill, from all draws since it has its present text."""
        since = self._generations.in_force(skill.name)
        return measure_uplift([] if since is None else self._tasks(skill, since.text_since))

    def trial(self, skill: Skill, certificate: Certificate | None) -> TrialReport:
        """The result of a live trial so far: its tasks since it began, with the replays as the
        prior.
        """
        since = self._generations.in_force(skill.name)
        return judge_trial(
            [] if since is None else self._tasks(skill, since.generation), trial_prior(certificate)
        )

    def harm(self, skill: Skill, certificate: Certificate | None) -> TaskCounts | None:
        """The tasks that show that a live skill does harm; None if they do not."""
        since = self._generations.in_force(skill.name)
        counts = TaskCounts.of([] if since is None else self._tasks(skill, since.generation))
        return counts if is_harmful(counts, trial_prior(certificate)) else None

    def _tasks(self, skill: Skill, since: int) -> list[LiveTask]:
        return tasks_of(self._reader.drawn_turns(skill.name, since=since))

    def model(self, skill: Skill) -> str | None:
        """The model that serves most of a skill's recent tasks; None if no model clearly does, or
        if there are too few tasks.
        """
        return model_of_most(self._reader.drawn_turns(skill.name, _RECENT_TURNS))


def tasks_of(drawn: Sequence[DrawnTurn]) -> list[LiveTask]:
    """Turns, newest first, as tasks, oldest first: a task's turns share one draw, so they count as
    one; it failed if any did.
    """
    tasks: dict[tuple[str, int], LiveTask] = {}
    for turn in reversed(drawn):
        key, outcome = (turn.session, turn.segment), turn.outcome or Outcome.UNKNOWN
        before = tasks.get(key)
        worse = outcome if before is None else max(before.outcome, outcome, key=_ORDER.index)
        tasks[key] = LiveTask(turn.placed, turn.propensity, worse)
    return list(tasks.values())


def model_of_most(drawn: Sequence[DrawnTurn]) -> str | None:
    """The model of at least two thirds of these turns."""
    if len(drawn) < _LEAST_TURNS:
        return None
    model, turns = Counter(turn.model for turn in drawn).most_common(1)[0]
    return model if turns >= _SHARE_OF_MOST * len(drawn) else None


class Chore(Protocol):
    """A task that runs once a day on the learned skills."""

    @property
    def name(self) -> str: ...
    async def do(self, learned: Sequence[Skill], background: TaskGroup) -> None:
        """Run the chore; start slow work in `background`."""


@dataclass(eq=False, kw_only=True)
class Maintenance:
    """Examines the learned skills in force, a few every 20 seconds."""

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
                await self.run_once(background)

    async def run_once(self, background: TaskGroup) -> None:
        """Count the uses of skills, decide the next trials, retire harmful skills, and run the
        chores that are due.
        """
        await run_sync(self.library.follow)
        await run_sync(self._count_uses)
        learned = await run_sync(self._list)
        for skill in (*learned.canaries.next(), *learned.live.next()):
            async with self._guard.attempt(skill.name) as may:
                if may:
                    await (
                        self._judge(skill)
                        if skill.state is SkillState.CANARY
                        else self._retire_if_harmful(skill)
                    )
        for chore in self.chores:
            if await run_sync(self._is_due, chore):
                await chore.do((await run_sync(self._list)).skills, background)

    def _count_uses(self) -> None:
        for _ in range(_MOST_PAGES):
            rows = self.reader.turns_after(self.uses.cursor(), _PAGE)
            self.uses.note(rows)
            if len(rows) < _PAGE:
                return

    def _list(self) -> "_Learned":
        """The learned skills that the program may change."""
        view = self.library.view
        if view is not self._seen:
            skills = sorted(
                (skill for skill in view.index.skills() if not is_untouchable(skill)),
                key=lambda skill: skill.name,
            )
            canaries = self._learned.canaries.of(
                [skill for skill in skills if skill.state is SkillState.CANARY]
            )
            live = self._learned.live.of(
                [skill for skill in skills if skill.state is SkillState.LIVE]
            )
            self._learned, self._seen = _Learned(tuple(skills), canaries, live), view
        return self._learned

    def _is_due(self, chore: Chore) -> bool:
        """Whether a day has passed since the chore was last started; it then counts as started."""
        cursor = f"chore {chore.name}"
        now_us = microseconds(self.now())
        # A start time in the future means that the clock was ahead then.
        if 0 <= now_us - self.cursors.cursor(cursor) < DAY_US:
            return False
        self.cursors.move_cursor(cursor, now_us)
        return True

    async def _judge(self, skill: Skill) -> None:
        certificate = await run_sync(self._certificate, skill)
        report = await run_sync(self.uplift.trial, skill, certificate)
        match report.decision:
            case TrialDecision.PROMOTE:
                await self._promote(skill, report, certificate)
            case TrialDecision.WITHDRAW:
                await self.admission.retire(skill, report.reason)
            case TrialDecision.CONTINUE:
                log.debug("trial_continues hash=%s", skill.content_hash)

    async def _promote(
        self, skill: Skill, report: TrialReport, earlier: Certificate | None
    ) -> None:
        model = await run_sync(self.uplift.model, skill) or (
            "" if earlier is None else earlier.model
        )
        notes = (
            ()
            if earlier is None or not earlier.replays
            else (f"before that: {replays_in_words(earlier.replays)}",)
        )
        certificate = report.certificate(model, notes, earlier)
        if await self.admission.change_state(
            skill, SkillState.LIVE, f"kept {skill.name}: {report.reason}", certificate
        ):
            log.info("skill_promoted hash=%s", skill.content_hash)

    async def _retire_if_harmful(self, skill: Skill) -> None:
        if not skill.is_skill:
            return
        certificate = await run_sync(self._certificate, skill)
        counts = await run_sync(self.uplift.harm, skill, certificate)
        if counts is not None:
            await self.admission.retire(skill, f"it does harm: {counts.in_words()}")

    def _certificate(self, skill: Skill) -> Certificate | None:
        candidate = accepted_candidate(self.candidates, skill)
        return None if candidate is None else candidate.certificate


class _Rotation:
    """Returns the next few skills at each call, in the order of their names, and starts again at
    the end.
    """

    def __init__(self, skills: Sequence[Skill], last: str = "") -> None:
        self._skills = skills
        self._names = [str(skill.name) for skill in skills]
        self._last = last

    def next(self) -> list[Skill]:
        """The next few skills."""
        at = bisect_right(self._names, self._last)
        batch = [*self._skills[at : at + _SKILLS_AT_ONCE]]
        batch += self._skills[: min(at, _SKILLS_AT_ONCE - len(batch))]
        self._last = str(batch[-1].name) if batch else ""
        return batch

    def of(self, skills: Sequence[Skill]) -> "_Rotation":
        """A rotation over other skills that continues at the same name."""
        return _Rotation(skills, self._last)


@dataclass(frozen=True, slots=True)
class _Learned:
    """The learned skills by name, and rotations over the canaries and the live ones."""

    skills: tuple[Skill, ...]
    canaries: _Rotation
    live: _Rotation
