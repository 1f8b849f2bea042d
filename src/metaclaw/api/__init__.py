"""The program's own HTTP interface: JSON API, event stream and OpenAPI description; `web` holds the
pages for a browser.
"""

from metaclaw.api.access import ACCESS, RoleGate
from metaclaw.api.application import Api, ApiParts
from metaclaw.api.cost import Cost
from metaclaw.api.events import EventFeed
from metaclaw.api.home_routes import HomeRoutes, PolicyOwner
from metaclaw.api.policy import UNTRAINED, newest_version
from metaclaw.api.route_table import home_table
from metaclaw.api.router import ApiResponse, Route, Router
from metaclaw.api.status_words import problems, summary
from metaclaw.api.turns import Titles
from metaclaw.api.views import change_view, held_rules, picked
from metaclaw.api.web.sign_in import SignIn, new_link, secret_of
