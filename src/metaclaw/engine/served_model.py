"""The model that serves: spans of tokens from many requests run as one ragged batch, which returns
the logits of the wanted rows.

Prompts, decode steps and teacher-forced scoring are all spans of this pass, so their numbers agree.
No row is padded: the products run over all tokens of all spans at once. Versions share the base
weights and the cache; each adds the products of its own adapter.

On a GPU a pass over single tokens is one recorded CUDA graph for each size of batch: which slots
its rows belong to is data, so requests join and leave without another recording. Passes that read
prompts run without a graph."""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple
from weakref import ReferenceType, ref

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaclaw.engine.attention import Cache, Span, run_spans
from metaclaw.engine.checkpoint import Shape
from metaclaw.engine.stack import BUNDLES, Adapt, Stack, fuse
from metaclaw.engine.training.decode_cuda import Recorder
from metaclaw.engine.training.lora import (
    Adapter,
    Shapes,
    check_fit,
    projection_shapes,
)

_MOST_CONTEXT: Final = 8192
CHUNK_TOKENS: Final = {"cpu": 64, "cuda": 2048}
"""Prompt tokens of one pass: enough to be efficient, and few enough not to delay the running
answers.
"""


class CachedCall(NamedTuple):
    """Attention of rows to the cache: segment i has the rows between two entries of `bounds`, and
    attends to the `used` cache rows from `starts` on, each of its rows up to itself.
    """

    bounds: Tensor
    starts: Tensor
    used: Tensor
    most_rows: int
    most_keys: int


def attend_to_cache(queries: Tensor, keys: Tensor, values: Tensor, call: CachedCall) -> Tensor:
    """The output by row and head, for queries, keys and values by row and head; on a GPU."""
    out, *_ = torch.ops.aten._flash_attention_forward(
        queries,
        keys,
        values,
        call.bounds,
        # Only the beginnings are read, since `seqused_k` gives the lengths.
        call.starts,
        call.most_rows,
        call.most_keys,
        0.0,
        True,
        False,
        seqused_k=call.used,
    )
    result: Tensor = out
    return result


class AdapterProducts:
    """An adapter's part of every product: A matrices of a bundle above each other, and B matrices
    times the scale, each in the columns of its own projection. All are views of one vector.
    """

    def __init__(self, shapes: Shapes, layers: int, rank: int, like: Tensor) -> None:
        self.rank = rank
        self._layout = [
            [f"model.layers.{layer}.{end}" for end in bundle]
            for layer in range(layers)
            for bundle in BUNDLES
        ]
        self._shapes = shapes
        sizes = []
        for modules in self._layout:
            height, columns = rank * len(modules), shapes[modules[0]][1]
            sizes += [(height, columns), (height, sum(shapes[module][0] for module in modules))]
        self.vector = like.new_zeros(sum(rows * columns for rows, columns in sizes))
        pieces = torch.split(self.vector, [rows * columns for rows, columns in sizes])
        views = (piece.view(size) for piece, size in zip(pieces, sizes, strict=True))
        self._parts = list(zip(views, views, strict=True))

    def take(self, adapter: Adapter) -> None:
        """Copy an adapter, which may leave out modules."""
        for modules, (down, up) in zip(self._layout, self._parts, strict=True):
            row = 0
            for part, module in enumerate(modules):
                ranks = slice(part * self.rank, (part + 1) * self.rank)
                end = row + self._shapes[module][0]
                if module in adapter.pairs:
                    a, b = adapter.pairs[module]
                    down[ranks].copy_(a)
                    up[ranks, row:end].copy_(b.t() * adapter.scale)
                row = end

    def add(self, number: int, which: int, rows: Tensor, out: Tensor) -> None:
        """Add the adapter's part to a product (see `Adapt`)."""
        down, up = self._parts[number * len(BUNDLES) + which]
        out.addmm_(functional.linear(rows, down), up)


class ServedModel:
    """A version of a model on a device, at first the base model, and the cache of all versions."""

    def __init__(
        self,
        shape: Shape,
        tensors: Mapping[str, Tensor],
        slots: int,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.shape = shape
        self.context = min(shape.positions, _MOST_CONTEXT)
        where = torch.device(device)
        self.chunk_tokens = CHUNK_TOKENS[where.type]
        self._shapes = projection_shapes(tensors)
        weights = fuse(
            shape,
            lambda name: tensors[name].to(where, dtype),
            has_head="lm_head.weight" in tensors,
        )
        self._stack = Stack(shape, weights, self.context)
        self.cache = Cache(shape, slots, self.context, dtype, device=device)
        self._change: AdapterProducts | None = None
        self._singles = None if device == "cpu" else _SingleTokens(slots, shape, where)
        self._warm()

    def with_adapter(self, adapter: Adapter) -> "ServedModel":
        """A version with this adapter. Raises TrainingError if it belongs to another model."""
        check_fit(adapter, self._shapes)
        other = copy(self)
        other._change = self._new_change(adapter.rank)
        other._change.take(adapter)
        if self._singles is not None and adapter.rank not in self._singles.changes:
            self._singles.changes[adapter.rank] = self._new_change(adapter.rank)
            other._warm()
        return other

    def _new_change(self, rank: int) -> AdapterProducts:
        return AdapterProducts(self._shapes, self.shape.layers, rank, self.cache.rows[0])

    @torch.inference_mode()
    def run(self, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        """Run the spans, write their keys and values, and return the logits of the wanted rows in
        single precision, on the device; they are valid until the next pass.

        Rows are numbered in the order of the spans. Spans of one token should come first, by
        ascending slot."""
        stack = self._stack
        adapt = None if self._change is None else self._change.add
        if self._singles is None:
            out = run_spans(stack, self.cache, spans, adapt)
        else:
            rows = [
                (token, place, span.slot)
                for span in spans
                for place, token in enumerate(span.tokens, span.start)
            ]
            if len(rows) == len(spans) == len(wanted):
                return self._run_single(self._singles, rows)
            out = self._pass(torch.tensor(rows).to(stack.device), self._call(spans), adapt)
        last = out if len(wanted) == len(out) else out[torch.tensor(wanted).to(out.device)]
        return stack.logits(last)

    def _call(self, spans: Sequence[Span]) -> CachedCall:
        device, lengths = self._stack.device, [len(span.tokens) for span in spans]
        starts = [span.slot * self.cache.positions for span in spans]
        return CachedCall(
            bounds=_int32([0, *accumulate(lengths)], device),
            starts=_int32([*starts, 0], device),
            used=_int32([span.end for span in spans], device),
            # With a maximum of one row, the kernel assumes that every segment has one.
            most_rows=max(2, *lengths),
            most_keys=max(span.end for span in spans),
        )

    def _pass(self, rows: Tensor, call: CachedCall, adapt: Adapt | None) -> Tensor:
        """Run rows of a token, its position and its slot, on a GPU."""
        tokens, positions, slots = rows.unbind(1)
        homes, split = slots * self.cache.positions + positions, self.shape.query_width

        def attend(number: int, mixed: Tensor) -> Tensor:
            stored = self.cache.rows[number]
            stored.index_copy_(0, homes, mixed[:, split:])
            keys, values = stored.view(len(stored), 2, self.shape.kv_heads, -1).unbind(1)
            heads = mixed[:, :split].view(len(mixed), -1, self.shape.head_width)
            return attend_to_cache(heads, keys, values, call).flatten(1)

        stack = self._stack
        return stack.run(stack.embed(tokens), stack.rotations(positions), attend, adapt)

    def _run_single(self, singles: "_SingleTokens", rows: Sequence[tuple[int, int, int]]) -> Tensor:
        size = next(size for size in singles.sizes if size >= len(rows))
        # Rows that pad the batch write to a row of the cache that belongs to no slot.
        padding = [(0, 0, len(self.cache.slots))] * (size - len(rows))
        singles.inputs[:size].copy_(torch.tensor([*rows, *padding]))
        live = None if self._change is None else singles.take(self._change)
        key = ("singles", live and live.rank, size)
        singles.recorder.run(key, partial(self._step, singles, size, live))
        return singles.logits[: len(rows)]

    def _step(self, singles: "_SingleTokens", size: int, live: AdapterProducts | None) -> None:
        _, positions, slots = singles.inputs[:size].unbind(1)
        call = CachedCall(
            bounds=singles.bounds[: size + 1],
            starts=functional.pad(slots * self.cache.positions, (0, 1)).int(),
            used=(positions + 1).int(),
            most_rows=1,
            most_keys=self.cache.positions,
        )
        out = self._pass(singles.inputs[:size], call, None if live is None else live.add)
        singles.logits[:size].copy_(self._stack.logits(out))

    @torch.inference_mode()
    def _warm(self) -> None:
        """Record the passes, so that no request waits for it."""
        if self._singles is not None:
            for size in self._singles.sizes:
                self._run_single(self._singles, [(0, 0, len(self.cache.slots))] * size)


class _SingleTokens:
    """The buffers of recorded passes over single tokens, which keep their addresses."""

    def __init__(self, slots: int, shape: Shape, device: torch.device) -> None:
        self.recorder = Recorder(device)
        # Powers of two, and the number of slots.
        self.sizes = [*(1 << power for power in range((slots - 1).bit_length())), slots]
        self.inputs = torch.zeros(slots, 3, dtype=torch.long, device=device)
        self.logits = torch.zeros(slots, shape.vocabulary, device=device)
        self.bounds = torch.arange(slots + 1, dtype=torch.int32, device=device)
        self.changes: dict[int, AdapterProducts] = {}
        """The adapter that the recordings read, for each rank."""
        self._present: dict[int, ReferenceType[AdapterProducts]] = {}

    def take(self, change: AdapterProducts) -> AdapterProducts:
        """The adapter that the recordings read, which is this one from now on."""
        live = self.changes[change.rank]
        known = self._present.get(change.rank)
        if known is None or known() is not change:
            live.vector.copy_(change.vector)
            self._present[change.rank] = ref(change)
        return live


def _int32(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).to(device)
