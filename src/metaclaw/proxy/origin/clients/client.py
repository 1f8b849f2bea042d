"""What is known about one family of clients: how to recognise it, and what only it does."""

from collections.abc import Callable
from dataclasses import dataclass

from metaclaw.proxy.origin.request import Request


@dataclass(frozen=True, slots=True)
class Helper:
    """A sub-agent that shares its session identifier with the agent that started it; `of` is the helper it works for, if any."""

    id: str
    of: str | None = None


def _nothing(_: Request) -> None:
    return None


def _no(_: Request) -> bool:
    return False


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Client:
    """One family.

    `speaks` recognises a request of it, by its headers or its system text and nothing else. `key` is the session identifier it
    sends in a way of its own, `text_key` one that is only written in the conversation. `helper` tells a sub-agent apart, `is_hired`
    one that does not say whose it is. `side` names the housekeeping a request does, or is None for work. `words` takes what this
    client glues to a person's words off again, and returns nothing if nothing else is left.
    """

    name: str
    speaks: Callable[[Request], bool]
    key: Callable[[Request], str | None] = _nothing
    text_key: Callable[[Request], str | None] = _nothing
    helper: Callable[[Request], Helper | None] = _nothing
    is_hired: Callable[[Request], bool] = _no
    side: Callable[[Request], str | None] = _nothing
    words: Callable[[str], str] = _as_it_is
