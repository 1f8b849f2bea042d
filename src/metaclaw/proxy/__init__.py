"""The request path: from an agent's bytes to a provider's and back, with the turn in the ledger
before the answer ends.
"""

from metaclaw.proxy.acknowledgement import Acknowledgements
from metaclaw.proxy.dispatch import Opener, Providers
from metaclaw.proxy.enforcement.call_judge import CallJudge
from metaclaw.proxy.enforcement.enforcer import Enforcer, HeldRules, StoredAnswers, TrueAnswers
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.http.connection import Listener
from metaclaw.proxy.http.server import Gatekeeper, RequestLimits, Server
from metaclaw.proxy.http.wrong_keys import WrongKeys
from metaclaw.proxy.keyring import Keyring
from metaclaw.proxy.metrics import Metrics, NoAttendant
from metaclaw.proxy.other_requests import OtherRequests
from metaclaw.proxy.pipeline import Pipeline
from metaclaw.proxy.placement import LibrarySimilarity, NoSimilarity, Placer
from metaclaw.proxy.reminders import Reminders
from metaclaw.proxy.sessions import Origins, own_words
