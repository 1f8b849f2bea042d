"""Serving on a GPU: one copy of the base weights, one cache, and several adapters side by side.

A pass over single tokens is one recorded CUDA graph for each size of batch: which slots its rows
belong to is data, so requests join and leave without another recording. Passes that read prompts
run without a graph. On a CPU the same code runs step by step, which is only for tests."""

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaclaw.engine.attention import Cache, Span
from metaclaw.engine.batch import DrawnToken, Sampler
from metaclaw.engine.checkpoint import Shape, Steps, finish
from metaclaw.engine.device_draw import draw_together
from metaclaw.engine.stack import Adapt, Stack, fuse_tensors
from metaclaw.engine.training.decode_cuda import Recorder
from metaclaw.engine.training.lora import (
    BUNDLES,
    Adapter,
    check_fit,
    projection_shapes,
    reading_adapter,
)
from metaclaw.errors import TrainingError

log = logging.getLogger(__name__)

_MOST_ADAPTERS: Final = 32
_CHUNK_TOKENS: Final = 2048
_MAX_CONTEXT: Final = 8192
_LEAST_RANKS: Final = 32


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
    """The output by row and head, for queries, keys and values by row and head."""
    if queries.device.type == "cpu":
        return _attend_one_by_one(queries, keys, values, call)
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


def _attend_one_by_one(queries: Tensor, keys: Tensor, values: Tensor, call: CachedCall) -> Tensor:
    out = torch.empty_like(queries)
    bounds, starts, used = call.bounds.tolist(), call.starts.tolist(), call.used.tolist()
    for number, (start, length) in enumerate(zip(starts, used, strict=False)):
        rows, seen = slice(bounds[number], bounds[number + 1]), slice(start, start + length)
        count = rows.stop - rows.start
        hidden = torch.arange(length) > torch.arange(length - count, length).unsqueeze(1)
        out[rows] = (
            functional.scaled_dot_product_attention(
                queries[rows].transpose(0, 1).unsqueeze(0),
                keys[seen].transpose(0, 1).unsqueeze(0),
                values[seen].transpose(0, 1).unsqueeze(0),
                attn_mask=~hidden,
                enable_gqa=True,
            )
            .squeeze(0)
            .transpose(0, 1)
        )
    return out


class AdapterTable:
    """The adapters of all versions. For each product, their A matrices are stacked and their B
    matrices are side by side; a mask by row keeps only the ranks of the row's own adapter.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]], stack: Stack) -> None:
        self.shapes = shapes
        self._device, self._dtype = stack.device, stack.dtype
        self._layers = stack.shape.layers
        self._places: dict[int, slice] = {}
        self.capacity = 0
        """Ranks for which there is room; more make new buffers."""
        self._downs: list[Tensor] = []
        self._ups: list[Tensor] = []
        self.masks = self._zeros(_MOST_ADAPTERS + 1, 0)
        """The ranks of each adapter, by its number; number 0 has none."""

    def add(self, adapter: Adapter) -> Steps[int]:
        """Add an adapter; returns its number. Raises TrainingError if there are too many."""
        free = set(range(1, _MOST_ADAPTERS + 1)) - set(self._places)
        if not free:
            raise TrainingError(f"at most {_MOST_ADAPTERS} versions can be served side by side")
        place = self._find_room(adapter.rank)
        number = min(free)
        self._places[number] = place
        for index, modules in enumerate(self._bundles()):
            for part, module in enumerate(modules):
                if module in adapter.pairs:
                    down, up = adapter.pairs[module]
                    self._downs[index][part, place].copy_(down)
                    rows = self._rows(modules, part)
                    self._ups[index][rows, part, place].copy_(up * adapter.scale)
            yield
        self.masks[number, place] = 1.0
        return number

    def remove(self, number: int) -> None:
        """Free an adapter's ranks."""
        place = self._places.pop(number)
        self.masks[number].zero_()
        for down, up in zip(self._downs, self._ups, strict=True):
            down[:, place].zero_()
            up[:, :, place].zero_()

    def adapt(self, masks: Tensor) -> Adapt:
        """What adds the adapters' parts, given the mask of each row."""

        def add(number: int, which: int, rows: Tensor, out: Tensor) -> None:
            index = number * len(BUNDLES) + which
            inner = functional.linear(rows, self._downs[index].flatten(0, 1))
            inner.view(len(inner), -1, self.capacity).mul_(masks.unsqueeze(1))
            out.addmm_(inner, self._ups[index].flatten(1).t())

        return add

    def _bundles(self) -> list[tuple[str, ...]]:
        return [
            tuple(f"model.layers.{layer}.{end}" for end in bundle)
            for layer in range(self._layers)
            for bundle in BUNDLES
        ]

    def _rows(self, modules: Sequence[str], part: int) -> slice:
        """The rows of a module in the output of its bundle."""
        ends = list(accumulate(self.shapes[module][0] for module in modules))
        return slice(ends[part] - self.shapes[modules[part]][0], ends[part])

    def _find_room(self, rank: int) -> slice:
        taken = sorted((place.start, place.stop) for place in self._places.values())
        begin = 0
        for start, stop in taken:
            if start - begin >= rank:
                break
            begin = stop
        if begin + rank > self.capacity:
            self._grow(max(_LEAST_RANKS, 2 * self.capacity, begin + rank))
        return slice(begin, begin + rank)

    def _grow(self, capacity: int) -> None:
        known, self.capacity = self.capacity, capacity
        masks = self._zeros(len(self.masks), capacity)
        masks[:, :known] = self.masks
        self.masks = masks
        for index, modules in enumerate(self._bundles()):
            columns = self.shapes[modules[0]][1]
            rows = sum(self.shapes[module][0] for module in modules)
            down = self._zeros(len(modules), capacity, columns)
            up = self._zeros(rows, len(modules), capacity)
            if known:
                down[:, :known] = self._downs[index]
                up[:, :, :known] = self._ups[index]
                self._downs[index], self._ups[index] = down, up
            else:
                self._downs.append(down)
                self._ups.append(up)

    def _zeros(self, *sizes: int) -> Tensor:
        return torch.zeros(sizes, dtype=self._dtype, device=self._device)


class SharedModel:
    """A version of a model on a device: the base weights and the cache are those of all versions.

    `records` says whether passes over single tokens are recorded as CUDA graphs."""

    chunk_tokens: int = _CHUNK_TOKENS

    def __init__(
        self,
        shape: Shape,
        tensors: Mapping[str, Tensor],
        slots: int,
        *,
        device: str,
        dtype: torch.dtype,
        records: bool = True,
    ) -> None:
        self.shape = shape
        self.context = min(shape.positions, _MAX_CONTEXT)
        where = torch.device(device)
        self._stack = Stack(shape, fuse_tensors(shape, tensors, where, dtype), self.context)
        self.adapters = AdapterTable(projection_shapes(tensors), self._stack)
        self._number = 0
        self._cache = Cache(shape, slots, self.context, dtype, device=device)
        self._recorder = Recorder(where, records=records)
        self._sizes = _batch_sizes(slots)
        self._inputs = torch.zeros(4, self._sizes[-1], dtype=torch.long, device=where)
        self._logits = torch.zeros(self._sizes[-1], shape.vocabulary, device=where)
        self._bounds = torch.arange(self._sizes[-1] + 1, dtype=torch.int32, device=where)
        finish(self._warm())

    def new_cache(self, slots: int) -> Cache:
        """The cache that all versions share."""
        return self._cache

    def with_adapter(self, folder: Path) -> Steps["SharedModel"]:
        """A version with the adapter in a folder. Raises TrainingError if it is unusable."""
        adapter = yield from reading_adapter(folder)
        check_fit(adapter, self.adapters.shapes)
        before = self.adapters.capacity
        other = copy(self)
        other._number = yield from self.adapters.add(adapter)
        if self.adapters.capacity != before:
            # The recordings use the old buffers.
            self._recorder.forget("adapted")
            yield from other._warm()
        return other

    def draw(self, logits: Tensor, samplers: Sequence[Sampler]) -> list[DrawnToken]:
        """One token per row."""
        return draw_together(logits, samplers)

    def dissolve(self) -> Steps[None]:
        """Free the adapter's memory. After that this version cannot run."""
        if self._number:
            self.adapters.remove(self._number)
        yield

    @torch.inference_mode()
    def run(self, cache: Cache, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        """Run the spans, write their keys and values, and return the logits of the wanted rows in
        single precision, on the device; they are valid until the next pass.
        """
        if all(len(span.tokens) == 1 for span in spans) and len(wanted) == len(spans):
            return self._run_single([(span.tokens[0], span.start, span.slot) for span in spans])
        device = self._stack.device
        rows = torch.tensor(
            [
                (token, span.start + offset, span.slot)
                for span in spans
                for offset, token in enumerate(span.tokens)
            ]
        ).to(device)
        tokens, positions, slots = rows.unbind(1)
        lengths = [len(span.tokens) for span in spans]
        starts = [span.slot * cache.positions for span in spans]
        call = CachedCall(
            bounds=_int32([0, *accumulate(lengths)], device),
            starts=_int32([*starts, 0], device),
            used=_int32([span.end for span in spans], device),
            # With a maximum of one row, the kernel assumes that every segment has one.
            most_rows=max(2, *lengths),
            most_keys=max(span.end for span in spans),
        )
        masks = self.adapters.masks[self._number].expand(len(rows), -1) if self._number else None
        out = self._pass(tokens, positions, slots * cache.positions + positions, call, masks)
        last = out if len(wanted) == len(out) else out[torch.tensor(wanted).to(device)]
        return self._stack.logits(last)

    def _run_single(self, rows: Sequence[tuple[int, int, int]]) -> Tensor:
        size = next(size for size in self._sizes if size >= len(rows))
        # Rows that pad the batch write to a row of the cache that belongs to no slot.
        padding = [(0, 0, len(self._cache.slots))] * (size - len(rows))
        filled = torch.tensor([*rows, *padding]).t()
        self._inputs[:3, :size].copy_(filled)
        self._inputs[3, :size].fill_(self._number)
        kind = "adapted" if self._number else "plain"
        self._recorder.run((kind, size), partial(self._step, size, is_adapted=bool(self._number)))
        return self._logits[: len(rows)]

    def _step(self, size: int, *, is_adapted: bool) -> None:
        tokens, positions, slots, numbers = self._inputs[:, :size].unbind(0)
        starts = slots * self._cache.positions
        call = CachedCall(
            bounds=self._bounds[: size + 1],
            starts=functional.pad(starts, (0, 1)).int(),
            used=(positions + 1).int(),
            most_rows=1,
            most_keys=self._cache.positions,
        )
        masks = self.adapters.masks.index_select(0, numbers) if is_adapted else None
        out = self._pass(tokens, positions, starts + positions, call, masks)
        self._logits[:size].copy_(self._stack.logits(out))

    def _pass(
        self,
        tokens: Tensor,
        positions: Tensor,
        homes: Tensor,
        call: CachedCall,
        masks: Tensor | None,
    ) -> Tensor:
        shape = self.shape

        def attend(number: int, mixed: Tensor) -> Tensor:
            stored = self._cache.rows[number]
            stored.index_copy_(0, homes, mixed[:, shape.query_width :])
            keys, values = stored.view(len(stored), 2, shape.kv_heads, -1).unbind(1)
            queries = mixed[:, : shape.query_width].view(len(mixed), -1, shape.head_width)
            return attend_to_cache(queries, keys, values, call).flatten(1)

        return self._stack.run(
            self._stack.embed(tokens),
            self._stack.rotations(positions),
            attend,
            None if masks is None else self.adapters.adapt(masks),
        )

    @torch.inference_mode()
    def _warm(self) -> Steps[None]:
        """Record the passes, so that no request waits for it."""
        for size in self._sizes:
            self._run_single([(0, 0, len(self._cache.slots))] * size)
            yield


def _batch_sizes(slots: int) -> list[int]:
    """Powers of two, and the number of slots."""
    sizes = [1 << power for power in range(slots.bit_length()) if 1 << power < slots]
    return [*sizes, slots]


def _int32(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).to(device)
