"""The request path: from an agent's bytes to a provider's and back, with the turn in the ledger before the answer ends."""

from metaclaw.proxy.acknowledgement import Acknowledgements as Acknowledgements
from metaclaw.proxy.dispatch import Opener as Opener
from metaclaw.proxy.dispatch import Provider as Provider
from metaclaw.proxy.dispatch import Providers as Providers
from metaclaw.proxy.enforcement.enforcer import Enforcer as Enforcer
from metaclaw.proxy.enforcement.enforcer import HeldRules as HeldRules
from metaclaw.proxy.enforcement.enforcer import TrueAnswers as TrueAnswers
from metaclaw.proxy.enforcement.held_rules import CallJudge as CallJudge
from metaclaw.proxy.http.connection import Listener as Listener
from metaclaw.proxy.http.server import Gatekeeper as Gatekeeper
from metaclaw.proxy.http.server import Intake as Intake
from metaclaw.proxy.http.server import Server as Server
from metaclaw.proxy.passthrough import Passthrough as Passthrough
from metaclaw.proxy.pipeline import Metrics as Metrics
from metaclaw.proxy.pipeline import Pipeline as Pipeline
from metaclaw.proxy.placement import LibrarySimilarity as LibrarySimilarity
from metaclaw.proxy.placement import Placer as Placer
from metaclaw.proxy.reminders import Reminders as Reminders
from metaclaw.proxy.sessions import Origins as Origins
from metaclaw.proxy.sessions import own_words as own_words
