"""A policy small enough for rows of 128 numbers that really learns: the toy backend's weights.

    p(token | before) = softmax(bias + rows[last token before])

Gradients are exact (∇ log p = one-hot − p, on the bias and on one row), so whatever raises a reward
on a real model raises it here, in milliseconds. Tokens are ASCII codes; 3 ends an answer."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metaclaw.domain.training import Adam, Datum, Loss, LossKind

SIZE = 128
END = 3
_BIAS = -1
_UNIFORM: Final = (-math.log(SIZE),) * SIZE

Row: TypeAlias = NDArray[np.float64]
_NOTHING: Final[Row] = np.zeros(SIZE)

Table = dict[int, Row]
"""A row of numbers for each token that was met, and one for the bias; a missing row is all
zeros.
"""


def encode(text: str) -> tuple[int, ...]:
    """The tokens of a text; what is no ASCII becomes a question mark."""
    return tuple(text.encode("ascii", "replace"))


def decode(tokens: Sequence[int]) -> str:
    """The text of some tokens, without the end."""
    return bytes(token for token in tokens if token != END).decode("ascii")


@dataclass(slots=True)
class Softmax:
    """Weights, and all a training step needs to go on: Adam's moments and the gradient so far."""

    weights: Table = field(default_factory=dict)
    first: Table = field(default_factory=dict)
    second: Table = field(default_factory=dict)
    gradient: Table = field(default_factory=dict)
    steps: int = 0
    pieces: int = 0

    def logprobs(self, before: int) -> Sequence[float]:
        """Of every token, after this one."""
        bias, row = self.weights.get(_BIAS), self.weights.get(before)
        if bias is None and row is None:
            return _UNIFORM
        logits = (_NOTHING if bias is None else bias) + (_NOTHING if row is None else row)
        logits -= logits.max()
        found: list[float] = (logits - np.log(np.exp(logits).sum())).tolist()
        return found

    def draw(
        self, prompt: Sequence[int], max_tokens: int, temperature: float, chance: random.Random
    ) -> list[tuple[int, float]]:
        """Tokens up to the end or to where the room runs out, each with its log-probability at
        temperature 1.
        """
        return Sampler(self, temperature).draw(prompt, max_tokens, chance)

    def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[float, ...]:
        """The log-probability of each token after the prompt."""
        logprobs = cache(self.logprobs)
        return tuple(logprobs(before)[token] for before, token in _steps(prompt, tokens))

    def learn(self, data: Sequence[Datum], loss: Loss) -> None:
        """Add the gradient of the sum over drawn tokens."""
        logprobs = cache(self.logprobs)
        pushes: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        for datum in data:
            for number, (before, token) in enumerate(_steps(datum.prompt, datum.tokens_T)):
                now = logprobs(before)[token]
                pushes[before].append((token, _push(datum, loss, number, now)))
        for before, pushed in pushes.items():
            total = math.fsum(push for _, push in pushed)
            slope = total * np.exp(np.array(logprobs(before)))
            for token, push in pushed:
                slope[token] -= push
            for key in (_BIAS, before):
                _add(self.gradient, key, slope)
        self.pieces += 1

    def step(self, adam: Adam, normaliser: float) -> float:
        """One step of AdamW; the norm of the gradient."""
        gradient = {key: row / normaliser for key, row in self.gradient.items()}
        norm = math.sqrt(sum(float(row @ row) for row in gradient.values()))
        shrink = min(1.0, adam.grad_clip_norm / norm) if adam.grad_clip_norm and norm else 1.0
        self.steps, self.pieces, self.gradient = self.steps + 1, 0, {}
        for key in {*gradient, *self.weights}:
            self._move(key, shrink * gradient.get(key, _NOTHING), adam)
        return norm

    def copy(self) -> "Softmax":
        """The weights alone, ready to be trained from the beginning."""
        return Softmax(weights={key: row.copy() for key, row in self.weights.items()})

    def _move(self, key: int, gradient: Row, adam: Adam) -> None:
        weights, first, second = (
            table.get(key, _NOTHING) for table in (self.weights, self.first, self.second)
        )
        first = adam.beta1 * first + (1 - adam.beta1) * gradient
        second = adam.beta2 * second + (1 - adam.beta2) * gradient * gradient
        first_share, second_share = 1 - adam.beta1**self.steps, 1 - adam.beta2**self.steps
        move = first / first_share / (np.sqrt(second / second_share) + adam.eps)
        weights = weights - adam.learning_rate * (move + adam.weight_decay * weights)
        self.weights[key], self.first[key], self.second[key] = weights, first, second


class Sampler:
    """Draws answers while the weights stay as they are: what follows a token is worked out once."""

    def __init__(self, policy: Softmax, temperature: float) -> None:
        self._policy = policy
        self._temperature = temperature
        self._rows: dict[int, tuple[Sequence[float], Sequence[float]]] = {}

    def draw(
        self, prompt: Sequence[int], max_tokens: int, chance: random.Random
    ) -> list[tuple[int, float]]:
        """Tokens up to the end or to where the room runs out, each with its log-probability at
        temperature 1.
        """
        drawn: list[tuple[int, float]] = []
        before = prompt[-1]
        while len(drawn) < max_tokens and (not drawn or before != END):
            logprobs, cumulated = self._row(before)
            if self._temperature == 0.0:
                before = max(range(SIZE), key=logprobs.__getitem__)
            else:
                before = chance.choices(range(SIZE), cum_weights=cumulated)[0]
            drawn.append((before, logprobs[before]))
        return drawn

    def _row(self, before: int) -> tuple[Sequence[float], Sequence[float]]:
        """The log-probabilities after this token, and their running sum as weights."""
        if (row := self._rows.get(before)) is None:
            logprobs = self._policy.logprobs(before)
            heat = self._temperature or 1.0
            row = self._rows[before] = (
                logprobs,
                np.exp(np.array(logprobs) / heat).cumsum().tolist(),
            )
        return row


def _steps(prompt: Sequence[int], tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip((prompt[-1], *tokens), tokens, strict=False)


def _push(datum: Datum, loss: Loss, number: int, now: float) -> float:
    """How hard a token is pushed up: the factor of ∇ log p in the loss's negative gradient."""
    advantage = datum.advantages_T[number]
    if loss.kind is LossKind.CROSS_ENTROPY or datum.logprobs_T is None:
        return advantage
    ratio = math.exp(now - datum.logprobs_T[number])
    kept = min(max(ratio, 1.0 - loss.clip_low), 1.0 + loss.clip_high)
    # Where the clipped term is the smaller one it is constant, and pushes nothing.
    return ratio * advantage if ratio * advantage <= kept * advantage else 0.0


def _add(table: Table, key: int, values: Row) -> None:
    table[key] = table.get(key, _NOTHING) + values
