"""A policy small enough for plain Python that really learns: the toy backend's weights.

    p(token | before) = softmax(bias + rows[last token before])

Gradients are exact (∇ log p = one-hot − p, on the bias and on one row), so whatever raises a reward on a real model raises it here,
in milliseconds. Tokens are ASCII codes; 3 ends an answer.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from metaclaw.domain.batch import Adam, Datum, Loss, LossKind

SIZE = 128
END = 3
_BIAS = -1

Table = dict[int, list[float]]
"""A row of numbers for each token that was met, and one for the bias; a missing row is all zeros."""


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

    def logprobs(self, before: int) -> list[float]:
        """Of every token, after this one."""
        bias, row = self.weights.get(_BIAS), self.weights.get(before)
        logits = [0.0] * SIZE if bias is None else bias
        if row is not None:
            logits = [one + other for one, other in zip(logits, row, strict=True)]
        peak = max(logits)
        total = peak + math.log(sum(math.exp(logit - peak) for logit in logits))
        return [logit - total for logit in logits]

    def draw(self, prompt: Sequence[int], max_tokens: int, temperature: float, chance: random.Random) -> list[tuple[int, float]]:
        """Tokens up to the end or to where the room runs out, each with its log-probability at temperature 1."""
        drawn: list[tuple[int, float]] = []
        before = prompt[-1]
        while len(drawn) < max_tokens and (not drawn or before != END):
            logprobs = self.logprobs(before)
            before = _choose(logprobs, temperature, chance)
            drawn.append((before, logprobs[before]))
        return drawn

    def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[float, ...]:
        """The log-probability of each token after the prompt."""
        return tuple(self.logprobs(before)[token] for before, token in _steps(prompt, tokens))

    def learn(self, data: Sequence[Datum], loss: Loss) -> None:
        """Add the gradient of the sum over drawn tokens."""
        for datum in data:
            for number, (before, token) in enumerate(_steps(datum.prompt, datum.tokens_T)):
                logprobs = self.logprobs(before)
                push = _push(datum, loss, number, logprobs[token]) - _pull(loss, logprobs[token])
                slope = [-push * ((other == token) - math.exp(logprob)) for other, logprob in enumerate(logprobs)]
                for key in (_BIAS, before):
                    _add(self.gradient, key, slope)
        self.pieces += 1

    def step(self, adam: Adam, normaliser: float) -> float:
        """One step of AdamW; the norm of the gradient."""
        gradient = {key: [value / normaliser for value in row] for key, row in self.gradient.items()}
        norm = math.sqrt(sum(value * value for row in gradient.values() for value in row))
        shrink = min(1.0, adam.grad_clip_norm / norm) if adam.grad_clip_norm and norm else 1.0
        self.steps, self.pieces, self.gradient = self.steps + 1, 0, {}
        for key in {*gradient, *self.weights}:
            row = [value * shrink for value in gradient.get(key, [0.0] * SIZE)]
            self._move(key, row, adam)
        return norm

    def copy(self) -> "Softmax":
        """The weights alone, ready to be trained from the beginning."""
        return Softmax(weights={key: list(row) for key, row in self.weights.items()})

    def _move(self, key: int, gradient: Sequence[float], adam: Adam) -> None:
        weights, first, second = (table.setdefault(key, [0.0] * SIZE) for table in (self.weights, self.first, self.second))
        for number, slope in enumerate(gradient):
            first[number] = adam.beta1 * first[number] + (1 - adam.beta1) * slope
            second[number] = adam.beta2 * second[number] + (1 - adam.beta2) * slope * slope
            mean = first[number] / (1 - adam.beta1**self.steps)
            scale = math.sqrt(second[number] / (1 - adam.beta2**self.steps)) + adam.eps
            weights[number] -= adam.learning_rate * (mean / scale + adam.weight_decay * weights[number])


def _steps(prompt: Sequence[int], tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip((prompt[-1], *tokens), tokens, strict=False)


def _choose(logprobs: Sequence[float], temperature: float, chance: random.Random) -> int:
    if temperature == 0.0:
        return max(range(SIZE), key=logprobs.__getitem__)
    return chance.choices(range(SIZE), [math.exp(logprob / temperature) for logprob in logprobs])[0]


def _push(datum: Datum, loss: Loss, number: int, now: float) -> float:
    """How hard a token is pushed up: the factor of ∇ log p in the loss's negative gradient."""
    advantage = datum.advantages_T[number]
    if loss.kind is LossKind.CROSS_ENTROPY or datum.logprobs_T is None:
        return advantage
    ratio = math.exp(now - datum.logprobs_T[number])
    kept = min(max(ratio, 1.0 - loss.clip_low), 1.0 + loss.clip_high)
    match loss.kind:
        case LossKind.IMPORTANCE_SAMPLING:
            return ratio * advantage
        case LossKind.PPO:
            # Where the clipped term is the smaller one it is constant, and pushes nothing.
            return ratio * advantage if ratio * advantage <= kept * advantage else 0.0
        case LossKind.CISPO:
            return kept * advantage


def _pull(loss: Loss, now: float) -> float:
    """Back to the untrained weights, which are uniform: the gradient of exp(d) − d − 1 with d = log p_base − log p."""
    return loss.kl * (1.0 - math.exp(-math.log(SIZE) - now)) if loss.kl else 0.0


def _add(table: Table, key: int, values: Sequence[float]) -> None:
    row = table.setdefault(key, [0.0] * SIZE)
    for number, value in enumerate(values):
        row[number] += value
