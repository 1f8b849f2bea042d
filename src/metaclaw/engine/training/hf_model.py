"""Any other causal model of a Hugging Face folder, taught like our own.

`HfLearner` has the methods of `Learner`, its adapters are in the same format, and its rollouts use the same random numbers. It
is slower: `transformers` runs the model, one prompt at a time. Training and drawing run the same unmerged layers, so they agree.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, Protocol, TypeAlias, Unpack

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from metaclaw.domain.training import Adam, Datum, Drawing, Loss, LossKind, PieceStats, Rollout, StepStats
from metaclaw.engine.checkpoint import read_shape
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.learner_settings import LearnerOptions, LearnerSettings
from metaclaw.engine.training.lora import Adapter, Pair, fresh_adapter, refitted
from metaclaw.engine.training.losses import AdamW, DrawnTokens, piece_stats, restore_state, save_state, sums, token_losses
from metaclaw.engine.training.memory import WorkShare
from metaclaw.engine.training.rollout import as_rollout
from metaclaw.engine.training.sampling import Heat, choose, shares
from metaclaw.errors import EngineError, MissingPackageError, TrainingError


class HookedPairs:
    """An adapter on the named linear layers of a model, as one vector in single precision with its gradient as another."""

    def __init__(self, layers: Mapping[str, nn.Linear], rank: int, alpha: float, device: torch.device) -> None:
        self.rank, self.alpha = rank, alpha
        self.shapes = {name: (layer.out_features, layer.in_features) for name, layer in layers.items()}
        size = sum(rank * (rows + columns) for rows, columns in self.shapes.values())
        self.values = torch.zeros(size, device=device)
        self.gradient = torch.zeros(size, device=device)
        self._is_on = True
        self._pairs: dict[str, Pair] = {}
        place = 0
        for name, (rows, columns) in self.shapes.items():
            a, place = self._leaf(place, (rank, columns))
            b, place = self._leaf(place, (rows, rank))
            self._pairs[name] = Pair(a, b)
            layers[name].register_forward_hook(_Hook(self, self._pairs[name]))

    def _leaf(self, place: int, shape: tuple[int, int]) -> tuple[Tensor, int]:
        # Shares its memory with the vector, and collects its gradient right in the gradient's vector.
        end = place + shape[0] * shape[1]
        leaf = self.values[place:end].view(shape).requires_grad_()
        leaf.grad = self.gradient[place:end].view(shape)
        return leaf, end

    @property
    def is_on(self) -> bool:
        """Whether the model is the adapted one."""
        return self._is_on

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """The model as it was before anything was learned."""
        self._is_on = False
        try:
            yield
        finally:
            self._is_on = True

    def adapter(self) -> Adapter:
        """A copy of the present values, on the CPU."""
        pairs = {name: Pair(*(side.detach().cpu().clone() for side in pair)) for name, pair in self._pairs.items()}
        return Adapter(self.rank, self.alpha, pairs)

    @torch.no_grad()
    def adopt(self, adapter: Adapter) -> None:
        """Take the values of an adapter of the same layers and rank."""
        for name, pair in self._pairs.items():
            pair.a.copy_(adapter.pairs[name].a)
            pair.b.copy_(adapter.pairs[name].b)


class _Hook:
    def __init__(self, pairs: HookedPairs, pair: Pair) -> None:
        self._pairs, self._pair = pairs, pair
        self._scale = pairs.alpha / pairs.rank

    def __call__(self, layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if not self._pairs.is_on:
            return out
        inner = given[0] @ self._pair.a.to(out.dtype).mT
        return torch.add(out, inner @ self._pair.b.to(out.dtype).mT, alpha=self._scale)


class HfModel:
    """The frozen model, ready to be hooked into. Raises TrainingError if the folder holds none that `transformers` can run."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        with _translated(folder):
            import transformers

            transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
            self._tokeniser = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model, self._device = _frozen(model, device), device
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self.layers = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear) and part is not head}
        if not self.layers:
            raise TrainingError(f"the model in {folder} has no linear layers that could learn")
        self.vocabulary = _rows(model.get_input_embeddings())
        self.context = int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20)
        self.end_ids = _ids(model.config.eos_token_id) | _ids(model.generation_config.eos_token_id)
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    def text(self, tokens: Sequence[int]) -> str:
        """The tokens as text, without special ones."""
        return str(self._tokeniser.decode(list(tokens), skip_special_tokens=True))

    def logits(self, prompt: Sequence[int], drawn: Sequence[Sequence[int]]) -> Tensor:
        """For each sequence drawn after the prompt, the logits of its tokens in single precision: [sequence, token, vocabulary].

        Sequences that are shorter than the longest have meaningless rows at their end.
        """
        longest = max(map(len, drawn))
        # What stands behind a sequence is padding, which no token before it can see; so no mask is needed.
        rows = [[*prompt, *tokens[:-1], *([0] * (longest - len(tokens)))] for tokens in drawn]
        return self._run(torch.tensor(rows, device=self._device), longest, use_cache=False).logits[:, -longest:].float()

    @torch.no_grad()
    def draw(
        self, prompt: Sequence[int], shares: Tensor, temperature: float, check: Callable[[], None]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Tokens and log-probabilities of rollouts with these random numbers: [rollout, token]. What follows an end is void."""
        heat, ends = Heat.of(temperature), torch.tensor(sorted(self.end_ids), dtype=torch.long, device=self._device)
        count, room = shares.shape
        shares = shares.to(self._device)
        tokens = torch.zeros(count, room, dtype=torch.long, device=self._device)
        logprobs = torch.zeros(count, room, device=self._device)
        live = torch.arange(count, device=self._device)
        read = self._run(torch.tensor([list(prompt)], device=self._device), 1, use_cache=True)
        cache = _shareable(read)
        cache.batch_repeat_interleave(count)
        logits = read.logits[:, -1].float().repeat(count, 1)
        for place in range(room):
            chosen, chosen_logprobs = choose(logits, shares[live, place], heat)
            tokens[live, place], logprobs[live, place] = chosen, chosen_logprobs
            stays = torch.isin(chosen, ends, invert=True)
            if place + 1 == room or not stays.any():
                break
            if not stays.all():
                live, chosen = live[stays], chosen[stays]
                cache.batch_select_indices(stays.nonzero().squeeze(1))
            check()
            logits = self._run(chosen.unsqueeze(1), 1, use_cache=True, past_key_values=cache).logits[:, -1].float()
        return tokens.tolist(), logprobs.tolist()

    def _run(self, ids: Tensor, wanted: int, **settings: object) -> "_Output":
        if self._keeps_logits:
            settings["logits_to_keep"] = wanted
        out: _Output = self._model(input_ids=ids, **settings)
        return out


class _Cache(Protocol):
    """What transformers' caches can do, as far as it is used here."""

    def batch_repeat_interleave(self, repeats: int) -> None: ...
    def batch_select_indices(self, indices: Tensor) -> None: ...


class _Output(Protocol):
    """What a causal model of transformers returns, as far as it is used here."""

    logits: Tensor
    past_key_values: _Cache | None


def _shareable(read: _Output) -> _Cache:
    cache: _Cache | None = getattr(read, "past_key_values", None)
    if cache is None or not hasattr(cache, "batch_repeat_interleave") or not hasattr(cache, "batch_select_indices"):
        raise TrainingError("the model keeps what it has read in a way that rollouts cannot share")
    return cache


def _frozen(model: nn.Module, device: torch.device) -> nn.Module:
    return model.to(device).eval().requires_grad_(False)


def _rows(embedding: nn.Module) -> int:
    weight = embedding.weight
    assert isinstance(weight, Tensor), "an embedding has a weight"
    return len(weight)


def _ids(value: object) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(item for item in values if isinstance(item, int))


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f"the model in {folder} needs a package that is not installed ({error}): pip install 'metaclaw-proxy[transformers]'"
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise TrainingError(f"transformers cannot run the model in {folder}: {error}") from error


_ROWS_AT_ONCE: Final = {"cpu": 2048, "cuda": 32_768}
"""Tokens of one pass, padding included."""
_LOGITS_AT_ONCE: Final = {"cpu": 1 << 26, "cuda": 1 << 29}
_ROLLOUTS_AT_ONCE: Final = 256

TokenPair: TypeAlias = tuple[Sequence[int], Sequence[int]]


def _go_on() -> None:
    """Nothing asks for a stop."""


def learner_for(
    folder: Path, *, rank: int, seed: int, device: str = "cpu", dtype: str = "float32", threads: int | None = None
) -> "Learner | HfLearner":
    """Our own learner for a model that it runs exactly, this one for any other."""
    try:
        read_shape(folder)
    except EngineError:
        return HfLearner(folder, rank=rank, seed=seed, device=device, dtype=dtype, threads=threads)
    return Learner(folder, rank=rank, seed=seed, device=device, dtype=dtype, threads=threads)


class HfLearner:
    """A frozen model that `transformers` knows, a LoRA adapter on all its linear layers but the last, and an optimiser for that.

    Every method raises TrainingError and then has changed nothing.
    """

    def __init__(self, folder: Path, **options: Unpack[LearnerOptions]) -> None:
        settings = LearnerSettings(**options)
        self._device, self._seed = settings.place, settings.seed
        self._model = HfModel(folder, self._device, settings.torch_dtype)
        self._pairs = HookedPairs(self._model.layers, settings.rank, settings.scale, self._device)
        self._pairs.adopt(self._fresh())
        self._adamw = AdamW(self._pairs.values)
        self._pieces = 0
        self._work = WorkShare(lambda: None)

    def _fresh(self) -> Adapter:
        return fresh_adapter(self._pairs.shapes, self._pairs.rank, self._pairs.alpha, self._seed)

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing, check: Callable[[], None] = _go_on) -> list[list[Rollout]]:
        """For each prompt `drawing.count` rollouts from the present weights. `check` is called between tokens and may raise."""
        for index, prompt in enumerate(prompts):
            self._refuse_impossible(f"prompt {index}", prompt, (), drawing.max_tokens)
        return [self._work.run(partial(self._draw, index, prompt, drawing, check)) for index, prompt in enumerate(prompts)]

    def _draw(self, index: int, prompt: Sequence[int], drawing: Drawing, check: Callable[[], None]) -> list[Rollout]:
        indices = np.arange(drawing.count, dtype=np.uint64)
        numbers = shares(drawing.seed, np.full_like(indices, index), indices, drawing.max_tokens)
        drawn: list[Rollout] = []
        at_once = self._work.of(_ROLLOUTS_AT_ONCE)
        for first in range(0, drawing.count, at_once):
            check()
            part = numbers[first : first + at_once]
            tokens, logprobs = self._model.draw(prompt, part, drawing.temperature, check)
            ends, text = self._model.end_ids, self._model.text
            drawn += [as_rollout(row, values, ends, text) for row, values in zip(tokens, logprobs, strict=True)]
        return drawn

    @torch.no_grad()
    def score(self, pairs: Sequence[TokenPair]) -> list[tuple[float, ...]]:
        """Natural log-probabilities of each pair's second part after its first, at temperature 1."""
        for number, (prompt, drawn) in enumerate(pairs):
            self._refuse_impossible(f"pair {number}", prompt, drawn)
        return self._work.run(lambda: self._scores(pairs))

    def _scores(self, pairs: Sequence[TokenPair]) -> list[tuple[float, ...]]:
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
        found = self._work.run(lambda: self._learn_all(data, loss, with_kl=measures_kl or loss.kl > 0.0))
        self._pieces += 1
        return piece_stats(sum(len(datum.tokens_T) for datum in data), found)

    def _learn_all(self, data: Sequence[Datum], loss: Loss, *, with_kl: bool) -> list[list[float]]:
        """Add the gradient of all data, or of none where that fails."""
        before = self._pairs.gradient.clone()
        pairs = [(datum.prompt, datum.tokens_T) for datum in data]
        try:
            return [self._learn([data[number] for number in numbers], loss, with_kl) for numbers in self._portions(pairs)]
        except (TrainingError, RuntimeError, MemoryError):
            self._pairs.gradient.copy_(before)
            raise

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

    def _logprobs(self, pairs: Sequence[TokenPair]) -> tuple[Tensor, Tensor]:
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
    def _reference(self, pairs: Sequence[TokenPair]) -> Tensor:
        with self._pairs.switched_off():
            return self._logprobs(pairs)[0]

    def _portions(self, pairs: Sequence[TokenPair]) -> Iterator[list[int]]:
        """Numbers of neighbouring pairs with one prompt that go through the model together; pairs with nothing drawn never do."""
        rows, logits = (self._work.of(limits[self._device.type]) for limits in (_ROWS_AT_ONCE, _LOGITS_AT_ONCE))
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
        return save_state(self._pairs.values, self._pairs.gradient, self._adamw, self._pieces)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on where a learner of the same model, rank and alpha gave this state."""
        self._pieces = restore_state(self._pairs.values, self._pairs.gradient, self._adamw, state)

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
