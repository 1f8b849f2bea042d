"""Near-duplicates among very many skills without comparing every two: minhash in one pass, then a look at the few that agree.

Each term has one 64-bit hash. A skill's hashes fall into `_BINS` bins by their remainder; the least of each bin is one minhash (an
empty bin borrows from the next). Two skills agree in a bin with the probability of their overlap (Jaccard), so in `_ROWS` bins at
once with that to the power of `_ROWS`: of 12 bands of 3, an overlap of 0.7 shares a band with probability 0.99, one of 0.2 with
0.09. Only skills that share a band are compared: first by how many bins agree, which is cheap, and then by their true overlap. In a
band that very many share (a library written from one template) they are sorted by their other bins and each is compared with its
`_NEAREST` neighbours, so the work stays linear and the most alike still meet.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import eq
from typing import NamedTuple

from metaclaw.domain.skill import Skill
from metaclaw.skills.gate.duplicates import overlap, text_terms

_BINS = 36
_ROWS = 3
_NEAREST = 4
_SLACK = 0.15  # how far the share of agreeing bins may fall short of the overlap: two standard errors
_NO_TERMS: list[int | None] = [None] * _BINS
_MEMO = 200_000
_hashes: dict[str, int] = {}
Minhash = tuple[int, ...]


class Pair(NamedTuple):
    """Two skills of the same scope that say nearly the same."""

    one: Skill
    other: Skill
    overlap: float


def find_similar(skills: Sequence[Skill], at_least: float = 0.7, *, across_scopes: bool = False) -> list[Pair]:
    """Pairs with at least this overlap, the most alike first; ties by name. Within a scope, unless told otherwise."""
    hashes = [array("Q", map(_hash, text_terms(skill))) for skill in skills]  # a tenth of the memory of the terms themselves
    likely = sorted(_likely_pairs(skills, list(map(_minhash, hashes)), _BINS * (at_least - _SLACK), across_scopes))
    pairs = (Pair(skills[a], skills[b], overlap(hashes[a], hashes[b])) for a, b in likely)
    alike = (pair for pair in pairs if pair.overlap >= at_least)
    return sorted(alike, key=lambda pair: (-pair.overlap, pair.one.name, pair.other.name))


def group_similar(pairs: Iterable[Pair]) -> list[tuple[Skill, ...]]:
    """Skills that are similar to one another, directly or over a third, as groups; each by name."""
    leader: dict[str, str] = {}
    skills: dict[str, Skill] = {}
    for pair in pairs:
        for skill in (pair.one, pair.other):
            skills.setdefault(skill.name, skill)
        leader[_lead(leader, pair.one.name)] = _lead(leader, pair.other.name)
    groups: dict[str, list[Skill]] = {}
    for name in sorted(skills):
        groups.setdefault(_lead(leader, name), []).append(skills[name])
    return [tuple(group) for group in groups.values()]


def _likely_pairs(
    skills: Sequence[Skill], minhashes: Sequence[Minhash], least_bins: float, across_scopes: bool
) -> set[tuple[int, int]]:
    """Numbers of skills that share a band and agree in enough bins. One band at a time: the buckets of all would be large."""
    likely: set[tuple[int, int]] = set()
    for band in range(0, _BINS, _ROWS):
        buckets: dict[tuple[object, ...], list[int]] = {}
        for number, minhash in enumerate(minhashes):
            if minhash:
                scope = None if across_scopes else skills[number].scope
                buckets.setdefault((scope, *minhash[band : band + _ROWS]), []).append(number)
        for bucket in buckets.values():
            if len(bucket) > _NEAREST:
                bucket.sort(key=lambda number: minhashes[number][band:] + minhashes[number][:band])
            for one, other in _near_by(bucket):
                if sum(map(eq, minhashes[one], minhashes[other])) >= least_bins:
                    likely.add((min(one, other), max(one, other)))
    return likely


def _minhash(hashes: Iterable[int]) -> Minhash:
    """The least hash of each bin, or nothing for a text without terms."""
    least: list[int | None] = [None] * _BINS
    for value in hashes:
        at = value % _BINS
        known = least[at]
        if known is None or value < known:
            least[at] = value
    if least == _NO_TERMS:
        return ()
    return tuple([one if one is not None else _borrow(least, at) for at, one in enumerate(least)])


def _borrow(least: Sequence[int | None], at: int) -> int:
    for step in range(1, _BINS):
        value = least[(at + step) % _BINS]
        if value is not None:
            return value + step
    raise ValueError("a text without terms has no minhash")


def _hash(term: str) -> int:
    value = _hashes.get(term)
    if value is None:
        if len(_hashes) >= _MEMO:
            _hashes.clear()
        value = _hashes[term] = int.from_bytes(
            hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
        )
    return value


def _near_by(bucket: Sequence[int]) -> Iterator[tuple[int, int]]:
    for at, number in enumerate(bucket):
        for other in bucket[at + 1 : at + 1 + _NEAREST]:
            yield number, other


def _lead(leader: dict[str, str], name: str) -> str:
    while (above := leader.setdefault(name, name)) != name:
        leader[name] = leader[above]
        name = above
    return name
