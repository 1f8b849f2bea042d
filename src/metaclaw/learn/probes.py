"""What a candidate is tried on: failures of its own kind, and turns that passed and look alike, which it must not break."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from metaclaw.domain.candidate import Probe, ProbeKind, Proposal
from metaclaw.domain.ids import TurnId
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Outcome, Verdict
from metaclaw.learn.steps import StepBuilder
from metaclaw.skills import Teams, applies
from metaclaw.store import LedgerReader, SqlVerdicts
from metaclaw.text import count_terms

_LOOKED_AT: Final = 200
_FAILING: Final = 8
_PASSING: Final = 8
_KEPT: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Task:
    """What a turn was about, and for whom."""

    terms: frozenset[str]
    scope: Scope


class Probes:
    """Reads recorded turns. Blocks."""

    def __init__(self, reader: LedgerReader, verdicts: SqlVerdicts, steps: StepBuilder, teams: Teams | None = None) -> None:
        self._reader = reader
        self._verdicts = verdicts
        self._steps = steps
        self._teams = teams
        self._tasks: OrderedDict[TurnId, _Task | None] = OrderedDict()

    def choose(self, proposal: Proposal) -> tuple[Probe, ...]:
        """The failures it was made from, then others that look like them, and as many passing turns, the most similar first.

        Where no failure taught it, the turn in which an instruction was given stands for one.
        """
        standings = self._reader.standings_of(proposal.support)
        there = [turn for turn in proposal.support if turn in standings]
        taught = [turn for turn in there if _failed(standings[turn].verdict)]
        failing = dict.fromkeys([*(taught or there), *self._alike(proposal, Outcome.FAIL)])
        passing = self._alike(proposal, Outcome.PASS)
        return (
            *(Probe(turn, ProbeKind.FAILING) for turn in list(failing)[:_FAILING]),
            *(Probe(turn, ProbeKind.PASSING) for turn in passing[:_PASSING]),
        )

    def forget(self) -> None:
        """Let go of what is remembered of turns; for when some of them are to be forgotten."""
        self._tasks.clear()

    def _alike(self, proposal: Proposal, outcome: Outcome) -> list[TurnId]:
        """Turns of this outcome whose person may see the skill, by how much their task shares with it; none that share nothing."""
        wanted = set(count_terms(f"{proposal.skill.trigger} {proposal.skill.body}"))
        recent = [turn for turn in self._verdicts.recent(outcome, _LOOKED_AT) if turn not in proposal.support]
        standings = self._reader.standings_of(recent) if outcome is Outcome.FAIL else {}
        found = []
        for turn in recent:
            task = self._task(turn)
            if task is None or not applies(proposal.skill.scope, task.scope, self._teams):
                continue
            shared = len(wanted & task.terms)
            if shared and (outcome is not Outcome.FAIL or (turn in standings and _failed(standings[turn].verdict))):
                found.append((shared, turn))
        return [turn for _, turn in sorted(found, key=lambda one: -one[0])]

    def _task(self, turn: TurnId) -> _Task | None:
        """Read once: the same recent turns are looked at for every candidate, and reading one means parsing all of its request."""
        if turn not in self._tasks:
            recorded = self._reader.turn(turn)
            step = None if recorded is None else self._steps.build(recorded, None)
            self._tasks[turn] = None if step is None else _Task(frozenset(count_terms(step.task)), step.scope)
            while len(self._tasks) > _KEPT:
                self._tasks.popitem(last=False)
        return self._tasks[turn]


def _failed(verdict: Verdict | None) -> bool:
    """Whether a skill could have helped: what the environment did, it could not."""
    return verdict is not None and verdict.teaches


def tasks_in_words(steps: Sequence[Step]) -> str:
    """What the tasks of these steps were about, to look for skills that are near."""
    return "\n".join(dict.fromkeys(step.task for step in steps))
