"""What a language must have words for. Of every tuple of wordings the last third is kept for
held-out days.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """One language. Braces in a wording are filled by the generator; what they are called says with
    what.
    """

    things: Mapping[str, str]
    """By domain, with blanks between. Plain letters only: they go into file names."""
    titles: str
    said: str
    months: str
    weekdays: str
    long_date: str
    states: Mapping[str, str]
    currencies: Mapping[str, str]
    units: Mapping[str, str]

    titled: tuple[str, ...]
    about: tuple[str, ...]
    numbered: tuple[str, ...]
    weeks: tuple[str, ...]
    branches: tuple[str, ...]
    lists: tuple[str, ...]
    signed: tuple[str, ...]

    write: tuple[str, ...]
    make: tuple[str, ...]
    change: tuple[str, ...]
    collect: tuple[str, ...]
    second: tuple[str, ...]

    which_fit: tuple[str, ...]
    which_break: tuple[str, ...]
    which_says: tuple[str, ...]
    mixed: str

    fits: str
    breaks: str
    other: str
    right: tuple[str, ...]
    wrong: str
    missing: str
    changed: str

    greeting: tuple[str, ...]
    reply: str
