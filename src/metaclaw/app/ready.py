"""What is told of a proxy that has just started."""

from collections.abc import Callable
from typing import NamedTuple


class ReadyFacts(NamedTuple):
    """The address, key and content of the running proxy."""

    url: str
    api_key: str
    model: str | None
    rules: int
    facts: int
    skills: int


class ReadyProxy(NamedTuple):
    """`ReadyFacts` for the message at the start."""

    url: str
    api_key: str
    model: str | None
    rules: int
    facts: int
    skills: int
    new_link: Callable[[], str]
    """Makes a link that signs a browser in to the page, once."""
