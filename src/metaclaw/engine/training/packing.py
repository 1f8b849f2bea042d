"""Sequences laid out for one pass: what several of them begin with runs once, and nothing is padded.

A row sees every row of the nodes above its own, and its own node's up to itself. All nodes of one depth lie together, in the order
of the nodes they hang from. A drawn token is predicted by the row of the token before it, so a sequence's last token needs no row.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import torch
from torch import Tensor

from metaclaw.engine.training.forest import Node, Pairs, grow


@dataclass(frozen=True, slots=True)
class Spans:
    """Neighbouring stretches of rows: where each begins and the last one ends, here and on the device; and the longest length."""

    bounds: tuple[int, ...]
    cumulative: Tensor
    longest: int

    @classmethod
    def of(cls, lengths: Iterable[int], device: torch.device) -> "Spans":
        """Stretches of these lengths."""
        known = list(lengths)
        bounds = (0, *accumulate(known))
        return cls(bounds, torch.tensor(bounds, dtype=torch.int32).to(device, non_blocking=True), max(known))

    @property
    def rows(self) -> int:
        """How many rows all stretches have."""
        return self.bounds[-1]

    def slices(self) -> list[slice]:
        """Each stretch's rows."""
        return [slice(begin, end) for begin, end in pairwise(self.bounds)]


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth: their rows, and for each depth above the same rows by the node there from which they hang."""

    rows: slice
    nodes: Spans
    hanging: tuple[Spans, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """One pass; `rows_D` and `targets_D` run over the drawn tokens in the order given."""

    ids: Tensor
    positions: Tensor
    levels: tuple[Level, ...]
    rows_D: Tensor
    targets_D: Tensor


def pack(pairs: Pairs, device: torch.device) -> Packed:
    """The layout of these sequences."""
    roots, ends = grow(pairs)
    depths = [roots]
    while below := [node for above in depths[-1] for node in above.below]:
        depths.append(below)
    nodes = list(chain(*depths))
    for node, row in zip(nodes, accumulate((len(node.tokens) for node in nodes), initial=0), strict=False):
        node.first_row = row
    predictors = (_predictors(end, len(prompt), len(drawn)) for end, (prompt, drawn) in zip(ends, pairs, strict=True))
    return Packed(
        ids=_index(chain.from_iterable(node.tokens for node in nodes), device),
        positions=_index(chain.from_iterable(range(node.start, node.end) for node in nodes), device),
        levels=tuple(_level(depths, depth, device) for depth in range(len(depths))),
        rows_D=_index(chain.from_iterable(predictors), device),
        targets_D=_index(chain.from_iterable(drawn for _, drawn in pairs), device),
    )


def _predictors(end: Node, prompt: int, drawn: int) -> list[int]:
    rows: list[int] = []
    node: Node | None = end
    while node is not None and len(rows) < drawn:
        first = max(node.start, prompt - 1)
        rows[:0] = range(node.first_row + first - node.start, node.first_row + len(node.tokens))
        node = node.above
    return rows


def _level(depths: list[list[Node]], depth: int, device: torch.device) -> Level:
    nodes = Spans.of((len(node.tokens) for node in depths[depth]), device)
    first = depths[depth][0].first_row
    hanging = (Spans.of((_rows_below(node, depth - above) for node in depths[above]), device) for above in range(depth))
    return Level(slice(first, first + nodes.rows), nodes, tuple(hanging))


def _rows_below(node: Node, steps: int) -> int:
    return sum(_rows_below(below, steps - 1) for below in node.below) if steps else len(node.tokens)


def _index(values: Iterable[int], device: torch.device) -> Tensor:
    # An array is read as it is; a list would be looked through number by number.
    numbers = array("q", values)
    known = torch.frombuffer(numbers, dtype=torch.long) if numbers else torch.empty(0, dtype=torch.long)
    return known.to(device, non_blocking=True)


def portions(pairs: Pairs, limit: int) -> list[list[int]]:
    """The sequences' numbers cut into portions of at most `limit` rows, a prompt's rollouts together where that is possible.

    A sequence that is longer than the limit is a portion by itself.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, (prompt, _) in enumerate(pairs):
        groups.setdefault(tuple(prompt), []).append(number)
    found: list[list[int]] = []
    room = 0
    for prompt, members in groups.items():
        is_open = len(prompt) + sum(len(pairs[member][1]) for member in members) <= room
        room -= len(prompt)
        for member in members:
            drawn = len(pairs[member][1])
            if not is_open or drawn > room:
                found.append([])
                room, is_open = limit - len(prompt), True
            found[-1].append(member)
            room -= drawn
    return found
