"""Failures that may become a skill, those kept for training, earlier proposals for similar ones,
and turns for proofs.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from metaclaw.domain.candidate import Candidate, Probe, ProbeKind, Proposal, Standing
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Audience, SkillChange, audience_of
from metaclaw.domain.turn import Scope, Step
from metaclaw.domain.verdict import OpenFailure, Outcome, Source, Verdict
from metaclaw.learn.steps import RecordedSteps, StepBuilder, without_bodies
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import AttemptLog, RetryGuard
from metaclaw.skills import (
    MOST_SHOWN,
    Failure,
    FailureGroup,
    Teams,
    applies,
    applying,
    group_failures,
    is_spoken_against,
)
from metaclaw.store import LedgerReader, SkillAttempt, SqlCandidates, SqlGenerations, SqlVerdicts
from metaclaw.text import count_terms

_LISTED: Final = 5_000
_LOOKED_AT: Final = 200
_REMEMBERED: Final = 200
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_ALIKE: Final = 3  # terms that a rejected proposal's trigger and the failing tasks share
_FAILING: Final = 8
_PASSING: Final = 8
_KEPT: Final = 1_000


class SkillChanges:
    """The newest change of a skill for each audience. Generations are read once. Blocks."""

    def __init__(self, generations: SqlGenerations, teams: Teams) -> None:
        self._generations = generations
        self._teams = teams
        self._newest: dict[Audience, SkillChange] = {}
        # Changes of the generations after `_from` up to `_to` are in `_newest`.
        self._from = self._to = 0

    def without_overtaken(self, failures: list[OpenFailure], generation: int) -> list[OpenFailure]:
        """The failures after which no skill for their speaker was added or changed.

        `generation` is the newest generation known to be in the database.
        """
        if not failures:
            return []
        self._read(min(one.generation for one in failures), generation)
        last: dict[Scope, SkillChange | None] = {
            scope: self._last(scope) for scope in {one.scope for one in failures}
        }
        return [one for one in failures if not _is_overtaken(one, last[one.scope])]

    def _read(self, after: int, generation: int) -> None:
        if after < self._from or not self._to:
            self._newest, self._from, self._to = {}, after, after
        if generation > self._to:
            for change in self._generations.skill_changes(self._to):
                audience = audience_of(change.skill)
                if audience is not None:
                    self._newest[audience] = change
            self._to = generation

    def _last(self, scope: Scope) -> SkillChange | None:
        """The newest change of a skill for this speaker."""
        mine = applying(scope, self._teams)
        found = (
            change
            for change in self._newest.values()
            if (change.skill.scope is None or change.skill.scope in mine)
            and change.skill.is_for_workspace(scope.workspace)
        )
        return max(found, key=lambda change: change.number, default=None)


def _is_overtaken(failure: OpenFailure, last: SkillChange | None) -> bool:
    return (
        last is not None
        and last.number > failure.generation
        and last.published_at >= failure.judged_at
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """A failure as it was read, the turn after it, and how many turns its session had then. Message
    bodies are left out, because many failures may wait until there are enough similar ones."""

    failure: Failure
    followed_by: TurnId | None
    turns: int


@dataclass(frozen=True, slots=True)
class ShownFailure:
    """A failure that an evolver is shown, or was, and the generation of skills at that time."""

    failure: Failure
    generation: int


@dataclass(eq=False, kw_only=True)
class FailureReader:
    """Reads failures that may become a skill. Blocks; one caller at a time."""

    reader: LedgerReader
    verdicts: SqlVerdicts
    candidates: SqlCandidates
    recorded: RecordedSteps
    library: AnyLibrary
    changes: SkillChanges
    attempt_log: AttemptLog | None = None

    def __post_init__(self) -> None:
        self._known: dict[TurnId, _Known] = {}
        self._guard = RetryGuard("reading", self.attempt_log)

    def open_failures(self, generation: int) -> list[Failure]:
        """The newest failures made up to this generation that may still teach a skill (decision 9);
        one that was read before is not read again unless its verdict has changed, or its
        conversation has gone on."""
        failures = self.changes.without_overtaken(
            self.verdicts.open_failures(generation, _LISTED), generation
        )
        turns = [failure.turn for failure in failures[-_LOOKED_AT:]]
        standings = self.reader.standings_of(turns)
        known, self._known = self._known, {}
        for turn in turns:
            verdict = standings[turn].verdict if turn in standings else None
            if verdict is None:
                continue
            before = known.get(turn)
            found = (
                before
                if before is not None and self._is_current(before, verdict)
                else self._read(turn, verdict)
            )
            if found is not None:
                self._known[turn] = found
        return [found.failure for found in self._known.values()]

    def not_overtaken(self, shown: Sequence[ShownFailure], generation: int) -> list[ShownFailure]:
        """Of the shown failures, those after which no skill for their speaker was added or
        changed.
        """
        asked = [
            OpenFailure(one.failure.step.turn, one.failure.step.scope, one.generation, _EVER)
            for one in shown
        ]
        left = {one.turn for one in self.changes.without_overtaken(asked, generation)}
        return [one for one in shown if one.failure.step.turn in left]

    def answer_to(self, failure: Failure) -> TurnId | None:
        """The turn that follows the failure and holds the person's reply to it."""
        known = self._known.get(failure.step.turn)
        return None if known is None else known.followed_by

    def in_full(self, kind: FailureGroup) -> FailureGroup:
        """The group with whole turns, for the model that writes a skill."""
        whole = (self.recorded.step(failure.step.turn) for failure in kind.failures)
        pairs = zip(kind.failures, whole, strict=True)
        return replace(
            kind,
            failures=tuple(
                one if step is None else Failure(step, one.verdict) for one, step in pairs
            ),
        )

    def kind_of(self, attempt: SkillAttempt) -> FailureGroup | None:
        """The group of an interrupted attempt; None if none of its turns is a failure any more."""
        standings = self.reader.standings_of(attempt.turns)
        found = [
            self._read(turn, verdict)
            for turn in attempt.turns
            if (verdict := standings[turn].verdict) is not None
        ]
        failures = [one.failure for one in found if one is not None and one.failure.verdict.teaches]
        kinds = group_failures(failures)
        return replace(kinds[0], name=attempt.kind, failures=tuple(failures)) if kinds else None

    def newest(self, turns: Sequence[TurnId]) -> Step | None:
        """The newest of these turns that is still recorded."""
        steps = (self.recorded.alone(turn) for turn in sorted(turns, reverse=True))
        return next((without_bodies(step) for step in steps if step is not None), None)

    def unfinished(self) -> list[Candidate]:
        """Candidates that are not decided yet, oldest first."""
        found = [
            one for standing in (Standing.DRAFT, Standing.SHADOW) for one in self._of(standing)
        ]
        return sorted(found, key=lambda one: (one.made_at, one.id))

    def turned_away(self, kind: FailureGroup) -> list[Candidate]:
        """Earlier proposals for the same or a similar group that were rejected, or retired since;
        newest first.
        """
        words = " ".join(f"{failure.step.task} {failure.complaint}" for failure in kind.failures)
        terms = set(count_terms(words))
        past = [
            *self._of(Standing.REJECTED),
            *(one for one in self._of(Standing.ACCEPTED) if self._is_gone(one)),
        ]
        mine = [
            one
            for one in past
            if one.proposal.skill.scope == kind.scope and _is_alike(one, kind.name, terms)
        ]
        return sorted(mine, key=lambda one: (one.made_at, one.id), reverse=True)

    def _of(self, standing: Standing) -> list[Candidate]:
        return self.candidates.candidates(standing, _REMEMBERED)

    def _is_gone(self, candidate: Candidate) -> bool:
        return self.library.view.get(candidate.proposal.skill.name) is None

    def _is_current(self, known: _Known, verdict: Verdict) -> bool:
        if known.failure.verdict != verdict:
            return False
        return known.followed_by is not None or known.turns == self._turns_in(
            known.failure.step.session
        )

    def _read(self, turn: TurnId, verdict: Verdict) -> _Known | None:
        with self._guard.attempt_now(turn) as may:
            found = self.recorded.with_following(turn) if may else None
        if found is None:
            return None
        turns = self._turns_in(found.step.session)
        return _Known(Failure(without_bodies(found.step), verdict), found.followed_by, turns)

    def _turns_in(self, session: SessionId) -> int:
        row = self.reader.session(session)
        return 0 if row is None else row.turns


def _is_alike(candidate: Candidate, kind: str, terms: set[str]) -> bool:
    trigger = set(count_terms(candidate.proposal.skill.trigger))
    return candidate.proposal.kind == kind or len(trigger & terms) >= _ALIKE


@dataclass(frozen=True, slots=True)
class _Task:
    """The terms of a turn's task, and its scope."""

    terms: frozenset[str]
    scope: Scope


@dataclass(eq=False)
class Probes:
    """Chooses the turns on which a proposal is replayed. Blocks."""

    reader: LedgerReader
    verdicts: SqlVerdicts
    steps: StepBuilder
    teams: Teams | None = None

    def __post_init__(self) -> None:
        self._tasks: OrderedDict[TurnId, _Task | None] = OrderedDict()

    def choose(self, proposal: Proposal) -> tuple[Probe, ...]:
        """The failures it was made from, then others that look like them, and as many passing
        turns, the most similar first.

        Where no failure taught it, the turn in which an instruction was given stands for one.
        """
        standings = self.reader.standings_of(proposal.support)
        there = [turn for turn in proposal.support if turn in standings]
        taught = [turn for turn in there if _failed(standings[turn].verdict)]
        failing = dict.fromkeys([*(taught or there), *self._alike(proposal, Outcome.FAIL)])
        passing = self._alike(proposal, Outcome.PASS)
        return (
            *(Probe(turn, ProbeKind.FAILING) for turn in list(failing)[:_FAILING]),
            *(Probe(turn, ProbeKind.PASSING) for turn in passing[:_PASSING]),
        )

    def forget(self) -> None:
        """Forget the turns that were read; called before a session is forgotten."""
        self._tasks.clear()

    def _alike(self, proposal: Proposal, outcome: Outcome) -> list[TurnId]:
        """Turns of this outcome whose person may see the skill, by how much their task shares with
        it; none that share nothing.
        """
        wanted = set(count_terms(f"{proposal.skill.trigger} {proposal.skill.body}"))
        recent = [
            turn
            for turn in self.verdicts.recent(outcome, _LOOKED_AT)
            if turn not in proposal.support
        ]
        standings = self.reader.standings_of(recent) if outcome is Outcome.FAIL else {}
        found = []
        for turn in recent:
            task = self._task(turn)
            if task is None or not applies(proposal.skill.scope, task.scope, self.teams):
                continue
            shared = len(wanted & task.terms)
            if shared and (
                outcome is not Outcome.FAIL
                or (turn in standings and _failed(standings[turn].verdict))
            ):
                found.append((shared, turn))
        return [turn for _, turn in sorted(found, key=lambda one: -one[0])]

    def _task(self, turn: TurnId) -> _Task | None:
        """Cached: every candidate looks at the same recent turns, and reading one parses its whole
        request.
        """
        if turn not in self._tasks:
            recorded = self.reader.turn(turn)
            step = None if recorded is None else self.steps.build(recorded, None)
            self._tasks[turn] = (
                None if step is None else _Task(frozenset(count_terms(step.task)), step.scope)
            )
            while len(self._tasks) > _KEPT:
                self._tasks.popitem(last=False)
        return self._tasks[turn]


def _failed(verdict: Verdict | None) -> bool:
    """Whether a skill could have helped: the agent failed, not its environment."""
    return verdict is not None and verdict.teaches


def tasks_in_words(steps: Sequence[Step]) -> str:
    """The tasks of these steps, as a query for similar skills."""
    return "\n".join(dict.fromkeys(step.task for step in steps))


class EvolverFilter:
    """Withholds failures that no skill can fix from the evolver, so that they may train the weights
    (decision 9).

    A turn that the evolver was shown is support and never trains. A turn from which weights can
    learn, and against which the person did not speak, is therefore withheld

    - where the check of a skill in its prompt failed: the rule was there already;
    - where a similar failure was shown before, and no skill for its speaker was added or changed
      since.

    Failures are similar if they have the same cause and the same rules and skills in the prompt;
    where no skill is among these, the tasks must be of one kind as well. This is remembered as long
    as the process runs; after a restart a few are shown again.

    `may_train` says whether weights could learn from a turn, and blocks; `is_skill` says whether a
    name is a skill's, not that of a rule or fact, which may stand in every prompt."""

    def __init__(
        self, may_train: Callable[[TurnId], bool], is_skill: Callable[[SkillName], bool]
    ) -> None:
        self._may_train = may_train
        self._is_skill = is_skill
        self._shown: dict[int, tuple[ShownFailure, ...]] = {}

    @property
    def shown(self) -> tuple[ShownFailure, ...]:
        """All failures that the evolver was shown and that were not removed."""
        return tuple(one for some in self._shown.values() for one in some)

    def add(self, attempt: int, failures: Sequence[Failure], generation: int) -> None:
        """Record the failures that an attempt shows to the evolver."""
        self._shown[attempt] = tuple(ShownFailure(one, generation) for one in failures)

    def remove(self, attempt: int) -> None:
        """Drop the failures of an attempt in which the evolver could not be asked."""
        self._shown.pop(attempt, None)

    def keep(self, shown: Sequence[ShownFailure]) -> None:
        """Forget all but these."""
        kept = {one.failure.step.turn for one in shown}
        self._filter(lambda one: one.failure.step.turn in kept)

    def forget(self, session: SessionId) -> None:
        """Forget the failures of a session."""
        self._filter(lambda one: one.failure.step.session != session)

    def _filter(self, stays: Callable[[ShownFailure], bool]) -> None:
        found = {attempt: tuple(filter(stays, some)) for attempt, some in self._shown.items()}
        self._shown = {attempt: some for attempt, some in found.items() if some}

    def kinds_to_show(
        self, failures: Sequence[Failure], shown: Sequence[ShownFailure]
    ) -> list[FailureGroup]:
        """Open failures by kind, without those kept for training. `shown` are failures shown before
        that no skill has answered since. Of failures that could train the weights, a kind has at
        most as many as an evolver reads in full. Blocks."""
        left = {
            one.step.turn
            for one in failures
            if not is_spoken_against(one) and self._may_train(one.step.turn)
        }
        before = {one.failure.step.turn: one.failure for one in shown}
        open_ones = {
            one.step.turn: one
            for one in failures
            if not (one.step.turn in left and one.verdict.source is Source.CHECK)
        }
        kinds = group_failures([*(before | open_ones).values()])
        known = {
            _prompt(kind, one)
            for kind in kinds
            for one in kind.failures
            if one.step.turn in before and self._has_skill(one)
        }
        found = (_to_show(kind, before, left, known) for kind in kinds)
        return [kind for kind in found if kind.failures]

    def _has_skill(self, failure: Failure) -> bool:
        return any(self._is_skill(name) for name in failure.step.stamp.skills)


_Prompt = tuple[str, str, frozenset[SkillName]]


def _prompt(kind: FailureGroup, failure: Failure) -> _Prompt:
    return kind.scope, kind.cause, frozenset(failure.step.stamp.skills)


def _to_show(
    kind: FailureGroup,
    before: Mapping[TurnId, Failure],
    left: Collection[TurnId],
    known: Collection[_Prompt],
) -> FailureGroup:
    """The kind without failures that were shown before or are kept for training."""
    here = {_prompt(kind, one) for one in kind.failures if one.step.turn in before}
    asked = [one for one in kind.failures if one.step.turn not in before]
    kept = [one for one in asked if one.step.turn not in left]
    new = [
        one
        for one in asked
        if one.step.turn in left
        and _prompt(kind, one) not in here
        and _prompt(kind, one) not in known
    ]
    return replace(
        kind, failures=tuple(sorted([*kept, *new[:MOST_SHOWN]], key=lambda one: one.step.turn))
    )
