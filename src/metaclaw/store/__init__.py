"""The store: where turns, sessions, skill generations and events are kept."""

from metaclaw.store.database import Database, connect, open_database
from metaclaw.store.generations import SqlGenerations
from metaclaw.store.ledger import SqlLedger
from metaclaw.store.reader import LedgerReader
from metaclaw.store.records import Counts, Event, GenerationRow, RecordedTurn, SessionRow, TurnRow
from metaclaw.store.writer import Limits

__all__ = [
    "Counts",
    "Database",
    "Event",
    "GenerationRow",
    "LedgerReader",
    "Limits",
    "RecordedTurn",
    "SessionRow",
    "SqlGenerations",
    "SqlLedger",
    "TurnRow",
    "connect",
    "open_database",
]
