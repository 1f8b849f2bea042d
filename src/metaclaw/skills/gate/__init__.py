"""The gate: draft checks, shadow replay, canary. What a skill must show before it is in force, and what it has shown."""

from metaclaw.skills.gate.canary import (
    Baseline,
    CanaryDecision,
    CanaryReport,
    CanaryRules,
    LiveTrial,
    after_model_change,
    judge_canary,
    needs_regate,
)
from metaclaw.skills.gate.duplicates import Clash, ClashKind, IndexLibrary, Library, find_clashes
from metaclaw.skills.gate.gate import Admission, DraftCheck, Gate, GateMode, Objection, is_at_once
from metaclaw.skills.gate.shadow import Budget, Decision, Rules, ShadowReport

__all__ = [
    "Admission",
    "Baseline",
    "Budget",
    "CanaryDecision",
    "CanaryReport",
    "CanaryRules",
    "Clash",
    "ClashKind",
    "Decision",
    "DraftCheck",
    "Gate",
    "GateMode",
    "IndexLibrary",
    "Library",
    "LiveTrial",
    "Objection",
    "Rules",
    "ShadowReport",
    "after_model_change",
    "find_clashes",
    "is_at_once",
    "judge_canary",
    "needs_regate",
]
