"""Versions of the weights in the engine process: each with its own memory and its own running answers, never mixed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from metaclaw.engine import frames
from metaclaw.engine.answer import Answer
from metaclaw.engine.batch import Batch, Job
from metaclaw.engine.llama import Llama
from metaclaw.engine.sampling import Wishes
from metaclaw.engine.steps import Steps
from metaclaw.engine.text import Vocabulary
from metaclaw.errors import WireError

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
        """Whether somebody waits for a first token."""
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
        job = Job(prompt, min(message.max_tokens or DEFAULT_MAX_TOKENS, room), _wishes(message))
        answer = Answer(message.id, job, self._vocabulary, message.stop, shows_logprobs=message.top_logprobs is not None)
        self._batch.add(job)
        self._answers[message.id] = answer
        return frames.Accepted(message.id, len(prompt))

    def cancel(self, id: int) -> None:
        """Nobody wants this answer any more; one that is not made here is no error."""
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


def _wishes(message: frames.Generate) -> Wishes:
    return Wishes(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        seed=message.seed,
        top_logprobs=message.top_logprobs or 0,
    )
