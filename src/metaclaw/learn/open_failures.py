"""Failures that may become a skill, and earlier proposals for failures of the same kind."""

from dataclasses import dataclass, replace
from typing import Final

from metaclaw.domain.candidate import Candidate, Standing
from metaclaw.domain.ids import TurnId
from metaclaw.domain.verdict import Verdict
from metaclaw.learn.steps import RecordedSteps, without_bodies
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import AttemptLog, RetryGuard
from metaclaw.skills import Failure, FailureGroup, group_failures
from metaclaw.store import LedgerReader, SkillAttempt, SqlCandidates, SqlVerdicts

_LOOKED_AT: Final = 200
_REMEMBERED: Final = 200


@dataclass(frozen=True, slots=True)
class _Known:
    """A failure as it was read, the turn after it, and how many turns its session had then. Message
    bodies are left out, because many failures may wait until there are enough of their kind."""

    failure: Failure
    followed_by: TurnId | None
    turns: int


@dataclass(eq=False, kw_only=True)
class FailureReader:
    """Reads failures that may become a skill. Blocks; one caller at a time."""

    reader: LedgerReader
    verdicts: SqlVerdicts
    candidates: SqlCandidates
    recorded: RecordedSteps
    library: AnyLibrary
    attempt_log: AttemptLog

    def __post_init__(self) -> None:
        self._known: dict[TurnId, _Known] = {}
        self._guard = RetryGuard("reading", self.attempt_log)

    def open_failures(self, generation: int) -> list[Failure]:
        """The newest failures made up to this generation that may still teach a skill;
        one that was read before is not read again unless its verdict has changed, or its
        conversation has gone on."""
        turns = [one.turn for one in self.verdicts.open_failures(generation, _LOOKED_AT)]
        standings = self.reader.standings_of(turns)
        known, self._known = self._known, {}
        for turn in turns:
            verdict = standings[turn].verdict if turn in standings else None
            if verdict is None:
                continue
            before = known.get(turn)
            is_current = before is not None and self._is_current(before, verdict)
            found = before if is_current else self._read(turn, verdict)
            if found is not None:
                self._known[turn] = found
        return [found.failure for found in self._known.values()]

    def answer_to(self, failure: Failure) -> TurnId | None:
        """The turn that follows the failure and holds the person's reply to it."""
        known = self._known.get(failure.step.turn)
        return None if known is None else known.followed_by

    def in_full(self, kind: FailureGroup) -> FailureGroup:
        """The group with whole turns, for the model that writes a skill."""
        whole = (
            Failure(self.recorded.step(one.step.turn) or one.step, one.verdict)
            for one in kind.failures
        )
        return replace(kind, failures=tuple(whole))

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
        return replace(kinds[0], failures=tuple(failures)) if kinds else None

    def undecided(self) -> list[Candidate]:
        """Candidates that are not decided yet, oldest first."""
        return self._of(Standing.DRAFT)[::-1]

    def turned_away(self, kind: FailureGroup) -> list[Candidate]:
        """Earlier proposals for the same kind that were rejected, or retired since; newest
        first.
        """
        mine = (
            one
            for one in (*self._of(Standing.REJECTED), *self._of(Standing.ACCEPTED))
            if (one.proposal.skill.scope, one.proposal.kind) == (kind.scope, kind.cause)
            and (one.standing is Standing.REJECTED or self._is_gone(one))
        )
        return sorted(mine, key=lambda one: (one.made_at, one.id), reverse=True)

    def _of(self, standing: Standing) -> list[Candidate]:
        return self.candidates.candidates(standing, _REMEMBERED)

    def _is_gone(self, candidate: Candidate) -> bool:
        return self.library.view.get(candidate.proposal.skill.name) is None

    def _is_current(self, known: _Known, verdict: Verdict) -> bool:
        if known.failure.verdict != verdict:
            return False
        return known.followed_by is not None or known.turns == self._turns_in(known)

    def _read(self, turn: TurnId, verdict: Verdict) -> _Known | None:
        with self._guard.attempt_now(turn) as may:
            found = self.recorded.with_following(turn) if may else None
        if found is None:
            return None
        known = _Known(Failure(without_bodies(found.step), verdict), found.followed_by, 0)
        return replace(known, turns=self._turns_in(known))

    def _turns_in(self, known: _Known) -> int:
        row = self.reader.session(known.failure.step.session)
        return 0 if row is None else row.turns
