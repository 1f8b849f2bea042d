"""What the runner needs of an agent: a day begun in a workspace, questions asked one after the
other, an end.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias

from metaclaw_bench.agent.chat import Served, Usage
from metaclaw_bench.questions import Day


class Why(StrEnum):
    """Why a round has no answer. All of them count as a wrong answer; none of them is a verdict on
    the model's words.
    """

    STEPS = "steps"
    """The model went on calling tools until its steps were used up."""
    SECONDS = "seconds"
    """The round took longer than it may."""
    UPSTREAM = "upstream"
    """The model could not be reached, refused, or answered with something that is no answer, also
    when asked again.
    """
    TOO_LONG = "too_long"
    """The question does not fit in the history's budget."""
    COMMAND = "command"
    """An external agent's command could not be started, or failed every time."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What the agent said at the end of a round. `usage` is the sum over its steps, None where a
    step was not counted.

    `served` has one entry for each step the proxy told of; none where no proxy stands between, or
    the agent is not ours."""

    text: str
    usage: Usage | None
    steps: int
    served: tuple[Served, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer: the kind of reason, the reason in words, and what was spent all the same."""

    why: Why
    detail: str
    usage: Usage | None = None
    steps: int = 0
    served: tuple[Served, ...] = ()


Asked: TypeAlias = Answered | Failed


class Agent(Protocol):
    """One agent for one day at a time. After `end`, `begin` may begin another day; nothing of the
    last one is remembered.
    """

    async def begin(self, day: Day, workspace: Path) -> None:
        """Take up a day: its opening messages are the history, and `workspace` is where its files
        lie.
        """

    async def ask(self, text: str, *, closing: bool = False) -> Asked:
        """Say something, let the agent work, and give its answer. `closing` marks the last message
        of the day.
        """

    async def end(self) -> None:
        """Let go of everything the day held. Harmless where none was begun."""
