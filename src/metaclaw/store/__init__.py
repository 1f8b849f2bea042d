"""The store: where turns, sessions, skill generations, events and what was learned from them are kept."""

from metaclaw.store.batches import SqlBatches
from metaclaw.store.candidates import SqlCandidates
from metaclaw.store.cursors import SqlCursors
from metaclaw.store.database import Database, connect, open_database
from metaclaw.store.forgetting import SqlForgetting
from metaclaw.store.generations import SqlGenerations
from metaclaw.store.guard import RefusedError
from metaclaw.store.ledger import SqlLedger
from metaclaw.store.reader import LedgerReader
from metaclaw.store.records import (
    Counts,
    DrawnTurn,
    Event,
    Forgotten,
    GenerationRow,
    LearningCounts,
    RecordedTurn,
    Selection,
    SessionRow,
    TurnRow,
)
from metaclaw.store.verdicts import SqlVerdicts
from metaclaw.store.writer import Limits

__all__ = [
    "Counts",
    "Database",
    "DrawnTurn",
    "Event",
    "Forgotten",
    "GenerationRow",
    "LearningCounts",
    "LedgerReader",
    "Limits",
    "RecordedTurn",
    "RefusedError",
    "Selection",
    "SessionRow",
    "SqlBatches",
    "SqlCandidates",
    "SqlCursors",
    "SqlForgetting",
    "SqlGenerations",
    "SqlLedger",
    "SqlVerdicts",
    "TurnRow",
    "connect",
    "open_database",
]
