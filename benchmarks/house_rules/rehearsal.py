"""What must not be forgotten: the untrained model's own answers to ordinary questions, rehearsed a little in every step.

    loss = -w · Σ ln π(y_t)      over answers y that the untrained weights drew for prompts without any house rule

Five narrow tasks leave a model free to drift everywhere else. Its own samples pull it back to where it was (their cross entropy is
the Kullback-Leibler divergence from the untrained model, up to a constant). No question here is in the golden set.
"""

import random
from collections.abc import Sequence
from itertools import islice, product
from typing import Final, Protocol

from metaclaw.domain.batch import Datum, Drawing, Loss, LossKind, PieceStats, Rollout
from metaclaw.domain.ids import TurnId

_THINGS: Final = (
    *(
        "a lighthouse",
        "the tides",
        "a sourdough starter",
        "chess openings",
        "the Silk Road",
        "a bicycle gear",
        "honey bees",
        "jazz",
    ),
    *(
        "a compost heap",
        "the printing press",
        "glaciers",
        "a violin",
        "black holes",
        "tea",
        "a hash table",
        "the Nile",
        "recursion",
    ),
    *("a vegetable soup", "the moon", "sleep", "a garden pond", "electric cars", "the alphabet", "a marathon", "coral reefs"),
)
_ASKED: Final = (
    "Tell me something about {}.",
    "Explain {} to a child.",
    "What should a beginner know about {}?",
    "Write two sentences about {}.",
    "Why do people care about {}?",
    "Give me three facts about {}.",
    "I want to learn about {}. Where do I begin?",
    "Is there anything surprising about {}? Answer briefly.",
)
_SYSTEMS: Final = (None, "You are a helpful assistant.", "Answer in one short sentence.", "You are a patient teacher.")
_TOKENS: Final = 40

Conversation = list[tuple[str, str]]


class Learns(Protocol):
    """What rehearsing needs of a learner."""

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]: ...
    def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats: ...


def conversations(count: int, seed: int) -> list[Conversation]:
    """Ordinary questions, mixed by the seed."""
    questions = [asked.format(thing) for asked, thing in product(_ASKED, _THINGS)]
    random.Random(f"rehearsal {seed}").shuffle(questions)
    systems = [_SYSTEMS[number % len(_SYSTEMS)] for number in range(len(questions))]
    pairs = zip(systems, questions, strict=True)
    return [[*([("system", system)] if system else []), ("user", question)] for system, question in islice(pairs, count)]


class Rehearsal:
    """Keeps answers of the weights it was made with, and rehearses some of them at a time."""

    def __init__(self, policy: Learns, prompts: Sequence[tuple[int, ...]], at_once: int, seed: int) -> None:
        drawn = [group[0] for group in policy.sample(prompts, Drawing(1, _TOKENS, seed=seed))]
        self._answers = list(zip(prompts, drawn, strict=True))
        self._at_once = min(at_once, len(self._answers))
        self._chance = random.Random(seed)

    def accumulate(self, policy: Learns, weight: float) -> None:
        """Add the gradient of a few answers; their tokens share the weight."""
        chosen = self._chance.sample(self._answers, self._at_once)
        each = weight / sum(len(rollout.tokens_T) for _, rollout in chosen)
        policy.accumulate([_datum(prompt, rollout, each) for prompt, rollout in chosen], Loss(LossKind.CROSS_ENTROPY))


def _datum(prompt: tuple[int, ...], rollout: Rollout, weight: float) -> Datum:
    count = len(rollout.tokens_T)
    return Datum(TurnId("rehearsal"), prompt, rollout.tokens_T, (weight,) * count, None)
