"""What a candidate is tried on: failures of its own kind, and turns that passed and look alike, which it must not break."""

from collections.abc import Sequence
from typing import Final

from metaclaw.domain.candidate import Probe, ProbeKind, Proposal
from metaclaw.domain.ids import TurnId
from metaclaw.domain.step import Step
from metaclaw.domain.verdict import Outcome
from metaclaw.learn.steps import StepBuilder
from metaclaw.skills.scopes import applies
from metaclaw.skills.terms import count_terms
from metaclaw.store import LedgerReader, SqlVerdicts

_LOOKED_AT: Final = 200
_FAILING: Final = 8
_PASSING: Final = 8


class Probes:
    """Reads recorded turns. Blocks."""

    def __init__(self, reader: LedgerReader, verdicts: SqlVerdicts, steps: StepBuilder) -> None:
        self._reader = reader
        self._verdicts = verdicts
        self._steps = steps

    def choose(self, proposal: Proposal) -> tuple[Probe, ...]:
        """The failures it was made from, then others that look like them, and as many passing turns, the most similar first."""
        failing = [*proposal.support, *self._alike(proposal, Outcome.FAIL)]
        passing = self._alike(proposal, Outcome.PASS)
        return (
            *(Probe(turn, ProbeKind.FAILING) for turn in dict.fromkeys(failing[:_FAILING])),
            *(Probe(turn, ProbeKind.PASSING) for turn in passing[:_PASSING]),
        )

    def _alike(self, proposal: Proposal, outcome: Outcome) -> list[TurnId]:
        """Turns of this outcome whose person may see the skill, by how much their task shares with it; none that share nothing."""
        wanted = set(count_terms(f"{proposal.skill.trigger} {proposal.skill.body}"))
        found = []
        for turn in self._verdicts.recent(outcome, _LOOKED_AT):
            step = self._step(turn)
            if step is None or turn in proposal.support or not applies(proposal.skill.scope, step.scope):
                continue
            shared = len(wanted & set(count_terms(step.task)))
            if shared:
                found.append((shared, turn))
        return [turn for _, turn in sorted(found, key=lambda one: -one[0])]

    def _step(self, turn: TurnId) -> Step | None:
        recorded = self._reader.turn(turn)
        return None if recorded is None else self._steps.build(recorded, None)


def tasks_in_words(steps: Sequence[Step]) -> str:
    """What the tasks of these steps were about, to look for skills that are near."""
    return "\n".join(dict.fromkeys(step.task for step in steps))
