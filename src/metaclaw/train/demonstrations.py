"""Right answers that are known before anything was drawn, such as the worked examples of a skill: how much a step learns from them.
Pure: a function of the records of the run.

    loss = -w Σ ln π(y_t)        over demonstrated answers y, beside what was drawn

A policy that has never given an answer of the right form finds nothing to compare. A few demonstrations show it the form and where
to stop; what belongs into the form it learns from the rewards of what it draws. So they weigh less the more is earned, and nothing
once the run is well under way: a few examples learned by heart would be given as answers to other questions.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from metaclaw.domain.batch import Datum
from metaclaw.domain.ids import TurnId
from metaclaw.train.records import StepRecord
from metaclaw.train.schedule import key_rewards

_ENOUGH: Final = 0.3
_MOST_STEPS: Final = 24
_TURN: Final = TurnId("demonstration")


class Demonstration(msgspec.Struct, frozen=True, array_like=True):
    """A right answer, its end included, behind prompts that ask for it in different conversations. `key` is what the prompts are
    like."""

    key: str
    prompts: list[list[int]]
    tokens: list[int]


def demonstration_share(records: Sequence[StepRecord], key: str) -> float:
    """How much the demonstrations of a key weigh in the next step against what is drawn for it, from 1 down to 0."""
    earned = key_rewards(records).get(key, 0.0)
    return max(0.0, 1.0 - earned / _ENOUGH) * max(0.0, 1.0 - len(records) / _MOST_STEPS)


def demonstrate(known: Sequence[Demonstration], records: Sequence[StepRecord], weight: float) -> list[Datum]:
    """Data for cross entropy; a weight of 0 stands for as much as their own tokens. Keys share the weight, and so do the tokens of
    a key."""
    by_key: dict[str, list[Demonstration]] = {}
    for one in known:
        by_key.setdefault(one.key, []).append(one)
    data: list[Datum] = []
    for key, some in by_key.items():
        share, tokens = demonstration_share(records, key), sum(len(one.tokens) for one in some)
        each = share * (weight / len(by_key) / tokens if weight else 1.0)
        if each <= 0.0:
            continue
        for one in some:
            prompt = one.prompts[len(records) % len(one.prompts)]
            data.append(Datum(_TURN, tuple(prompt), tuple(one.tokens), (each,) * len(one.tokens), None))
    return data


def longest(known: Sequence[Demonstration]) -> int:
    """Tokens of the longest demonstrated answer; 0 where there is none."""
    return max((len(one.tokens) for one in known), default=0)
