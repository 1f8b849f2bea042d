"""What people and tools read: the program's own API and its metrics."""

from metaclaw.dashboard.api import Api, Facts
from metaclaw.dashboard.cost import Cost
from metaclaw.dashboard.enforcement import EnforcementRoutes
from metaclaw.dashboard.events import EventFeed
from metaclaw.dashboard.learning import LearningRoutes
from metaclaw.dashboard.page_content import PageParts
from metaclaw.dashboard.policy import UNTRAINED, PolicyOwner, PolicyRoutes
from metaclaw.dashboard.sign_in import SignIn
from metaclaw.dashboard.status import ProviderFacts, Status
from metaclaw.dashboard.titles import Titles
from metaclaw.dashboard.why import WhyRoutes

__all__ = [
    "UNTRAINED",
    "Api",
    "Cost",
    "EnforcementRoutes",
    "EventFeed",
    "Facts",
    "LearningRoutes",
    "PageParts",
    "PolicyOwner",
    "PolicyRoutes",
    "ProviderFacts",
    "SignIn",
    "Status",
    "Titles",
    "WhyRoutes",
]
