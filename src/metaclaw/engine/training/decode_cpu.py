"""Decoding on a CPU, where arithmetic is the cost: nothing is computed twice, and finished rollouts
leave the batch at once.

A prompt is read once for its whole group, short prompts are read together, and keys and values of a
beginning that another prompt shares are copied. All rollouts are at the same step: each attends to
its group's prompt and to its own tokens. Two calls do this for all rollouts, and their outputs are
joined by their log-sums."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from metaclaw.engine.attention import padding_mask, shared_prefix
from metaclaw.engine.drawing import Heat, choose
from metaclaw.engine.stack import Stack
from metaclaw.engine.training.decode import Wave

_CHUNK_TOKENS: Final = 256
"""Prompt tokens of one pass."""

_MOST_ROLLOUTS: Final = 256
_MOST_BYTES: Final = 1 << 30
"""The limit for the keys and values of one wave."""
_PACKING_SHARE: Final = 0.6
"""The rows are packed again when at most this share is still running. Packing more often costs more
than it saves.
"""


class LeavingDecoder:
    """Draws waves on the CPU; the projections run only for unfinished rollouts. `share` makes waves
    smaller.
    """

    def __init__(self, stack: Stack, share: float = 1.0) -> None:
        self._stack = stack
        self._share = share

    def most_rollouts(self, prompt_tokens: int, max_tokens: int, count: int) -> int:
        """The most rollouts of one wave, for prompts of this length and groups of `count`, that fit
        the memory for keys.
        """
        size = self._stack.shape.layers * self._stack.shape.kv_width * self._stack.dtype.itemsize
        most = min(
            _MOST_ROLLOUTS, _MOST_BYTES // (size * (max_tokens + -(-prompt_tokens // count)))
        )
        return max(1, int(self._share * most))

    @torch.inference_mode()
    def decode(self, wave: Wave) -> tuple[Tensor, Tensor]:
        """Read the prompts, then draw token by token until every rollout has ended or is full."""
        heat, ends = Heat.of(wave.temperature), torch.tensor(sorted(wave.end_ids), dtype=torch.long)
        rows = len(wave.prompts) * wave.count
        uniform = wave.uniforms.view(rows, wave.max_tokens)
        tokens = torch.zeros(rows, wave.max_tokens, dtype=torch.long)
        logprobs = torch.zeros(rows, wave.max_tokens)
        cache = _WaveCache(self._stack, wave.prompts, wave.count, wave.max_tokens - 1)
        logits = self._stack.logits(cache.read()).repeat_interleave(wave.count, 0)
        live = torch.arange(rows)
        for place in range(wave.max_tokens):
            chosen, chosen_logprobs = choose(logits, uniform[live, place], heat)
            tokens[live, place], logprobs[live, place] = chosen, chosen_logprobs
            stays = torch.isin(chosen, ends, invert=True)
            if place + 1 == wave.max_tokens or not stays.any():
                break
            if not stays.all():
                live, chosen = live[stays], chosen[stays]
                cache.keep(stays)
            logits = self._stack.logits(cache.advance(chosen))
        shape = (len(wave.prompts), wave.count, wave.max_tokens)
        return tokens.view(shape), logprobs.view(shape)


class _WaveCache:
    """The keys and values of a wave: `groups` × `count` slots, some of which are still running."""

    def __init__(
        self, stack: Stack, prompts: Sequence[Sequence[int]], count: int, room: int
    ) -> None:
        self._stack, self._prompts = stack, prompts
        shape = stack.shape
        self._split = (shape.kv_heads, shape.heads // shape.kv_heads, shape.head_width)
        self._query_width = shape.query_width
        self._groups, self._count, self._step = len(prompts), count, 0
        self._lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(self._lengths.max())
        # Zero pages cost nothing until they are used, and masked numbers must be finite.
        self._prefix = torch.zeros(
            shape.layers,
            2,
            self._groups,
            shape.kv_heads,
            longest,
            shape.head_width,
            dtype=stack.dtype,
        )
        self._own = torch.zeros(
            shape.layers,
            2,
            self._groups,
            shape.kv_heads,
            count,
            room,
            shape.head_width,
            dtype=stack.dtype,
        )
        self._live = torch.arange(self._groups * count)
        self._mask = padding_mask(self._lengths.tolist(), stack.dtype)
        self._slots = torch.zeros(
            len(self._live), shape.query_width + shape.kv_width, dtype=stack.dtype
        )

    def read(self) -> Tensor:
        """Run the prompts, several short ones in a pass; return the last row of each."""
        lasts: dict[int, Tensor] = {}
        for pieces in _passes(self._pieces()):
            rows = self._read_pieces(pieces)
            for piece, its_rows in zip(
                pieces, torch.split(rows, [len(piece.tokens) for piece in pieces]), strict=True
            ):
                lasts[piece.group] = its_rows[-1]
        return torch.stack([lasts[group] for group in range(self._groups)])

    def _pieces(self) -> Iterator["_Piece"]:
        """The parts of each prompt to be read, in an order in which each prompt shares as much as
        possible with the one before.
        """
        before: int | None = None
        for group in sorted(range(self._groups), key=lambda index: tuple(self._prompts[index])):
            prompt = self._prompts[group]
            known = (
                0
                if before is None
                else min(shared_prefix(self._prompts[before], prompt), len(prompt) - 1)
            )
            for start in range(known, len(prompt), _CHUNK_TOKENS):
                copied = before if start == known and known else None
                yield _Piece(group, start, prompt[start : start + _CHUNK_TOKENS], copied)
            before = group

    def advance(self, tokens: Tensor) -> Tensor:
        """Run one token of every live row."""
        positions = self._lengths[self._live // self._count] + self._step
        rows = self._stack.run(
            self._stack.embed(tokens), self._stack.rotations(positions), self._attend
        )
        self._step += 1
        return rows

    def keep(self, stays: Tensor) -> None:
        """Drop the other rows."""
        self._live = self._live[stays]
        counts = torch.bincount(self._live // self._count, minlength=self._groups)
        groups, count = int((counts > 0).sum()), int(counts.max())
        if groups * count <= _PACKING_SHARE * self._groups * self._count:
            self._repack(counts, count)

    def _repack(self, counts: Tensor, count: int) -> None:
        kept = counts.nonzero().squeeze(1)
        # The slot for each new place. Places beyond the live rows of a group repeat its first slot
        # and are not read.
        firsts = (counts.cumsum(0) - counts)[kept].unsqueeze(1)
        places = torch.arange(count).unsqueeze(0)
        is_live = places < counts[kept].unsqueeze(1)
        slots = self._live[firsts + places * is_live] % self._count
        before = self._own
        layers, _, _, kv_heads, _, room, width = before.shape
        self._own = torch.zeros(
            layers, 2, len(kept), kv_heads, count, room, width, dtype=before.dtype
        )
        for own, layer in zip(self._own, before, strict=True):
            # Indices with others between them come first: [group, place, 2, head, step, width].
            own[..., : self._step, :] = layer[:, kept[:, None], :, slots, : self._step].permute(
                2, 0, 3, 1, 4, 5
            )
        self._lengths, self._groups, self._count = self._lengths[kept], len(kept), count
        self._prefix = self._prefix[:, :, kept, :, : int(self._lengths.max())]
        self._live = is_live.flatten().nonzero().squeeze(1)
        self._mask = padding_mask(self._lengths.tolist(), before.dtype)
        self._slots = torch.zeros(len(kept) * count, self._slots.shape[1], dtype=before.dtype)

    def _read_pieces(self, pieces: Sequence["_Piece"]) -> Tensor:
        lengths = [len(piece.tokens) for piece in pieces]

        def attend(number: int, mixed: Tensor) -> Tensor:
            # One after the other: a piece may copy a beginning that is read in the same pass.
            parts = torch.split(mixed, lengths)
            return torch.cat(
                [
                    self._attend_piece(number, piece, part)
                    for piece, part in zip(pieces, parts, strict=True)
                ]
            )

        positions = torch.cat(
            [torch.arange(piece.start, piece.start + len(piece.tokens)) for piece in pieces]
        )
        tokens = torch.tensor([token for piece in pieces for token in piece.tokens])
        return self._stack.run(self._stack.embed(tokens), self._stack.rotations(positions), attend)

    def _attend_piece(self, number: int, piece: "_Piece", mixed: Tensor) -> Tensor:
        kv_heads, shared, width = self._split
        start, length = piece.start, len(piece.tokens)
        cache = self._prefix[number, :, piece.group]
        if piece.copied is not None:
            cache[:, :, :start] = self._prefix[number, :, piece.copied, :, :start]
        queries, pairs = mixed[:, : self._query_width], mixed[:, self._query_width :]
        cache[:, :, start : start + length] = pairs.view(length, 2, kv_heads, width).permute(
            1, 2, 0, 3
        )
        heads = queries.reshape(1, length, -1, width).transpose(1, 2)
        keys, values = (
            cache[:, :, start : start + length].repeat_interleave(shared, dim=1).unsqueeze(1)
        )
        out, sums = _flash(heads, keys, values, is_causal=True)
        if start:
            keys, values = cache[:, None, :, :start]
            grouped = heads.reshape(1, kv_heads, shared * length, width)
            seen, seen_sums = _flash(grouped, keys, values)
            out = _join(out, sums, seen.reshape(out.shape), seen_sums.reshape(sums.shape))
        return out.transpose(1, 2).reshape(length, -1)

    def _attend(self, number: int, mixed: Tensor) -> Tensor:
        kv_heads, shared, width = self._split
        is_full = len(self._live) == len(self._slots)
        slots = mixed if is_full else self._slots.index_copy_(0, self._live, mixed)
        queries, pairs = slots[:, : self._query_width], slots[:, self._query_width :]
        own = self._own[number]
        own[..., self._step, :] = pairs.view(self._groups, self._count, 2, kv_heads, width).permute(
            2, 0, 3, 1, 4
        )
        # Query heads that share a key head are rows of that head, and so are the rollouts that
        # share a prompt.
        heads = (
            queries.view(self._groups, self._count, kv_heads, shared, width)
            .transpose(1, 2)
            .contiguous()
        )
        keys, values = self._prefix[number]
        out, sums = _flash(
            heads.view(self._groups, kv_heads, -1, width), keys, values, mask=self._mask
        )
        keys, values = own[..., : self._step + 1, :].flatten(2, 3)
        own_out, own_sums = _flash(heads.view(self._groups, -1, shared, width), keys, values)
        apart = heads.shape
        joined = _join(
            out.reshape(apart),
            sums.reshape(apart[:-1]),
            own_out.reshape(apart),
            own_sums.reshape(apart[:-1]),
        )
        rows = joined.transpose(1, 2).reshape(len(slots), -1)
        return rows if is_full else rows[self._live]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens of a group's prompt from `start` on; the tokens before them are copied from the group
    `copied`, if it is set.
    """

    group: int
    start: int
    tokens: Sequence[int]
    copied: int | None


def _passes(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """The pieces in order, grouped into passes of at most `_CHUNK_TOKENS` tokens."""
    batch: list[_Piece] = []
    for piece in pieces:
        if (
            batch
            and sum(len(member.tokens) for member in batch) + len(piece.tokens) > _CHUNK_TOKENS
        ):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _flash(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention, and the log-sum-exp of each row, by which it can be joined with attention over
    other keys.
    """
    result: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries, keys, values, 0.0, is_causal, attn_mask=mask
    )
    return result


def _join(one: Tensor, one_sums: Tensor, other: Tensor, other_sums: Tensor) -> Tensor:
    weight = torch.sigmoid(other_sums - one_sums).unsqueeze(-1)
    return torch.lerp(one, other, weight.to(one.dtype))
