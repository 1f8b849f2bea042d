"""A model loaded and scored with the engine's own forward pass, to compare answers with."""

from collections.abc import Sequence
from pathlib import Path

import torch

from metaclaw.engine.attention import Span
from metaclaw.engine.checkpoint import read_shape, read_tensors
from metaclaw.engine.llama import CHUNK_TOKENS, Llama


def load_llama(folder: Path, dtype: torch.dtype = torch.float32) -> Llama:
    """The model in a Hugging Face folder."""
    return Llama(read_shape(folder), read_tensors(folder, dtype))


def score(model: Llama, prompt: Sequence[int], completion: Sequence[int]) -> list[float]:
    """Teacher-forced natural log-probabilities of the completion's tokens after the prompt."""
    tokens = [*prompt, *completion]
    cache = model.new_cache(1, len(tokens))
    logprobs: list[float] = []
    for start in range(0, len(tokens) - 1, CHUNK_TOKENS):
        chunk = tokens[start : min(start + CHUNK_TOKENS, len(tokens) - 1)]
        wanted = [row for row in range(len(chunk)) if start + row + 1 >= len(prompt)]
        logits = model.run(cache, [Span(0, start, chunk)], wanted or [0])
        targets = torch.tensor([tokens[start + row + 1] for row in wanted], dtype=torch.long)
        logprobs += (
            logits[: len(wanted)]
            .log_softmax(-1)
            .gather(1, targets.unsqueeze(1))
            .squeeze(1)
            .tolist()
        )
    return logprobs
