"""The routes on what a home holds. They answer in the running proxy, and in a command if none
runs.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaclaw.api.cost import Cost
from metaclaw.api.events import EventFeed
from metaclaw.api.policy import PolicyOwner
from metaclaw.api.router import Route, routes_of
from metaclaw.api.turns import Titles, Words
from metaclaw.config import Config
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.policy import Serving
from metaclaw.domain.skill import Skill
from metaclaw.skills import Budgets, Rulebook
from metaclaw.store import (
    Database,
    LedgerReader,
    Overview,
    SqlBatches,
    SqlCandidates,
    SqlCompliance,
    SqlEpisodes,
    SqlForgetting,
    SqlGenerations,
    SqlPolicies,
)

if TYPE_CHECKING:
    from metaclaw.learn import OwnerActions


@dataclass(frozen=True, slots=True)
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

    def table(self) -> list[Route]:
        """The routes. Their modules are imported here: the start does not need them."""
        from metaclaw.api.agent_files import AgentFileRoutes
        from metaclaw.api.learning import LearningRoutes
        from metaclaw.api.policy import PolicyRoutes
        from metaclaw.api.rules import EnforcementRoutes, RuleRoutes
        from metaclaw.api.sessions import SessionRoutes, known_projects
        from metaclaw.api.skills import SkillRoutes
        from metaclaw.api.turns import WhyRoutes

        config, database, rulebook = self.config, self.database, self.rulebook
        reader, library = LedgerReader(database), rulebook.library
        generations, candidates = SqlGenerations(database), SqlCandidates(database)
        return routes_of(
            SessionRoutes(
                reader,
                Overview(database),
                self.titles,
                self.words,
                rulebook.rules,
                self.end_session,
            ),
            WhyRoutes(
                reader,
                self.words,
                generations.at,
                lambda: library.view.skills,
                Budgets.configured(config.skills),
                {team.name: team.users for team in config.teams},
                Overview(database),
                self.absorbed,
                self.embedded,
            ),
            LearningRoutes(
                reader,
                self.words,
                self.feed,
                candidates,
                generations.history,
                library.follow,
                self.owner,
                SqlForgetting(database).begin,
            ),
            SkillRoutes(rulebook, library.follow, self.owner, candidates, SqlEpisodes(database)),
            RuleRoutes(rulebook, SqlCompliance(database), self.owner, self.noted),
            AgentFileRoutes(rulebook.rules, lambda: known_projects(reader, rulebook.rules())),
            self.cost,
            PolicyRoutes(
                SqlPolicies(database),
                SqlBatches(database),
                self.serving,
                self.trainer,
                config.untrainable,
            ),
            EnforcementRoutes(self.is_holding, self.switch_holding, lambda: library.view.skills),
        )
