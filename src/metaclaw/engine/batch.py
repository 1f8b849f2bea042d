"""Continuous batching, and the drawing of tokens: requests join and leave between passes, and long
prompts are read in chunks while other requests are answered. Each request has its own options and
random numbers, independent of the rest of the batch."""

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from metaclaw.engine.attention import Cache, Slot, Span
from metaclaw.engine.checkpoint import Shape, Steps
from metaclaw.engine.frames import SamplingOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ServedModel(Protocol):
    """A version of the model that answers requests."""

    shape: Shape
    context: int
    chunk_tokens: int
    """Prompt tokens of one pass."""

    def new_cache(self, slots: int) -> Cache:
        """A cache for its requests."""

    def run(self, cache: Cache, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        """Run the spans and return the logits of the wanted rows."""

    def draw(self, logits: Tensor, samplers: Sequence["Sampler"]) -> list["DrawnToken"]:
        """One token per row."""

    def dissolve(self) -> Steps[None]:
        """Free its memory."""


_FIRST_LOOK: Final = 256
"""Candidates that are tried before top_p is searched in the whole vocabulary; nearly always
enough.
"""
_BLOCK: Final = 256
"""Tokens whose weights are summed before one of them is searched."""
COLDEST: Final = 1e-5
"""Below this, dividing by the temperature would overflow; the likeliest token is certain there
anyway.
"""


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """A token, its log-probability under the raw distribution, and the likeliest alternatives if
    the request asks for them.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """The options of one request, its random numbers, and how often it has drawn each token."""

    def __init__(self, options: SamplingOptions) -> None:
        self.options = options
        self._is_greedy = options.temperature < COLDEST
        self._is_restricted = not self._is_greedy and (options.top_p < 1.0 or options.top_k > 0)
        self._random = random.Random(options.seed)
        self._counts: Counter[int] = Counter()

    @property
    def share(self) -> float:
        """The next random number, by which a token is chosen."""
        return 0.0 if self._is_greedy else self._random.random()

    def count(self, token: int) -> None:
        """Remember a token that was chosen elsewhere."""
        self._counts[token] += 1

    def penalties(self) -> list[tuple[int, float]]:
        """What is taken from the logit of each token drawn so far, if anything is."""
        if not self._is_penalised:
            return []
        options = self.options
        return [
            (token, times * options.frequency_penalty + options.presence_penalty)
            for token, times in self._counts.items()
        ]

    def choose(
        self, logits: Tensor, weights: "NDArray[np.float32]", sums: "NDArray[np.float32]"
    ) -> int:
        """A token, given a row of logits, their exponentials and the sums of those by block."""
        if self.options.temperature == 1.0 and not self._is_restricted and not self._is_penalised:
            token = _pick(weights, sums, self._random.random())
        else:
            token = self._choose_adjusted(logits.clone())
        self._counts[token] += 1
        return token

    def _choose_adjusted(self, row: Tensor) -> int:
        options = self.options
        if self._is_penalised:
            seen = torch.tensor(list(self._counts))
            counts = torch.tensor(list(self._counts.values()), dtype=row.dtype)
            row[seen] -= counts * options.frequency_penalty + options.presence_penalty
        if self._is_greedy:
            return int(row.numpy().argmax())
        row /= options.temperature
        if self._is_restricted:
            _restrict(row, options.top_k, options.top_p)
        weights = (row - row.amax()).exp().numpy()
        return _pick(weights, _block_sums(weights), self._random.random())

    @property
    def _is_penalised(self) -> bool:
        return bool(self._counts) and (
            self.options.frequency_penalty != 0.0 or self.options.presence_penalty != 0.0
        )


@torch.inference_mode()
def draw(logits: Tensor, samplers: Sequence[Sampler]) -> list[DrawnToken]:
    """One token per row. Log-probabilities are natural and of the raw logits at temperature 1,
    whatever the options.
    """
    # Exponentials are the expensive part: they are computed once, for the log-probability and for
    # the draw.
    shifted = logits - logits.amax(-1, keepdim=True)
    weights = shifted.exp().numpy()
    sums = _block_sums(weights)
    log_totals = np.log(sums.sum(1, dtype=np.float64)).tolist()
    drawn = []
    for number, (row, sampler, log_total) in enumerate(
        zip(shifted, samplers, log_totals, strict=True)
    ):
        token = sampler.choose(row, weights[number], sums[number])
        top = _likeliest(row, log_total, sampler.options.top_logprobs or 0)
        drawn.append(DrawnToken(token, float(row[token]) - log_total, top))
    return drawn


def _block_sums(weights: "NDArray[np.float32]") -> "NDArray[np.float32]":
    return np.add.reduceat(weights, range(0, weights.shape[-1], _BLOCK), axis=-1)


def _pick(weights: "NDArray[np.float32]", sums: "NDArray[np.float32]", share: float) -> int:
    """Inversion in two steps, over blocks and within one: less work than the running sum of the
    whole vocabulary.
    """
    block, rest = _locate(sums, share)
    begin = block * _BLOCK
    return begin + _locate(weights[begin : begin + _BLOCK], rest)[0]


def _locate(weights: "NDArray[np.float32]", share: float) -> tuple[int, float]:
    """The index where the running sum passes this share of the total, never at a weight of zero;
    and the share passed within it.
    """
    sums = weights.cumsum(dtype=np.float64)
    point = max(share, 0.0) * sums[-1]
    index = min(int(sums.searchsorted(point, side="right")), int(np.flatnonzero(weights)[-1]))
    return index, float((point - sums[index]) / weights[index] + 1.0)


def _restrict(row: Tensor, top_k: int, top_p: float) -> None:
    """Forbid all but the top_k likeliest tokens, and of those all but the smallest set that holds
    top_p.
    """
    size = len(row)
    limit = min(top_k, size) if top_k > 0 else size
    count = limit if top_k > 0 else min(_FIRST_LOOK, size)
    values, tokens = row.topk(count)
    if top_p < 1.0:
        total = (values if top_k > 0 else row).logsumexp(0)
        sums = (values - total).exp().cumsum(0, dtype=torch.float64)
        if count < limit and float(sums[-1]) < top_p:
            values, tokens = row.sort(descending=True)
            sums = (values - total).exp().cumsum(0, dtype=torch.float64)
        count = 1 + int((sums[:-1] < top_p).sum())
    row.fill_(float("-inf"))
    row[tokens[:count]] = values[:count]


def _likeliest(shifted: Tensor, log_total: float, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    values, tokens = shifted.topk(count)
    return tuple(
        (token, value - log_total)
        for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
    )


@dataclass(slots=True, eq=False)
class Job:
    """One request in the batch: its prompt and the tokens drawn for it."""

    prompt: Sequence[int]
    max_tokens: int
    options: SamplingOptions
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    sampler: Sampler = field(init=False)
    slot: Slot | None = None

    def __post_init__(self) -> None:
        if not self.prompt or self.max_tokens < 1:
            raise ValueError("a job needs a prompt and room for at least one token")
        self.sampler = Sampler(self.options)

    @property
    def is_full(self) -> bool:
        """Whether no more tokens may be drawn."""
        return len(self.sampled) >= self.max_tokens

    def accept(self, drawn: DrawnToken) -> None:
        """Add a drawn token."""
        self.sampled.append(drawn.token)
        self.logprobs.append(drawn.logprob)


class Batch:
    """The jobs that run together on one model. Not thread-safe: one loop owns it."""

    def __init__(self, model: ServedModel, slots: int) -> None:
        self.model = model
        self._cache = model.new_cache(slots)
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._running and not self._waiting

    @property
    def is_reading(self) -> bool:
        """Whether a request waits for its first token."""
        return bool(self._waiting) or any(not job.sampled for job in self._running)

    def add(self, job: Job) -> None:
        """Add a job; it starts as soon as a slot is free."""
        if len(job.prompt) + job.max_tokens > self.model.context:
            raise ValueError(
                f"{len(job.prompt)} + {job.max_tokens} tokens do not fit a context of"
                f" {self.model.context}"
            )
        self._waiting.append(job)

    def remove(self, job: Job) -> None:
        """Remove a job, finished or not; its slot is free for the next pass."""
        if job.slot is None:
            self._waiting.remove(job)
            return
        self._running.remove(job)
        self._cache.release(job.slot)

    def step(self) -> list[tuple[Job, DrawnToken]]:
        """Run one pass: a token for every job whose prompt is read, and a chunk of the prompts that
        are not.
        """
        spans, drawing, wanted = self._plan()
        if not spans:
            return []
        logits = self.model.run(self._cache, [span for _, span in spans], wanted or [0])
        for job, span in spans:
            _slot(job).tokens += span.tokens
        if not drawing:
            return []
        drawn = self.model.draw(logits, [job.sampler for job in drawing])
        for job, token in zip(drawing, drawn, strict=True):
            job.accept(token)
        return list(zip(drawing, drawn, strict=True))

    def _plan(self) -> tuple[list[tuple[Job, Span]], list[Job], list[int]]:
        """The spans of the next pass, the jobs that draw a token from it, and the rows they draw
        from.
        """
        # Decoding rows come first, by slot, so that neighbours can attend together; prompts follow,
        # oldest first.
        drawing = sorted(
            (job for job in self._running if job.sampled), key=lambda job: _slot(job).index
        )
        spans = [
            (job, Span(_slot(job).index, len(_slot(job).tokens), job.sampled[-1:]))
            for job in drawing
        ]
        wanted = list(range(len(drawing)))
        budget, row = self.model.chunk_tokens, len(drawing)
        while budget and (job := self._next_reader(spans)):
            start = len(_slot(job).tokens)
            chunk = job.prompt[start : start + budget]
            spans.append((job, Span(_slot(job).index, start, chunk)))
            budget -= len(chunk)
            row += len(chunk)
            if start + len(chunk) == len(job.prompt):
                drawing.append(job)
                wanted.append(row - 1)
        return spans, drawing, wanted

    def _next_reader(self, spans: list[tuple[Job, Span]]) -> Job | None:
        """The oldest job with prompt left to read that is not in this pass yet."""
        planned = {id(job) for job, _ in spans}
        for job in self._running:
            if not job.sampled and id(job) not in planned:
                return job
        if not self._waiting or not self._cache.has_room:
            return None
        # The slot is taken only now, when earlier jobs have left their prefixes in the cache.
        job = self._waiting.popleft()
        job.slot = self._cache.acquire(job.prompt, self)
        job.cached_tokens = len(job.slot.tokens)
        self._running.append(job)
        return job


def _slot(job: Job) -> Slot:
    assert job.slot is not None, "a running job has a slot"
    return job.slot
