"""What a language's rules for standing instructions are made of."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Polarity(StrEnum):
    """What an instruction asks for: doing something, leaving it, or one in place of the other."""

    DO = "do"
    DONT = "dont"
    BOTH = "both"


class Pattern:
    """A regular expression that is compiled when it is first needed: these are long, and most commands never need one."""

    def __init__(self, source: str) -> None:
        self._source = source

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self._source)

    def search(self, text: str) -> re.Match[str] | None:
        """The first place where it is found."""
        return self._compiled.search(text)

    def match(self, text: str) -> re.Match[str] | None:
        """Whether the text begins with it."""
        return self._compiled.match(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Every place where it is found."""
        return self._compiled.finditer(text)


def any_of(*sources: str) -> Pattern:
    """A pattern that finds whatever one of these does."""
    return Pattern("|".join(sources))


@dataclass(frozen=True, slots=True)
class Grammar:
    """How one language gives standing instructions.

    `gives` says whether a sentence does (it sees the sentence in lower case with quotations blotted out); `bars` are the marks of
    what looks like one: questions, once-only requests, suppositions, reports of what others say. `positive` and `negative` find
    what is asked for and what is forbidden.
    """

    language: str
    gives: Callable[[str], bool]
    bars: Pattern
    positive: Pattern
    negative: Pattern

    def is_instruction(self, sentence: str) -> bool:
        """Whether the sentence, in lower case and blotted, is a standing instruction."""
        return self.gives(sentence) and not self.bars.search(sentence)

    def polarity(self, sentence: str) -> Polarity:
        """What an instruction asks for."""
        asks, forbids = self.positive.search(sentence) is not None, self.negative.search(sentence) is not None
        return Polarity.BOTH if asks and forbids else Polarity.DONT if forbids else Polarity.DO
