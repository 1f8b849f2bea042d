"""Maintenance of the skills in force: count their uses, and once a day withdraw those that did not
help or were not needed, propose lessons of several users for a wider scope, and give notice of
rules since which fewer answers pass."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final, Protocol, TypedDict

import anyio
from anyio.to_thread import run_sync

from metaclaw.clock import utc_now
from metaclaw.domain.candidate import Change, Proposal
from metaclaw.domain.skill import Authorship, Skill, SkillKind
from metaclaw.domain.verdict import Belief, Outcome, PassRate
from metaclaw.learn.admission import Announce, CandidateAdmission, accepted_candidate
from metaclaw.learn.retention import microseconds
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.skills import (
    OWNER,
    STALE_AFTER,
    STALE_TASKS,
    Promotion,
    Teams,
    find_promotions,
    free_name,
    is_untouchable,
    stale_reason,
)
from metaclaw.store import (
    LedgerReader,
    SkillUse,
    SqlCandidates,
    SqlCursors,
    SqlGenerations,
    SqlUses,
)

log = logging.getLogger(__name__)

_EVERY_S: Final = 20.0
_PAGE: Final = 500
_MOST_PAGES: Final = 10
_DAY_US: Final = 86_400_000_000
_SKILLS_PER_QUERY: Final = 500
_PROMOTIONS_A_DAY: Final = 10
_TURNS_THAT_REFUTE: Final = 5
_MOST_TURNS: Final = 60


class Chore(Protocol):
    """A task that runs once a day on the learned skills."""

    @property
    def name(self) -> str: ...
    async def do(self, learned: Sequence[Skill]) -> None:
        """Run the chore."""


@dataclass(eq=False, kw_only=True)
class Maintenance:
    """Counts the uses of skills every 20 seconds, and runs the chores that are due."""

    reader: LedgerReader
    uses: SqlUses
    cursors: SqlCursors
    library: AnyLibrary
    chores: Sequence[Chore] = ()
    now: Callable[[], datetime] = utc_now

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await anyio.sleep(_EVERY_S)
            await self.run_once()

    async def run_once(self) -> None:
        await run_sync(self.library.follow)
        await run_sync(self._count_uses)
        for chore in self.chores:
            if await run_sync(self._is_due, chore):
                await chore.do(await run_sync(self._learned))

    def _count_uses(self) -> None:
        for _ in range(_MOST_PAGES):
            rows = self.reader.turns_after(self.uses.cursor(), _PAGE)
            self.uses.note(rows)
            if len(rows) < _PAGE:
                return

    def _learned(self) -> list[Skill]:
        """The learned skills that the program may change, by name."""
        skills = self.library.view.index.skills()
        own = (skill for skill in skills if not is_untouchable(skill))
        return sorted(own, key=lambda skill: skill.name)

    def _is_due(self, chore: Chore) -> bool:
        """Whether a day has passed since the chore was last started; it then counts as started."""
        cursor = f"chore {chore.name}"
        now_us = microseconds(self.now())
        # A start time in the future means that the clock was ahead then.
        if 0 <= now_us - self.cursors.cursor(cursor) < _DAY_US:
            return False
        self.cursors.move_cursor(cursor, now_us)
        return True


@dataclass(eq=False, kw_only=True)
class Expiry:
    """Retires skills that no task has matched for long. Rules and skills that a person stated,
    wrote or pinned stay.
    """

    name = "aging"

    uses: SqlUses
    generations: SqlGenerations
    admission: CandidateAdmission
    teams: Teams
    now: Callable[[], datetime] = utc_now

    async def do(self, learned: Sequence[Skill]) -> None:
        """Retire the stale skills. For a skill whose uses were never counted, the time begins
        now.
        """
        for batch in _batches([skill for skill in learned if skill.author is Authorship.EVOLVER]):
            for skill, reason in await run_sync(self._stale, batch):
                await self.admission.retire(skill, reason)

    def _stale(self, skills: Sequence[Skill]) -> list[tuple[Skill, str]]:
        uses = self.uses.uses_of([skill.name for skill in skills])
        self.uses.begin([skill.name for skill in skills if skill.name not in uses], self.now())
        reasons = (
            (skill, self._reason(skill, uses[skill.name])) for skill in skills if skill.name in uses
        )
        return [(skill, reason) for skill, reason in reasons if reason is not None]

    def _reason(self, skill: Skill, use: SkillUse) -> str | None:
        since = (
            self.generations.in_force(skill.name)
            if self.now() - use.last_at >= STALE_AFTER
            else None
        )
        if since is None:
            return None
        # Earlier uses were of another skill with the same name.
        last = max(use.last_at, since.since)
        tasks = self.uses.tasks_since(
            last, STALE_TASKS, **members_of_scope(skill.scope, self.teams)
        )
        return stale_reason(skill, last, tasks, self.now())


def _batches(skills: Sequence[Skill]) -> Iterator[Sequence[Skill]]:
    """The skills in batches for one query each."""
    return (skills[at : at + _SKILLS_PER_QUERY] for at in range(0, len(skills), _SKILLS_PER_QUERY))


class ScopeMembers(TypedDict, total=False):
    """Members of a scope: users, workspaces, or requests without a user id; everyone if none is
    named.
    """

    users: Collection[str]
    workspaces: Collection[str]
    without_user: bool


def members_of_scope(scope: str | None, teams: Teams) -> ScopeMembers:
    """The members of a skill's scope."""
    if scope is None:
        return ScopeMembers()
    if scope == OWNER:
        return ScopeMembers(without_user=True)
    kind, _, who = scope.partition(":")
    match kind:
        case "user":
            return ScopeMembers(users=(who,))
        case "workspace":
            return ScopeMembers(workspaces=(who,))
        case "team":
            return ScopeMembers(users=tuple(teams.get(who, ())))
        case _:
            return ScopeMembers(users=(scope,), workspaces=(scope,))


@dataclass(frozen=True, slots=True)
class SkillTally:
    """The known outcomes of turns with a skill in their prompt, since it has its present text."""

    passed: int = 0
    failed: int = 0

    @property
    def did_not_help(self) -> bool:
        return self.failed >= _TURNS_THAT_REFUTE and self.failed >= self.passed


@dataclass(eq=False)
class SkillCounts:
    """Counts the outcomes of skills. Blocks."""

    uses: SqlUses
    generations: SqlGenerations
    teams: Teams

    def tally(self, skill: Skill) -> SkillTally:
        since = self.generations.in_force(skill.name)
        if since is None:
            return SkillTally()
        outcomes = self.uses.outcomes(
            since.text_since,
            _MOST_TURNS,
            placed=skill.name,
            **members_of_scope(skill.scope, self.teams),
        )
        return SkillTally(outcomes.count(Outcome.PASS), outcomes.count(Outcome.FAIL))


@dataclass(eq=False, kw_only=True)
class Withdrawal:
    """Retires skills that did not help. Lessons are withdrawn by their own counts."""

    name = "withdrawal"

    counts: SkillCounts
    admission: CandidateAdmission

    async def do(self, learned: Sequence[Skill]) -> None:
        """Retire each learned skill with which at least as many turns failed as passed."""
        for skill in learned:
            tally = await run_sync(self.counts.tally, skill) if skill.is_skill else SkillTally()
            if tally.did_not_help:
                decided = tally.passed + tally.failed
                await self.admission.retire(
                    skill, f"it did not help: {tally.failed} of {decided} turns with it failed"
                )


@dataclass(eq=False, kw_only=True)
class ScopePromotion:
    """Proposes lessons of several users for a team or everyone; the gate decides. A text is
    proposed once for each scope.
    """

    name = "widening"

    library: AnyLibrary
    candidates: SqlCandidates
    cursors: SqlCursors
    admission: CandidateAdmission
    teams: Teams

    async def do(self, learned: Sequence[Skill]) -> None:
        """Propose lessons for everyone first; they need not be proposed for a team, too."""
        left = _PROMOTIONS_A_DAY
        for scope, users in [
            (None, None),
            *((f"team:{name}", users) for name, users in self.teams.items()),
        ]:
            mine = (
                learned if users is None else [skill for skill in learned if _user(skill) in users]
            )
            for promotion in await run_sync(find_promotions, mine, scope):
                if left and await self._propose(promotion):
                    left -= 1

    async def _propose(self, promotion: Promotion) -> bool:
        proposal = await run_sync(self._proposal, promotion)
        if proposal is None:
            return False
        log.info(
            "lesson_of_many hash=%s users=%d scope=%s",
            proposal.skill.content_hash,
            promotion.users,
            proposal.skill.scope,
        )
        await self.admission.admit(proposal)
        return True

    def _proposal(self, promotion: Promotion) -> Proposal | None:
        """The proposal; None if it was made before, or if its origin is not known."""
        skill = promotion.skill
        mark = f"widened {skill.content_hash}"
        parents = [
            parent
            for name in promotion.learned_in
            if (parent := self.library.view.get(name)) is not None
        ]
        origins = [
            origin
            for parent in parents
            if (origin := accepted_candidate(self.candidates, parent)) is not None
        ]
        if self.cursors.cursor(mark) or not origins:
            return None
        self.cursors.move_cursor(mark, 1)
        support = tuple(
            dict.fromkeys(turn for origin in origins for turn in origin.proposal.support)
        )
        name = free_name(skill.name, lambda name: self.library.view.get(name) is not None)
        return Proposal(
            replace(skill, name=name),
            Change.NEW,
            (),
            support,
            f"lesson-of-many-{skill.name}",
            "widening",
        )


def _user(skill: Skill) -> str | None:
    kind, _, who = (skill.scope or "").partition(":")
    return who if kind == "user" else None


_MOST_RULES: Final = 500
_LEAST_TURNS: Final = 20
_LEAST_DIFFERENCE: Final = -0.15
_MOST_PROBABILITY_HARMLESS: Final = 0.02


@dataclass(eq=False, kw_only=True)
class RuleWatch:
    """Gives a `notice` for rules that seem to do harm, once for each text of a rule. It compares
    the outcomes of the person's turns with the rule and before it. They may differ for other
    reasons, so the rule stays in force."""

    name = "rule watch"

    uses: SqlUses
    generations: SqlGenerations
    cursors: SqlCursors
    library: AnyLibrary
    announce: Announce
    teams: Teams

    async def do(self, learned: Sequence[Skill]) -> None:
        """Examine every rule in force, including the rules in files that a person wrote."""
        rules = [
            skill for skill in self.library.view.index.skills() if skill.kind is SkillKind.RULE
        ]
        for rule in rules[:_MOST_RULES]:
            text = await run_sync(self._harm, rule)
            if text is not None:
                await self.announce("notice", {"skill": rule.name, "text": text})

    def _harm(self, rule: Skill) -> str | None:
        """The text of the notice, or None. Blocks."""
        since = self.generations.in_force(rule.name)
        if since is None:
            return None
        outcomes = partial(
            self.uses.outcomes,
            since.text_since,
            _MOST_TURNS,
            **members_of_scope(rule.scope, self.teams),
        )
        before, now = outcomes(), outcomes(placed=rule.name)
        mark = f"rule noticed {rule.content_hash}"
        if not _is_worse(before, now) or self.cursors.cursor(mark):
            return None
        self.cursors.move_cursor(mark, 1)
        return (
            f"Fewer answers pass since your rule {rule.name} is in force: {_share(now)} now,"
            f" {_share(before)} before. It stays in force; to take it back: metaclaw rules remove"
            f" {rule.name}"
        )


def _is_worse(before: Sequence[Outcome], now: Sequence[Outcome]) -> bool:
    belief = Belief(_rate(now), _rate(before))
    is_seen = min(len(before), len(now)) >= _LEAST_TURNS
    return (
        is_seen
        and belief.difference <= _LEAST_DIFFERENCE
        and belief.is_better <= _MOST_PROBABILITY_HARMLESS
    )


def _rate(outcomes: Sequence[Outcome]) -> PassRate:
    passed = outcomes.count(Outcome.PASS)
    return PassRate(passed, len(outcomes) - passed)


def _share(outcomes: Sequence[Outcome]) -> str:
    return f"{outcomes.count(Outcome.PASS)} of {len(outcomes)} turns"
