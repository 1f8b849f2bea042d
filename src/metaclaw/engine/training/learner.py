"""Everything a trainer does with one model, in process: draw, score, accumulate gradients, make steps, and give all of it away."""

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

import torch
from torch import Tensor

from metaclaw.domain.training import Adam, Datum, Drawing, Loss, LossKind, PieceStats, Rollout, StepStats
from metaclaw.engine.checkpoint import read_shape, read_tensors
from metaclaw.engine.training.forward import DrawnLogprobs, TrainedModel, drawn_logprobs
from metaclaw.engine.training.learner_settings import LearnerOptions, LearnerSettings
from metaclaw.engine.training.lora import Adapter, Parameters, check_modules, fresh_adapter, projection_shapes, refitted
from metaclaw.engine.training.losses import AdamW, DrawnTokens, piece_stats, restore_state, save_state, sums, token_losses
from metaclaw.engine.training.memory import WorkShare
from metaclaw.engine.training.packing import Pairs, pack, portions
from metaclaw.errors import TrainingError

if TYPE_CHECKING:
    from metaclaw.engine.training.rollout import Rollouts

_ROWS_AT_ONCE: Final = {"cpu": 2048, "cuda": 65_536}
"""Rows of one pass. More make nothing faster on a CPU, and a row keeps about a megabyte until its backward pass."""
_ROWS_KEPT: Final = {"cpu": 4096, "cuda": 98_304}
"""A single sequence beyond this runs each layer twice rather than keep everything."""


def _go_on() -> None:
    """Nothing asks for a stop."""


class Learner:
    """A frozen model of a Hugging Face folder, a LoRA adapter on all its projections, and an optimiser for that.

    What is learned has single precision. Every method raises TrainingError and then has changed nothing. Where memory runs out it
    works on less at once.
    """

    def __init__(self, folder: Path, **options: Unpack[LearnerOptions]) -> None:
        settings = LearnerSettings(**options)
        self._folder, self._seed = folder, settings.seed
        self._device, self._kind = settings.place, settings.kind
        self.shape = read_shape(folder)
        tensors = read_tensors(folder, torch.float32)
        self._parameters = Parameters(projection_shapes(tensors), settings.rank, settings.scale, self._device)
        self._parameters.adopt(self._fresh())
        self._model = TrainedModel(self.shape, tensors, self._parameters, settings.torch_dtype)
        self._adamw = AdamW(self._parameters.values)
        self._pieces = 0
        self._guest: Adapter | None = None
        self._rollouts: Rollouts | None = None
        self._drawn_from: int | None = None
        self._changes = 0
        self._work = WorkShare(self._forget_rollouts)

    def _forget_rollouts(self) -> None:
        self._rollouts = None

    def _fresh(self) -> Adapter:
        return fresh_adapter(self._parameters.shapes, self._parameters.rank, self._parameters.alpha, self._seed)

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing, check: Callable[[], None] = _go_on) -> list[list[Rollout]]:
        """For each prompt `drawing.count` rollouts from the present weights; `check` is called between tokens and may raise."""
        return self._work.run(lambda: self._sampler().sample(prompts, drawing, check))

    def _sampler(self) -> "Rollouts":
        from metaclaw.engine.training.rollout import Rollouts

        if self._rollouts is None:
            self._rollouts = Rollouts(
                self.shape,
                self._model.tensors(),
                device=str(self._device),
                dtype=self._model.dtype,
                decode=_decoder(self._folder),
                share=self._work.share,
            )
        elif self._drawn_from != self._changes:
            self._rollouts.replace(self._model.tensors())
        self._drawn_from = self._changes
        return self._rollouts

    @torch.no_grad()
    def score(self, pairs: Pairs) -> list[tuple[float, ...]]:
        """Natural log-probabilities of each pair's second part after its first, at temperature 1."""
        for number, (prompt, drawn) in enumerate(pairs):
            self._refuse_impossible(f"pair {number}", prompt, drawn)
        return self._work.run(lambda: self._scores(pairs))

    def _scores(self, pairs: Pairs) -> list[tuple[float, ...]]:
        scores: list[tuple[float, ...]] = [()] * len(pairs)
        for portion in portions(pairs, self._rows_at_once):
            chosen = [pairs[number] for number in portion]
            found = iter(self._logprobs(chosen).logprobs_D.tolist())
            for number, (_, drawn) in zip(portion, chosen, strict=True):
                scores[number] = tuple(min(0.0, next(found)) for _ in drawn)
        return scores

    @property
    def _rows_at_once(self) -> int:
        return self._work.of(_ROWS_AT_ONCE[self._kind])

    def accumulate(self, data: Sequence[Datum], loss: Loss, *, measures_kl: bool = False) -> PieceStats:
        """Add the gradient of these data, summed over drawn tokens. Data of one prompt share its rows.

        The distance to the untrained weights is in the statistics if it is in the loss or if it is asked for.
        """
        self._refuse_guest()
        for datum in data:
            self._refuse_datum(datum, loss)
        tokens = sum(len(datum.tokens_T) for datum in data)
        if not tokens:
            raise TrainingError("there is nothing to learn from")
        found = self._work.run(lambda: self._learn_all(data, loss, with_kl=measures_kl or loss.kl > 0.0))
        self._pieces += 1
        return piece_stats(tokens, found)

    def _learn_all(self, data: Sequence[Datum], loss: Loss, *, with_kl: bool) -> list[list[float]]:
        """Add the gradient of all data, or of none where that fails."""
        pairs = [(datum.prompt, datum.tokens_T) for datum in data]
        before = self._parameters.gradient.clone()
        try:
            return [
                self._learn([data[number] for number in portion], loss, with_kl=with_kl)
                for portion in portions(pairs, self._rows_at_once)
            ]
        except (TrainingError, RuntimeError, MemoryError):
            self._parameters.gradient.copy_(before)
            raise

    def _learn(self, data: Sequence[Datum], loss: Loss, *, with_kl: bool) -> list[float]:
        pairs = [(datum.prompt, datum.tokens_T) for datum in data]
        reference_D = self._reference(pairs) if with_kl else None
        drawn = self._logprobs(pairs)
        tokens = DrawnTokens(
            logprobs_D=drawn.logprobs_D,
            advantages_D=self._vector(value for datum in data for value in datum.advantages_T),
            old_D=None
            if any(datum.logprobs_T is None for datum in data)
            else self._vector(value for datum in data for value in datum.logprobs_T or ()),
            reference_D=reference_D,
            entropy_D=drawn.entropy_D,
        )
        losses_D = token_losses(loss, tokens)
        total = losses_D.sum()
        # The only moment in which a GPU is waited for.
        stats: list[float] = sums(loss, losses_D, tokens).tolist()
        if not math.isfinite(stats[0]):
            raise TrainingError(f"the loss of {len(data)} sequences is not finite; nothing was accumulated")
        total.backward()  # type: ignore[no-untyped-call]
        return stats

    def _logprobs(self, pairs: Pairs, *, is_base: bool = False) -> DrawnLogprobs:
        packed = pack(pairs, self._device)
        recomputes = len(packed.ids) > self._work.of(_ROWS_KEPT[self._kind])
        rows_D = self._model.hidden(packed, is_base=is_base, recomputes=recomputes)
        return drawn_logprobs(rows_D, packed.targets_D, self._model.head)

    @torch.no_grad()
    def _reference(self, pairs: Pairs) -> Tensor:
        return self._logprobs(pairs, is_base=True).logprobs_D

    def _vector(self, values: Iterable[float]) -> Tensor:
        return torch.frombuffer(array("f", values), dtype=torch.float32).to(self._device, non_blocking=True)

    def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """One step of AdamW with what was accumulated, divided by `normaliser`; the next step begins with no gradient."""
        self._refuse_guest()
        norm = self._adamw.apply(self._parameters.values, self._parameters.gradient, adam, normaliser)
        self._parameters.gradient.zero_()
        self._pieces = 0
        self._merge()
        return StepStats(self._adamw.steps, norm)

    def _merge(self) -> None:
        self._model.refresh(self._guest or self._parameters)
        self._changes += 1

    def adapter(self) -> Adapter:
        """A copy of the present adapter, on the CPU."""
        return self._guest or self._parameters.adapter()

    def adopt(self, adapter: Adapter | None) -> None:
        """Go on with this adapter's weights, or with none's. Gradient, moments and counts stay as they are.

        One with more ranks than this learner's can be drawn from and scored with, but not be taught.
        """
        parameters = self._parameters
        if adapter is not None and adapter.rank > parameters.rank:
            check_modules(adapter, parameters.shapes)
            self._guest = adapter
        else:
            chosen = self._fresh() if adapter is None else adapter
            parameters.adopt(refitted(chosen, parameters.shapes, parameters.rank, parameters.alpha, self._seed))
            self._guest = None
        self._merge()

    def state(self) -> dict[str, Tensor]:
        """Everything that was learned and accumulated, as copies on the CPU."""
        return save_state(self._parameters.values, self._parameters.gradient, self._adamw, self._pieces)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on where a learner of the same model, rank and alpha gave this state."""
        self._pieces = restore_state(self._parameters.values, self._parameters.gradient, self._adamw, state)
        self._guest = None
        self._merge()

    def _refuse_guest(self) -> None:
        if self._guest is not None:
            raise TrainingError(
                f"an adapter of rank {self._guest.rank} cannot be taught by a learner of rank {self._parameters.rank}"
            )

    def _refuse_datum(self, datum: Datum, loss: Loss) -> None:
        self._refuse_impossible(f"turn {datum.turn}", datum.prompt, datum.tokens_T)
        if datum.logprobs_T is None and loss.kind is not LossKind.CROSS_ENTROPY:
            raise TrainingError(f"turn {datum.turn} has no log-probabilities, which {loss.kind} needs")
        if datum.logprobs_T is not None and not all(map(math.isfinite, datum.logprobs_T)):
            raise TrainingError(f"turn {datum.turn} has a log-probability that is not a finite number")

    def _refuse_impossible(self, name: str, prompt: Sequence[int], drawn: Sequence[int]) -> None:
        length = len(prompt) + len(drawn)
        if not prompt or length > self.shape.positions:
            raise TrainingError(f"{name}: {length} tokens with a prompt of {len(prompt)}, where 1 to {self.shape.positions} fit")
        if not 0 <= min(*prompt, *drawn, 0) <= max(*prompt, *drawn, 0) < self.shape.vocabulary:
            raise TrainingError(f"{name} holds a token outside the vocabulary of {self.shape.vocabulary}")


def _decoder(folder: Path) -> Callable[[Sequence[int]], str]:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TrainingError(f"{path} is missing: without it nothing drawn can be read")
    tokenizer = Tokenizer.from_file(str(path))
    return lambda tokens: tokenizer.decode(list(tokens), skip_special_tokens=True)
