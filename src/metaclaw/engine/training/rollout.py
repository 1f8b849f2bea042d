"""Rollouts of many prompts at once: each prompt is read once, and its rollouts share its keys and
values.

The same call gives the same rollouts on the same machine. The random numbers of a rollout depend
only on the seed, the index of its prompt and its own index. Other rollouts change only the last
bits of floating-point sums, which change a token only if a random number is that close to the
border between two tokens (rare in single precision, less rare in bfloat16)."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from metaclaw.domain.training import Drawing, Rollout
from metaclaw.engine.drawing import Wave, uniforms
from metaclaw.engine.stack import Stack
from metaclaw.engine.training.decode_cpu import LeavingDecoder
from metaclaw.engine.training.decode_cuda import StaticDecoder
from metaclaw.errors import TrainingError


def as_rollout(
    row: Sequence[int],
    logprobs: Sequence[float],
    end_ids: frozenset[int],
    decode: Callable[[Sequence[int]], str],
) -> Rollout:
    """The rollout of the tokens up to and including the first end token; it is whole if there is an
    end token.
    """
    length = next((place + 1 for place, token in enumerate(row) if token in end_ids), len(row))
    tokens, is_whole = row[:length], row[length - 1] in end_ids
    try:
        return Rollout(
            tuple(tokens),
            tuple(logprobs[:length]),
            decode(tokens[:-1] if is_whole else tokens),
            is_whole,
        )
    except ValueError as error:
        raise TrainingError(
            f"the weights do not give a distribution over tokens: {error}"
        ) from error


class Rollouts:
    """Draws rollouts with the weights of a stack.

    On a CPU finished rollouts leave the batch; elsewhere shapes are static, and each step is one
    recorded CUDA graph. `static` chooses between the two where both work; `share`
    reduces the amount that is drawn and kept at once."""

    def __init__(
        self,
        stack: Stack,
        decode: Callable[[Sequence[int]], str],
        *,
        static: bool | None = None,
        share: float = 1.0,
    ) -> None:
        self._stack = stack
        self._decode = decode
        is_static = stack.device.type != "cpu" if static is None else static
        self._decoder = StaticDecoder(stack, share) if is_static else LeavingDecoder(stack, share)

    def refresh(self) -> None:
        """Use the stack's weights as they are now; buffers and recorded graphs stay."""
        self._stack.refresh()

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]:
        """Draw `drawing.count` rollouts for each prompt."""
        for index, prompt in enumerate(prompts):
            self._check_prompt(index, prompt, drawing.max_tokens)
        drawn: list[list[Rollout]] = [[] for _ in prompts]
        for indices, rollouts in self._waves(prompts, drawing):
            for index, group in zip(
                indices, self._draw(prompts, indices, rollouts, drawing), strict=True
            ):
                drawn[index] += group
        return drawn

    def _waves(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing
    ) -> Iterator[tuple[list[int], range]]:
        """The prompts (by index) and the rollouts of each that are drawn together. Prompts of
        similar length are drawn together.
        """
        order = sorted(
            range(len(prompts)), key=lambda index: (len(prompts[index]), index), reverse=True
        )
        while order:
            most = self._decoder.most_rollouts(
                len(prompts[order[0]]), drawing.max_tokens, drawing.count
            )
            groups, count = max(1, most // drawing.count), min(most, drawing.count)
            for first in range(0, drawing.count, count):
                yield order[:groups], range(first, min(first + count, drawing.count))
            order = order[groups:]

    def _draw(
        self,
        prompts: Sequence[Sequence[int]],
        indices: Sequence[int],
        rollouts: range,
        drawing: Drawing,
    ) -> list[list[Rollout]]:
        of_prompt = np.repeat(np.array(indices, dtype=np.uint64), len(rollouts))
        of_rollout = np.tile(np.array(rollouts, dtype=np.uint64), len(indices))
        numbers = uniforms(drawing.seed, of_prompt, of_rollout, drawing.max_tokens)
        wave = Wave(
            [prompts[index] for index in indices],
            numbers.view(len(indices), len(rollouts), drawing.max_tokens),
            drawing.temperature,
            self._stack.shape.end_ids,
        )
        tokens, logprobs = self._decoder.decode(wave)
        return [
            [
                as_rollout(row, values, self._stack.shape.end_ids, self._decode)
                for row, values in zip(rows, group, strict=True)
            ]
            for rows, group in zip(tokens.tolist(), logprobs.tolist(), strict=True)
        ]

    def _check_prompt(self, index: int, prompt: Sequence[int], max_tokens: int) -> None:
        shape = self._stack.shape
        if not prompt or len(prompt) + max_tokens > shape.positions:
            raise TrainingError(
                f"prompt {index}: {len(prompt)} tokens and {max_tokens} to draw do not fit a"
                f" context of 1 to {shape.positions}"
            )
        if min(prompt) < 0 or max(prompt) >= shape.vocabulary:
            raise TrainingError(
                f"prompt {index} holds a token outside the vocabulary of {shape.vocabulary}"
            )
