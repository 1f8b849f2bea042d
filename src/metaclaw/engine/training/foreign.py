"""Any other causal model of a Hugging Face folder, taught like our own.

`ForeignLearner` has the methods of `Learner`, its adapters are in the same format, and its rollouts use the same random numbers. It
is slower: `transformers` runs the model, one prompt at a time. Training and drawing run the same unmerged layers, so they agree.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from metaclaw.domain.batch import Adam, Datum, Drawing, Loss, LossKind, PieceStats, Rollout, StepStats
from metaclaw.engine.checkpoint import read_shape
from metaclaw.engine.training import savepoint
from metaclaw.engine.training.adamw import AdamW
from metaclaw.engine.training.chance import shares
from metaclaw.engine.training.foreign_model import ForeignModel
from metaclaw.engine.training.hooks import HookedPairs
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.lora import Adapter, fresh_adapter, refitted
from metaclaw.engine.training.losses import DrawnTokens, piece_stats, sums, token_losses
from metaclaw.engine.training.rollout import as_rollout
from metaclaw.errors import EngineError, TrainingError

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ROWS_AT_ONCE: Final = {"cpu": 2048, "cuda": 32_768}
"""Tokens of one pass, padding included."""
_LOGITS_AT_ONCE: Final = {"cpu": 1 << 26, "cuda": 1 << 29}
_ROLLOUTS_AT_ONCE: Final = 256

Pair: TypeAlias = tuple[Sequence[int], Sequence[int]]


def _go_on() -> None:
    """Nothing asks for a stop."""


def learner_for(
    folder: Path, *, rank: int, seed: int, device: str = "cpu", dtype: str = "float32", threads: int | None = None
) -> "Learner | ForeignLearner":
    """Our own learner for a model that it runs exactly, this one for any other."""
    try:
        read_shape(folder)
    except EngineError:
        return ForeignLearner(folder, rank=rank, seed=seed, device=device, dtype=dtype, threads=threads)
    return Learner(folder, rank=rank, seed=seed, device=device, dtype=dtype, threads=threads)


class ForeignLearner:
    """A frozen model that `transformers` knows, a LoRA adapter on all its linear layers but the last, and an optimiser for that.

    Every method raises TrainingError and then has changed nothing.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        seed: int,
        device: str = "cpu",
        dtype: str = "float32",
        threads: int | None = None,
        alpha: float | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._device, self._seed = torch.device(device), seed
        self._model = ForeignModel(folder, self._device, _DTYPES[dtype])
        self._pairs = HookedPairs(self._model.layers, rank, alpha or 2.0 * rank, self._device)
        self._pairs.adopt(self._fresh())
        self._adamw = AdamW(self._pairs.values)
        self._pieces = 0

    def _fresh(self) -> Adapter:
        return fresh_adapter(self._pairs.shapes, self._pairs.rank, self._pairs.alpha, self._seed)

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing, check: Callable[[], None] = _go_on) -> list[list[Rollout]]:
        """For each prompt `drawing.count` rollouts from the present weights. `check` is called between tokens and may raise."""
        for index, prompt in enumerate(prompts):
            self._refuse_impossible(f"prompt {index}", prompt, (), drawing.max_tokens)
        return [self._draw(index, prompt, drawing, check) for index, prompt in enumerate(prompts)]

    def _draw(self, index: int, prompt: Sequence[int], drawing: Drawing, check: Callable[[], None]) -> list[Rollout]:
        indices = np.arange(drawing.count, dtype=np.uint64)
        numbers = shares(drawing.seed, np.full_like(indices, index), indices, drawing.max_tokens)
        drawn: list[Rollout] = []
        for first in range(0, drawing.count, _ROLLOUTS_AT_ONCE):
            check()
            part = numbers[first : first + _ROLLOUTS_AT_ONCE]
            tokens, logprobs = self._model.draw(prompt, part, drawing.temperature, check)
            ends, text = self._model.end_ids, self._model.text
            drawn += [as_rollout(row, values, ends, text) for row, values in zip(tokens, logprobs, strict=True)]
        return drawn

    @torch.no_grad()
    def score(self, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
        """Natural log-probabilities of each pair's second part after its first, at temperature 1."""
        for number, (prompt, drawn) in enumerate(pairs):
            self._refuse_impossible(f"pair {number}", prompt, drawn)
        scores: list[tuple[float, ...]] = [()] * len(pairs)
        for numbers in self._portions(pairs):
            found = iter(self._logprobs([pairs[number] for number in numbers])[0].tolist())
            for number in numbers:
                scores[number] = tuple(min(0.0, next(found)) for _ in pairs[number][1])
        return scores

    def accumulate(self, data: Sequence[Datum], loss: Loss, *, measures_kl: bool = False) -> PieceStats:
        """Add the gradient of these data, summed over drawn tokens."""
        for datum in data:
            self._refuse_datum(datum, loss)
        if not data:
            raise TrainingError("there is nothing to learn from")
        before = self._pairs.gradient.clone()
        with_kl = measures_kl or loss.kl > 0.0
        pairs = [(datum.prompt, datum.tokens_T) for datum in data]
        try:
            found = [self._learn([data[number] for number in numbers], loss, with_kl) for numbers in self._portions(pairs)]
        except TrainingError:
            self._pairs.gradient.copy_(before)
            raise
        self._pieces += 1
        return piece_stats(sum(len(datum.tokens_T) for datum in data), found)

    def _learn(self, data: Sequence[Datum], loss: Loss, with_kl: bool) -> list[float]:
        pairs = [(datum.prompt, datum.tokens_T) for datum in data]
        reference_D = self._reference(pairs) if with_kl else None
        logprobs_D, entropy_D = self._logprobs(pairs)
        has_old = all(datum.logprobs_T is not None for datum in data)
        tokens = DrawnTokens(
            logprobs_D=logprobs_D,
            advantages_D=self._vector([value for datum in data for value in datum.advantages_T]),
            old_D=self._vector([value for datum in data for value in datum.logprobs_T or ()]) if has_old else None,
            reference_D=reference_D,
            entropy_D=entropy_D,
        )
        losses_D = token_losses(loss, tokens)
        stats: list[float] = sums(loss, losses_D, tokens).tolist()
        if not math.isfinite(stats[0]):
            raise TrainingError(f"the loss of {len(data)} sequences is not finite; nothing was accumulated")
        losses_D.sum().backward()  # type: ignore[no-untyped-call]
        return stats

    def _logprobs(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the drawn tokens of pairs with one prompt, in order."""
        drawn = [tokens for _, tokens in pairs]
        spread = self._model.logits(pairs[0][0], drawn).log_softmax(-1)
        is_drawn = torch.zeros(spread.shape[:2], dtype=torch.bool)
        targets = torch.zeros(spread.shape[:2], dtype=torch.long)
        for row, tokens in enumerate(drawn):
            is_drawn[row, : len(tokens)] = True
            targets[row, : len(tokens)] = torch.tensor(tokens)
        is_drawn = is_drawn.to(self._device)
        logprobs = spread.gather(-1, targets.to(self._device).unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            entropy = -(spread.exp() * spread).sum(-1)
        return logprobs[is_drawn], entropy[is_drawn]

    @torch.no_grad()
    def _reference(self, pairs: Sequence[Pair]) -> Tensor:
        with self._pairs.switched_off():
            return self._logprobs(pairs)[0]

    def _portions(self, pairs: Sequence[Pair]) -> Iterator[list[int]]:
        """Numbers of neighbouring pairs with one prompt that go through the model together; pairs with nothing drawn never do."""
        rows, logits = (limits[self._device.type] for limits in (_ROWS_AT_ONCE, _LOGITS_AT_ONCE))
        filled = (number for number, (_, drawn) in enumerate(pairs) if drawn)
        for prompt, members in groupby(filled, key=lambda number: tuple(pairs[number][0])):
            portion: list[int] = []
            longest = 0
            for number in members:
                longest = max(longest, len(pairs[number][1]))
                count = len(portion) + 1
                if portion and (count * (len(prompt) + longest) > rows or count * longest * self._model.vocabulary > logits):
                    yield portion
                    portion, longest = [], len(pairs[number][1])
                portion.append(number)
            yield portion

    def _vector(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).to(self._device)

    def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """One step of AdamW with what was accumulated, divided by `normaliser`; the next step begins with no gradient."""
        norm = self._adamw.apply(self._pairs.values, self._pairs.gradient, adam, normaliser)
        self._pairs.gradient.zero_()
        self._pieces = 0
        return StepStats(self._adamw.steps, norm)

    def adapter(self) -> Adapter:
        """A copy of the present adapter, on the CPU."""
        return self._pairs.adapter()

    def adopt(self, adapter: Adapter | None) -> None:
        """Go on with this adapter's weights, or with none's. Gradient, moments and counts stay as they are."""
        chosen = self._fresh() if adapter is None else adapter
        self._pairs.adopt(refitted(chosen, self._pairs.shapes, self._pairs.rank, self._pairs.alpha, self._seed))

    def state(self) -> dict[str, Tensor]:
        """Everything that was learned and accumulated, as copies on the CPU."""
        return savepoint.save(self._pairs.values, self._pairs.gradient, self._adamw, self._pieces)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on where a learner of the same model, rank and alpha gave this state."""
        self._pieces = savepoint.restore(self._pairs.values, self._pairs.gradient, self._adamw, state)

    def _refuse_datum(self, datum: Datum, loss: Loss) -> None:
        self._refuse_impossible(f"turn {datum.turn}", datum.prompt, datum.tokens_T)
        if datum.logprobs_T is None and loss.kind is not LossKind.CROSS_ENTROPY:
            raise TrainingError(f"turn {datum.turn} has no log-probabilities, which {loss.kind} needs")

    def _refuse_impossible(self, name: str, prompt: Sequence[int], drawn: Sequence[int], more: int = 0) -> None:
        length = len(prompt) + len(drawn) + more
        if not prompt or length > self._model.context:
            raise TrainingError(f"{name}: {length} tokens with a prompt of {len(prompt)}, where 1 to {self._model.context} fit")
        if not 0 <= min(*prompt, *drawn, 0) <= max(*prompt, *drawn, 0) < self._model.vocabulary:
            raise TrainingError(f"{name} holds a token outside the vocabulary of {self._model.vocabulary}")
