"""Keys and values of the tokens already seen: one slot per running request, kept afterwards for the next turn's prefix."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from metaclaw.engine.checkpoint import Shape
from metaclaw.errors import EngineError

_WORTH_COPYING = 16
"""Shorter shared prefixes are cheaper to compute than to look after."""


@dataclass(slots=True)
class Slot:
    """One row of the cache: the tokens whose keys and values it holds, and whether a request is using it."""

    index: int
    tokens: list[int] = field(default_factory=list)
    is_busy: bool = False
    freed_at: int = 0


class Cache:
    """Key-value memory for a fixed number of slots, each as long as the context.

    The memory is reserved as untouched zero pages: what a slot has not used costs nothing, and what lies beyond a slot's length is
    a finite number, so that masked attention over it stays finite.
    """

    def __init__(self, shape: Shape, slots: int, positions: int, dtype: torch.dtype = torch.float32) -> None:
        size = (shape.layers, slots * positions, shape.kv_width * dtype.itemsize)
        try:
            storage = np.zeros(size, dtype=np.uint8)
        except MemoryError as error:
            raise EngineError(
                f"no memory for {slots} requests of {positions} tokens each; give the embedded model fewer slots"
            ) from error
        everything = torch.from_numpy(storage).view(dtype)
        self.dtype = dtype
        self.positions = positions
        self.slots = [Slot(index) for index in range(slots)]
        self.rows = everything.unbind(0)
        """Per layer: a row of keys and values for each position of each slot, slots one after another."""
        self._split = everything.view(shape.layers, slots, positions, 2, shape.kv_heads, shape.head_width).permute(3, 0, 1, 4, 2, 5)
        self._clock = 0

    def view(self, slots: slice, length: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The first keys and the first values of some slots, per layer, as [slot, head, position, width]."""
        keys, values = self._split[:, :, slots, :, :length].unbind(0)
        return keys.unbind(0), values.unbind(0)

    @property
    def has_room(self) -> bool:
        """Whether another request can be taken."""
        return any(not slot.is_busy for slot in self.slots)

    def acquire(self, prompt: Sequence[int]) -> Slot:
        """A free slot, holding as long a prefix of the prompt as any slot knows, but never its last token."""
        free = [slot for slot in self.slots if not slot.is_busy]
        source, shared = max(
            ((slot, shared_prefix(slot.tokens, prompt[:-1])) for slot in self.slots),
            key=lambda found: (found[1], not found[0].is_busy),
        )
        target = min(free, key=lambda slot: slot.freed_at)
        if shared < _WORTH_COPYING:
            shared = 0
        elif not source.is_busy and (shared == len(source.tokens) or len(free) == 1):
            target = source
        elif source is not target:
            self._copy(source, target, shared)
        target.tokens = list(prompt[:shared])
        target.is_busy = True
        return target

    def release(self, slot: Slot) -> None:
        """Give the slot back; what it holds stays until somebody else needs it."""
        self._clock += 1
        slot.freed_at = self._clock
        slot.is_busy = False

    def _copy(self, source: Slot, target: Slot, count: int) -> None:
        begin, end = source.index * self.positions, target.index * self.positions
        for layer in self.rows:
            layer[end : end + count] = layer[begin : begin + count]


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with."""
    limit = min(len(left), len(right))
    for position in range(limit):
        if left[position] != right[position]:
            return position
    return limit
