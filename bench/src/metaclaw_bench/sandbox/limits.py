"""What a command in a sandbox may use, how strong the sandbox is, and how the command ended."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """What one command may use. Memory and size of files are for each process and each file, not
    for all of them together; the quota of the workspace is for all files in it."""

    seconds: float = 60.0
    memory_mib: int = 2048
    processes: int = 64
    file_mib: int = 64
    output_bytes: int = 20_000
    workspace_mib: int = 256


class Strength(StrEnum):
    """What keeps a command inside its workspace. It goes into the report: results of a weak sandbox
    are to be read as such.
    """

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    LIMITS = "limits"

    @property
    def words(self) -> str:
        """The same for a person."""
        return _WORDS[self]


NO_COMMANDS: Final = "no commands"
NOT_OURS: Final = "not ours"


def told(name: str) -> str:
    """What a record says of the sandbox, for a person."""
    if name == NO_COMMANDS:
        return "the agent ran no commands"
    if name == NOT_OURS:
        return "the agent was a program of the user's own, outside our sandbox"
    return Strength(name).words if name in set(Strength) else "not recorded"


_WORDS: Final = {
    Strength.NAMESPACES: (
        "commands saw their workspace and read-only system folders, in namespaces of their own"
        " without a network"
    ),
    Strength.LANDLOCK: (
        "commands could open files of their workspace and of system folders only, and no socket;"
        " they saw the machine's processes (no namespaces are to be had here)"
    ),
    Strength.LIMITS: (
        "commands had limits and a clean environment, but the machine's files were not walled off,"
        " and its network at best: an agent that looked for the answers could have found them"
    ),
}


class Stopped(StrEnum):
    """Why a command has no exit status."""

    OUT_OF_TIME = "out_of_time"
    NOT_STARTED = "not_started"
    OUT_OF_SPACE = "out_of_space"


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended (128 and more for a signal, as shells count) and what it printed, with so
    much of the middle left out.
    """

    end: int | Stopped
    output: str
    left_out_bytes: int = 0
