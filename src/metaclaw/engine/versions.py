"""Versions of the weights in the engine process: each with its own memory and its own running answers, never mixed."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from metaclaw.engine import frames
from metaclaw.engine.batch import Batch, Job
from metaclaw.engine.checkpoint import Steps
from metaclaw.engine.frames import Finished, Piece, Shown
from metaclaw.engine.llama import Llama
from metaclaw.engine.sampling import DrawnToken, SamplingOptions
from metaclaw.engine.vocabulary import Detokenizer, StopFinder, Vocabulary
from metaclaw.errors import WireError


class Answer:
    """A job and its text."""

    def __init__(self, id: int, job: Job, vocabulary: Vocabulary, stops: Sequence[str], *, shows_logprobs: bool) -> None:
        self.id = id
        self.job = job
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary)
        self._stops = StopFinder(stops)
        self._shows_logprobs = shows_logprobs
        self._shown: deque[tuple[int, Shown]] = deque()
        self._decoded = 0
        self._emitted = 0
        self.is_done = False

    def accept(self, drawn: DrawnToken, ends: frozenset[int]) -> Piece | None:
        """Take a drawn token; the piece of text that became certain, if any."""
        ended = drawn.token in ends
        text = "" if ended else self._detokenizer.push(drawn.token)
        if not ended and self._shows_logprobs:
            self._shown.append((self._decoded + len(text), self._show(drawn)))
        self._decoded += len(text)
        out = self._stops.push(text)
        self.is_done = ended or self._stops.found is not None or self.job.is_full
        if self.is_done and self._stops.found is None:
            rest = self._detokenizer.flush()
            self._decoded += len(rest)
            out += self._stops.push(rest)
            out += self._stops.flush()
        return self._piece(out)

    def finished(self, ends: frozenset[int]) -> Finished:
        """The record of the whole answer."""
        sampled = self.job.sampled
        stopped = self._stops.found is not None or sampled[-1] in ends
        return Finished(
            id=self.id,
            at_length=not stopped,
            stop_sequence=self._stops.found,
            prompt_ids=list(self.job.prompt),
            sampled_ids=sampled,
            logprobs=self.job.logprobs,
            cached_tokens=self.job.cached_tokens,
        )

    def _piece(self, text: str) -> Piece | None:
        if not text and not self._is_last():
            return None
        self._emitted += len(text)
        # A token is shown with the text it belongs to, once all of that text is out.
        shown = []
        while self._shown and (self._shown[0][0] <= self._emitted or self._is_last()):
            shown.append(self._shown.popleft()[1])
        return Piece(self.id, text, shown) if text or shown else None

    def _is_last(self) -> bool:
        return self.is_done and self._stops.found is None

    def _show(self, drawn: DrawnToken) -> Shown:
        top = [(self._vocabulary.decode([token]), logprob) for token, logprob in drawn.top]
        return Shown(self._vocabulary.decode([drawn.token]), drawn.logprob, top)


DEFAULT_MAX_TOKENS: Final = 256
"""Tokens drawn where the caller names no limit."""


class Version:
    """Weights and the answers they are making. Keys and values are only ever read by the weights that wrote them."""

    def __init__(self, model: Llama, vocabulary: Vocabulary, slots: int, adapter: Path | None) -> None:
        self.adapter = adapter
        """Where the weights came from; None for the model's own."""
        self._model = model
        self._vocabulary = vocabulary
        self._batch = Batch(model, slots)
        self._answers: dict[int, Answer] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being answered."""
        return self._batch.is_idle

    @property
    def is_reading(self) -> bool:
        """Whether a request waits for its first token."""
        return self._batch.is_reading

    def begin(self, message: frames.Generate) -> frames.Accepted:
        """Take a request; raises WireError if it cannot be answered."""
        prompt = self._vocabulary.render(message.turns, message.beginning)
        room = self._model.context - len(prompt)
        if room < 1:
            raise WireError(
                f"this model's maximum context length is {self._model.context} tokens, but the messages are {len(prompt)} tokens",
                code="context_length_exceeded",
                param="messages",
            )
        job = Job(prompt, min(message.max_tokens or DEFAULT_MAX_TOKENS, room), _sampling_options(message))
        answer = Answer(message.id, job, self._vocabulary, message.stop, shows_logprobs=message.top_logprobs is not None)
        self._batch.add(job)
        self._answers[message.id] = answer
        return frames.Accepted(message.id, len(prompt))

    def cancel(self, id: int) -> None:
        """Cancel the request; unknown ids are ignored."""
        if answer := self._answers.pop(id, None):
            self._batch.remove(answer.job)

    def step(self) -> Iterator[frames.Piece | frames.Finished]:
        """One pass over everything that runs, and what became certain by it."""
        answers = {id(answer.job): answer for answer in self._answers.values()}
        ends = self._model.shape.end_ids
        for job, drawn in self._batch.step():
            answer = answers[id(job)]
            if piece := answer.accept(drawn, ends):
                yield piece
            if answer.is_done:
                self._batch.remove(job)
                del self._answers[answer.id]
                yield answer.finished(ends)

    def dissolve(self) -> Steps[None]:
        """Give the memory back. Nothing can be answered afterwards."""
        del self._batch
        yield
        yield from self._model.dissolve()


def _sampling_options(message: frames.Generate) -> SamplingOptions:
    return SamplingOptions(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        seed=message.seed,
        top_logprobs=message.top_logprobs or 0,
    )
