"""The routes on what a home holds. They answer in the running proxy, and in a command if none
runs.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from metaclaw.api.cost import Cost
from metaclaw.api.events import EventFeed
from metaclaw.api.router import ApiError
from metaclaw.api.turns import Titles, Words, resolve
from metaclaw.config import Config
from metaclaw.domain.candidate import Candidate, CandidateId, Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.person import HOME, Person
from metaclaw.domain.policy import Serving
from metaclaw.domain.skill import Skill
from metaclaw.skills import Reach, Rulebook, Teams
from metaclaw.store import (
    Database,
    LedgerReader,
    Overview,
    SqlCandidates,
    SqlKeys,
    SqlProgress,
)

if TYPE_CHECKING:
    from metaclaw.learn import OwnerActions


_MOST_ALIKE = 100


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
    teams: Teams
    read_keys: Callable[[], None]
    """Called when keys were changed. Blocks."""
    used: Callable[[Person], Mapping[str, float]]
    """What a person has used of each of their limits."""
    person: Person = HOME
    """Who asks. For those who are no owners the home holds only what they may see."""

    def for_person(self, person: Person) -> "HomeRoutes":
        """The home as this person may see it."""
        reach = None if person.is_owner else Reach(person.name, self.teams)
        return replace(self, person=person, rulebook=replace(self.rulebook, reach=reach))

    @property
    def _user(self) -> str | None:
        return None if self.person.is_owner else self.person.name

    @cached_property
    def keys(self) -> SqlKeys:
        return SqlKeys(self.database)

    @cached_property
    def reader(self) -> LedgerReader:
        return LedgerReader(self.database, user=self._user)

    @cached_property
    def overview(self) -> Overview:
        return Overview(self.database, user=self._user)

    @cached_property
    def progress(self) -> SqlProgress:
        return SqlProgress(self.database, user=self._user)

    @cached_property
    def candidates(self) -> SqlCandidates:
        return SqlCandidates(self.database)

    def asks_team(self, scope: str | None) -> bool:
        """Whether a rule of this scope is a member's wish for a team of theirs."""
        kind, _, team = (scope or "").partition(":")
        is_theirs = kind == "team" and self.person.name in self.teams.get(team, ())
        return is_theirs and not self.person.is_owner

    def skipped(self) -> list[dict[str, str]]:
        """The files that cannot be read, for owners."""
        found = self.rulebook.library.view.skipped if self.person.is_owner else ()
        return [{"path": str(one.path), "reason": one.reason} for one in found]

    def session_id(self, named: str) -> SessionId:
        """The whole id of the session whose id begins so. What is not known is returned as it is,
        but only to an owner. Blocks. Raises ApiError."""
        return SessionId(self._resolved(self.reader.find_sessions, named, "session"))

    def turn_id(self, named: str) -> TurnId:
        """The same for a turn."""
        return TurnId(self._resolved(self.reader.find_turns, named, "turn"))

    def candidate_id(self, named: str) -> CandidateId:
        """The candidate whose id begins so or whose skill has this name, one that waits first."""
        return CandidateId(self._resolved(self._candidates_named, named, "candidate"))

    def shows(self, candidate: Candidate) -> bool:
        """Whether the person may see a candidate: it is for them, or they proposed it."""
        proposal = candidate.proposal
        return self.rulebook.owns(proposal.skill) or proposal.said_by == self.person.name

    def _candidates_named(self, named: str, limit: int) -> Sequence[str]:
        stored = self.candidates
        alike = stored.candidates(limit=_MOST_ALIKE, name=SkillName(named))
        found = list(filter(self.shows, alike))
        found = [one for one in found if one.standing is Standing.WAITING] or found
        if not found:
            begun = map(stored.candidate, stored.find(named, _MOST_ALIKE))
            found = [one for one in begun if one is not None and self.shows(one)]
        return [one.id for one in found[:limit]]

    def _resolved(self, find: Callable[[str, int], Sequence[str]], named: str, what: str) -> str:
        if not self.person.is_owner and not find(named, 1):
            raise ApiError(f"there is no {what} {named}", 404)
        return resolve(find, named, what)

    def projects(self) -> list[str]:
        """The projects of sessions and of rules. Blocks."""
        of_rules = {rule.workspace for rule in self.rulebook.rules() if rule.workspace}
        return sorted({*self.reader.workspaces(), *of_rules})
