"""Learning from use: a failure is noticed (outcomes), becomes a skill (fast), is reviewed
and put in force (admission).

Rules come from messages (listen); `supervision` runs the loops in a process beside serving. The
names in `_LOADED_ON_USE` bring most of the program along, so they are imported when they are first
used."""

from typing import TYPE_CHECKING

from metaclaw.learn.budget import PRICES_AS_OF, Budget, TokenRoom
from metaclaw.learn.models import UNLEARNED, Models, Provider
from metaclaw.learn.retention import Retention, SessionErasure, StoreUpkeep
from metaclaw.learn.store_rpc import (
    CallError,
    CallResult,
    Channel,
    ForgetSession,
    LearnerReport,
    LearnerStart,
    RemoteLibrary,
    RemoteProvider,
    StoreCall,
    StoreClient,
    ToLearner,
    WakeLearner,
)
from metaclaw.learn.supervision import (
    PENDING,
    SET_ASIDE,
    AttemptLog,
    CrashRecord,
    LoopWakeup,
    PendingWork,
    Supervisor,
    WorkAttempts,
    WorkItem,
    attempt,
    senses,
)
from metaclaw.learn.team import FOR_TEAM, TeamProposals
from metaclaw.loading import loaded_on_use

if TYPE_CHECKING:
    from metaclaw.learn.admission import rejected_proposals
    from metaclaw.learn.assembly import Learning, LearningStores, owner_of
    from metaclaw.learn.assessment import (
        always_match,
        concerns,
        conversation_of,
        in_words,
        is_corrected,
    )
    from metaclaw.learn.owner import OwnerActions, SkillFacts
    from metaclaw.learn.steps import RecordedSteps, read_request
    from metaclaw.learn.what_if import TriedTurn, WhatIf

_LOADED_ON_USE = {
    "rejected_proposals": "admission",
    "Learning": "assembly",
    "LearningStores": "assembly",
    "owner_of": "assembly",
    "always_match": "assessment",
    "concerns": "assessment",
    "conversation_of": "assessment",
    "in_words": "assessment",
    "is_corrected": "assessment",
    "OwnerActions": "owner",
    "SkillFacts": "owner",
    "RecordedSteps": "steps",
    "read_request": "steps",
    "WhatIf": "what_if",
    "TriedTurn": "what_if",
}
__getattr__ = loaded_on_use(__name__, _LOADED_ON_USE)
