"""Search by meaning for the request path: keeps the embedding process's index at the library's newest generation."""

import re
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from metaclaw.domain.skill import Nearness, Skill
from metaclaw.domain.turn import Scope
from metaclaw.skills import LibraryView, Teams

MOST_SEARCHED: Final = 20_000
"""Larger libraries are searched by words alone: their vectors would take too much memory."""

_LONG_NUMBER: Final = re.compile(r"\d{4,}")


class Search(Protocol):
    """The embedding process."""

    def follow(self, skills: Iterable[Skill]) -> None: ...
    async def near(self, text: str, scopes: Iterable[str]) -> Nearness | None: ...
    def forget(self) -> None: ...


class LibrarySimilarity:
    """Searches the library's newest view."""

    def __init__(self, search: Search, view: Callable[[], LibraryView], teams: Teams | None = None) -> None:
        self._search = search
        self._view = view
        self._teams = teams
        self._followed: LibraryView | None = None

    def follow(self) -> None:
        """Bring the index up to date. Called before the first request, and again where the library has changed."""
        view = self._view()
        if view is not self._followed:
            self._followed = view
            self._search.follow(view.index.skills() if view.count <= MOST_SEARCHED else ())

    async def near(self, query: str, scope: Scope) -> Nearness | None:
        """What is near a request for this speaker; None where only words can tell in time."""
        self.follow()
        view = self._view()
        if not view.count:
            return None
        # Requests that differ only in the number of a ticket, a turn or a date are one request, answered from the cache.
        return await self._search.near(_LONG_NUMBER.sub("", query), view.scopes_of(scope, self._teams))

    def forget(self) -> None:
        """Keep nothing of what was asked."""
        self._search.forget()
