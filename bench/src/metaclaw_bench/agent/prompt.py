"""What an agent is told before a day begins: who it is, in the benchmark's own words, and how it
works with files.

Nothing here names a checker or a house rule, and no date is given but the one the day's opening
messages give."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FIRST: Final = ("IDENTITY.md", "AGENTS.md", "SOUL.md", "TOOLS.md", "USER.md")
TOOL_USE: Final = """\
# How you work

You work in a folder, your workspace. Your tools are `read`, `write`, `list` and `run` (a shell command); whatever you were told
about tools elsewhere, these are the ones there are. All paths are relative to the workspace, and nothing else can be reached.
Do what is asked by changing files where files are asked for, look at what is there before you change it, and then answer in words.
Your answer ends your work on the task: nobody replies to questions before the next one."""
FILE_USE: Final = """\
# How you work

You have no tools. To make a file, or replace one, write a line `FILE` and its path, and below it the whole contents, like this:

FILE notes/example.md
# Example

Contents go on until the next `FILE` line or the end of your answer, so say what you have to say before the first one. All paths are
relative to your workspace."""


def persona_of(shared: Mapping[str, Path]) -> str:
    """The persona in a benchmark's shared files: its Markdown files, the known ones in their order,
    others after them by name.
    """
    names = [name for name in shared if name.endswith(".md") and "/" not in name]
    rank = {name: at for at, name in enumerate(_FIRST)}
    ordered = sorted(names, key=lambda name: (rank.get(name, len(rank)), name))
    return "\n\n".join(shared[name].read_text(encoding="utf-8").strip() for name in ordered)


def system_prompt(persona: str, usage: str) -> str:
    """A whole system prompt."""
    return f"{persona}\n\n{usage}" if persona else usage
