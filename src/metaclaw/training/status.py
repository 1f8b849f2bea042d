"""What the slow loop does now, for people."""

from dataclasses import dataclass

from metaclaw.domain.status import LoopState
from metaclaw.training.run import RunTally


@dataclass(eq=False, slots=True)
class LoopStatus:
    """`trouble` keeps training from going on, `notice` says that a run was made smaller, and
    `tally` how far it is.
    """

    state: LoopState = LoopState.WAITING
    trouble: str | None = None
    notice: str | None = None
    tally: RunTally | None = None

    def clear(self) -> None:
        """Nothing is in hand; what was in trouble still is."""
        self.state, self.notice, self.tally = LoopState.WAITING, None, None
