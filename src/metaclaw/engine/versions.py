"""Versions of the weights in the engine process, each with its own memory and running answers, and
how they are built.

A version is the base model with an adapter merged into its layers. They are built step by step
between the answers of other versions."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from torch import Tensor

from metaclaw.engine import frames
from metaclaw.engine.batch import Batch, DrawnToken, Job, ServedModel
from metaclaw.engine.checkpoint import Steps
from metaclaw.engine.frames import AnswerPiece, Finished, ShownLogprob
from metaclaw.engine.llama import Llama
from metaclaw.engine.prompt import StopFinder
from metaclaw.engine.training.lora import (
    add_change,
    check_fit,
    projection_shapes,
    reading_adapter,
)
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
    """A model, its cache and its running answers. Versions share no cache: keys and values depend
    on the weights.
    """

    def __init__(
        self, model: ServedModel, vocabulary: Vocabulary, slots: int, adapter: Path | None
    ) -> None:
        self.adapter = adapter
        """The folder of the adapter; None for the base model."""
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

    def dissolve(self) -> Steps[None]:
        """Free the memory step by step. After that the version cannot answer."""
        del self._batch
        yield
        yield from self._model.dissolve()


def warm_adapter(folder: Path) -> None:
    """Read an adapter's files into the system's cache, so that `adapted` does not wait for a disk.
    Errors are ignored here.
    """
    if folder.is_dir():
        for path in folder.iterdir():
            if path.is_file():
                path.read_bytes()


def adapted(base: Llama, tensors: Mapping[str, Tensor], folder: Path) -> Steps[Llama]:
    """The model `base` with layers of its own, into which the adapter in a folder is merged.
    `tensors` are those of the base, in any dtype. Raises TrainingError if the adapter is unusable.
    """
    adapter = yield from reading_adapter(folder)
    check_fit(adapter, projection_shapes(tensors))

    def merged(name: str) -> Tensor:
        weight = tensors[name].to(base.dtype)
        pair = adapter.pairs.get(name.removesuffix(".weight"))
        return weight if pair is None else add_change(weight, *pair, adapter.scale).to(base.dtype)

    return (yield from base.with_layers(merged))
