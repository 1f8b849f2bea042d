"""What a model needs on this machine, and how fast the machine draws and learns with it, by a short
measurement."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, Drawing, Loss
from metaclaw.engine.checkpoint import Shape, choose_place, map_tensors, read_shape
from metaclaw.engine.training.calls import Planned
from metaclaw.engine.training.learner import Learner, bytes_per_row, is_out_of_memory
from metaclaw.engine.training.lora import projection_shapes
from metaclaw.errors import TrainerMemoryError

_MOST_CONTEXT: Final = 8192
_LEAST_ROWS: Final = 1024
_VECTORS: Final = 4
"""Of the adapter's size, in single precision: values, gradient and two moments."""
_PROMPT_TOKENS: Final = 100
_SMALL: Final = {"cpu": (2, 4, 16), "cuda": (32, 16, 64)}
"""Prompts, answers to each, and tokens that are drawn to measure."""


def make_plan(
    folder: Path, device: str, rank: int, slots: int, make: Callable[[], Learner]
) -> Planned:
    """Measure with the learner that `make` loads; without figures of speed if memory is short."""
    shape, tensors = read_shape(folder), map_tensors(folder)
    device, dtype = choose_place(device, "auto")
    width = getattr(torch, dtype).itemsize
    projections = projection_shapes(tensors)
    adapted = sum(rows * columns for rows, columns in projections.values())
    lora = sum(rank * (rows + columns) for rows, columns in projections.values())
    parameters = sum(tensor.numel() for tensor in tensors.values())
    stored = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
    is_cpu = device == "cpu"
    base = 4 * parameters if is_cpu else stored
    merged = adapted * width
    positions = min(shape.positions, _MOST_CONTEXT)
    cache = slots * positions * shape.layers * shape.kv_width * width
    rows = _LEAST_ROWS * bytes_per_row(shape, width)
    free = _free_bytes(device)
    speed = _measure(shape, make, "cpu" if is_cpu else "cuda")
    return Planned(
        device=device,
        parameters=parameters,
        serving_bytes=parameters * width + cache,
        training_bytes=base + merged + _VECTORS * 4 * lora + rows,
        free_bytes=free,
        drawn_per_s=speed[0],
        learned_per_s=speed[1],
    )


def _measure(shape: Shape, make: Callable[[], Learner], kind: str) -> tuple[float, float]:
    """Tokens drawn and learned per second; zeros if the memory is too small."""
    prompts, group, tokens = _SMALL[kind]
    chance = random.Random(0)
    asked = [
        tuple(chance.randrange(shape.vocabulary) for _ in range(_PROMPT_TOKENS))
        for _ in range(prompts)
    ]
    try:
        learner = make()
        for seed in range(2):  # the first time warms up
            began = time.perf_counter()
            drawn = learner.sample(asked, Drawing(group, tokens, seed=seed))
            drawing_s = time.perf_counter() - began
        data = [
            Datum(TurnId("plan"), prompt, one.tokens_T, (1.0,) * len(one.tokens_T), one.logprobs_T)
            for prompt, answers in zip(asked, drawn, strict=True)
            for one in answers
        ]
        for _ in range(2):
            began = time.perf_counter()
            learner.accumulate(data, Loss(), measures_kl=True)
            # Copying the state waits for the device.
            learner.state()
            learning_s = time.perf_counter() - began
    except (TrainerMemoryError, RuntimeError, MemoryError) as error:
        if not (isinstance(error, TrainerMemoryError) or is_out_of_memory(error)):
            raise
        return 0.0, 0.0
    count = sum(len(datum.tokens_T) for datum in data)
    return count / drawing_s, count / learning_s


def _free_bytes(device: str) -> int:
    if device != "cpu":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
