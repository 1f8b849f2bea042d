"""Decoding on a CPU, where arithmetic is the cost: nothing is computed twice, and finished rollouts
leave the batch at once.

A prompt is read once for its whole group, short prompts are read together, and keys and values of a
beginning that another prompt shares are copied. All rollouts are at the same step: each attends to
its group's prompt and to its own tokens. Two calls do this for all rollouts, and their outputs are
joined by their log-sums."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from metaclaw.engine.attention import Cache, Span, padding_mask, run_spans, shared_prefix
from metaclaw.engine.drawing import Heat, Wave, choose
from metaclaw.engine.stack import Stack

_CHUNK_TOKENS: Final = 256
"""Prompt tokens of one pass."""
_WORTH_A_PASS: Final = 32
"""Tokens that a prompt must take over for the one before it to be read in a pass of its own."""

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
        self._cache = Cache(shape, self._groups, longest, stack.dtype)
        self._prefix = list(zip(*self._cache.view(slice(0, self._groups), longest), strict=True))
        """Per layer the keys and the values of the prompts, as [group, head, position, width]."""
        # Zero pages cost nothing until they are used, and masked numbers must be finite.
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
        """Run the prompts, several short ones in a pass; return the last row of each.

        A prompt takes over the beginning that it shares with one that has been read. In the order
        of their tokens, that is most with the one before."""
        lasts: dict[int, Tensor] = {}
        spans: list[Span] = []
        before: int | None = None
        known: int | None = None
        for group in sorted(range(self._groups), key=lambda index: tuple(self._prompts[index])):
            prompt = self._prompts[group]
            if spans and self._shared(before, prompt) > self._shared(known, prompt) + _WORTH_A_PASS:
                self._run(spans, lasts)
            if not spans:
                known = before
            start = self._shared(known, prompt)
            if known is not None:
                self._cache.copy(known, group, start)
            while start < len(prompt):
                room = _CHUNK_TOKENS - sum(len(span.tokens) for span in spans)
                spans.append(Span(group, start, prompt[start : start + room]))
                start = spans[-1].end
                if len(spans[-1].tokens) == room:
                    self._run(spans, lasts)
            before = group
        self._run(spans, lasts)
        return torch.stack([lasts[group] for group in range(self._groups)])

    def _shared(self, group: int | None, prompt: Sequence[int]) -> int:
        return 0 if group is None else shared_prefix(self._prompts[group], prompt[:-1])

    def _run(self, spans: list[Span], lasts: dict[int, Tensor]) -> None:
        if spans:
            rows = run_spans(self._stack, self._cache, spans)
            for span, its in zip(
                spans, torch.split(rows, [len(span.tokens) for span in spans]), strict=True
            ):
                lasts[span.slot] = its[-1]
            spans.clear()

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
        longest = int(self._lengths.max())
        self._prefix = [
            (keys[kept, :, :longest], values[kept, :, :longest]) for keys, values in self._prefix
        ]
        self._live = is_live.flatten().nonzero().squeeze(1)
        self._mask = padding_mask(self._lengths.tolist(), before.dtype)
        self._slots = torch.zeros(len(kept) * count, self._slots.shape[1], dtype=before.dtype)

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


def _flash(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention, and the log-sum-exp of each row, by which it can be joined with attention over
    other keys.
    """
    result: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries, keys, values, 0.0, False, attn_mask=mask
    )
    return result


def _join(one: Tensor, one_sums: Tensor, other: Tensor, other_sums: Tensor) -> Tensor:
    weight = torch.sigmoid(other_sums - one_sums).unsqueeze(-1)
    return torch.lerp(one, other, weight.to(one.dtype))
