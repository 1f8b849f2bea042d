"""Continuous batching: requests join and leave between passes, and long prompts are read in chunks
while other requests are answered. Each request has its own options and random numbers, independent
of the rest of the batch."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from metaclaw.engine.attention import Slot, Span
from metaclaw.engine.drawing import DrawnToken, Sampler, draw
from metaclaw.engine.frames import SamplingOptions
from metaclaw.engine.served_model import ServedModel


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

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self._owner = object()
        """Marks the slots that hold keys of these weights."""
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
        self.model.cache.release(job.slot)

    def step(self) -> list[tuple[Job, DrawnToken]]:
        """Run one pass: a token for every job whose prompt is read, and a chunk of the prompts that
        are not.
        """
        spans, drawing, wanted = self._plan()
        if not spans:
            return []
        logits = self.model.run([span for _, span in spans], wanted or [0])
        for job, span in spans:
            _slot(job).tokens += span.tokens
        if not drawing:
            return []
        drawn = draw(logits, [job.sampler for job in drawing])
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
        if not self._waiting or not self.model.cache.has_room:
            return None
        # The slot is taken only now, when earlier jobs have left their prefixes in the cache.
        job = self._waiting.popleft()
        job.slot = self.model.cache.acquire(job.prompt, self._owner)
        job.cached_tokens = len(job.slot.tokens)
        self._running.append(job)
        return job


def _slot(job: Job) -> Slot:
    assert job.slot is not None, "a running job has a slot"
    return job.slot
