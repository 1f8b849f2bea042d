"""The program's own HTTP interface: JSON API, event stream and OpenAPI description; `web` holds the
pages for a browser.
"""

from metaclaw.api.application import Api, ApiParts
from metaclaw.api.events import EventFeed
from metaclaw.api.learning import LearningRoutes
from metaclaw.api.policy import UNTRAINED, PolicyOwner, PolicyRoutes, newest_version
from metaclaw.api.router import ApiResponse, Router
from metaclaw.api.rules import EnforcementRoutes
from metaclaw.api.sessions import SessionRoutes
from metaclaw.api.status import Cost, ProviderFacts, Status, held_rules, lesson_week
from metaclaw.api.turns import Titles, WhyRoutes
from metaclaw.api.views import change_view
from metaclaw.api.web.content import PageParts
from metaclaw.api.web.sign_in import SignIn
