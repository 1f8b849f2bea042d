"""The store: where turns, sessions, skill generations, policy versions, events and what was learned from them are kept."""

from metaclaw.store.backups import Backup, SqlBackups, back_up
from metaclaw.store.batches import SqlBatches
from metaclaw.store.candidates import SqlCandidates
from metaclaw.store.compliance import SqlCompliance
from metaclaw.store.cursors import ENFORCEMENT_OFF, SqlCursors
from metaclaw.store.database import Database, connect, open_database
from metaclaw.store.descent import Descent
from metaclaw.store.enforcement import SqlTrueAnswers, StoredAnswer
from metaclaw.store.forgetting import SqlForgetting
from metaclaw.store.generations import SqlGenerations
from metaclaw.store.guard import RefusedError
from metaclaw.store.integrity import Integrity, check_file
from metaclaw.store.ledger import SqlLedger
from metaclaw.store.overview import LastPlaced, Opening, Overview, ProviderCall, SessionFilter, SkillVersion, TurnPlace
from metaclaw.store.policies import SqlPolicies
from metaclaw.store.reader import LedgerReader
from metaclaw.store.records import (
    Attempt,
    Batch,
    BatchState,
    Counts,
    DrawnTurn,
    EndedSession,
    Event,
    Forgotten,
    GenerationRow,
    InForce,
    LearningCounts,
    RecordedTurn,
    Selection,
    SessionRow,
    Since,
    Succession,
    TurnRow,
    Use,
    VersionOutcome,
)
from metaclaw.store.restore import Restored, repair, restore
from metaclaw.store.salvage import Salvaged
from metaclaw.store.spending import PriceServed, SqlSpending, Sums
from metaclaw.store.teams import SqlTeams
from metaclaw.store.upkeep import SqlUpkeep, compact
from metaclaw.store.uses import SqlUses
from metaclaw.store.verdicts import SqlVerdicts
from metaclaw.store.writer import Limits

__all__ = [
    "ENFORCEMENT_OFF",
    "Attempt",
    "Backup",
    "Batch",
    "BatchState",
    "Counts",
    "Database",
    "Descent",
    "DrawnTurn",
    "EndedSession",
    "Event",
    "Forgotten",
    "GenerationRow",
    "InForce",
    "Integrity",
    "LastPlaced",
    "LearningCounts",
    "LedgerReader",
    "Limits",
    "Opening",
    "Overview",
    "PriceServed",
    "ProviderCall",
    "RecordedTurn",
    "RefusedError",
    "Restored",
    "Salvaged",
    "Selection",
    "SessionFilter",
    "SessionRow",
    "Since",
    "SkillVersion",
    "SqlBackups",
    "SqlBatches",
    "SqlCandidates",
    "SqlCompliance",
    "SqlCursors",
    "SqlForgetting",
    "SqlGenerations",
    "SqlLedger",
    "SqlPolicies",
    "SqlSpending",
    "SqlTeams",
    "SqlTrueAnswers",
    "SqlUpkeep",
    "SqlUses",
    "SqlVerdicts",
    "StoredAnswer",
    "Succession",
    "Sums",
    "TurnPlace",
    "TurnRow",
    "Use",
    "VersionOutcome",
    "back_up",
    "check_file",
    "compact",
    "connect",
    "open_database",
    "repair",
    "restore",
]
