"""The store: turns, sessions, skill generations, policy versions, events, verdicts and other
learned data in one database.
"""

from metaclaw.domain.training import BatchState
from metaclaw.store.backups import Backup, SqlBackups, back_up, repair, restore
from metaclaw.store.compliance import SqlCompliance, SqlTrueAnswers
from metaclaw.store.database import (
    FORGETTING,
    Database,
    Queries,
    RemoteWrites,
    connect,
    open_database,
    writes_of,
)
from metaclaw.store.derived_data import DerivedData
from metaclaw.store.dialects import RefusedError
from metaclaw.store.episodes import LessonUse, RecurringFailure, SqlEpisodes
from metaclaw.store.forgetting import SqlForgetting
from metaclaw.store.generations import GenerationRow, InForce, SqlGenerations, SqlTeams
from metaclaw.store.keys import AuditEntry, SqlKeys, StoredKey, UsedTurn, key_hash
from metaclaw.store.leadership import (
    TRAINING_WANTED,
    Leadership,
    SharedState,
    carrying,
    shared_state,
)
from metaclaw.store.learning import SkillAttempt, SqlCandidates, SqlVerdicts
from metaclaw.store.ledger import SqlLedger
from metaclaw.store.moving import transfer
from metaclaw.store.overview import (
    FirstRequest,
    Overview,
    ProviderCall,
    SessionFilter,
    SkillVersion,
)
from metaclaw.store.policy_files import PolicyFiles
from metaclaw.store.policy_versions import SqlPolicies, VersionOutcome
from metaclaw.store.progress import DayOfAnswers, DayOfRule, ProgressFilter, SqlProgress
from metaclaw.store.reader import (
    EndedSession,
    LearningCounts,
    LedgerCounts,
    LedgerReader,
    RecordedTurn,
)
from metaclaw.store.rows import LedgerEvent, SessionRow, TurnRow
from metaclaw.store.schema import HEAD as SCHEMA_REVISION
from metaclaw.store.schema import NewerSchemaError
from metaclaw.store.training_batches import SqlBatches, TrainingBatch
from metaclaw.store.upkeep import IntegrityReport, SqlUpkeep, check_file, compact, find_damage
from metaclaw.store.usage import (
    ENFORCEMENT_OFF,
    PriceServed,
    SkillUse,
    SqlCursors,
    SqlSpending,
    SqlUses,
    Sums,
)
from metaclaw.store.writer_thread import LedgerLimits
