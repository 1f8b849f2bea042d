"""What a benchmark is made of: days of rounds, each with a question, a way to check the answer, and
what the person says to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

KEEP_IN_MIND: Final = "Keep this in mind as you continue with the next task."


@dataclass(frozen=True, slots=True)
class ChoiceCheck:
    """The right answer is a set of letters. `options` are the letters there are, at least one."""

    options: tuple[str, ...]
    answer: frozenset[str]


@dataclass(frozen=True, slots=True)
class FileCheck:
    """The right answer is a state of the workspace: a shell command, run there, ends as
    expected.
    """

    command: str
    expect_exit: int = 0
    timeout_s: float = 30.0
    expect_stdout: str | None = None
    is_regex: bool = False


Check = ChoiceCheck | FileCheck


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the person says afterwards: to a right answer; to a wrong one (of files); to each option
    (of a choice).
    """

    correct: str
    incorrect: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Round:
    """One question of a day."""

    id: str
    question: str
    check: Check
    feedback: Feedback


@dataclass(frozen=True, slots=True)
class Said:
    """A message the day begins with."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Day:
    """A working day: one session, one fresh workspace, rounds in order. `folder` holds the files it
    begins with, if any.
    """

    id: str
    title: str
    session: str
    opening: tuple[Said, ...]
    rounds: tuple[Round, ...]
    folder: Path | None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Days in order, with what all of them share: the persona's files, and the folder of the
    checkers where the data has one.
    """

    name: str
    root: Path
    days: tuple[Day, ...]
    shared: Mapping[str, Path]
    checkers: Path | None

    @property
    def rounds(self) -> int:
        """How many questions are planned: what every score is divided by, whatever was executed."""
        return sum(len(day.rounds) for day in self.days)
