"""The trial of a candidate: it is weighed against what serves; where general abilities are all that
it lost, it is weighed again with its change made smaller."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.policy import GateReport, PolicyState, PolicyVersion
from metaclaw.domain.status import LoopState
from metaclaw.ports import TrainingBackend
from metaclaw.store import SqlPolicies
from metaclaw.training.habits import HabitTest
from metaclaw.training.journal import Journal
from metaclaw.training.proof import Proof
from metaclaw.training.recipe import JudgingBudget
from metaclaw.training.serving_versions import Versions
from metaclaw.training.status import LoopStatus
from metaclaw.training.training_turns import MOST_HELD_OUT, QueryTurns

log = logging.getLogger(__name__)

_SMALLER: Final = (0.8, 0.64)
"""The sizes in which a candidate that lost general abilities is tried again."""


@dataclass(eq=False, kw_only=True)
class CandidateTrial:
    """Weighs candidates. `judge` names who scores where no check does, for the report."""

    turns: QueryTurns
    policies: SqlPolicies
    versions: Versions
    backend: TrainingBackend
    judging: JudgingBudget
    proof: Proof
    habits: HabitTest
    folder: Path
    judge: Callable[[], str | None]
    status: LoopStatus

    def __post_init__(self) -> None:
        # How much of its change a candidate has that was made smaller: kept, so that a program that
        # was killed goes on with the next size.
        self._scales = Journal(self.folder / "scales")

    async def weigh(self, candidate: PolicyVersion) -> GateReport:
        """What the gate says of a candidate, in the size in which it was tried last. Raises
        TrainingError.
        """
        self.status.state = LoopState.PROVING
        scale = await self._scales.find(_name(candidate), float) or 1.0
        report = await self._weigh(candidate, scale)
        # Weights that a person promoted meanwhile stay as they are.
        while (
            report.lost_abilities
            and (smaller := self._smaller_than(scale)) is not None
            and await self.is_undecided(candidate)
        ):
            log.info(
                "candidate_made_smaller version=%d scale=%g reason=%s",
                candidate.number,
                smaller,
                report.reasons[0],
            )
            # Before it is done: what is tried once more than needed is judged more strictly.
            await self._scales.keep(_name(candidate), smaller)
            await self.backend.shrink(
                candidate.weights, smaller / scale, Path(candidate.weights.adapter).stem
            )
            scale = smaller
            report = await self._weigh(candidate, scale)
        report = replace(report, drawn_by=candidate.note or None)
        if scale == 1.0:
            return report
        note = f"with {scale:.0%} of its change: more of it cost general abilities"
        return replace(report, reasons=(*report.reasons, note))

    async def is_undecided(self, candidate: PolicyVersion) -> bool:
        """Whether it is still a candidate: a person may promote it while the gate weighs it."""
        now = await run_sync(self.policies.version, candidate.number)
        return now is not None and now.state is PolicyState.CANDIDATE

    async def forget(self, candidate: PolicyVersion) -> None:
        """It was ruled on. Not before: a program killed in between must not weigh smaller weights
        as the first try.
        """
        await self._scales.forget(_name(candidate))

    async def _weigh(self, candidate: PolicyVersion, scale: float) -> GateReport:
        serving = await run_sync(self.policies.version, self.versions.serving.version)
        held_out = await run_sync(self.turns.held_out, MOST_HELD_OUT)
        await self.judging.require_for_gate(held_out)
        self.status.trouble = None
        before = None if serving is None else await self.versions.local(serving)
        report = await self.proof.weigh(
            candidate.weights,
            before,
            held_out,
            seed=candidate.number,
            judge=self.judge(),
            number=(1.0, *_SMALLER).index(scale) + 1,
        )
        if not report.is_passed:
            return report
        return replace(
            report,
            habits=await self.habits.compare(candidate.weights, before, held_out),
            left_recording=await self.habits.share_left(candidate.weights, held_out),
        )

    def _smaller_than(self, scale: float) -> float | None:
        """The next size to try; None where all were tried, or the backend cannot make a change
        smaller.
        """
        smaller = (one for one in _SMALLER if one < scale)
        return next(smaller, None) if self.backend.abilities.scales else None


def _name(candidate: PolicyVersion) -> str:
    return f"{candidate.number:06d}"
