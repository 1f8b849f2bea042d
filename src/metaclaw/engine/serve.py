"""The engine process: read requests from a pipe, run the batch, write answers to a pipe, end when the program ends."""

import os
import queue
import threading
from pathlib import Path
from typing import Final

import torch

from metaclaw.engine import frames
from metaclaw.engine.answer import Answer
from metaclaw.engine.batch import Batch, Job
from metaclaw.engine.llama import Llama
from metaclaw.engine.sampling import Wishes
from metaclaw.engine.text import Vocabulary
from metaclaw.errors import WireError

DEFAULT_MAX_TOKENS: Final = 256
"""Tokens drawn where the caller names no limit."""
_READ_BYTES: Final = 1 << 16


class Pipe:
    """The engine's end of the line to the program."""

    def __init__(self, read_handle: int, write_handle: int) -> None:
        self._read_handle = read_handle
        self._write_handle = write_handle
        self._inbox: queue.SimpleQueue[frames.ToEngine] = queue.SimpleQueue()

    def listen(self) -> None:
        """Begin to read. The end of the pipe means the program is gone, however it went: so goes the engine, at once."""
        threading.Thread(target=self._read, name="pipe", daemon=True).start()

    def send(self, message: frames.FromEngine) -> None:
        """Write one message; a program that is gone ends the engine."""
        rest = memoryview(frames.pack(message))
        try:
            while rest:
                rest = rest[os.write(self._write_handle, rest) :]
        except BrokenPipeError:
            os._exit(0)

    def receive(self, *, wait: bool) -> frames.ToEngine | None:
        """The next message, or None if there is none and we do not wait."""
        try:
            return self._inbox.get(block=wait)
        except queue.Empty:
            return None

    def _read(self) -> None:
        unpacker = frames.Unpacker()
        while chunk := os.read(self._read_handle, _READ_BYTES):
            for body in unpacker.feed(chunk):
                self._inbox.put(frames.to_engine.decode(body))
        os._exit(0)


class Engine:
    """A model serving the requests of one pipe."""

    def __init__(self, pipe: Pipe, folder: Path, slots: int, dtype: torch.dtype) -> None:
        self._pipe = pipe
        self._vocabulary = Vocabulary(folder)
        self._model = Llama.load(folder, dtype)
        self._batch = Batch(self._model, slots)
        self._answers: dict[int, Answer] = {}
        self._slots = slots

    def run(self) -> None:
        """Serve until the pipe ends."""
        self._pipe.send(frames.Ready(self._model.context, self._slots))
        while True:
            while message := self._pipe.receive(wait=self._batch.is_idle):
                self._take(message)
            self._step()

    def _take(self, message: frames.ToEngine) -> None:
        match message:
            case frames.Generate():
                try:
                    self._begin(message)
                except WireError as error:
                    self._pipe.send(frames.Refused(message.id, str(error), error.code, error.param))
            case frames.Cancel():
                if answer := self._answers.pop(message.id, None):
                    self._batch.remove(answer.job)

    def _begin(self, message: frames.Generate) -> None:
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
        self._pipe.send(frames.Accepted(message.id, len(prompt)))

    def _step(self) -> None:
        answers = {id(answer.job): answer for answer in self._answers.values()}
        ends = self._model.shape.end_ids
        for job, drawn in self._batch.step():
            answer = answers[id(job)]
            if piece := answer.accept(drawn, ends):
                self._pipe.send(piece)
            if answer.is_done:
                self._batch.remove(job)
                del self._answers[answer.id]
                self._pipe.send(answer.finished(ends))


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
