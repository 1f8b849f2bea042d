"""The table of the routes on what a home holds."""

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import Route, routes_of


def home_table(home: HomeRoutes) -> list[Route]:
    """The routes. Their modules are imported here: the start does not need them."""
    from metaclaw.api.agent_files import AgentFileRoutes
    from metaclaw.api.keys import KeyRoutes
    from metaclaw.api.learning import LearningRoutes
    from metaclaw.api.policy import PolicyRoutes
    from metaclaw.api.progress import ProgressRoutes
    from metaclaw.api.rules import EnforcementRoutes, RuleRoutes
    from metaclaw.api.sessions import SessionRoutes
    from metaclaw.api.skills import SkillRoutes
    from metaclaw.api.what_if import WhatIfRoutes
    from metaclaw.api.why import WhyRoutes

    return routes_of(
        *(SessionRoutes(home), WhyRoutes(home), LearningRoutes(home), SkillRoutes(home)),
        *(RuleRoutes(home), AgentFileRoutes(home), home.cost, PolicyRoutes(home)),
        *(EnforcementRoutes(home), KeyRoutes(home), WhatIfRoutes(home), ProgressRoutes(home)),
    )
