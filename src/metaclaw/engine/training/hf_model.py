"""Training of causal models that `Learner` does not support, from a Hugging Face folder.

The format of adapters and the random numbers of rollouts are those of `Learner`. It is slower:
`transformers` runs the model, one prompt at a time. Training and drawing run the same unmerged
layers, so they agree."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from metaclaw.domain.training import Drawing, Rollout
from metaclaw.engine.checkpoint import read_shape
from metaclaw.engine.training.decode import Heat, choose, uniforms
from metaclaw.engine.training.forward import DrawnLogprobs
from metaclaw.engine.training.learner import AdapterLearner, Learner
from metaclaw.engine.training.lora import AdapterVector, Pair
from metaclaw.engine.training.packing import Pairs
from metaclaw.engine.training.rollout import as_rollout
from metaclaw.errors import EngineError, MissingPackageError, TrainingError


class HookedPairs(AdapterVector):
    """An adapter on the named linear layers of a model, added to their output by hooks."""

    def __init__(
        self, layers: Mapping[str, nn.Linear], rank: int, alpha: float, device: torch.device
    ) -> None:
        shapes = {name: (layer.out_features, layer.in_features) for name, layer in layers.items()}
        super().__init__(shapes, rank, alpha, device)
        self._is_on = True
        place = 0
        for name, (rows, columns) in shapes.items():
            a, place = self._leaf(place, (rank, columns))
            b, place = self._leaf(place, (rows, rank))
            self.pairs[name] = Pair(a, b)
            layers[name].register_forward_hook(partial(self._add, self.pairs[name]))

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """Run the untrained model inside the block."""
        self._is_on = False
        try:
            yield
        finally:
            self._is_on = True

    def _add(self, pair: Pair, layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if not self._is_on:
            return out
        inner = given[0] @ pair.a.to(out.dtype).mT
        return torch.add(out, inner @ pair.b.to(out.dtype).mT, alpha=self.scale)


class HfModel:
    """The frozen model. Raises TrainingError if `transformers` cannot run the model in the
    folder.
    """

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        with _translated(folder):
            import transformers

            transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True
            )
            self._tokeniser = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True
            )
        frozen: nn.Module = model
        self._model, self._device = frozen.to(device).eval().requires_grad_(False), device
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self.layers = {
            name: part
            for name, part in model.named_modules()
            if isinstance(part, nn.Linear) and part is not head
        }
        if not self.layers:
            raise TrainingError(f"the model in {folder} has no linear layers to train")
        self.vocabulary = _rows(model.get_input_embeddings())
        self.context = int(
            getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
        )
        self.end_ids = _ids(model.config.eos_token_id) | _ids(model.generation_config.eos_token_id)
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return str(self._tokeniser.decode(list(tokens), skip_special_tokens=True))

    def logits(self, prompt: Sequence[int], drawn: Sequence[Sequence[int]]) -> Tensor:
        """The logits of each sequence drawn after the prompt, in single precision: [sequence,
        token, vocabulary].

        Shorter sequences have meaningless rows at their end.
        """
        longest = max(map(len, drawn))
        # Padding follows a sequence, so no token of the sequence attends to it, and no mask is
        # needed.
        rows = [[*prompt, *tokens[:-1], *([0] * (longest - len(tokens)))] for tokens in drawn]
        return (
            self._run(torch.tensor(rows, device=self._device), longest, use_cache=False)
            .logits[:, -longest:]
            .float()
        )

    @torch.no_grad()
    def draw(
        self, prompt: Sequence[int], numbers: Tensor, temperature: float
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Tokens and log-probabilities of rollouts with these random numbers: [rollout, token];
        meaningless after an end token.
        """
        heat, ends = (
            Heat.of(temperature),
            torch.tensor(sorted(self.end_ids), dtype=torch.long, device=self._device),
        )
        count, room = numbers.shape
        numbers = numbers.to(self._device)
        tokens = torch.zeros(count, room, dtype=torch.long, device=self._device)
        logprobs = torch.zeros(count, room, device=self._device)
        live = torch.arange(count, device=self._device)
        read = self._run(torch.tensor([list(prompt)], device=self._device), 1, use_cache=True)
        cache = _shareable(read)
        cache.batch_repeat_interleave(count)
        logits = read.logits[:, -1].float().repeat(count, 1)
        for place in range(room):
            chosen, chosen_logprobs = choose(logits, numbers[live, place], heat)
            tokens[live, place], logprobs[live, place] = chosen, chosen_logprobs
            stays = torch.isin(chosen, ends, invert=True)
            if place + 1 == room or not stays.any():
                break
            if not stays.all():
                live, chosen = live[stays], chosen[stays]
                cache.batch_select_indices(stays.nonzero().squeeze(1))
            logits = (
                self._run(chosen.unsqueeze(1), 1, use_cache=True, past_key_values=cache)
                .logits[:, -1]
                .float()
            )
        return tokens.tolist(), logprobs.tolist()

    def _run(self, ids: Tensor, wanted: int, **settings: object) -> "_Output":
        if self._keeps_logits:
            settings["logits_to_keep"] = wanted
        out: _Output = self._model(input_ids=ids, **settings)
        return out


class _Cache(Protocol):
    """The methods of transformers' caches that are used here."""

    def batch_repeat_interleave(self, repeats: int) -> None: ...
    def batch_select_indices(self, indices: Tensor) -> None: ...


class _Output(Protocol):
    """The attributes of the output of transformers' causal models that are used here."""

    logits: Tensor
    past_key_values: _Cache | None


def _shareable(read: _Output) -> _Cache:
    cache: _Cache | None = getattr(read, "past_key_values", None)
    if (
        cache is None
        or not hasattr(cache, "batch_repeat_interleave")
        or not hasattr(cache, "batch_select_indices")
    ):
        raise TrainingError("the model's cache of keys and values cannot be shared by rollouts")
    return cache


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
            f"the model in {folder} needs a package that is not installed ({error}): pip install"
            " 'metaclaw-proxy[transformers]'"
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise TrainingError(f"transformers cannot run the model in {folder}: {error}") from error


_ROWS_AT_ONCE: Final = {"cpu": 2048, "cuda": 32_768}
"""Tokens of one pass, with padding."""
_LOGITS_AT_ONCE: Final = {"cpu": 1 << 26, "cuda": 1 << 29}
_ROLLOUTS_AT_ONCE: Final = 256


class HfLearner(AdapterLearner):
    """The learner for other models that `transformers` can run, with an adapter on all linear
    layers but the last.
    """

    def _load(self, rank: int, alpha: float, dtype: torch.dtype) -> AdapterVector:
        self._model = HfModel(self._folder, self._device, dtype)
        self.context, self.vocabulary = self._model.context, self._model.vocabulary
        self._pairs = HookedPairs(self._model.layers, rank, alpha, self._device)
        self._pairs.adopt(self._fresh(self._pairs))
        return self._pairs

    def _release(self) -> None:
        """Nothing is cached between calls."""

    def _weights_changed(self) -> None:
        """The hooks read the adapter's values each time."""

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]:
        for index, prompt in enumerate(prompts):
            self._check_tokens(f"prompt {index}", prompt, (), drawing.max_tokens)
        return [
            self._work.run(partial(self._draw, index, prompt, drawing))
            for index, prompt in enumerate(prompts)
        ]

    def _draw(self, index: int, prompt: Sequence[int], drawing: Drawing) -> list[Rollout]:
        indices = np.arange(drawing.count, dtype=np.uint64)
        numbers = uniforms(drawing.seed, np.full_like(indices, index), indices, drawing.max_tokens)
        drawn: list[Rollout] = []
        at_once = self._work.of(_ROLLOUTS_AT_ONCE)
        for first in range(0, drawing.count, at_once):
            part = numbers[first : first + at_once]
            tokens, logprobs = self._model.draw(prompt, part, drawing.temperature)
            ends, text = self._model.end_ids, self._model.text
            drawn += [
                as_rollout(row, values, ends, text)
                for row, values in zip(tokens, logprobs, strict=True)
            ]
        return drawn

    def _logprobs(self, pairs: Pairs, *, is_base: bool = False) -> DrawnLogprobs:
        """Log-probabilities and entropies of the drawn tokens of pairs with one prompt, in
        order.
        """
        if is_base:
            with self._pairs.switched_off():
                return self._logprobs(pairs)
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
        return DrawnLogprobs(logprobs[is_drawn], entropy[is_drawn])

    def _portions(self, pairs: Pairs) -> Iterator[list[int]]:
        """The indices of neighbouring pairs with the same prompt that run together; pairs without
        drawn tokens are left out.
        """
        rows, logits = self._limit(_ROWS_AT_ONCE), self._limit(_LOGITS_AT_ONCE)
        filled = (number for number, (_, drawn) in enumerate(pairs) if drawn)
        for prompt, members in groupby(filled, key=lambda number: tuple(pairs[number][0])):
            portion: list[int] = []
            longest = 0
            for number in members:
                longest = max(longest, len(pairs[number][1]))
                count = len(portion) + 1
                if portion and (
                    count * (len(prompt) + longest) > rows
                    or count * longest * self.vocabulary > logits
                ):
                    yield portion
                    portion, longest = [], len(pairs[number][1])
                portion.append(number)
            yield portion


def learner_class(folder: Path) -> type[AdapterLearner]:
    """`Learner` if it supports the model, else `HfLearner`."""
    try:
        read_shape(folder)
    except EngineError:
        return HfLearner
    return Learner
