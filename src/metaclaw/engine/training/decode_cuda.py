"""Decoding on a GPU, where kernel launches are the cost: there are few sizes of buffers, and each
step is one recorded CUDA graph.

Without a GPU the same steps run one by one, which is slow and only for tests. A finished rollout
continues to draw tokens, which are dropped: a row costs almost nothing on a GPU, but finding out
which rollouts have ended needs a synchronisation, so that is done only every few tokens."""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaclaw.engine.drawing import Heat, Wave, choose
from metaclaw.engine.stack import Stack

_READ_TOKENS: Final = 16_384
"""Padded prompt tokens read in one pass."""
_CHECK_TOKENS: Final = 16
"""Tokens drawn between two checks of whether all rollouts have ended."""
_MOST_ROLLOUTS: Final = 1024
_MEMORY_SHARE: Final = 0.25
"""The share of the GPU's memory for the keys and values of all buffers."""
_CPU_BYTES: Final = 1 << 30
_GROUPS: Final = sorted({1 << power for power in range(11)} | {3 << power for power in range(9)})
_OWN_TOKENS: Final = [64 << power for power in range(12)]


class Recorder:
    """Runs steps. On a GPU it records each step the first time and replays it
    later.

    A recorded step must use the same buffers each time, decide nothing on the host, and wait for
    nothing."""

    def __init__(self, device: torch.device) -> None:
        self._records = device.type == "cuda"
        self._graphs: dict[tuple[Hashable, ...], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._records else None

    def run(self, key: tuple[Hashable, ...], step: Callable[[], None]) -> None:
        """Run a step; the same key always means the same step."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        # The first run computes the step, and initialises what must not be initialised while
        # recording. Recording computes nothing.
        step()
        if self._records:
            # Recordings never run at the same time, so they share the memory of their intermediate
            # results, which is freed with the last recording.
            if not self._graphs:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step()
            self._graphs[key] = graph

    def forget(self, owner: Hashable) -> None:
        """Drop the recordings whose key begins with this owner."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if key[0] != owner}


@dataclass(frozen=True, slots=True)
class Size:
    """The capacity of buffers: groups, rollouts of each, tokens of a prompt, tokens of a
    rollout.
    """

    groups: int
    count: int
    prompt: int
    own: int

    @property
    def rows(self) -> int:
        return self.groups * self.count

    @property
    def positions(self) -> int:
        """The number of tokens whose keys and values fit."""
        return self.groups * (self.prompt + self.count * self.own)


class DecodeBuffers:
    """The buffers of one size, which keep their addresses, and one step over them without the host.
    For inference mode.

    Rows are [group, rollout]. A group's prompt is stored once: the queries of its rollouts attend
    to it together and to each rollout's own tokens separately, with one softmax over both. All
    rollouts are at the same token, so there is one counter."""

    def __init__(self, stack: Stack, size: Size) -> None:
        self.size = size
        self._stack = stack
        shape, device = stack.shape, stack.device
        self._heads = (shape.kv_heads, shape.heads // shape.kv_heads, shape.head_width)
        self._query_width = shape.query_width
        prompts = (2, size.groups, shape.kv_heads, size.prompt, shape.head_width)
        owns = (2, size.groups, shape.kv_heads, size.count, size.own, shape.head_width)
        # Zeros, because masked numbers must be finite.
        self._prompts = [
            torch.zeros(prompts, dtype=stack.dtype, device=device) for _ in range(shape.layers)
        ]
        self._owns = [
            torch.zeros(owns, dtype=stack.dtype, device=device) for _ in range(shape.layers)
        ]
        self._lengths = torch.ones(size.rows, dtype=torch.long, device=device)
        self._prompt_mask = torch.zeros(size.groups, size.prompt, device=device)
        self._places = torch.arange(max(size.prompt, size.own), device=device)
        self._step = torch.zeros(1, dtype=torch.long, device=device)
        self._tokens = torch.zeros(size.rows, dtype=torch.long, device=device)
        self._ended = torch.zeros(size.rows, dtype=torch.bool, device=device)
        self._end_ids = torch.tensor(sorted(shape.end_ids), dtype=torch.long, device=device)
        self._divisor = torch.ones(1, device=device)
        self._uniforms = torch.zeros(size.own + 1, size.rows, dtype=torch.float64, device=device)
        self._drawn = torch.zeros(size.own + 1, size.rows, dtype=torch.long, device=device)
        self._logprobs = torch.zeros(size.own + 1, size.rows, device=device)

    @property
    def is_finished(self) -> bool:
        """Whether every rollout has ended. The host waits for the device."""
        return bool(self._ended.all())

    def drawn(self, wave: Wave) -> tuple[Tensor, Tensor]:
        """The tokens and log-probabilities of the wave, as [group, rollout, token] on the CPU."""
        shape, rows = (
            (len(wave.prompts), wave.count, wave.max_tokens),
            len(wave.prompts) * wave.count,
        )
        tokens, logprobs = (
            buffer[: wave.max_tokens, :rows].t().cpu() for buffer in (self._drawn, self._logprobs)
        )
        return tokens.reshape(shape), logprobs.reshape(shape)

    def begin(self, wave: Wave) -> None:
        """Read the prompts and draw each rollout's first token. Groups that the wave does not fill
        have one token each.
        """
        filled = len(wave.prompts) * wave.count
        prompts = [*wave.prompts, *([[0]] * (self.size.groups - len(wave.prompts)))]
        lengths = torch.tensor([len(prompt) for prompt in prompts]).to(self._stack.device)
        self._lengths.copy_(lengths.repeat_interleave(self.size.count))
        self._prompt_mask.zero_().masked_fill_(
            self._places[: self.size.prompt] >= lengths.unsqueeze(1), float("-inf")
        )
        self._uniforms[: wave.max_tokens, :filled] = (
            wave.uniforms.flatten(0, 1).t().to(self._stack.device)
        )
        heat = Heat.of(wave.temperature)
        self._divisor.fill_(1.0 if heat.is_greedy else wave.temperature)
        self._ended.fill_(False)
        self._ended[filled:] = True
        self._step.fill_(-1)
        self._draw(
            self._stack.logits(self._read(prompts)).repeat_interleave(self.size.count, 0), heat
        )

    def advance(self, length: int, temperature: float) -> None:
        """Run the tokens drawn last and draw the next. A rollout has at most `length` own
        tokens.
        """
        future = torch.zeros(length, device=self._stack.device).masked_fill_(
            self._places[:length] > self._step, float("-inf")
        )
        mask = torch.cat((self._prompt_mask, future.expand(self.size.groups, -1)), -1)[
            :, None, None, :
        ]
        rotations = self._stack.rotations(self._lengths + self._step)
        rows = self._stack.embed(self._tokens)
        rows = self._stack.run(
            rows, rotations, lambda number, mixed: self._attend(number, mixed, mask, length)
        )
        self._draw(self._stack.logits(rows), Heat.of(temperature))

    def _draw(self, logits: Tensor, heat: Heat) -> None:
        # The temperature is read from its buffer, so that one recording serves all temperatures.
        live = heat if heat.divisor is None else Heat(is_greedy=False, divisor=self._divisor)
        self._step.add_(1)
        tokens, logprobs = choose(
            logits, self._uniforms.index_select(0, self._step).squeeze(0), live
        )
        self._tokens.copy_(tokens)
        self._drawn.index_copy_(0, self._step, tokens.unsqueeze(0))
        self._logprobs.index_copy_(0, self._step, logprobs.unsqueeze(0))
        self._ended.logical_or_((tokens.unsqueeze(1) == self._end_ids).any(1))

    def _attend(self, number: int, mixed: Tensor, mask: Tensor, length: int) -> Tensor:
        groups, count = self.size.groups, self.size.count
        kv_heads, shared, width = self._heads
        queries, pairs = mixed[:, : self._query_width], mixed[:, self._query_width :]
        own = self._owns[number]
        own.index_copy_(
            4,
            self._step,
            pairs.view(groups, count, 2, kv_heads, 1, width).permute(2, 0, 3, 1, 4, 5),
        )
        heads = (
            queries.view(groups, count, kv_heads, shared, width)
            .transpose(1, 2)
            .reshape(groups * kv_heads, -1, width)
        )
        keys, values = self._prompts[number].flatten(1, 2)
        own_keys, own_values = own.flatten(1, 3)[:, :, :length]
        prompt_scores = _wide_product(heads, keys.transpose(1, 2)).view(
            groups, kv_heads, count * shared, -1
        )
        own_scores = _wide_product(heads.view(-1, shared, width), own_keys.transpose(1, 2)).view(
            groups, kv_heads, count * shared, length
        )
        scores = torch.add(mask, torch.cat((prompt_scores, own_scores), -1), alpha=width**-0.5)
        weights = scores.softmax(-1).to(mixed.dtype).flatten(0, 1)
        of_prompt, of_own = weights[..., : self.size.prompt], weights[..., self.size.prompt :]
        out = torch.bmm(of_prompt, values)
        out.view(-1, shared, width).baddbmm_(
            of_own.view(groups * kv_heads * count, shared, length), own_values
        )
        return out.view(groups, kv_heads, count, -1).transpose(1, 2).reshape(len(mixed), -1)

    def _read(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, prompts))
        padded = torch.tensor(
            [[*prompt, *([0] * (longest - len(prompt)))] for prompt in prompts]
        ).to(self._stack.device)
        lasts = self._lengths[:: self.size.count] - 1
        at_once = max(1, _READ_TOKENS // longest)
        return torch.cat(
            [
                self._read_groups(
                    first, padded[first : first + at_once], lasts[first : first + at_once]
                )
                for first in range(0, len(prompts), at_once)
            ]
        )

    def _read_groups(self, first: int, padded: Tensor, lasts: Tensor) -> Tensor:
        groups, longest = padded.shape
        kv_heads, _, width = self._heads

        def attend(number: int, mixed: Tensor) -> Tensor:
            queries, pairs = mixed[:, : self._query_width], mixed[:, self._query_width :]
            kept = self._prompts[number][:, first : first + groups, :, :longest]
            kept.copy_(pairs.view(groups, longest, 2, kv_heads, width).permute(2, 0, 3, 1, 4))
            heads = queries.view(groups, longest, -1, width).transpose(1, 2)
            # Padding follows the prompt, so no token of the prompt attends to it.
            out = functional.scaled_dot_product_attention(
                heads, kept[0], kept[1], is_causal=True, enable_gqa=True
            )
            return out.transpose(1, 2).reshape(len(mixed), -1)

        rotations = self._stack.rotations(self._places[:longest].repeat(groups))
        rows = self._stack.run(self._stack.embed(padded.flatten()), rotations, attend)
        return rows.view(groups, longest, -1)[torch.arange(groups, device=lasts.device), lasts]


def _wide_product(left: Tensor, right: Tensor) -> Tensor:
    # In single precision: scores rounded to bfloat16 would be off by percents after the
    # exponential.
    if left.dtype == torch.float32:
        return torch.bmm(left, right)
    if left.device.type == "cuda":
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


class StaticDecoder:
    """Draws waves in buffers of a few sizes, kept with their recordings for the next wave of that
    size. `share` makes waves and buffers smaller."""

    def __init__(self, stack: Stack, share: float = 1.0) -> None:
        self._stack = stack
        self._recorder = Recorder(stack.device)
        self._buffers: dict[Size, DecodeBuffers] = {}
        shape = stack.shape
        memory = share * _memory_for_keys(stack.device)
        self._most_positions = int(memory) // (shape.layers * shape.kv_width * stack.dtype.itemsize)
        self._most_rollouts = max(1, int(share * _MOST_ROLLOUTS))

    def most_rollouts(self, prompt_tokens: int, max_tokens: int, count: int) -> int:
        """The most rollouts of one wave, for prompts of this length and groups of `count`, that fit
        the memory for keys.
        """
        prompt, own = _prompt_room(prompt_tokens), _own_room(max_tokens)
        if (
            count <= self._most_rollouts
            and Size(1, count, prompt, own).positions <= self._most_positions
        ):
            fitting = [
                groups
                for groups in _GROUPS
                if groups * count <= self._most_rollouts
                and Size(groups, count, prompt, own).positions <= self._most_positions
            ]
            return fitting[-1] * count
        return max(1, min(self._most_rollouts, (self._most_positions - prompt) // own))

    @torch.inference_mode()
    def decode(self, wave: Wave) -> tuple[Tensor, Tensor]:
        """Read the prompts, then replay steps until every rollout has ended or is full."""
        buffers = self._buffers_for(wave)
        buffers.begin(wave)
        heat = Heat.of(wave.temperature)
        for place in range(wave.max_tokens - 1):
            if place % _CHECK_TOKENS == 0 and buffers.is_finished:
                break
            length = min(_OWN_TOKENS[bisect_left(_OWN_TOKENS, place + 1)], buffers.size.own)
            key = (buffers.size, length, heat.is_greedy, heat.divisor is None)
            self._recorder.run(key, partial(buffers.advance, length, wave.temperature))
        return buffers.drawn(wave)

    def _buffers_for(self, wave: Wave) -> DecodeBuffers:
        groups = _GROUPS[bisect_left(_GROUPS, len(wave.prompts))]
        size = Size(groups, wave.count, _prompt_room(wave.longest), _own_room(wave.max_tokens))
        buffers = self._buffers.pop(size, None)
        if buffers is None:
            while (
                self._buffers
                and size.positions + sum(kept.positions for kept in self._buffers)
                > self._most_positions
            ):
                oldest = next(iter(self._buffers))
                self._recorder.forget(oldest)
                del self._buffers[oldest]
            buffers = DecodeBuffers(self._stack, size)
        self._buffers[size] = buffers  # the last used is last
        return buffers


def _memory_for_keys(device: torch.device) -> float:
    """Bytes for keys and values: a share of the GPU's memory, and at most half of its free
    memory.
    """
    if device.type != "cuda":
        return _CPU_BYTES
    free, whole = torch.cuda.mem_get_info(device)
    return min(_MEMORY_SHARE * whole, free / 2)


def _prompt_room(tokens: int) -> int:
    step = 64 if tokens <= 1024 else 512
    return -(-tokens // step) * step


def _own_room(max_tokens: int) -> int:
    # The last token drawn is never run.
    return -(-max(max_tokens - 1, 1) // 64) * 64
