"""Which turns a run learns from, and which are kept for the gate: read from the ledger, through one
predicate.

A share of all turns, by a hash of their ids, is never trained on: the gate compares weights on
them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import combined_hash
from metaclaw.domain.training import Rejection
from metaclaw.domain.turn import Step, Turn
from metaclaw.errors import WireError
from metaclaw.learn import RecordedSteps
from metaclaw.store import LedgerReader, SqlBatches, TrainingBatch
from metaclaw.training.curriculum import is_held_out
from metaclaw.training.held_calls import RecordedAnswer, preference_of
from metaclaw.training.replay import UnplayableError, sent_request

_MOST_COUNTED: Final = 2_000
MOST_HELD_OUT: Final = 200
"""The most turns on which versions are compared."""
NOTHING_SCORES: Final = "nothing can score its answers (no check, no judge, no verdict)"
"""Why a turn is not drawn and not spent though it may train."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where the two clocks stand: the skills in force, and the weights that serve."""

    generation: int
    version: int


@dataclass(frozen=True, slots=True)
class TurnCount:
    """So many turns, and among them so many that no run has had. A run needs some of these to begin:
    else turns of a run that came to nothing would be trained on again and again."""

    turns: int
    new: int = 0


@dataclass(frozen=True, slots=True)
class TrainingTurn:
    """A turn to learn from: exactly the tokens the policy saw, and the step, by which answers are
    scored.

    `hinted` is the same prompt with a hint in it, where there is one, and `unruled` without the rules
    that may become habits, where there are any. `max_tokens` is the longest
    answer the client asked for, where it said. `recorded` are
    answers of then: a refused and an accepted one, or the one that was given, with the outcome of
    its task. `following` is the next turn of the task, if this one calls tools."""

    id: TurnId
    prompt: tuple[int, ...]
    step: Step
    key: str
    hinted: tuple[int, ...] | None = None
    unruled: tuple[int, ...] | None = None
    max_tokens: int | None = None
    recorded: tuple[RecordedAnswer, ...] = ()
    following: "TrainingTurn | None" = None


MakeTurn = Callable[[TurnId], TrainingTurn | None]
"""Reads a turn as one to learn from; None if it cannot be read."""


@dataclass(eq=False, kw_only=True)
class QueryTurns:
    """Reads what may train. Blocks."""

    batches: SqlBatches
    reader: LedgerReader
    recorded: RecordedSteps
    provider: str
    max_lag: int
    held_out_share: float
    clocks: Callable[[], Clocks]
    hint: Callable[[Turn, Step], tuple[int, ...] | None]
    without_rules: Callable[[Turn], tuple[int, ...] | None]
    can_score: Callable[[Step], bool]
    with_task: Callable[[TrainingTurn, Turn, MakeTurn], TrainingTurn]
    """Completes a turn with what is recorded of its task."""
    references: Callable[[], int]
    """How many reference answers are known: with another, more turns may be scored."""

    def __post_init__(self) -> None:
        self._scorable: tuple[tuple[int, int], dict[TurnId, bool]] = (-1, 0), {}
        self._outdated: tuple[int, int, bool] | None = None

    def is_held_out(self, turn: TurnId) -> bool:
        """Whether a turn is kept for the gate."""
        return is_held_out(turn, self.held_out_share)

    def open_batch(self, least: TurnCount, most: int, seed: int) -> int | None:
        """A new batch of the newest turns that may train now, at most `most`, and of up to as many
        turns that trained earlier versions, so that what these learned is not lost; None while
        there are too few."""
        clocks = self.clocks()
        found = self._trainable(clocks, most)
        if not self._are_enough(found, least):
            return None
        again = self._trainable(clocks, len(found), again=True)
        return self.batches.open_batch(clocks.version, (*found, *again), seed)

    def has_enough(self, least: TurnCount) -> bool:
        """Whether a run may begin."""
        # Turns of runs that came to nothing may be the newest: the new ones are looked for behind
        # them.
        return self._are_enough(
            self._trainable(self.clocks(), least.turns if not least.new else _MOST_COUNTED), least
        )

    def waiting(self, size: int) -> TurnCount:
        """The turns that may train now, counted up to `size`."""
        return self._count(self._trainable(self.clocks(), size))

    def unscorable(self) -> int:
        """How many of the newest turns would train if anything could score answers to them."""
        clocks = self.clocks()
        return sum(
            not self._is_scorable(turn, clocks)
            for turn in self._eligible(clocks, _MOST_COUNTED, self.is_held_out)
        )

    def _are_enough(self, turns: tuple[TurnId, ...], least: TurnCount) -> bool:
        count = self._count(turns)
        return count.turns >= least.turns and count.new >= least.new

    def _count(self, turns: tuple[TurnId, ...]) -> TurnCount:
        return TurnCount(len(turns), self.batches.untried(turns))

    def kept(self, size: int) -> int:
        """How many turns the gate has now, counted up to `size`."""
        return len(self._eligible(self.clocks(), size, lambda turn: not self.is_held_out(turn)))

    def held_out(self, most: int) -> list[TrainingTurn]:
        """Turns that might train but are kept for the gate, the newest first."""
        clocks = self.clocks()
        found = self._eligible(clocks, most, lambda turn: not self.is_held_out(turn))
        return [
            one
            for turn in found
            if self._is_scorable(turn, clocks) and (one := self._training_turn(turn)) is not None
        ]

    def of_batch(self, batch: TrainingBatch) -> list[TrainingTurn]:
        """The turns of a batch that are still there and can be read."""
        return [one for turn in batch.turns if (one := self._training_turn(turn)) is not None]

    def is_outdated(self, batch: TrainingBatch) -> bool:
        """Whether rules or skills have changed for the speakers of all its turns. While some turns
        are current the run goes on with all of them: the next batch is chosen without those that
        are not."""
        generation = self.clocks().generation
        if generation == batch.generation:
            return False
        if self._outdated is None or self._outdated[:2] != (batch.number, generation):
            found = self.batches.batch(batch.number)
            self._outdated = (
                batch.number,
                generation,
                found is None or found.stale == len(found.turns),
            )
        return self._outdated[2]

    def rejections(self, *, is_fresh: bool = False) -> dict[Rejection, int]:
        """Why how many of the newest turns may not train now; unless `is_fresh`, as of the last
        half minute.
        """
        clocks = self.clocks()
        return self.batches.rejections(
            clocks.generation,
            clocks.version,
            self.max_lag,
            held_out=self.is_held_out,
            policy_provider=self.provider,
            is_fresh=is_fresh,
        )

    def _trainable(self, clocks: Clocks, limit: int, *, again: bool = False) -> tuple[TurnId, ...]:
        """Turns that may train and that something can score."""
        return self._eligible(
            clocks,
            limit,
            lambda turn: self.is_held_out(turn) or not self._is_scorable(turn, clocks),
            again=again,
        )

    def _eligible(
        self, clocks: Clocks, limit: int, held_out: Callable[[TurnId], bool], *, again: bool = False
    ) -> tuple[TurnId, ...]:
        return self.batches.ready(
            clocks.generation,
            clocks.version,
            self.max_lag,
            limit,
            held_out=held_out,
            policy_provider=self.provider,
            again=again,
        )

    def _is_scorable(self, turn: TurnId, clocks: Clocks) -> bool:
        """Whether answers to a turn can be scored; remembered until rules, skills or what is known of
        wanted answers change."""
        known_by = clocks.generation, self.references()
        if self._scorable[0] != known_by:
            is_same = self._scorable[0][0] == clocks.generation
            kept = {one: True for one, can in self._scorable[1].items() if can and is_same}
            self._scorable = known_by, kept
        known = self._scorable[1]
        if turn not in known:
            step = self.recorded.step(turn)
            known[turn] = step is not None and self.can_score(step)
        return known[turn]

    def _training_turn(self, turn: TurnId) -> TrainingTurn | None:
        recorded = self.reader.turn(turn)
        alone = self._alone(turn)
        if recorded is None or alone is None:
            return None
        whole = self.with_task(alone, recorded.turn, self._alone)
        return replace(
            whole,
            hinted=self.hint(recorded.turn, whole.step),
            unruled=self.without_rules(recorded.turn),
        )

    def _alone(self, turn: TurnId) -> TrainingTurn | None:
        """The turn without a hint and without its task."""
        recorded, step = self.reader.turn(turn), self.recorded.step(turn)
        if recorded is None or step is None or recorded.turn.tokens is None:
            return None
        return TrainingTurn(
            turn,
            recorded.turn.tokens.prompt_ids,
            step,
            # A hash, because it is kept in a file, and names may be taken from what a person said.
            combined_hash(step.stamp.skills),
            max_tokens=_max_tokens(recorded.turn),
            recorded=preference_of(recorded.turn),
        )


def _max_tokens(turn: Turn) -> int | None:
    """The longest answer the client asked for, where it said."""
    try:
        return sent_request(turn).sampling.max_tokens
    except (UnplayableError, WireError):
        return None
