"""Which turns are held out, and how a step's data are cut into pieces. Pure and repeatable.

A training step is accumulated piece by piece, and between two pieces a run may stop. A piece costs its prompt tokens (once for each
prompt) and its drawn tokens. Data of one prompt stay together, since the prompt then runs once for all of them; a group that is too
large is cut between rollouts and pays its prompt again. A single rollout is never cut: where it costs more than a piece, it is one.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

from metaclaw.domain.batch import Datum
from metaclaw.domain.ids import TurnId

Thing = TypeVar("Thing")


def is_held_out(turn: TurnId, share: float) -> bool:
    """Whether a turn is kept for the gate. Decided by its id alone: once held out, held out for ever."""
    drawn = int.from_bytes(hashlib.blake2b(turn.encode(), digest_size=8).digest(), "big")
    return drawn < share * 2**64


def shuffled(things: Sequence[Thing], seed: int) -> list[Thing]:
    """The same things in an order that depends on the seed and their number alone."""
    order = list(things)
    random.Random(seed).shuffle(order)
    return order


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
