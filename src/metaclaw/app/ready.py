"""What is told of a proxy that has just started."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadyFacts:
    """The address, key and content of the running proxy."""

    url: str
    api_key: str
    model: str | None
    rules: int
    facts: int
    skills: int


@dataclass(frozen=True, slots=True)
class ReadyProxy(ReadyFacts):
    """The same for the message at the start."""

    new_link: Callable[[], str]
    """Makes a link that signs a browser in to the page, once."""
    model_state: Callable[[], str] | None = None
    """The state of the embedded model; None if it does not serve."""
