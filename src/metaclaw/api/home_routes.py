"""The routes on what a home holds. They answer in the running proxy, and in a command if none
runs.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from metaclaw.api.cost import Cost
from metaclaw.api.events import EventFeed
from metaclaw.api.turns import Titles, Words
from metaclaw.config import Config
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.policy import Serving
from metaclaw.domain.skill import Skill
from metaclaw.skills import Rulebook
from metaclaw.store import Database, LedgerReader, Overview, SqlCandidates

if TYPE_CHECKING:
    from metaclaw.learn import OwnerActions


class PolicyOwner(Protocol):
    """Commands for weights. Each returns once it is done; raises RefusedError and TrainingError."""

    async def train(self) -> Mapping[str, Json]:
        """Start training now with the turns there are; return facts about them."""

    async def promote(self, number: int) -> object:
        """Let this version answer all requests from now on."""

    async def rollback(self, to: int | None) -> int:
        """Go back to an earlier version, or by one step; return the version that serves then."""

    def training(self) -> Mapping[str, Json]:
        """The state of training: state, step, version, paused_reason, and more."""


@dataclass(frozen=True)
class HomeRoutes:
    """What these routes read and call. `words` returns a person's own words in a text of an agent;
    `embedded` is the provider of the embedded model."""

    config: Config
    database: Database
    rulebook: Rulebook
    titles: Titles
    words: Words
    feed: EventFeed
    cost: Cost
    owner: Callable[[], Awaitable["OwnerActions"]]
    trainer: Callable[[], Awaitable[PolicyOwner | None]]
    serving: Callable[[], Serving]
    absorbed: Callable[[int], Collection[str]]
    """The skills that a version of the weights has absorbed."""
    embedded: str | None
    is_holding: Callable[[], bool]
    switch_holding: Callable[[bool], Awaitable[None]]
    end_session: Callable[[SessionId], Awaitable[bool]]
    noted: Callable[[Skill, TurnId], None]
    """Called with a rule that was stated in a turn. Blocks."""

    @cached_property
    def reader(self) -> LedgerReader:
        return LedgerReader(self.database)

    @cached_property
    def overview(self) -> Overview:
        return Overview(self.database)

    @cached_property
    def candidates(self) -> SqlCandidates:
        return SqlCandidates(self.database)

    def projects(self) -> list[str]:
        """The projects of sessions and of rules. Blocks."""
        of_rules = {rule.workspace for rule in self.rulebook.rules() if rule.workspace}
        return sorted({*self.reader.workspaces(), *of_rules})
