"""A causal model of any kind from a Hugging Face folder, as `transformers` runs it: its linear layers, its logits, its rollouts."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from metaclaw.engine.training.chance import Heat, choose
from metaclaw.errors import MissingPackageError, TrainingError


class ForeignModel:
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
