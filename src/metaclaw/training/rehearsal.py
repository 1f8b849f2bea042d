"""Rehearsal: ordinary questions, so that training on a few narrow tasks does not let the model drift
everywhere else. Pure.

Every step also trains a little on the untrained model's own answers to ordinary questions:

    loss = -w · Σ ln π(y_t)      over answers y that the untrained weights drew for ordinary prompts (`rehearsal.toml`)

Its own answers hold it in place: their cross entropy is the Kullback-Leibler divergence from the
untrained model, up to a constant. The run's seed and the step determine the answers."""

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
"""How often the likeliest answer is added to the drawn answers."""
_TURN: Final = TurnId("rehearsal")
_ORDINARY: Final = re.compile(r"(?<![\w'-])[a-z]{4,10}(?![\w'-])")


@dataclass(frozen=True, slots=True)
class RehearsalSize:
    """How much is rehearsed: `answers` drawn answers to each of `questions` questions, at most
    `at_once` answers in a step.
    """

    questions: int = 300
    answers: int = 4
    at_once: int = 96


@dataclass(frozen=True, slots=True)
class RehearsalQuestion:
    """An ordinary request. `is_sure` says that it has one right answer: then the likeliest answer
    is rehearsed, too.
    """

    request: ChatRequest
    is_sure: bool


class Rehearsed(msgspec.Struct, frozen=True, array_like=True):
    """An answer of the untrained model, and its log-probability under it."""

    prompt: list[int]
    tokens: list[int]
    logprob: float


class _Grid(msgspec.Struct, frozen=True):
    asks: list[str]
    words: list[str]


class _File(msgspec.Struct, frozen=True):
    things: list[str]
    asks: list[str]
    short: list[str]
    sure: list[str]
    grids: list[_Grid]
    endings: list[str]
    systems: list[str]


@cache
def _file() -> _File:
    text = files("metaclaw.training").joinpath("rehearsal.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _File)


@cache
def ordinary_words() -> tuple[str, ...]:
    """Everyday words in lower case, sorted."""
    file = _file()
    return tuple(
        sorted(
            {
                word
                for text in (*file.things, *file.short, *file.sure)
                for word in _ORDINARY.findall(text)
            }
        )
    )


def ordinary_questions(
    count: int, seed: int, excluded: Collection[str] = ()
) -> list[RehearsalQuestion]:
    """At most `count` ordinary questions, half with short and half with long answers, and `count //
    2` with one right answer. The seed mixes them. Questions with which one of the `excluded` (the
    golden set's) begins are left out."""
    file, chance = _file(), random.Random(f"rehearsal {seed}")
    excluded_lines = "\n".join(["", *map(_plain, excluded)])
    grids = [
        ask.format(word) for grid in file.grids for ask, word in product(grid.asks, grid.words)
    ]
    long, short, sure = (
        [question for question in questions if f"\n{_plain(question)}" not in excluded_lines]
        for questions in (
            [ask.format(thing) for ask, thing in product(file.asks, file.things)],
            file.short,
            [*file.sure, *grids],
        )
    )
    few = min(len(short), count // 2)
    drawn = chance.sample(long, min(len(long), count - few)) + chance.sample(short, few)
    chance.shuffle(drawn)
    asked = [
        RehearsalQuestion(_request(text, file.systems[at % len(file.systems)]), is_sure=False)
        for at, text in enumerate(drawn)
    ]
    certain = chance.sample(sure, min(len(sure), count // 2))
    ended = [
        f"{text} {file.endings[at % len(file.endings)]}" if text.endswith("?") else text
        for at, text in enumerate(certain)
    ]
    return asked + [RehearsalQuestion(_request(text.rstrip(), ""), is_sure=True) for text in ended]


def rehearse(
    answers: Sequence[Rehearsed], most: int, room: int, weight: float, seed: int
) -> list[Datum]:
    """Draw answers for one step, as data for cross entropy: at most `most`, at most `room` tokens
    with their prompts, at least one. Their tokens share the weight equally."""
    chosen: list[Rehearsed] = []
    for answer in random.Random(seed).sample(answers, min(most, len(answers))):
        cost = len(answer.prompt) + len(answer.tokens)
        if chosen and cost > room:
            break
        chosen.append(answer)
        room -= cost
    tokens = sum(len(answer.tokens) for answer in chosen)
    return [
        Datum(
            _TURN,
            tuple(each.prompt),
            tuple(each.tokens),
            (weight / tokens,) * len(each.tokens),
            None,
        )
        for each in chosen
    ]


def forgotten_nats(
    answers: Sequence[Rehearsed], data: Sequence[Datum], stats: Sequence[PieceStats]
) -> float | None:
    """How much less likely the rehearsed answers have become, in nats per token; None if the
    backend does not return losses.
    """
    if not data or any(piece.loss is None for piece in stats):
        return None
    before = {(tuple(answer.prompt), tuple(answer.tokens)): answer.logprob for answer in answers}
    tokens = sum(len(datum.tokens_T) for datum in data)
    now = sum((piece.loss or 0.0) * piece.tokens for piece in stats) / (
        data[0].advantages_T[0] * tokens
    )
    return now + sum(before[datum.prompt, datum.tokens_T] for datum in data) / tokens


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _request(text: str, system: str) -> ChatRequest:
    instructions = (Message(Role.SYSTEM, (Text(system),)),) if system else ()
    return ChatRequest(Wire.CHAT, "", (*instructions, Message(Role.USER, (Text(text),))))
