"""Choosing and cutting: which turns are held out, in which order the others teach, and in pieces of what size. Pure and repeatable.

**Pieces.** A training step is accumulated piece by piece, and a piece is what cannot be interrupted everywhere; so it shall take at
most `limit_s`. With a measured pace of v tokens a second (forward and backward),

    tokens of a piece = v · limit_s,      cost of a piece = prompt tokens (once for each prompt) + drawn tokens.

Data of one prompt stay together, since the prompt then runs once for all of them; a group that is too large is cut between rollouts
and pays its prompt again. A single rollout is never cut: where it costs more than a piece, it is a piece.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from metaclaw.domain.batch import Datum
from metaclaw.domain.ids import TurnId

FIRST_PACE = 250.0
"""Tokens a second before anything was measured: what two slow cores do with 135 million weights."""

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Pace:
    """Measured speed of accumulating, smoothed; it never changes, `measured` gives the next."""

    tokens_per_s: float = FIRST_PACE
    smoothing: float = 0.3

    def __post_init__(self) -> None:
        if not self.tokens_per_s > 0.0:
            raise ValueError(f"nobody trains at {self.tokens_per_s} tokens a second")

    def measured(self, tokens: int, seconds: float) -> "Pace":
        """After one piece of so many tokens. What took no time at all was not measured."""
        if tokens <= 0 or seconds <= 0.0:
            return self
        return Pace(self.tokens_per_s + self.smoothing * (tokens / seconds - self.tokens_per_s), self.smoothing)


def is_held_out(turn: TurnId, share: float) -> bool:
    """Whether a turn is kept for the gate. Decided by its id alone: once held out, held out for ever."""
    drawn = int.from_bytes(hashlib.blake2b(turn.encode(), digest_size=8).digest(), "big")
    return drawn < share * 2**64


def shuffled(things: Sequence[Thing], seed: int) -> list[Thing]:
    """The same things in an order that depends on the seed and their number alone."""
    order = list(things)
    random.Random(seed).shuffle(order)
    return order


def batches(turns: Sequence[Thing], size: int, seed: int) -> list[list[Thing]]:
    """Turns in random order, `size` to a step; a last step of less than half of that joins the one before it."""
    if size < 1:
        raise ValueError(f"a step of {size} turns")
    order = shuffled(turns, seed)
    cut = [order[at : at + size] for at in range(0, len(order), size)]
    if len(cut) > 1 and 2 * len(cut[-1]) < size:
        rest = cut.pop()
        cut[-1] = cut[-1] + rest
    return cut


def piece_tokens(pace: Pace, limit_s: float = 1.0) -> int:
    """How many tokens a piece may cost."""
    return max(1, int(pace.tokens_per_s * limit_s))


def cut_pieces(data: Sequence[Datum], most_tokens: int, seed: int) -> list[list[Datum]]:
    """All data in pieces of at most so many tokens, groups in an order given by the seed."""
    pieces: list[list[Datum]] = []
    left = 0
    for group in shuffled(_by_prompt(data), seed):
        for at, one in enumerate(group):
            drawn, prompt = len(one.tokens_T), len(one.prompt)
            cost = drawn if at and left else drawn + prompt
            if not pieces or cost > left:
                pieces.append([])
                left, cost = most_tokens, drawn + prompt
            pieces[-1].append(one)
            left = max(0, left - cost)
    return pieces


def _by_prompt(data: Sequence[Datum]) -> list[list[Datum]]:
    groups: dict[tuple[TurnId, tuple[int, ...]], list[Datum]] = {}
    for one in data:
        groups.setdefault((one.turn, one.prompt), []).append(one)
    return list(groups.values())
