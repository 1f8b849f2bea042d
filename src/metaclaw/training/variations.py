"""Variations of recorded requests: the same kind of request with other numbers and names.

A model soon memorises the answers to a few dozen recorded requests, and then its answers to them
say little about new requests. A check that reads the request can also score answers to new
requests, so these are made from recorded requests of the same kind:

- every number becomes another between the smallest and the largest at its place, sometimes one with
  fewer digits;
- words that few of these requests have (names, things) become other such words, or everyday words;
  common words stay.

If most words of a request are rare, the requests are not of one kind, and only numbers change."""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from metaclaw.domain.ids import TurnId
from metaclaw.training.prompts import PromptMaker, asking
from metaclaw.training.rehearsal import ordinary_words
from metaclaw.training.rewards import Rewards
from metaclaw.training.training_turns import TrainingTurn

_MOST_PROMPTS: Final = 512
_MOST_OF_A_TURN: Final = 6
_MOST_TASK_CHARS: Final = 400
_MARK: Final = "~"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Variations:
    """Makes varied prompts. Blocks."""

    prompts: PromptMaker
    rewards: Rewards

    def of(self, turns: Sequence[TrainingTurn], seed: int) -> list[TrainingTurn]:
        """Varied prompts of these turns, as many of each; the same for the same turns and seed."""
        able = [
            one
            for one in turns
            if len(one.step.task) <= _MOST_TASK_CHARS and self.rewards.has_check(one.step)
        ]
        if not able:
            return []
        tasks: dict[str, list[str]] = {}
        for one in able:
            tasks.setdefault(one.key, []).append(one.step.task)
        kinds = {key: VariationKind.of(some) for key, some in tasks.items()}
        each = min(_MOST_OF_A_TURN, _MOST_PROMPTS // len(able))
        return [varied for one in able for varied in self._of_one(one, kinds[one.key], each, seed)]

    def _of_one(
        self, turn: TrainingTurn, kind: VariationKind, count: int, seed: int
    ) -> list[TrainingTurn]:
        chance = random.Random(f"{seed}/{turn.id}")
        found: dict[str, TrainingTurn] = {}
        for number in range(count):
            varied = vary(turn.step.task, kind, chance)
            if varied is None or varied in found:
                continue
            prompt = self.prompts.asking(turn, varied)
            if prompt is None:
                return []
            made = TurnId(f"{turn.id}{_MARK}{number}")
            step = replace(
                turn.step,
                turn=made,
                task=varied,
                history=asking(turn.step.history, turn.step.task, varied),
                answer=(),
                after=(),
                said_after=None,
            )
            found[varied] = replace(
                turn, id=made, prompt=prompt, step=step, hinted=None, unruled=None
            )
        return list(found.values())


def base_turn(turn: TurnId) -> TurnId:
    """The recorded turn that a prompt was made from."""
    return TurnId(turn.split(_MARK)[0])
