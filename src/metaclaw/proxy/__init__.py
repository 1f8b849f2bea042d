"""The request path: from an agent's bytes to a provider's and back, with the turn in the ledger before the answer ends."""

from metaclaw.proxy.abreast import Ranks
from metaclaw.proxy.acknowledgement import Acknowledgements
from metaclaw.proxy.auth import Gatekeeper
from metaclaw.proxy.enforcement import Enforcer
from metaclaw.proxy.held_rules import CallJudge, HeldRules
from metaclaw.proxy.inspection import Limits
from metaclaw.proxy.listener import Listener
from metaclaw.proxy.metrics import Metrics
from metaclaw.proxy.opening import Opener, Provider, Providers
from metaclaw.proxy.origin import Origins, own_words
from metaclaw.proxy.pipeline import Pipeline
from metaclaw.proxy.placement import Placer
from metaclaw.proxy.relay import Elsewhere
from metaclaw.proxy.reminders import Reminders
from metaclaw.proxy.server import Intake, Server
from metaclaw.proxy.similarity import ShelfSimilarity
from metaclaw.proxy.true_answers import TrueAnswers

__all__ = [
    "Acknowledgements",
    "CallJudge",
    "Elsewhere",
    "Enforcer",
    "Gatekeeper",
    "HeldRules",
    "Intake",
    "Limits",
    "Listener",
    "Metrics",
    "Opener",
    "Origins",
    "Pipeline",
    "Placer",
    "Provider",
    "Providers",
    "Ranks",
    "Reminders",
    "Server",
    "ShelfSimilarity",
    "TrueAnswers",
    "own_words",
]
