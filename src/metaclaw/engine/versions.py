"""Versions of the weights in the engine process, each with its own running answers."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from metaclaw.engine import frames
from metaclaw.engine.batch import Batch, Job
from metaclaw.engine.drawing import DrawnToken
from metaclaw.engine.frames import AnswerPiece, Finished, ShownLogprob
from metaclaw.engine.prompt import StopFinder
from metaclaw.engine.served_model import ServedModel
from metaclaw.engine.vocabulary import Detokenizer, Vocabulary
from metaclaw.errors import WireError


class Answer:
    """A job and the text of its answer."""

    def __init__(
        self,
        id: int,
        job: Job,
        vocabulary: Vocabulary,
        stops: Sequence[str],
        *,
        shows_logprobs: bool,
    ) -> None:
        self.id = id
        self.job = job
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary)
        self._stops = StopFinder(stops)
        self._shows_logprobs = shows_logprobs
        self._shown: deque[tuple[int, ShownLogprob]] = deque()
        self._decoded = 0
        self._emitted = 0
        self.is_done = False

    def accept(self, drawn: DrawnToken, ends: frozenset[int]) -> AnswerPiece | None:
        """Add a drawn token; return the piece of text that became certain, if any."""
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

    def _piece(self, text: str) -> AnswerPiece | None:
        if not text and not self._is_last():
            return None
        self._emitted += len(text)
        # A token is shown with its text, once all of that text is sent.
        shown = []
        while self._shown and (self._shown[0][0] <= self._emitted or self._is_last()):
            shown.append(self._shown.popleft()[1])
        return AnswerPiece(self.id, text, shown) if text or shown else None

    def _is_last(self) -> bool:
        return self.is_done and self._stops.found is None

    def _show(self, drawn: DrawnToken) -> ShownLogprob:
        top = [(self._vocabulary.decode([token]), logprob) for token, logprob in drawn.top]
        return ShownLogprob(self._vocabulary.decode([drawn.token]), drawn.logprob, top)


DEFAULT_MAX_TOKENS: Final = 256
"""Tokens drawn if the client gives no limit."""


class Version:
    """A model and its running answers."""

    def __init__(
        self, model: ServedModel, vocabulary: Vocabulary, adapter: Path | None = None
    ) -> None:
        self.adapter = adapter
        """The folder of the adapter; None for the base model."""
        self._model = model
        self._vocabulary = vocabulary
        self._batch = Batch(model)
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
        """Begin a request; raises WireError if it cannot be answered."""
        prompt = self._vocabulary.render(message.turns, message.beginning, message.tools)
        room = self._model.context - len(prompt)
        if room < 1:
            raise WireError(
                f"this model's maximum context length is {self._model.context} tokens, but the"
                f" messages are {len(prompt)} tokens",
                code="context_length_exceeded",
                param="messages",
            )
        job = Job(prompt, min(message.max_tokens or DEFAULT_MAX_TOKENS, room), message)
        answer = Answer(
            message.id,
            job,
            self._vocabulary,
            message.stop,
            shows_logprobs=message.top_logprobs is not None,
        )
        self._batch.add(job)
        self._answers[message.id] = answer
        return frames.Accepted(message.id, len(prompt))

    def cancel(self, id: int) -> None:
        """Cancel the request; unknown ids are ignored."""
        if answer := self._answers.pop(id, None):
            self._batch.remove(answer.job)

    def step(self) -> Iterator[frames.AnswerPiece | frames.Finished]:
        """Run one pass; yield the pieces that became certain and the answers that are finished."""
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
