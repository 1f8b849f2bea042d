"""Training of one model in this process: draw rollouts, score, accumulate gradients, and make
optimiser steps.

If memory runs out, the work is tried again with half as much at once, until it fits or the smallest
share does not fit either."""

import gc
import logging
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import torch
from torch import Tensor

from metaclaw.domain.training import (
    Adam,
    Datum,
    Drawing,
    Loss,
    LossKind,
    PieceStats,
    Rollout,
    StepStats,
)
from metaclaw.engine.checkpoint import Shape, map_tensors, read_shape
from metaclaw.engine.stack import Stack
from metaclaw.engine.training.forward import TrainedModel, drawn_logprobs
from metaclaw.engine.training.lora import (
    Adapter,
    Parameters,
    check_modules,
    fresh_adapter,
    projection_shapes,
    refitted,
)
from metaclaw.engine.training.losses import (
    AdamW,
    DrawnTokens,
    piece_stats,
    restore_state,
    save_state,
    sums,
    token_losses,
)
from metaclaw.engine.training.packing import Pairs, pack, portions
from metaclaw.engine.training.rollout import Rollouts
from metaclaw.errors import TrainerMemoryError, TrainingError

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LEAST_SHARE: Final = 1.0 / 64.0
_MEMORY_ERRORS: Final = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_MOST_CHARS: Final = 240
_ROWS_AT_ONCE: Final = {"cpu": 2048, "cuda": 65_536}
"""Rows of one pass. More rows are not faster on a CPU."""
_ROWS_SHARE: Final = 0.4
"""The share of a GPU's memory for what the rows of one pass save for the backward pass."""
_KEPT_FACTOR: Final = {"cpu": 2.0, "cuda": 1.5}
"""A sequence with so many times the rows of one pass runs each layer twice instead of saving
everything for the backward pass.
"""


class WorkShare:
    """The share of the usual amount that is worked on at once. `release` frees everything that can
    be computed again.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self.share = 1.0

    def of(self, most: int) -> int:
        """The part of this amount that may be worked on at once."""
        return max(1, int(self.share * most))

    def run(self, work: Callable[[], _T]) -> _T:
        """Do work that changes nothing if it fails. Raises TrainerMemoryError if the smallest share
        does not fit either.
        """
        while True:
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = describe_memory_error(error)
            # After the `except` block, because the traceback keeps the computed tensors alive.
            self._release()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if self.share <= _LEAST_SHARE:
                raise TrainerMemoryError(reason)
            self.share /= 2.0
            log.warning("memory_short share=%g reason=%s", self.share, reason)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the error or one of its causes is a lack of memory: recording a CUDA graph hides the
    first error behind another.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
            sign in str(error) for sign in _MEMORY_ERRORS
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe_memory_error(error: BaseException) -> str:
    return (
        "the trainer finds too little memory"
        f" ({' '.join(str(error).split())[:_MOST_CHARS].rstrip('. ')})"
    )


class Learner:
    """A frozen model, a LoRA adapter for all its projections, and an optimiser for the adapter.

    `device` is "cpu", "cuda" or a certain GPU; `dtype` is used for all products; `threads` sets
    torch's threads, unless it is None; `tensors` are the weights, if they are not in the folder.
    The adapter has single precision. A method that raises
    TrainingError changes nothing."""

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        seed: int,
        device: str = "cpu",
        dtype: str = "float32",
        threads: int | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._folder, self._seed = folder, seed
        self._device = torch.device(device)
        self._work = WorkShare(self._release)
        self.shape = read_shape(folder)
        self.context, self.vocabulary = self.shape.positions, self.shape.vocabulary
        tensors = tensors or map_tensors(folder)
        own = Parameters(projection_shapes(tensors), rank, 2.0 * rank, self._device)
        self._parameters = own
        own.adopt(self._fresh(rank))
        self._model = TrainedModel(self.shape, tensors, own, _DTYPES[dtype])
        self._rows = _rows_at_once(self.shape, self._device)
        self._rollouts: Rollouts | None = None
        self._is_stale = False
        self._adamw = AdamW(own.values)

    def _release(self) -> None:
        self._rollouts = None

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]:
        return self._work.run(lambda: self._sampler().sample(prompts, drawing))

    def _sampler(self) -> Rollouts:
        if self._rollouts is None:
            # The decoder uses the trainer's merged weights.
            stack = Stack(self.shape, self._model.fused())
            self._rollouts = Rollouts(stack, _decoder(self._folder), share=self._work.share)
        elif self._is_stale:
            self._rollouts.refresh()
        self._is_stale = False
        return self._rollouts

    def _portions(self, pairs: Pairs) -> list[list[int]]:
        return portions(pairs, self._work.of(self._rows))

    def _logprobs(self, pairs: Pairs, *, is_base: bool = False) -> Tensor:
        packed = pack(pairs, self._device)
        kept = int(_KEPT_FACTOR["cpu" if self._device.type == "cpu" else "cuda"] * self._rows)
        recomputes = len(packed.ids) > self._work.of(kept)
        rows_D = self._model.hidden(packed, is_base=is_base, recomputes=recomputes)
        return drawn_logprobs(rows_D, packed.targets_D, self._model.head)

    @torch.no_grad()
    def score(self, pairs: Pairs) -> list[tuple[float, ...]]:
        """Natural log-probabilities of each pair's second part after its first, at temperature
        1.
        """
        for number, (prompt, drawn) in enumerate(pairs):
            self._check_tokens(f"pair {number}", prompt, drawn)
        return self._work.run(lambda: self._scores(pairs))

    def _scores(self, pairs: Pairs) -> list[tuple[float, ...]]:
        scores: list[tuple[float, ...]] = [()] * len(pairs)
        for portion in self._portions(pairs):
            values = iter(self._logprobs([pairs[number] for number in portion]).tolist())
            for number in portion:
                scores[number] = tuple(min(0.0, next(values)) for _ in pairs[number][1])
        return scores

    def accumulate(
        self, data: Sequence[Datum], loss: Loss, *, measures_kl: bool = False
    ) -> PieceStats:
        """Add the gradient of these data, summed over drawn tokens.

        With `measures_kl` the statistics hold the KL divergence from the untrained weights."""
        for datum in data:
            self._check_datum(datum, loss)
        tokens = sum(len(datum.tokens_T) for datum in data)
        if not tokens:
            raise TrainingError("there is nothing to learn from")
        portion_sums = self._work.run(lambda: self._learn_all(data, loss, with_kl=measures_kl))
        return piece_stats(tokens, portion_sums)

    def _learn_all(self, data: Sequence[Datum], loss: Loss, *, with_kl: bool) -> list[list[float]]:
        """Add the gradient of all data; if that fails, of none."""
        pairs = [(datum.prompt, datum.tokens_T) for datum in data]
        before = self._parameters.gradient.clone()
        try:
            return [
                self._learn([data[number] for number in portion], loss, with_kl=with_kl)
                for portion in self._portions(pairs)
            ]
        except (TrainingError, RuntimeError, MemoryError):
            self._parameters.gradient.copy_(before)
            raise

    def _learn(self, data: Sequence[Datum], loss: Loss, *, with_kl: bool) -> list[float]:
        pairs = [(datum.prompt, datum.tokens_T) for datum in data]
        reference_D = self._reference(pairs) if with_kl else None
        logprobs_D = self._logprobs(pairs)
        has_old = all(datum.logprobs_T is not None for datum in data)
        tokens = DrawnTokens(
            logprobs_D=logprobs_D,
            advantages_D=self._vector(value for datum in data for value in datum.advantages_T),
            old_D=(
                self._vector(value for datum in data for value in datum.logprobs_T or ())
                if has_old
                else None
            ),
            reference_D=reference_D,
        )
        losses_D = token_losses(loss, tokens)
        total = losses_D.sum()
        # Only this waits for the GPU.
        stats: list[float] = sums(losses_D, tokens).tolist()
        if not math.isfinite(stats[0]):
            raise TrainingError(
                f"the loss of {len(data)} sequences is not finite; nothing was accumulated"
            )
        total.backward()  # type: ignore[no-untyped-call]
        return stats

    @torch.no_grad()
    def _reference(self, pairs: Pairs) -> Tensor:
        return self._logprobs(pairs, is_base=True)

    def _vector(self, values: Iterable[float]) -> Tensor:
        return torch.frombuffer(array("f", values), dtype=torch.float32).to(
            self._device, non_blocking=True
        )

    def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """Make one step of AdamW with the accumulated gradient divided by `normaliser`, and set the
        gradient to zero.
        """
        norm = self._adamw.apply(
            self._parameters.values, self._parameters.gradient, adam, normaliser
        )
        self._parameters.gradient.zero_()
        self._refresh(self._parameters)
        return StepStats(self._adamw.steps, norm)

    def adapter(self) -> Adapter:
        """A copy of the current adapter, on the CPU."""
        return self._parameters.adapter()

    def adopt(self, adapter: Adapter | None) -> None:
        """Continue with the weights of this adapter, or of the untrained model. Gradient, moments
        and counts stay as they are.
        """
        own = self._parameters
        adapter = adapter or self._fresh(own.rank)
        own.adopt(refitted(adapter, own.shapes, own.rank, own.alpha, self._seed))
        self._refresh(own)

    def _fresh(self, rank: int) -> Adapter:
        return fresh_adapter(self._parameters.shapes, rank, 2.0 * rank, self._seed)

    @contextmanager
    def using(self, adapter: Adapter | None) -> Iterator[None]:
        """Draw and score with this adapter of any rank, or with the untrained model, while the
        block runs.
        """
        adapter = adapter or self._fresh(1)
        check_modules(adapter, self._parameters.shapes)
        try:
            self._refresh(adapter)
            yield
        finally:
            self._refresh(self._parameters)

    def state(self) -> dict[str, Tensor]:
        """The adapter, the optimiser's state and the accumulated gradient, as copies on the CPU."""
        return save_state(self._parameters.values, self._parameters.gradient, self._adamw)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the state of a learner of the same model and rank."""
        restore_state(self._parameters.values, self._parameters.gradient, self._adamw, state)
        self._refresh(self._parameters)

    def _check_datum(self, datum: Datum, loss: Loss) -> None:
        self._check_tokens(f"turn {datum.turn}", datum.prompt, datum.tokens_T)
        if datum.logprobs_T is None and loss.kind is not LossKind.CROSS_ENTROPY:
            raise TrainingError(
                f"turn {datum.turn} has no log-probabilities, which {loss.kind} needs"
            )
        if datum.logprobs_T is not None and not all(map(math.isfinite, datum.logprobs_T)):
            raise TrainingError(
                f"turn {datum.turn} has a log-probability that is not a finite number"
            )

    def _check_tokens(self, name: str, prompt: Sequence[int], drawn: Sequence[int]) -> None:
        length = len(prompt) + len(drawn)
        if not prompt or length > self.context:
            raise TrainingError(
                f"{name}: {length} tokens with a prompt of {len(prompt)}, where 1 to"
                f" {self.context} fit"
            )
        if not 0 <= min(*prompt, *drawn, 0) <= max(*prompt, *drawn, 0) < self.vocabulary:
            raise TrainingError(f"{name} holds a token outside the vocabulary of {self.vocabulary}")

    def _refresh(self, weights: Adapter | Parameters) -> None:
        self._model.refresh(weights)
        self._is_stale = True


def _rows_at_once(shape: Shape, device: torch.device) -> int:
    """The rows of one pass: on a GPU as many as its memory has room for."""
    if device.type == "cpu":
        return _ROWS_AT_ONCE["cpu"]
    free, whole = torch.cuda.mem_get_info(device)
    # The other half of what is free is for drawing.
    memory = min(_ROWS_SHARE * whole, free / 2)
    return max(1024, min(_ROWS_AT_ONCE["cuda"], int(memory / bytes_per_row(shape, 2))))


def bytes_per_row(shape: Shape, itemsize: int) -> int:
    """What a row saves for the backward pass, in all layers."""
    values = 4 * shape.width + 3 * shape.query_width + 3 * shape.kv_width + 3 * shape.feed_width
    return shape.layers * values * itemsize


def _decoder(folder: Path) -> Callable[[Sequence[int]], str]:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TrainingError(f"{path} is missing: without it drawn tokens cannot be decoded")
    tokenizer = Tokenizer.from_file(str(path))
    return lambda tokens: tokenizer.decode(list(tokens), skip_special_tokens=True)
