"""Decoding on a GPU, where launches are what costs: shapes come in few sizes, and each step is one recorded CUDA graph.

Without a GPU the same steps run one by one, which is slow and tests them. A rollout that has ended goes on drawing tokens that
nobody reads: a row costs nearly nothing there, and asking who has ended costs a wait. It is asked every few tokens.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor

from metaclaw.engine.training.chance import Heat
from metaclaw.engine.training.graphs import Recorder
from metaclaw.engine.training.stack import Stack
from metaclaw.engine.training.stage import Size, Stage
from metaclaw.engine.training.wave import Wave

_ASKING_TOKENS: Final = 16
"""Tokens drawn between two looks at who has ended."""

_MOST_ROLLOUTS: Final = 1024
_MEMORY_SHARE: Final = 0.25
"""Of the GPU's memory, for keys and values: one stage never takes more, nor do all that are kept."""
_CPU_BYTES: Final = 1 << 30

_GROUPS: Final = sorted({1 << power for power in range(11)} | {3 << power for power in range(9)})
_OWN_TOKENS: Final = [64 << power for power in range(12)]


class StaticDecoder:
    """Draws waves on stages of a few sizes, kept with their recordings for the next wave of that size."""

    def __init__(self, stack: Stack, *, graphs: bool) -> None:
        self._stack = stack
        self._recorder = Recorder(stack.device, records=graphs)
        self._stages: dict[Size, Stage] = {}
        is_gpu = stack.device.type == "cuda"
        memory = torch.cuda.get_device_properties(stack.device).total_memory * _MEMORY_SHARE if is_gpu else _CPU_BYTES
        shape = stack.shape
        self._most_positions = int(memory) // (shape.layers * shape.kv_width * stack.dtype.itemsize)

    def most_rollouts(self, prompt_tokens: int, max_tokens: int, count: int) -> int:
        """The largest size whose keys and values fit."""
        prompt, own = _prompt_room(prompt_tokens), _own_room(max_tokens)
        if count <= _MOST_ROLLOUTS and Size(1, count, prompt, own).positions <= self._most_positions:
            fitting = [
                groups
                for groups in _GROUPS
                if groups * count <= _MOST_ROLLOUTS and Size(groups, count, prompt, own).positions <= self._most_positions
            ]
            return fitting[-1] * count
        return max(1, min(_MOST_ROLLOUTS, (self._most_positions - prompt) // own))

    @torch.inference_mode()
    def decode(self, wave: Wave, check: Callable[[], None]) -> tuple[Tensor, Tensor]:
        """Read the prompts, then replay steps until every rollout has ended or its room is full."""
        check()
        stage = self._stage_for(wave)
        stage.begin(wave)
        heat = Heat.of(wave.temperature)
        for place in range(wave.max_tokens - 1):
            if place % _ASKING_TOKENS == 0:
                check()
                if stage.is_finished:
                    break
            length = min(_OWN_TOKENS[bisect_left(_OWN_TOKENS, place + 1)], stage.size.own)
            key = (stage.size, length, heat.is_greedy, heat.divisor is None)
            self._recorder.run(key, partial(stage.advance, length, wave.temperature))
        return stage.drawn(wave)

    def _stage_for(self, wave: Wave) -> Stage:
        groups = _GROUPS[bisect_left(_GROUPS, len(wave.prompts))]
        size = Size(groups, wave.count, _prompt_room(wave.longest), _own_room(wave.max_tokens))
        stage = self._stages.pop(size, None)
        if stage is None:
            while self._stages and size.positions + sum(kept.positions for kept in self._stages) > self._most_positions:
                self._drop(next(iter(self._stages)))
            stage = Stage(self._stack, size)
        self._stages[size] = stage  # the one used last stands last
        return stage

    def _drop(self, size: Size) -> None:
        self._recorder.forget(size)
        del self._stages[size]


def _prompt_room(tokens: int) -> int:
    step = 64 if tokens <= 1024 else 512
    return -(-tokens // step) * step


def _own_room(max_tokens: int) -> int:
    # The last token drawn is never run.
    return -(-max(max_tokens - 1, 1) // 64) * 64
