"""What there is to learn from: failures that nothing has been made of, and what was tried before for the likes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from metaclaw.domain.candidate import Candidate, Standing
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.step import Step
from metaclaw.domain.verdict import OpenFailure, Verdict
from metaclaw.learn.recorded import RecordedSteps, without_bodies
from metaclaw.learn.retry_guard import AttemptLog, RetryGuard
from metaclaw.learn.shelf import SkillShelf
from metaclaw.learn.skill_changes import SkillChanges
from metaclaw.learn.unmended import Shown
from metaclaw.skills import Failure, FailureGroup, group_failures
from metaclaw.store import LedgerReader, SkillAttempt, SqlCandidates, SqlVerdicts
from metaclaw.text import count_terms

_LISTED: Final = 5_000
_LOOKED_AT: Final = 200
_REMEMBERED: Final = 200
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_ALIKE: Final = 3  # terms that a rejected proposal's trigger and the failing tasks share


@dataclass(frozen=True, slots=True)
class _Known:
    """A failure as it was read, the turn that went on from it, and how many turns its session had then.

    Without bodies: many may be waiting for their like.
    """

    failure: Failure
    followed_by: TurnId | None
    turns: int


class Lessons:
    """Reads the ledger for whoever learns. Blocks; one caller at a time."""

    def __init__(
        self,
        *,
        reader: LedgerReader,
        verdicts: SqlVerdicts,
        candidates: SqlCandidates,
        recorded: RecordedSteps,
        shelf: SkillShelf,
        changes: SkillChanges,
        book: AttemptLog | None = None,
    ) -> None:
        self._reader = reader
        self._verdicts = verdicts
        self._candidates = candidates
        self._recorded = recorded
        self._shelf = shelf
        self._changes = changes
        self._known: dict[TurnId, _Known] = {}
        self._guard = RetryGuard("reading", book)

    def open_failures(self, generation: int) -> list[Failure]:
        """The newest failures made up to this generation that may still teach a skill (decision 35); one that was read before is
        not read again unless its verdict has changed, or somebody has gone on from it."""
        failures = self._changes.without_overtaken(self._verdicts.open_failures(generation, _LISTED), generation)
        turns = [failure.turn for failure in failures[-_LOOKED_AT:]]
        standings = self._reader.standings_of(turns)
        known, self._known = self._known, {}
        for turn in turns:
            verdict = standings[turn].verdict if turn in standings else None
            if verdict is None:
                continue
            before = known.get(turn)
            found = before if before is not None and self._is_current(before, verdict) else self._read(turn, verdict)
            if found is not None:
                self._known[turn] = found
        return [found.failure for found in self._known.values()]

    def not_overtaken(self, shown: Sequence[Shown], generation: int) -> list[Shown]:
        """Those after which no skill that applies to their speaker came into force or changed."""
        asked = [OpenFailure(one.failure.step.turn, one.failure.step.scope, one.generation, _EVER) for one in shown]
        left = {one.turn for one in self._changes.without_overtaken(asked, generation)}
        return [one for one in shown if one.failure.step.turn in left]

    def answer_to(self, failure: Failure) -> TurnId | None:
        """The turn that went on from it, with whatever the person said about it."""
        known = self._known.get(failure.step.turn)
        return None if known is None else known.followed_by

    def in_full(self, kind: FailureGroup) -> FailureGroup:
        """The kind with everything that was said in its turns, for whoever is to write."""
        whole = (self._recorded.step(failure.step.turn) for failure in kind.failures)
        pairs = zip(kind.failures, whole, strict=True)
        return replace(kind, failures=tuple(one if step is None else Failure(step, one.verdict) for one, step in pairs))

    def kind_of(self, attempt: SkillAttempt) -> FailureGroup | None:
        """The kind that an interrupted attempt was about; None where nothing of it is a failure any more."""
        standings = self._reader.standings_of(attempt.turns)
        found = [self._read(turn, verdict) for turn in attempt.turns if (verdict := standings[turn].verdict) is not None]
        failures = [one.failure for one in found if one is not None and one.failure.verdict.teaches]
        kinds = group_failures(failures)
        return replace(kinds[0], name=attempt.kind, failures=tuple(failures)) if kinds else None

    def newest(self, turns: Sequence[TurnId]) -> Step | None:
        """The newest of these turns that is still there."""
        steps = (self._recorded.alone(turn) for turn in sorted(turns, reverse=True))
        return next((without_bodies(step) for step in steps if step is not None), None)

    def unfinished(self) -> list[Candidate]:
        """Candidates that are not decided yet, oldest first."""
        found = [one for standing in (Standing.DRAFT, Standing.SHADOW) for one in self._of(standing)]
        return sorted(found, key=lambda one: (one.made_at, one.id))

    def turned_away(self, kind: FailureGroup) -> list[Candidate]:
        """Earlier proposals for this lesson, or one much like it, that were rejected or have been retired since; newest first."""
        words = " ".join(f"{failure.step.task} {failure.complaint}" for failure in kind.failures)
        terms = set(count_terms(words))
        past = [*self._of(Standing.REJECTED), *(one for one in self._of(Standing.ACCEPTED) if self._is_gone(one))]
        mine = [one for one in past if one.proposal.skill.scope == kind.scope and _is_alike(one, kind.name, terms)]
        return sorted(mine, key=lambda one: (one.made_at, one.id), reverse=True)

    def _of(self, standing: Standing) -> list[Candidate]:
        return self._candidates.candidates(standing, _REMEMBERED)

    def _is_gone(self, candidate: Candidate) -> bool:
        return self._shelf.view.get(candidate.proposal.skill.name) is None

    def _is_current(self, known: _Known, verdict: Verdict) -> bool:
        if known.failure.verdict != verdict:
            return False
        return known.followed_by is not None or known.turns == self._turns_in(known.failure.step.session)

    def _read(self, turn: TurnId, verdict: Verdict) -> _Known | None:
        with self._guard.attempt_now(turn) as may:
            found = self._recorded.with_following(turn) if may else None
        if found is None:
            return None
        turns = self._turns_in(found.step.session)
        return _Known(Failure(without_bodies(found.step), verdict), found.followed_by, turns)

    def _turns_in(self, session: SessionId) -> int:
        row = self._reader.session(session)
        return 0 if row is None else row.turns


def _is_alike(candidate: Candidate, kind: str, terms: set[str]) -> bool:
    trigger = set(count_terms(candidate.proposal.skill.trigger))
    return candidate.proposal.kind == kind or len(trigger & terms) >= _ALIKE
