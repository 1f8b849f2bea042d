"""Learning from use: a failure is noticed (outcomes), becomes a skill (fast), is proven (replay) and put in force (admission).

Rules come from messages (listen), weights from training (slow); `supervision` runs the loops in a process beside serving.
The names in `_LOADED_ON_USE` bring most of the program along, so they are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from metaclaw.learn.budget import PRICES_AS_OF as PRICES_AS_OF
from metaclaw.learn.budget import Budget as Budget
from metaclaw.learn.models import UNLEARNED as UNLEARNED
from metaclaw.learn.models import Models as Models
from metaclaw.learn.models import Provider as Provider
from metaclaw.learn.retention import Retention as Retention
from metaclaw.learn.retention import SessionErasure as SessionErasure
from metaclaw.learn.retention import StoreUpkeep as StoreUpkeep
from metaclaw.learn.store_rpc import CallError as CallError
from metaclaw.learn.store_rpc import CallResult as CallResult
from metaclaw.learn.store_rpc import Channel as Channel
from metaclaw.learn.store_rpc import ForgetSession as ForgetSession
from metaclaw.learn.store_rpc import LearnerReport as LearnerReport
from metaclaw.learn.store_rpc import LearnerStart as LearnerStart
from metaclaw.learn.store_rpc import RemoteCandidates as RemoteCandidates
from metaclaw.learn.store_rpc import RemoteCompliance as RemoteCompliance
from metaclaw.learn.store_rpc import RemoteCursors as RemoteCursors
from metaclaw.learn.store_rpc import RemoteEvents as RemoteEvents
from metaclaw.learn.store_rpc import RemoteLibrary as RemoteLibrary
from metaclaw.learn.store_rpc import RemoteProvider as RemoteProvider
from metaclaw.learn.store_rpc import RemoteSpending as RemoteSpending
from metaclaw.learn.store_rpc import RemoteUses as RemoteUses
from metaclaw.learn.store_rpc import RemoteVerdicts as RemoteVerdicts
from metaclaw.learn.store_rpc import StoreCall as StoreCall
from metaclaw.learn.store_rpc import StoreCalls as StoreCalls
from metaclaw.learn.store_rpc import StoreClient as StoreClient
from metaclaw.learn.store_rpc import ToLearner as ToLearner
from metaclaw.learn.store_rpc import WakeLearner as WakeLearner
from metaclaw.learn.supervision import PENDING as PENDING
from metaclaw.learn.supervision import SET_ASIDE as SET_ASIDE
from metaclaw.learn.supervision import AttemptLog as AttemptLog
from metaclaw.learn.supervision import CrashRecord as CrashRecord
from metaclaw.learn.supervision import PendingWork as PendingWork
from metaclaw.learn.supervision import Supervisor as Supervisor
from metaclaw.learn.supervision import WorkAttempts as WorkAttempts
from metaclaw.learn.supervision import WorkItem as WorkItem
from metaclaw.learn.supervision import senses as senses

if TYPE_CHECKING:
    from metaclaw.learn.admission import rejected_proposals as rejected_proposals
    from metaclaw.learn.assembly import Learning as Learning
    from metaclaw.learn.assembly import LearningStores as LearningStores
    from metaclaw.learn.assembly import owner_of as owner_of
    from metaclaw.learn.owner import OwnerActions as OwnerActions
    from metaclaw.learn.owner import SkillFacts as SkillFacts
    from metaclaw.learn.slow.assembly import SlowLearning as SlowLearning
    from metaclaw.learn.slow.journal import newest_curve as newest_curve
    from metaclaw.learn.steps import StepBuilder as StepBuilder
    from metaclaw.learn.steps import read_request as read_request

_LOADED_ON_USE = {
    "rejected_proposals": "admission",
    "Learning": "assembly",
    "LearningStores": "assembly",
    "owner_of": "assembly",
    "OwnerActions": "owner",
    "SkillFacts": "owner",
    "SlowLearning": "slow.assembly",
    "newest_curve": "slow.journal",
    "StepBuilder": "steps",
    "read_request": "steps",
}


def __getattr__(name: str) -> object:
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"metaclaw.learn.{_LOADED_ON_USE[name]}"), name)
