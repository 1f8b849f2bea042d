"""Which turns a run learns from, and which the gate is kept for: read from the ledger, through the one predicate.

A share of all turns, by a hash of their names, is never trained on: the gate compares weights on them.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from metaclaw.domain.eligibility import Rejection
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import combined_hash
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Turn
from metaclaw.errors import EngineError, WireError
from metaclaw.learn.assessment import is_corrected
from metaclaw.learn.prompt import UnplayableError, sent_request
from metaclaw.learn.recorded import RecordedSteps
from metaclaw.learn.slow.recipe import Lesson
from metaclaw.ports import Tokeniser
from metaclaw.store import Batch, LedgerReader, SqlBatches
from metaclaw.train.distill.hindsight import hinted
from metaclaw.train.selection import is_held_out
from metaclaw.wires import plain

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where the two clocks stand: the skills in force, and the weights that serve."""

    generation: int
    version: int


class QueryTurns:
    """Reads what may train. Blocks."""

    def __init__(
        self,
        *,
        batches: SqlBatches,
        reader: LedgerReader,
        recorded: RecordedSteps,
        provider: str,
        max_lag: int,
        held_out_share: float,
        clocks: Callable[[], Clocks],
        tokeniser: Tokeniser,
        hindsight: bool = False,
    ) -> None:
        self._batches = batches
        self._reader = reader
        self._recorded = recorded
        self._provider = provider
        self._max_lag = max_lag
        self._held_out_share = held_out_share
        self.clocks = clocks
        self._tokeniser = tokeniser
        self._hindsight = hindsight
        self._outdated: tuple[int, int, bool] | None = None

    def is_held_out(self, turn: TurnId) -> bool:
        """Whether a turn is kept for the gate."""
        return is_held_out(turn, self._held_out_share)

    def open_batch(self, least: int, most: int, seed: int) -> int | None:
        """A new batch of the newest turns that may train now, at most so many; None while there are fewer than `least`."""
        clocks = self.clocks()
        found = self._eligible(clocks, most, self.is_held_out)
        return self._batches.open_batch(clocks.version, found, seed) if len(found) >= least else None

    def waiting(self, size: int) -> int:
        """How many turns may train now, counted up to `size`."""
        return len(self._eligible(self.clocks(), size, self.is_held_out))

    def kept(self, size: int) -> int:
        """How many turns the gate has now, counted up to `size`."""
        return len(self._eligible(self.clocks(), size, lambda turn: not self.is_held_out(turn)))

    def held_out(self, most: int) -> list[Lesson]:
        """Turns that might train but are kept for the gate, the newest first."""
        found = self._eligible(self.clocks(), most, lambda turn: not self.is_held_out(turn))
        return [lesson for turn in found if (lesson := self._lesson(turn)) is not None]

    def lessons(self, batch: Batch) -> list[Lesson]:
        """The turns of a batch that are still there and can be read."""
        return [lesson for turn in batch.turns if (lesson := self._lesson(turn)) is not None]

    def is_outdated(self, batch: Batch) -> bool:
        """Whether rules or skills have changed for the speakers of all its turns. While some turns are current the run goes on with
        all of them: the next batch is chosen without those that are not."""
        generation = self.clocks().generation
        if generation == batch.generation:
            return False
        if self._outdated is None or self._outdated[:2] != (batch.number, generation):
            found = self._batches.batch(batch.number)
            self._outdated = batch.number, generation, found is None or found.stale == len(found.turns)
        return self._outdated[2]

    def rejections(self) -> dict[Rejection, int]:
        """Why how many of the newest turns may not train now."""
        clocks = self.clocks()
        return self._batches.rejections(
            clocks.generation, clocks.version, self._max_lag, held_out=self.is_held_out, policy_provider=self._provider
        )

    def _eligible(self, clocks: Clocks, limit: int, held_out: Callable[[TurnId], bool]) -> tuple[TurnId, ...]:
        return self._batches.ready(
            clocks.generation, clocks.version, self._max_lag, limit, held_out=held_out, policy_provider=self._provider
        )

    def _lesson(self, turn: TurnId) -> Lesson | None:
        recorded, step = self._reader.turn(turn), self._recorded.step(turn)
        if recorded is None or step is None or recorded.turn.tokens is None:
            return None
        hinted_prompt = self._hinted(recorded.turn, step) if self._hindsight else None
        # A hash, because it is kept in a file, and names may be taken from what a person said.
        key = combined_hash(step.stamp.skills)
        return Lesson(turn, recorded.turn.tokens.prompt_ids, step, key, hinted_prompt, _max_tokens(recorded.turn))

    def _hinted(self, turn: Turn, step: Step) -> tuple[int, ...] | None:
        """The prompt with the person's correction of its answer, or None where they did not correct it."""
        if step.said_after is None or not is_corrected(step):
            return None
        try:
            return self._tokeniser.prompt(plain(hinted(sent_request(turn), step.said_after)))
        except (UnplayableError, WireError, EngineError, ValueError) as error:
            log.info("no_hindsight turn=%s reason=%s", turn.id, error)
            return None


def _max_tokens(turn: Turn) -> int | None:
    """The longest answer the client asked for, where it said."""
    try:
        return sent_request(turn).sampling.max_tokens
    except (UnplayableError, WireError):
        return None
