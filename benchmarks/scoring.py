"""A model loaded and scored with the engine's own forward pass, to compare answers with."""

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path

import torch
from torch import Tensor

from metaclaw.engine.attention import Cache, Span
from metaclaw.engine.checkpoint import Shape, map_tensors, read_shape
from metaclaw.engine.served_model import ServedModel
from metaclaw.engine.stack import fuse

_CHUNK = 64


def read_tensors(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every tensor of a model folder by its name, in one dtype."""
    return {name: tensor.to(dtype) for name, tensor in map_tensors(folder).items()}


def fuse_tensors(
    shape: Shape, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """The weights of a stack."""
    return fuse(shape, lambda name: tensors[name].to(dtype), has_head="lm_head.weight" in tensors)


def load_model(folder: Path, dtype: torch.dtype = torch.float32, slots: int = 3) -> ServedModel:
    """The model in a Hugging Face folder."""
    return ServedModel(read_shape(folder), map_tensors(folder), slots, dtype=dtype)


def with_cache(model: ServedModel, slots: int, positions: int | None = None) -> ServedModel:
    """The same model with an empty cache of its own."""
    other = copy(model)
    other.cache = Cache(model.shape, slots, positions or model.context, model.cache.dtype)
    return other


def score(model: ServedModel, prompt: Sequence[int], completion: Sequence[int]) -> list[float]:
    """Teacher-forced natural log-probabilities of the completion's tokens after the prompt."""
    tokens = [*prompt, *completion]
    model = with_cache(model, 1, len(tokens))
    logprobs: list[float] = []
    for start in range(0, len(tokens) - 1, _CHUNK):
        chunk = tokens[start : min(start + _CHUNK, len(tokens) - 1)]
        wanted = [row for row in range(len(chunk)) if start + row + 1 >= len(prompt)]
        logits = model.run([Span(0, start, chunk)], wanted or [0])
        targets = torch.tensor([tokens[start + row + 1] for row in wanted], dtype=torch.long)
        logprobs += (
            logits[: len(wanted)]
            .log_softmax(-1)
            .gather(1, targets.unsqueeze(1))
            .squeeze(1)
            .tolist()
        )
    return logprobs
