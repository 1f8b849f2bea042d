"""Prompts besides the recorded ones: ordinary questions for rehearsal, and variations of recorded
requests. Pure.

**Rehearsal.** Every step also trains a little on the untrained model's own answers to ordinary
questions:

    loss = -w · Σ ln π(y_t)      over answers y that the untrained weights drew for ordinary prompts (`rehearsal.toml`)

Training on a few narrow tasks lets a model drift everywhere else. Its own answers hold it in place:
their cross entropy is the Kullback-Leibler divergence from the untrained model, up to a constant.
The run's seed and the step determine the answers.

**Variations.** A model soon memorises the answers to a few dozen recorded requests, and then its
answers to them say little about new requests. A check that reads the request can also score answers
to new requests, so these are made from recorded requests of the same kind:

- every number becomes another between the smallest and the largest at its place, sometimes one with
  fewer digits;
- words that few of these requests have (names, things) become other such words, or everyday words;
  common words stay.

If most words of a request are rare, the requests are not of one kind, and only numbers change.
"""

import random
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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


_NUMBER: Final = re.compile(r"\d+")
_WORD: Final = re.compile(r"[^\W\d_]+")
_RARE_SHARE: Final = 0.1
_LEAST_TASKS: Final = 10
_LEAST_CHARS: Final = 3
_MOST_RARE: Final = 0.5
_MOST_DIGITS: Final = 12
_BY_LENGTH: Final = 0.25
"""How often the number of digits is drawn first: otherwise short numbers would be very rare."""


@dataclass(frozen=True, slots=True)
class NumberSpan:
    """The numbers at one place of the requests: smallest, largest, and the width to which they are
    padded with zeros.
    """

    least: int
    largest: int
    width: int

    @classmethod
    def of(cls, numbers: Sequence[str]) -> "NumberSpan":
        values = [int(number) for number in numbers]
        padded = [len(number) for number in numbers if number[0] == "0" and len(number) > 1]
        return cls(min(values), max(values), max(padded, default=0))

    def draw(self, chance: random.Random) -> str:
        """Draw a number; sometimes its number of digits is drawn first."""
        least, largest = self.least, self.largest
        if chance.random() < _BY_LENGTH:
            digits = chance.randint(len(str(least)), len(str(largest)))
            least, largest = (
                max(least, 10 ** (digits - 1) if digits > 1 else 0),
                min(largest, 10**digits - 1),
            )
        return str(chance.randint(least, largest)).zfill(self.width)


@dataclass(frozen=True, slots=True)
class VariationKind:
    """Requests of one kind: their rare words, and the spans of the numbers at each place, by how
    many numbers a request has.
    """

    rare: frozenset[str]
    spans: Mapping[int, tuple[NumberSpan, ...]]

    @classmethod
    def of(cls, tasks: Sequence[str]) -> "VariationKind":
        rows: dict[int, list[list[str]]] = {}
        for task in tasks:
            numbers = _NUMBER.findall(task)
            if numbers and max(map(len, numbers)) <= _MOST_DIGITS:
                rows.setdefault(len(numbers), []).append(numbers)
        spans = {
            count: tuple(NumberSpan.of(column) for column in zip(*found, strict=True))
            for count, found in rows.items()
        }
        return cls(_rare(tasks), spans)


def _rare(tasks: Sequence[str]) -> frozenset[str]:
    """The words that few of these requests have; empty if there are too few requests."""
    if len(tasks) < _LEAST_TASKS:
        return frozenset()
    counts = Counter(word for task in tasks for word in set(_WORD.findall(task)))
    most = max(1, int(_RARE_SHARE * len(tasks)))
    return frozenset(
        word for word, count in counts.items() if count <= most and len(word) >= _LEAST_CHARS
    )


def vary(task: str, kind: VariationKind, chance: random.Random) -> str | None:
    """A variation of this request; None if nothing in it can be changed."""
    varied = _with_numbers(_with_words(task, kind, chance), kind, chance)
    return varied if varied != task else None


def _with_words(task: str, kind: VariationKind, chance: random.Random) -> str:
    words = _WORD.findall(task)
    if not words or sum(word in kind.rare for word in words) > _MOST_RARE * len(words):
        return task
    others = (sorted(kind.rare), ordinary_words())
    # All occurrences of a word become the same other word.
    new = {
        word: _shaped(chance.choice(chance.choice(others)), word)
        for word in dict.fromkeys(words)
        if word in kind.rare
    }
    return _WORD.sub(lambda found: new.get(found[0], found[0]), task)


def _with_numbers(task: str, kind: VariationKind, chance: random.Random) -> str:
    spans = kind.spans.get(len(_NUMBER.findall(task)), ())
    drawn = iter([span.draw(chance) for span in spans])
    return _NUMBER.sub(lambda found: next(drawn), task) if spans else task


def _shaped(word: str, like: str) -> str:
    """The word with the capitalisation of `like`."""
    if like.isupper():
        return word.upper()
    return word.capitalize() if like[0].isupper() else word.lower()
