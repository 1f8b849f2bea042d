"""What is read back: rows for lists, and whole turns."""

from dataclasses import dataclass
from datetime import datetime

from metaclaw.domain.chat import Finish, Json, Usage, Wire
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope, Stamp, Times, Turn, TurnEnd, TurnKind


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as a list shows it. `last_at` is when its last request came."""

    id: SessionId
    key: str | None
    agent: str
    scope: Scope
    parent: SessionId | None
    began_at: datetime
    last_at: datetime
    ended_at: datetime | None
    end_reason: str | None
    turns: int
    main_turns: int


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn as a list shows it: the facts without the bytes. `seq` is the cursor to read on from."""

    seq: int
    id: TurnId
    session: SessionId
    kind: TurnKind
    kind_reason: str
    stamp: Stamp
    wire: Wire
    path: str
    stream: bool
    model: str
    provider: str
    status: int
    end: TurnEnd
    error: str | None
    finish: Finish | None
    usage: Usage | None
    times: Times
    segment: int
    retry_of: TurnId | None


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A whole turn, equal to the one that was recorded, and its cursor."""

    seq: int
    turn: Turn


@dataclass(frozen=True, slots=True)
class Counts:
    """How much the ledger holds."""

    sessions: int
    open_sessions: int
    turns: int
    main_turns: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was announced; `seq` is the cursor to resume from."""

    seq: int
    at: datetime
    kind: str
    data: dict[str, Json]


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A generation as a list shows it, with how many skills it brought in and took out; a changed skill is both."""

    number: int
    hash: str
    reason: str
    published_at: datetime
    added: int
    removed: int
