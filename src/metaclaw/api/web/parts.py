"""What the pages read beside the API."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metaclaw.api.turns import Titles, Words
from metaclaw.skills import Rulebook
from metaclaw.store import LedgerReader, Overview


@dataclass(frozen=True, slots=True)
class PageParts:
    """Data of the pages that the API does not have. `words` returns the user's own words in a text
    of an agent.
    """

    overview: Overview
    titles: Titles
    reader: LedgerReader
    rulebook: Rulebook
    words: Words
    health: Callable[[], tuple[object, ...]] = tuple
    """A value that changes when a provider fails or recovers."""
    curve: Callable[[], Sequence[float]] = tuple
    """The mean reward of each training step of the newest run. Blocks."""
