"""Serving on a CPU: spans of tokens from many requests run as one ragged batch, which returns the
logits of the wanted rows.

Prompts, decode steps and teacher-forced scoring are all spans of this pass, so their numbers agree.
No row is padded: the projections run over all tokens of all spans at once, only attention runs
separately for each request."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Final

import torch
from torch import Tensor

from metaclaw.engine.attention import Cache, Span, plan_windows
from metaclaw.engine.batch import DrawnToken, Sampler, draw
from metaclaw.engine.checkpoint import Shape, Steps
from metaclaw.engine.stack import Stack, Tensors, fuse_layer, fuse_tensors

MAX_CONTEXT: Final = 8192
CHUNK_TOKENS: Final = 64
"""Prompt tokens of one pass: enough to be efficient, and few enough not to delay the running
answers.
"""


class Llama:
    """A model of the Llama family: plain tensors in one dtype, no quantisation."""

    chunk_tokens: int = CHUNK_TOKENS

    def __init__(self, shape: Shape, tensors: Mapping[str, Tensor]) -> None:
        self.shape = shape
        self.context = min(shape.positions, MAX_CONTEXT)
        self._stack = Stack(shape, fuse_tensors(shape, tensors), self.context)

    def with_layers(self, tensor: Tensors) -> "Steps[Llama]":
        """A model with layers of these weights, built one after the other. The rest is shared."""
        other, shape = copy(self), self.shape
        held: dict[str, Tensor] = {
            name: weight for name, weight in self._stack.held.items() if not name[0].isdigit()
        }
        for number in range(shape.layers):
            yield from fuse_layer(held, shape, tensor, number)
        other._stack = Stack(shape, held, self.context)
        return other

    def dissolve(self) -> Steps[None]:
        """Free the memory of the layers step by step. After that the model cannot run."""
        return self._stack.dissolve()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every weight and activation."""
        return self._stack.dtype

    def new_cache(self, slots: int, positions: int | None = None) -> Cache:
        """An empty cache for this model."""
        return Cache(self.shape, slots, positions or self.context, self.dtype)

    @torch.inference_mode()
    def run(self, cache: Cache, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        """Run the spans, write their keys and values, and return the logits of the wanted rows in
        single precision.

        Rows are numbered in the order of the spans. Spans of one token should come first, by
        ascending slot."""
        ids = torch.tensor([token for span in spans for token in span.tokens])
        positions = torch.tensor([place for span in spans for place in range(span.start, span.end)])
        homes = positions + torch.tensor(
            [span.slot * cache.positions for span in spans for _ in span.tokens]
        )
        windows = plan_windows(cache, spans)
        split = self.shape.query_width

        def attend(number: int, mixed: Tensor) -> Tensor:
            cache.rows[number].index_copy_(0, homes, mixed[:, split:])
            outs = [window.attend(mixed[:, :split], number) for window in windows]
            return outs[0] if len(outs) == 1 else torch.cat(outs)

        stack = self._stack
        rows = stack.run(stack.embed(ids), stack.rotations(positions), attend)
        last = rows if len(wanted) == len(rows) else rows[torch.tensor(wanted)]
        return stack.logits(last)

    def draw(self, logits: Tensor, samplers: Sequence[Sampler]) -> list[DrawnToken]:
        """One token per row."""
        return draw(logits, samplers)
