"""The layout of sequences for one pass: shared prefixes run once, and nothing is padded.

Sequences are a forest of token spans (nodes). A row attends to all rows of the nodes above its own,
and to its own node's rows up to itself. Nodes of one depth are contiguous, in the order of their
parents. A drawn token is predicted by the row of the token before it, so the last token of a
sequence needs no row."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

Tokens: TypeAlias = Sequence[int]
Pairs: TypeAlias = Sequence[tuple[Tokens, Tokens]]
"""Prompts, each with the tokens that were drawn after it."""
Path: TypeAlias = tuple[int, ...]

_WORTH: Final = 0.05
"""The least share of all rows that one more depth must save, since each depth costs attention calls
in every layer.
"""


@dataclass(slots=True, eq=False)
class TokenNode:
    """A span of tokens with its first position, its parent and its children. `first_row` is set by
    the layout.
    """

    tokens: Path
    start: int
    above: "TokenNode | None"
    below: "list[TokenNode]" = field(default_factory=list)
    first_row: int = 0

    @property
    def end(self) -> int:
        """One past the position of the last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Stem:
    """Paths, by their indices, with a common prefix of `length` tokens."""

    members: Sequence[int]
    length: int

    @property
    def saved(self) -> int:
        """Rows saved by running the prefix once."""
        return (len(self.members) - 1) * self.length


def grow(pairs: Pairs) -> tuple[list[TokenNode], list[TokenNode]]:
    """The roots of a forest of token spans in which each shared beginning occurs once, and the last
    node of each sequence.

    The parent of a prompt is its common beginning with other prompts; the parent of a rollout is
    its prompt, or a beginning that several rollouts share. Equal rollouts are one node. The last
    token of a sequence is left out."""
    tails: dict[Path, dict[Path, None]] = {}
    for prompt, drawn in pairs:
        tails.setdefault(tuple(prompt), {})[tuple(drawn[:-1])] = None
    rows = sum(len(prompt) + sum(map(len, drawn)) for prompt, drawn in tails.items())
    roots: list[TokenNode] = []
    places = _place(
        list(tails), _worthwhile({(): stems(list(tails))}, rows)[()], partial(_plant, roots)
    )
    ways = _worthwhile({prompt: stems(list(drawn)) for prompt, drawn in tails.items()}, rows)
    ends = {
        prompt: _place(list(drawn), ways[prompt], partial(_hang, places[prompt]))
        for prompt, drawn in tails.items()
    }
    return roots, [ends[tuple(prompt)][tuple(drawn[:-1])] for prompt, drawn in pairs]


def _plant(roots: list[TokenNode], tokens: Path) -> TokenNode:
    roots.append(TokenNode(tokens, 0, None))
    return roots[-1]


def _hang(above: TokenNode, tokens: Path) -> TokenNode:
    if not tokens:
        return above
    node = TokenNode(tokens, above.end, above)
    above.below.append(node)
    return node


def _place(
    paths: Sequence[Path], stems: Sequence[Stem], add: Callable[[Path], TokenNode]
) -> dict[Path, TokenNode]:
    places: dict[Path, TokenNode] = {}
    for stem in stems:
        if not stem.length:
            places |= {paths[number]: add(paths[number]) for number in stem.members}
            continue
        shared = add(paths[stem.members[0]][: stem.length])
        places |= {
            paths[number]: _hang(shared, paths[number][stem.length :]) for number in stem.members
        }
    return places


def _worthwhile(stems: Mapping[Path, Sequence[Stem]], rows: int) -> Mapping[Path, Sequence[Stem]]:
    if sum(stem.saved for of_path in stems.values() for stem in of_path) >= _WORTH * rows:
        return stems
    return {path: [Stem(stem.members, 0) for stem in of_path] for path, of_path in stems.items()}


def stems(paths: Sequence[Path]) -> list[Stem]:
    """Divide the paths into sets with a common prefix, so that the most rows are saved."""
    order = sorted(range(len(paths)), key=paths.__getitem__)
    common = [_common(paths[one], paths[two]) for one, two in pairwise(order)]
    split = cache(partial(_split, common))
    ways: dict[tuple[int, int, int], _Way] = {}
    # An explicit stack, not recursion: the prompts of a long conversation are prefixes of each
    # other, many levels deep.
    waiting = [(0, len(paths), 0)] if paths else []
    while waiting:
        begin, end, above = waiting[-1]
        if end - begin == 1:
            ways[begin, end, above] = _Way(above, (), (order[begin],))
        else:
            least, parts = split(begin, end)
            needed = [
                (*bounds, length) for length in {above, max(above, least)} for bounds in parts
            ]
            if missing := [key for key in needed if key not in ways]:
                waiting += missing
                continue
            ways[begin, end, above] = _better(
                _beside([ways[*bounds, above] for bounds in parts]),
                _beside([ways[*bounds, max(above, least)] for bounds in parts]),
                least,
            )
        waiting.pop()
    way = ways[0, len(paths), 0] if paths else _Way(0, (), ())
    return [*way.stems, *(Stem((number,), 0) for number in way.left)]


def _split(common: Sequence[int], begin: int, end: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The length of the common prefix of the paths at these places, and the ranges of them with a
    longer one.
    """
    least = min(common[begin : end - 1])
    cuts = [place + 1 for place in range(begin, end - 1) if common[place] == least]
    return least, tuple(pairwise((begin, *cuts, end)))


class _Way(NamedTuple):
    """The rows saved, the stems that save them, and the paths left for a shorter stem, which counts
    as if it existed.
    """

    saved: int
    stems: tuple[Stem, ...]
    left: tuple[int, ...]


def _better(without: _Way, inside: _Way, length: int) -> _Way:
    """The better of two choices: leave the paths to a shorter stem, or add a stem of this length
    for those that `inside` left.
    """
    saved = inside.saved - length
    if not length or len(inside.left) < 2 or saved < without.saved:
        return without
    return _Way(saved, (*inside.stems, Stem(inside.left, length)), ())


def _beside(ways: Sequence[_Way]) -> _Way:
    return _Way(
        sum(way.saved for way in ways),
        tuple(stem for way in ways for stem in way.stems),
        tuple(number for way in ways for number in way.left),
    )


def _common(one: Path, two: Path) -> int:
    # Bisection: comparing slices is much faster than comparing tokens one by one.
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == two[low:middle] else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True)
class Spans:
    """Contiguous segments of rows: their bounds, on the host and on the device, and the longest
    length.
    """

    bounds: tuple[int, ...]
    cumulative: Tensor
    longest: int

    @classmethod
    def of(cls, lengths: Iterable[int], device: torch.device) -> "Spans":
        """Segments of these lengths."""
        known = list(lengths)
        bounds = (0, *accumulate(known))
        return cls(
            bounds,
            torch.tensor(bounds, dtype=torch.int32).to(device, non_blocking=True),
            max(known),
        )

    @property
    def rows(self) -> int:
        """Number of rows of all segments."""
        return self.bounds[-1]

    def slices(self) -> list[slice]:
        """The rows of each segment."""
        return [slice(begin, end) for begin, end in pairwise(self.bounds)]


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth: their rows, and for each depth above, the same rows grouped by
    ancestor.
    """

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
    for node, row in zip(
        nodes, accumulate((len(node.tokens) for node in nodes), initial=0), strict=False
    ):
        node.first_row = row
    predictors = (
        _predictors(end, len(prompt), len(drawn))
        for end, (prompt, drawn) in zip(ends, pairs, strict=True)
    )
    return Packed(
        ids=_index(chain.from_iterable(node.tokens for node in nodes), device),
        positions=_index(
            chain.from_iterable(range(node.start, node.end) for node in nodes), device
        ),
        levels=tuple(_level(depths, depth, device) for depth in range(len(depths))),
        rows_D=_index(chain.from_iterable(predictors), device),
        targets_D=_index(chain.from_iterable(drawn for _, drawn in pairs), device),
    )


def _predictors(end: TokenNode, prompt: int, drawn: int) -> list[int]:
    rows: list[int] = []
    node: TokenNode | None = end
    while node is not None and len(rows) < drawn:
        first = max(node.start, prompt - 1)
        rows[:0] = range(node.first_row + first - node.start, node.first_row + len(node.tokens))
        node = node.above
    return rows


def _level(depths: list[list[TokenNode]], depth: int, device: torch.device) -> Level:
    nodes = Spans.of((len(node.tokens) for node in depths[depth]), device)
    first = depths[depth][0].first_row
    hanging = (
        Spans.of((_rows_below(node, depth - above) for node in depths[above]), device)
        for above in range(depth)
    )
    return Level(slice(first, first + nodes.rows), nodes, tuple(hanging))


def _rows_below(node: TokenNode, steps: int) -> int:
    return sum(_rows_below(below, steps - 1) for below in node.below) if steps else len(node.tokens)


def _index(values: Iterable[int], device: torch.device) -> Tensor:
    # torch takes an array as a buffer; a list would be converted number by number.
    numbers = array("q", values)
    known = (
        torch.frombuffer(numbers, dtype=torch.long) if numbers else torch.empty(0, dtype=torch.long)
    )
    return known.to(device, non_blocking=True)


def portions(pairs: Pairs, limit: int) -> list[list[int]]:
    """Batches of sequence indices of at most `limit` rows each; rollouts of one prompt stay
    together if possible.

    A sequence that is longer than the limit is a batch of one.
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
