"""Checks: what a skill may carry so that an answer can be tested without a model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

from metaclaw.domain.chat import Json, Message, Tool
from metaclaw.domain.verdict import Outcome

MAX_PATTERN_CHARS = 2_000
MAX_SCHEMA_CHARS = 8_000
MAX_PROGRAM_CHARS = 8_000
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/*-]{1,128}(?:\|[A-Za-z0-9_.:/*-]{1,128}){0,7}")


class Place(StrEnum):
    """Which part of an answer is looked at: its words, or what it gave to tools."""

    ANSWER = "answer"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class Where:
    """The part of an answer that is looked at. `tool` narrows the calls to those of one tool or class of tools (`shell`, `edit`,
    `read`, `web`), or of several with `|` between them; `*` in a name stands for anything."""

    place: Place = Place.ANSWER
    tool: str | None = None

    def __post_init__(self) -> None:
        if self.tool is None:
            return
        if self.place is not Place.CALLS:
            raise ValueError("only calls have a tool")
        if not _TOOL_NAME.fullmatch(self.tool):
            raise ValueError(f"{self.tool!r} is not the name of a tool")

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools and classes that it names; none for all calls."""
        return () if self.tool is None else _tools(self.tool)


@lru_cache(1024)  # asked for with every answer
def _tools(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


@dataclass(frozen=True, slots=True)
class PatternCheck:
    """A regular expression that must, or must not, be found."""

    pattern: str
    must_match: bool = True
    where: Where = Where()

    def __post_init__(self) -> None:
        if not self.pattern or len(self.pattern) > MAX_PATTERN_CHARS:
            raise ValueError(f"a pattern has 1 to {MAX_PATTERN_CHARS} characters, not {len(self.pattern)}")
        if self.pattern != self.pattern.strip() or len(self.pattern.splitlines()) != 1:
            raise ValueError(r"a pattern is one line without space around it; write [ ] and \n instead")
        try:
            re.compile(self.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"not a regular expression: {error}") from error


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """A JSON Schema that JSON in the answer, or the arguments of its calls, must satisfy."""

    schema: Mapping[str, Json]
    where: Where = Where()


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """Python source that reads an answer and the conversation before it as JSON from standard input. It exits with 0 (pass) or 1
    (fail), or prints a score.

    `approved` says that a person wrote it or has agreed to it; nothing else is ever run.
    """

    source: str
    approved: bool = False

    def __post_init__(self) -> None:
        if not self.source.strip() or len(self.source) > MAX_PROGRAM_CHARS:
            raise ValueError(f"a program has 1 to {MAX_PROGRAM_CHARS} characters, not {len(self.source)}")
        if "\0" in self.source:
            raise ValueError("a program holds no NUL character")


Check: TypeAlias = PatternCheck | SchemaCheck | ProgramCheck


@dataclass(frozen=True, slots=True)
class Conversation:
    """What came before an answer, for checks that need to know what was asked. `task` is the last thing the person asked."""

    messages: tuple[Message, ...] = ()
    task: str = ""
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check says of an answer, and why. Unknown where there was nothing to look at, or it could not be tried.

    `score` is what the answer is worth when weights are trained: 1 for a pass, below one half for a failure. A program may also
    give something in between, which is neither: the outcome is unknown then. None where nothing is known at all.
    """

    outcome: Outcome
    reason: str
    score: float | None = None

    def __post_init__(self) -> None:
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise ValueError(f"the score {self.score} is not between 0 and 1")


def scored(score: float, reason: str) -> Finding:
    """The finding of a score: 1 passes, below one half fails, anything between is neither."""
    outcome = Outcome.PASS if score == 1.0 else Outcome.FAIL if score < 0.5 else Outcome.UNKNOWN
    return Finding(outcome, reason, score)
