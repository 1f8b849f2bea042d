"""What must not be forgotten: the untrained model's own answers to ordinary questions, rehearsed a little in every step.

    loss = -w · Σ ln π(y_t)      over answers y that the untrained weights drew for ordinary prompts (`rehearsal.toml`)

A few narrow tasks leave a model free to drift everywhere else. Its own answers pull it back to where it was: their cross entropy is
the Kullback-Leibler divergence from the untrained model, up to a constant. Which answers a step rehearses is a function of the
run's seed and the step.
"""

import random
import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Final

import msgspec

from metaclaw.domain.chat import ChatRequest, Message, Role, Text, Wire
from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Datum, PieceStats

REHEARSAL_TOKENS: Final = 48
SURE_ANSWER_COPIES: Final = 2
"""How often a likeliest answer is there beside those that were drawn."""
_TURN: Final = TurnId("rehearsal")
_ORDINARY: Final = re.compile(r"(?<![\w'-])[a-z]{4,10}(?![\w'-])")


@dataclass(frozen=True, slots=True)
class RehearsalSize:
    """How much is rehearsed: so many questions of each half, `answers` drawn of each, at most `at_once` of them in a step."""

    questions: int = 300
    answers: int = 4
    at_once: int = 96


@dataclass(frozen=True, slots=True)
class RehearsalQuestion:
    """An ordinary request. `is_sure` where it has one right answer: then the likeliest answer is rehearsed, too."""

    request: ChatRequest
    is_sure: bool


class Rehearsed(msgspec.Struct, frozen=True, array_like=True):
    """An answer of the untrained model, and its log-probability there."""

    prompt: list[int]
    tokens: list[int]
    logprob: float


class _File(msgspec.Struct, frozen=True):
    things: list[str]
    asks: list[str]
    short: list[str]
    sure: list[str]
    systems: list[str]


@cache
def _written() -> _File:
    text = files("metaclaw.train").joinpath("rehearsal.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _File)


@cache
def ordinary_words() -> tuple[str, ...]:
    """Everyday words in small letters, in order."""
    file = _written()
    return tuple(sorted({word for text in (*file.things, *file.short, *file.sure) for word in _ORDINARY.findall(text)}))


def ordinary_questions(count: int, seed: int, excluded: Collection[str] = ()) -> list[RehearsalQuestion]:
    """So many ordinary questions at most, mixed by the seed: as many with short answers as with long ones, and again half as many
    with one right answer. None is one of the `excluded` (the golden set's)."""
    file, chance = _written(), random.Random(f"rehearsal {seed}")
    kept_out = {_plain(one) for one in excluded}
    long, short, sure = (
        [one for one in some if _plain(one) not in kept_out]
        for some in ([ask.format(thing) for ask, thing in product(file.asks, file.things)], file.short, file.sure)
    )
    few = min(len(short), count // 2)
    drawn = chance.sample(long, min(len(long), count - few)) + chance.sample(short, few)
    chance.shuffle(drawn)
    asked = [
        RehearsalQuestion(_request(text, file.systems[at % len(file.systems)]), is_sure=False) for at, text in enumerate(drawn)
    ]
    certain = chance.sample(sure, min(len(sure), count // 2))
    return asked + [RehearsalQuestion(_request(text, ""), is_sure=True) for text in certain]


def rehearse(answers: Sequence[Rehearsed], most: int, room: int, weight: float, seed: int) -> list[Datum]:
    """The answers of one step as data for cross entropy: at most `most`, which cost at most `room` tokens with their prompts (but
    one at least). Their tokens share the weight."""
    chosen: list[Rehearsed] = []
    for one in random.Random(seed).sample(answers, min(most, len(answers))):
        cost = len(one.prompt) + len(one.tokens)
        if chosen and cost > room:
            break
        chosen.append(one)
        room -= cost
    tokens = sum(len(one.tokens) for one in chosen)
    return [Datum(_TURN, tuple(one.prompt), tuple(one.tokens), (weight / tokens,) * len(one.tokens), None) for one in chosen]


def forgotten_nats(answers: Sequence[Rehearsed], data: Sequence[Datum], stats: Sequence[PieceStats]) -> float | None:
    """How much less likely, in nats a token, the rehearsed answers have become; None where the backend does not tell."""
    if not data or any(one.loss is None for one in stats):
        return None
    before = {(tuple(one.prompt), tuple(one.tokens)): one.logprob for one in answers}
    tokens = sum(len(one.tokens_T) for one in data)
    now = sum((one.loss or 0.0) * one.tokens for one in stats) / (data[0].advantages_T[0] * tokens)
    return now + sum(before[one.prompt, one.tokens_T] for one in data) / tokens


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _request(text: str, system: str) -> ChatRequest:
    told = (Message(Role.SYSTEM, (Text(system),)),) if system else ()
    return ChatRequest(Wire.CHAT, "", (*told, Message(Role.USER, (Text(text),))))
