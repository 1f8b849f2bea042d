"""What several sequences begin with, found once: sequences as a forest of stretches of tokens.

A prompt hangs from what it has in common with other prompts, and what was drawn after it from the prompt, possibly by way of a
beginning that several rollouts have in common. Equal rollouts are one node.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

Tokens: TypeAlias = Sequence[int]
Pairs: TypeAlias = Sequence[tuple[Tokens, Tokens]]
"""Prompts and what was drawn after each of them."""
Path: TypeAlias = tuple[int, ...]

_WORTH: Final = 0.05
"""What one more depth must save of all rows: each depth costs attention calls in every layer."""


@dataclass(slots=True, eq=False)
class Node:
    """A stretch of tokens, at which position it starts, and the nodes above and below. Rows are numbered when they are laid out."""

    tokens: Path
    start: int
    above: "Node | None"
    below: "list[Node]" = field(default_factory=list)
    first_row: int = 0

    @property
    def end(self) -> int:
        """One past the position of the last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Stem:
    """Paths, by their numbers, that begin with the same `length` tokens."""

    members: Sequence[int]
    length: int

    @property
    def saved(self) -> int:
        """How many rows it saves to run the beginning once."""
        return (len(self.members) - 1) * self.length


def grow(pairs: Pairs) -> tuple[list[Node], list[Node]]:
    """The roots of the forest, and for each sequence the node that ends with its last but one token."""
    tails: dict[Path, dict[Path, None]] = {}
    for prompt, drawn in pairs:
        tails.setdefault(tuple(prompt), {})[tuple(drawn[:-1])] = None
    rows = sum(len(prompt) + sum(map(len, drawn)) for prompt, drawn in tails.items())
    roots: list[Node] = []
    places = _place(list(tails), _worthwhile({(): stems(list(tails))}, rows)[()], partial(_plant, roots))
    ways = _worthwhile({prompt: stems(list(drawn)) for prompt, drawn in tails.items()}, rows)
    ends = {prompt: _place(list(drawn), ways[prompt], partial(_hang, places[prompt])) for prompt, drawn in tails.items()}
    return roots, [ends[tuple(prompt)][tuple(drawn[:-1])] for prompt, drawn in pairs]


def _plant(roots: list[Node], tokens: Path) -> Node:
    roots.append(Node(tokens, 0, None))
    return roots[-1]


def _hang(above: Node, tokens: Path) -> Node:
    if not tokens:
        return above
    node = Node(tokens, above.end, above)
    above.below.append(node)
    return node


def _place(paths: Sequence[Path], found: Sequence[Stem], add: Callable[[Path], Node]) -> dict[Path, Node]:
    places: dict[Path, Node] = {}
    for stem in found:
        if not stem.length:
            places |= {paths[number]: add(paths[number]) for number in stem.members}
            continue
        shared = add(paths[stem.members[0]][: stem.length])
        places |= {paths[number]: _hang(shared, paths[number][stem.length :]) for number in stem.members}
    return places


def _worthwhile(found: Mapping[Path, Sequence[Stem]], rows: int) -> Mapping[Path, Sequence[Stem]]:
    if sum(stem.saved for some in found.values() for stem in some) >= _WORTH * rows:
        return found
    return {path: [Stem(stem.members, 0) for stem in some] for path, some in found.items()}


def stems(paths: Sequence[Path]) -> list[Stem]:
    """The paths in sets with a common beginning, each path in one set, so that the most rows are saved."""
    order = sorted(range(len(paths)), key=paths.__getitem__)
    common = [_common(paths[one], paths[two]) for one, two in pairwise(order)]
    split = cache(partial(_split, common))
    ways: dict[tuple[int, int, int], _Way] = {}
    # By hand and not by recursion: a long conversation's prompts begin with each other, one inside the other.
    waiting = [(0, len(paths), 0)] if paths else []
    while waiting:
        begin, end, above = waiting[-1]
        if end - begin == 1:
            ways[begin, end, above] = _Way(above, (), (order[begin],))
        else:
            least, parts = split(begin, end)
            needed = [(*bounds, length) for length in {above, max(above, least)} for bounds in parts]
            if missing := [one for one in needed if one not in ways]:
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
    """How long a beginning the paths in these places share, and the parts of them that share more."""
    least = min(common[begin : end - 1])
    cuts = [place + 1 for place in range(begin, end - 1) if common[place] == least]
    return least, tuple(pairwise((begin, *cuts, end)))


class _Way(NamedTuple):
    """What is saved, by which stems, and the paths that are left to a stem further up, counted as if that were there already."""

    saved: int
    stems: tuple[Stem, ...]
    left: tuple[int, ...]


def _better(without: _Way, inside: _Way, length: int) -> _Way:
    """What saves more: leaving paths to whatever is further up, or a stem of this length for those that `inside` leaves to it."""
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
    # By halves: comparing slices is much faster than comparing tokens.
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == two[low:middle] else (low, middle - 1)
    return low
