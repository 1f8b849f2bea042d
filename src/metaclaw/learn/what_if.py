"""What a rule's check would have found in recorded answers. No model is asked."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from metaclaw.clock import utc_now
from metaclaw.domain.chat import Part, Text
from metaclaw.domain.check import Check, Conversation, ProgramCheck
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.skill import Rule
from metaclaw.domain.turn import STOPPED_BY_US, Step, Turn, TurnEnd
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import SkillError
from metaclaw.learn.assessment import concerns, conversation_of, in_words, matching, needs_situation
from metaclaw.learn.steps import RecordedSteps, StepBuilder
from metaclaw.skills import LibraryView, Teams, applies, check_of, examine
from metaclaw.store import LedgerReader, RecordedTurn
from metaclaw.wires import said_parts

_ROWS_AT_ONCE: Final = 64
_WORST: Final = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.PASS)
# Serving has the processor in between.
_PAUSE_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class TriedTurn:
    """A recorded turn, the outcome of the check on its answer, and the answer in words; None and
    nothing if the rule does not apply to it."""

    turn: TurnId
    session: SessionId
    at: datetime
    agent: str
    workspace: str | None
    outcome: Outcome | None
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Runs the check of a rule, which need not be in force, over recorded turns. `words` returns a
    person's own words in a text of an agent."""

    reader: LedgerReader
    words: Callable[[str, str], str]
    view: LibraryView
    teams: Teams

    def turns(self, rule: Rule, since: datetime) -> Iterator[TriedTurn]:
        """The main turns since then, newest first, each with its outcome. Blocks. Raises SkillError
        if the rule has no check that can be read."""
        check = check_of(rule)
        if check is None:
            raise SkillError(
                f"{rule.name} has no check, so only a model can tell whether it was followed; give"
                " one with --check 'not in calls of shell: …'"
            )
        others = (one for one in self.view.skills if one.name != rule.name)
        view = LibraryView.of(self.view.generation, (*others, rule))
        before: int | None = None
        while rows := self.reader.main_turns_since(since, before, _ROWS_AT_ONCE):
            for row in rows:
                time.sleep(_PAUSE_S)
                recorded = self.reader.turn(row.id)
                if recorded is None or row.end is not TurnEnd.COMPLETED:
                    continue
                turn = recorded.turn
                found = self._outcome(view, rule, check, recorded)
                yield TriedTurn(
                    turn.id,
                    turn.session,
                    turn.times.received_at,
                    turn.agent,
                    turn.scope.workspace,
                    *found,
                )
            before = rows[-1].seq

    def _outcome(
        self, view: LibraryView, rule: Rule, check: Check, recorded: RecordedTurn
    ) -> tuple[Outcome | None, str]:
        """The worst outcome of the answer and of what was held back of it, with its words; None if
        the rule does not apply."""
        turn = recorded.turn
        if not (applies(rule.scope, turn.scope, self.teams) and rule.is_for(turn.scope)):
            return None, ""
        answers = [answer for answer in _answers(turn) if concerns(check, answer)]
        said = Conversation()
        if answers and (isinstance(check, ProgramCheck) or needs_situation(rule)):
            step = RecordedSteps(self.reader, StepBuilder(self.words)).build(recorded, None)
            if step is None or not self._matches(view, rule, step):
                return None, ""
            said = conversation_of(step)
        found = [(examine(check, one, conversation=said).outcome, one) for one in answers]
        worst = min(found, key=lambda one: _WORST.index(one[0]), default=None)
        return (None, "") if worst is None else (worst[0], in_words(worst[1], ()))

    def _matches(self, view: LibraryView, rule: Rule, step: Step) -> bool:
        if not needs_situation(rule):
            return True
        day = utc_now().date()
        return rule.name in matching(view, step.task, step.scope, self.teams, day)


def _answers(turn: Turn) -> Iterator[tuple[Part, ...]]:
    """The answer that the client got, unless we wrote it, and those that were held back."""
    attempts = () if turn.enforcement is None else turn.enforcement.attempts
    for one in (turn, *attempts):
        parts = said_parts(one.wire, one.stream, one.exchange.shown)
        is_ours = any(isinstance(part, Text) and STOPPED_BY_US in part.text for part in parts)
        if not (is_ours and turn.enforcement is not None):
            yield tuple(parts)
