"""The program's own HTTP interface: JSON API, event stream and OpenAPI description; `web` holds the
pages for a browser.
"""

from metaclaw.api.application import Api, ApiParts
from metaclaw.api.events import EventFeed
from metaclaw.api.learning import LearningRoutes
from metaclaw.api.policy import UNTRAINED, PolicyOwner, PolicyRoutes, version_view
from metaclaw.api.rules import EnforcementRoutes
from metaclaw.api.status import Cost, ProviderFacts, Status
from metaclaw.api.turns import Titles, WhyRoutes, last_words, words_in
from metaclaw.api.views import (
    candidate_view,
    change_view,
    compliance_view,
    generation_view,
    retired_rule_view,
    retired_skill_view,
    rule_record_view,
    rule_view,
    session_view,
    skill_view,
    turn_view,
    undone_view,
    verdict_view,
    whole_candidate_view,
)
from metaclaw.api.web.content import PageParts
from metaclaw.api.web.sign_in import SignIn
