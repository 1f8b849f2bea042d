"""The gate: what a learned skill must show before it is in force, and how long it is on trial."""

from metaclaw.skills.gate.clashes import Clash, ClashKind, IndexLibrary, find_clashes
from metaclaw.skills.gate.gate import Admission, DraftCheck, Gate, GateMode, Objection, Replaying
from metaclaw.skills.gate.proof import Belief, Decision, PassRate, ReplayBudget, SkillProof, prove, replays_in_words
from metaclaw.skills.gate.trial import (
    Interval,
    LiveTask,
    TaskCounts,
    TrialDecision,
    TrialReport,
    Uplift,
    is_harmful,
    judge_trial,
    measure_uplift,
    trial_prior,
)

__all__ = [
    "Admission",
    "Belief",
    "Clash",
    "ClashKind",
    "Decision",
    "DraftCheck",
    "Gate",
    "GateMode",
    "IndexLibrary",
    "Interval",
    "LiveTask",
    "Objection",
    "PassRate",
    "ReplayBudget",
    "Replaying",
    "SkillProof",
    "TaskCounts",
    "TrialDecision",
    "TrialReport",
    "Uplift",
    "find_clashes",
    "is_harmful",
    "judge_trial",
    "measure_uplift",
    "prove",
    "replays_in_words",
    "trial_prior",
]
