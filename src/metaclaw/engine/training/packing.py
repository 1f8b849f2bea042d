"""Sequences laid out for one pass: each prompt once, then everything drawn after it, without padding.

All prompts' rows come first, then all tails'. A tail is what was drawn without its last token, which predicts nothing. A drawn
token is predicted by the row of the token before it: the first one by its prompt's last row, which all rollouts of a prompt share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import TypeAlias

import torch
from torch import Tensor

Tokens: TypeAlias = Sequence[int]
Pairs: TypeAlias = Sequence[tuple[Tokens, Tokens]]
"""Prompts and what was drawn after each of them."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Neighbouring stretches of rows: where each begins and the last one ends, here and on the device."""

    bounds: tuple[int, ...]
    cumulative: Tensor

    @classmethod
    def of(cls, lengths: Iterable[int], device: torch.device) -> "Spans":
        """Stretches of these lengths."""
        bounds = (0, *accumulate(lengths))
        return cls(bounds, torch.tensor(bounds, dtype=torch.int32, device=device))

    @property
    def rows(self) -> int:
        """How many rows all stretches have."""
        return self.bounds[-1]

    @property
    def longest(self) -> int:
        """The length of the longest stretch."""
        return max((end - begin for begin, end in pairwise(self.bounds)), default=0)

    def slices(self) -> list[slice]:
        """Each stretch's rows."""
        return [slice(begin, end) for begin, end in pairwise(self.bounds)]

    def first(self, count: int) -> "Spans":
        """The first stretches alone."""
        return Spans(self.bounds[: count + 1], self.cumulative[: count + 1])


@dataclass(frozen=True, slots=True)
class Packed:
    """One pass. `asked` are the prompts that have tails, `joined` all tails of each of those together, `tails` each for itself."""

    ids: Tensor
    positions: Tensor
    prompts: Spans
    asked: Spans
    joined: Spans
    tails: Spans
    rows_D: Tensor
    targets_D: Tensor


def pack(pairs: Pairs, device: torch.device) -> Packed:
    """The layout of these sequences; `rows_D` and `targets_D` run over the drawn tokens in the order given."""
    groups = _groups(pairs)
    prompts = [pairs[members[0]][0] for members in groups]
    tails = {member: pairs[member][1][:-1] for members in groups for member in members}
    spans = Spans.of(map(len, prompts), device)
    joined = [sum(len(tails[member]) for member in members) for members in groups]
    starts = dict(zip(tails, accumulate(map(len, tails.values()), initial=spans.rows), strict=False))
    lasts = {member: end - 1 for members, end in zip(groups, spans.bounds[1:], strict=True) for member in members}
    return Packed(
        ids=_index(chain(*prompts, *tails.values()), device),
        positions=_index(
            chain(
                *(range(len(prompt)) for prompt in prompts),
                *(range(len(pairs[member][0]), len(pairs[member][0]) + len(tail)) for member, tail in tails.items()),
            ),
            device,
        ),
        prompts=spans,
        asked=spans.first(sum(map(bool, joined))),
        joined=Spans.of(filter(None, joined), device),
        tails=Spans.of((len(tail) for tail in tails.values() if tail), device),
        rows_D=_index(chain(*(_predictors(lasts[n], starts[n], len(drawn)) for n, (_, drawn) in enumerate(pairs))), device),
        targets_D=_index(chain(*(drawn for _, drawn in pairs)), device),
    )


def _predictors(last: int, start: int, drawn: int) -> Iterable[int]:
    return (last, *range(start, start + drawn - 1)) if drawn else ()


def _groups(pairs: Pairs) -> list[list[int]]:
    # Prompts without any tail go last: an attention call then never meets a prompt that no tail asks.
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, (prompt, _) in enumerate(pairs):
        groups.setdefault(tuple(prompt), []).append(number)
    return sorted(groups.values(), key=lambda members: all(len(pairs[member][1]) < 2 for member in members))


def _index(values: Iterable[int], device: torch.device) -> Tensor:
    return torch.tensor(list(values), dtype=torch.long).to(device, non_blocking=True)


def portions(pairs: Pairs, limit: int) -> list[list[int]]:
    """The sequences' numbers cut into portions of at most `limit` rows, a prompt's rollouts together where that is possible.

    A sequence that is longer than the limit is a portion by itself.
    """
    found: list[list[int]] = []
    room = 0
    for members in _groups(pairs):
        prompt = len(pairs[members[0]][0])
        whole = prompt + sum(len(pairs[member][1]) for member in members)
        is_open = whole <= room
        room -= prompt
        for member in members:
            drawn = len(pairs[member][1])
            if not is_open or drawn > room:
                found.append([])
                room, is_open = limit - prompt, True
            found[-1].append(member)
            room -= drawn
    return found
