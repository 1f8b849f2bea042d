"""One answer in the making, inside the engine process: tokens come in, text that is certain goes out."""

from collections import deque
from collections.abc import Sequence

from metaclaw.engine.batch import Job
from metaclaw.engine.frames import Finished, Piece, Shown
from metaclaw.engine.sampling import Drawn
from metaclaw.engine.text import Detokenizer, StopFinder, Vocabulary


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

    def accept(self, drawn: Drawn, ends: frozenset[int]) -> Piece | None:
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

    def _show(self, drawn: Drawn) -> Shown:
        top = [(self._vocabulary.decode([token]), logprob) for token, logprob in drawn.top]
        return Shown(self._vocabulary.decode([drawn.token]), drawn.logprob, top)
