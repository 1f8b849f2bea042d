"""Prompts beside the recorded ones: ordinary questions that are rehearsed, and variations of recorded requests. Pure.

The untrained model's own answers to ordinary questions are rehearsed a little in every step:

    loss = -w · Σ ln π(y_t)      over answers y that the untrained weights drew for ordinary prompts (`rehearsal.toml`)

A few narrow tasks leave a model free to drift everywhere else. Its own answers pull it back to where it was: their cross entropy is
the Kullback-Leibler divergence from the untrained model, up to a constant. Which answers a step rehearses is a function of the
run's seed and the step.

Variations have other numbers and other names in the same sentences.
A few dozen recorded requests are soon known by heart, and right answers to them say little about the next one. A check that reads
the request can score answers to a request that was never made. So new requests are made from recorded ones of the same kind:

- every number becomes another one between the least and the largest that stand in its place, now and then a short one;
- words that few of these requests have (names, things) become other such words, or everyday ones; words that many have stay.

Where most words of a request are rare, the sentences are not of one kind, and only numbers change.
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
    with one right answer. None is the beginning of one of the `excluded` (the golden set's)."""
    file, chance = _written(), random.Random(f"rehearsal {seed}")
    kept_out = "\n".join(["", *map(_plain, excluded)])
    grids = [ask.format(word) for grid in file.grids for ask, word in product(grid.asks, grid.words)]
    long, short, sure = (
        [one for one in some if f"\n{_plain(one)}" not in kept_out]
        for some in ([ask.format(thing) for ask, thing in product(file.asks, file.things)], file.short, [*file.sure, *grids])
    )
    few = min(len(short), count // 2)
    drawn = chance.sample(long, min(len(long), count - few)) + chance.sample(short, few)
    chance.shuffle(drawn)
    asked = [
        RehearsalQuestion(_request(text, file.systems[at % len(file.systems)]), is_sure=False) for at, text in enumerate(drawn)
    ]
    certain = chance.sample(sure, min(len(sure), count // 2))
    ended = [f"{text} {file.endings[at % len(file.endings)]}" if text.endswith("?") else text for at, text in enumerate(certain)]
    return asked + [RehearsalQuestion(_request(text.rstrip(), ""), is_sure=True) for text in ended]


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


_NUMBER: Final = re.compile(r"\d+")
_WORD: Final = re.compile(r"[^\W\d_]+")
_RARE_SHARE: Final = 0.1
_LEAST_TASKS: Final = 10
_LEAST_CHARS: Final = 3
_MOST_RARE: Final = 0.5
_MOST_DIGITS: Final = 12
_BY_LENGTH: Final = 0.25
"""How often a number's length is drawn first: otherwise short ones would hardly ever come up."""


@dataclass(frozen=True, slots=True)
class NumberSpan:
    """The numbers that stand in one place: least, largest, and how many digits they are filled up to with zeros."""

    least: int
    largest: int
    width: int

    @classmethod
    def of(cls, numbers: Sequence[str]) -> "NumberSpan":
        """What these numbers span."""
        values = [int(number) for number in numbers]
        padded = [len(number) for number in numbers if number[0] == "0" and len(number) > 1]
        return cls(min(values), max(values), max(padded, default=0))

    def draw(self, chance: random.Random) -> str:
        """One of them: any, or any of those with a number of digits."""
        least, largest = self.least, self.largest
        if chance.random() < _BY_LENGTH:
            digits = chance.randint(len(str(least)), len(str(largest)))
            least, largest = max(least, 10 ** (digits - 1) if digits > 1 else 0), min(largest, 10**digits - 1)
        return str(chance.randint(least, largest)).zfill(self.width)


@dataclass(frozen=True, slots=True)
class VariationKind:
    """What requests of one kind have in common: their rare words, and what numbers stand in which place, by how many there are."""

    rare: frozenset[str]
    spans: Mapping[int, tuple[NumberSpan, ...]]

    @classmethod
    def of(cls, tasks: Sequence[str]) -> "VariationKind":
        """What these requests have in common."""
        rows: dict[int, list[list[str]]] = {}
        for task in tasks:
            numbers = _NUMBER.findall(task)
            if numbers and max(map(len, numbers)) <= _MOST_DIGITS:
                rows.setdefault(len(numbers), []).append(numbers)
        spans = {count: tuple(NumberSpan.of(column) for column in zip(*some, strict=True)) for count, some in rows.items()}
        return cls(_rare(tasks), spans)


def _rare(tasks: Sequence[str]) -> frozenset[str]:
    """The words that few of these requests have; none where the requests are too few to tell."""
    if len(tasks) < _LEAST_TASKS:
        return frozenset()
    counts = Counter(word for task in tasks for word in set(_WORD.findall(task)))
    most = max(1, int(_RARE_SHARE * len(tasks)))
    return frozenset(word for word, count in counts.items() if count <= most and len(word) >= _LEAST_CHARS)


def vary(task: str, kind: VariationKind, chance: random.Random) -> str | None:
    """A request like this one; None where nothing in it can be changed."""
    varied = _with_numbers(_with_words(task, kind, chance), kind, chance)
    return varied if varied != task else None


def _with_words(task: str, kind: VariationKind, chance: random.Random) -> str:
    words = _WORD.findall(task)
    if not words or sum(word in kind.rare for word in words) > _MOST_RARE * len(words):
        return task
    others = (sorted(kind.rare), ordinary_words())
    # One word becomes the same other word wherever it stands.
    new = {word: _shaped(chance.choice(chance.choice(others)), word) for word in dict.fromkeys(words) if word in kind.rare}
    return _WORD.sub(lambda found: new.get(found[0], found[0]), task)


def _with_numbers(task: str, kind: VariationKind, chance: random.Random) -> str:
    spans = kind.spans.get(len(_NUMBER.findall(task)), ())
    drawn = iter([span.draw(chance) for span in spans])
    return _NUMBER.sub(lambda found: next(drawn), task) if spans else task


def _shaped(word: str, like: str) -> str:
    """A word in small letters, in capitals, or with a capital, as another one is."""
    return word.upper() if like.isupper() else word.capitalize() if like[0].isupper() else word.lower()
