"""On-policy distillation: the student answers, and a stronger teacher computes the probability of
each of the student's tokens.

    A_t = clip(ln p_teacher(y_t | x, y_<t) - ln p_student(y_t | x, y_<t), ±most)      y drawn by the student

Summed over the student's tokens, this is the negative reverse KL to the teacher. The clip keeps a
token that the teacher would never write from outweighing all others. Both must use the same
vocabulary: scores of other tokens are a TrainingError.

`EndpointTeacher` asks an OpenAI-compatible `/completions` to score a prompt of tokens: vLLM answers
in `prompt_logprobs` (a table by token id for each position), other servers by `echo` with
`logprobs` (token texts and their log-probabilities). The ids, if they are returned, and the texts
must be those of the tokens that were sent."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Final, Protocol

import msgspec

from metaclaw.domain.chat import Json, Usage
from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, Rollout
from metaclaw.errors import TrainingError, UpstreamError, WireError
from metaclaw.ports import Call, HttpProvider, Purpose
from metaclaw.train.advantages import Skip, TrainingData
from metaclaw.upstream import UNMETERED, Meter, Spent, gather_body

CLIP = 2.0
_NOTHING = 1e-6
_HEADERS: Final = (("content-type", "application/json"), ("accept", "application/json"))
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_BROKEN: Final = "\ufffd"
_SPACE_MARKS: Final = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})


class Teacher(Protocol):
    """A model that scores the tokens that another model drew."""

    @property
    def name(self) -> str: ...
    async def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[float, ...]:
        """The log-probability of each token, given the prompt and the tokens before it. Raises
        TrainingError.
        """


async def teacher_advantages(
    teacher: Teacher,
    drawn: Sequence[tuple[TurnId, tuple[int, ...], Sequence[Rollout]]],
    most: float = CLIP,
) -> TrainingData:
    """Data from the rollouts of each turn's prompt. Raises TrainingError if the teacher cannot
    score them.
    """
    corrected: list[Corrected] = []
    for turn, prompt, rollouts in drawn:
        for rollout in rollouts:
            corrected.append(
                Corrected(turn, prompt, rollout, await teacher.score(prompt, rollout.tokens_T))
            )
    return ratio_advantages(corrected, most)


@dataclass(frozen=True, slots=True)
class Corrected:
    """A rollout of the student, and the teacher's log-probability of each of its tokens. Raises
    TrainingError if their numbers differ."""

    turn: TurnId
    prompt: tuple[int, ...]
    rollout: Rollout
    better_T: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.better_T) != len(self.rollout.tokens_T):
            counts = f"{len(self.better_T)} scores for {len(self.rollout.tokens_T)} tokens"
            raise TrainingError(f"turn {self.turn}: {counts}; the tokens are not the same")


def ratio_advantages(corrected: Sequence[Corrected], most: float = CLIP) -> TrainingData:
    """Data for a loss with importance ratios. Rollouts with the same probabilities for both models
    are skipped.
    """
    data: list[Datum] = []
    skipped = 0
    for answer in corrected:
        rollout = answer.rollout
        pairs = zip(answer.better_T, rollout.logprobs_T, strict=True)
        advantages = tuple(max(-most, min(most, better - student)) for better, student in pairs)
        if max(map(abs, advantages)) < _NOTHING:
            skipped += 1
        else:
            data.append(
                Datum(answer.turn, answer.prompt, rollout.tokens_T, advantages, rollout.logprobs_T)
            )
    return TrainingData(tuple(data), Counter({Skip.SILENT: skipped}))


class _Prompted(msgspec.Struct):
    logprob: float
    decoded_token: str | None = None


class _Echoed(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Prompted] | None] | None = None
    logprobs: _Echoed | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


_decoder: Final = msgspec.json.Decoder(_Completion)


class EndpointTeacher:
    """A teacher behind an HTTP provider. `word` gives the student's text of a token."""

    def __init__(
        self,
        provider: HttpProvider,
        model: str,
        word: Callable[[int], str],
        *,
        meter: Meter = UNMETERED,
        max_answer_bytes: int = _MAX_ANSWER_BYTES,
    ) -> None:
        self._provider = provider
        self._model = model
        self._word = word
        self._meter = meter
        self._max_answer_bytes = max_answer_bytes

    @property
    def name(self) -> str:
        return f"{self._provider.name}/{self._model}"

    async def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[float, ...]:
        if not prompt or not tokens:
            raise TrainingError("a teacher needs a prompt and an answer to score")
        sent = [*prompt, *tokens]
        choice = await self._ask(sent)
        if choice.prompt_logprobs is not None:
            logprobs = self._prompted(choice.prompt_logprobs, sent)
        elif choice.logprobs is not None:
            logprobs = self._echoed(choice.logprobs, sent)
        else:
            raise TrainingError(
                f"{self.name} returns no log-probabilities of a prompt; it cannot be a teacher"
            )
        return tuple(self._checked(value) for value in logprobs[len(prompt) :])

    async def _ask(self, sent: list[int]) -> _Choice:
        # `max_tokens` is 1 because some servers refuse 0; the written token is ignored.
        body: dict[str, Json] = {
            "model": self._model,
            "prompt": list(sent),
            "max_tokens": 1,
            "temperature": 0.0,
        }
        options: dict[str, Json] = {"echo": True, "logprobs": 1, "prompt_logprobs": 0}
        call = Call(
            "POST", "/completions", "", _HEADERS, msgspec.json.encode(body | options), Purpose.TEACH
        )
        async with self._meter.charge(Purpose.TEACH, self.name, len(sent) + 1) as charge:
            try:
                status, answer = await self._answer(call)
            except TrainingError:
                charge.add(Spent(1, failures=1))
                raise
            is_refused = status >= 400
            # Not all servers return their usage: the input is what was sent, the output one token.
            charge.add(
                Spent(
                    1,
                    failures=int(is_refused),
                    usage=Usage(0, 0) if is_refused else Usage(len(sent), 1),
                )
            )
        if is_refused:
            raise TrainingError(
                f"{self.name} refused to score: {status} {answer[:200].decode(errors='replace')}"
            )
        try:
            choices = _decoder.decode(answer).choices
        except msgspec.DecodeError as error:
            raise TrainingError(
                f"{self.name} answered with something that is not a completion: {error}"
            ) from error
        if not choices:
            raise TrainingError(f"{self.name} answered without choices")
        return choices[0]

    async def _answer(self, call: Call) -> tuple[int, bytes]:
        async with self._translated():
            reply = await self._provider.call(call, {})
            return reply.status, await gather_body(
                reply, self._provider.name, self._max_answer_bytes
            )

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            yield
        except (UpstreamError, WireError) as error:
            raise TrainingError(f"{self.name} cannot be asked: {error}") from error

    def _prompted(
        self, tables: list[dict[str, _Prompted] | None], sent: Sequence[int]
    ) -> list[float | None]:
        self._same_count(len(tables), len(sent))
        values: list[float | None] = []
        for token, table in zip(sent, tables, strict=True):
            entry = None if table is None else table.get(str(token))
            if table is not None and entry is None:
                raise TrainingError(
                    f"{self.name} scored other tokens than were sent: {token} is not among"
                    f" {sorted(table)[:5]}"
                )
            if entry is not None and entry.decoded_token is not None:
                self._same_word(entry.decoded_token, token)
            values.append(None if entry is None else entry.logprob)
        return values

    def _echoed(self, echoed: _Echoed, sent: Sequence[int]) -> list[float | None]:
        # After the echoed prompt there may be the one token that the server had to write.
        written = len(echoed.tokens) - len(sent)
        if written not in (0, 1) or len(echoed.tokens) != len(echoed.token_logprobs):
            self._same_count(min(len(echoed.tokens), len(echoed.token_logprobs)), len(sent))
        for token, text in zip(sent, echoed.tokens, strict=False):
            if text.startswith("token_id:"):
                self._same_id(text.removeprefix("token_id:"), token)
            else:
                self._same_word(text, token)
        return echoed.token_logprobs[: len(sent)]

    def _same_count(self, scored: int, sent: int) -> None:
        if scored != sent:
            raise TrainingError(f"{self.name} scored {scored} tokens, but {sent} were sent")

    def _same_id(self, scored: str, token: int) -> None:
        if scored != str(token):
            raise TrainingError(f"{self.name} scored token {scored}, but {token} was sent")

    def _same_word(self, text: str, token: int) -> None:
        """Compare the texts of a token. Servers write parts of a character and the space before a
        word differently: both are ignored."""
        word = self._word(token)
        if _BROKEN in text or _BROKEN in word or text.startswith("bytes:"):
            return
        if text.translate(_SPACE_MARKS).strip() != word.translate(_SPACE_MARKS).strip():
            raise TrainingError(
                f"{self.name} reads token {token} as {text!r}, the student as {word!r}: not one"
                " vocabulary"
            )

    def _checked(self, value: float | None) -> float:
        if value is None or not isfinite(value) or value > 0.0:
            raise TrainingError(f"{self.name} returned the log-probability {value}")
        return value
