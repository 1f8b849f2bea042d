"""What is read back: rows for lists, and whole turns."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from metaclaw.domain.candidate import CandidateId, Standing
from metaclaw.domain.chat import Finish, Json, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.training import Rejection
from metaclaw.domain.turn import Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome


class BatchState(StrEnum):
    """A batch is open until a version came of it, or until it was dropped: then its turns are spent all the same."""

    OPEN = "open"
    DONE = "done"
    DROPPED = "dropped"


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
class EndedSession:
    """The end of a session. `seq` is the cursor to read on from; `is_open` if the session has been opened again since."""

    seq: int
    id: SessionId
    is_open: bool


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
class LedgerCounts:
    """How much the ledger holds."""

    sessions: int
    open_sessions: int
    turns: int
    main_turns: int


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """Something that was announced; `seq` is the cursor to resume from."""

    seq: int
    at: datetime
    kind: str
    data: dict[str, Json]


@dataclass(frozen=True, slots=True)
class ChangesSince:
    """From an earlier generation to the newest: its number, which skills came or changed, and which went."""

    number: int
    put: tuple[Skill, ...]
    gone: tuple[SkillName, ...]


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A generation as a list shows it, with how many skills it brought in and took out; a changed skill is both.

    Generation 0, which every store begins with, was published at no time.
    """

    number: int
    hash: str
    reason: str
    published_at: datetime | None
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What `domain.training.rejection` asks of a turn; `tokens` is how many were sampled, None if not recorded."""

    kind: TurnKind
    end: TurnEnd
    stamp: Stamp
    provider: str
    tokens: int | None


@dataclass(frozen=True, slots=True)
class EligibleTurns:
    """Turns that may train now, newest first, and why others that were looked at may not."""

    turns: tuple[TurnId, ...]
    rejections: dict[Rejection, int]


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Turns that are to teach one version together, beginning from `policy_version`.

    `turns` are those that are still there, in the order they were recorded; of the `size` it was opened with others are gone.
    For the speakers of `stale` of them rules or skills have changed since. `generation` was the newest when it was opened.
    `note` says why it was dropped.
    """

    number: int
    state: BatchState
    policy_version: int
    generation: int
    seed: int
    size: int
    turns: tuple[TurnId, ...]
    stale: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class VersionOutcome:
    """What a main turn came to, who made it, and with which skills in its prompt. Turns of one session are not independent."""

    session: SessionId
    version: int
    outcome: Outcome
    skills: tuple[SkillName, ...] = ()


@dataclass(frozen=True, slots=True)
class StateSince:
    """When the state of a version last changed, and after which turn. `is_first`: it serves for the first time."""

    at: datetime
    turn: int
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class LearningCounts:
    """How much was learned: turns by the verdict that stands, turns by role, candidates by standing. What there is none of is 0."""

    verdicts: dict[Outcome, int]
    support: int
    query: int
    candidates: dict[Standing, int]


@dataclass(frozen=True, slots=True)
class DrawnTurn:
    """A turn in which a skill's placing was left to chance, and what the turn came to; None if it has not been judged.

    Turns of one session and segment share their draw. `generation` and `model` are those of the turn.
    """

    turn: TurnId
    session: SessionId
    segment: int
    placed: bool
    propensity: float
    outcome: Outcome | None
    generation: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True)
class SkillUse:
    """When a skill last matched a task, and in how many turns it did."""

    last_at: datetime
    times: int


@dataclass(frozen=True, slots=True)
class InForce:
    """Since when a skill has its present state and text.

    `generation` brought it into its present state, at `since`; it has had its present text since generation `text_since`;
    `canaries` counts how often a skill of this name has been a canary.
    """

    generation: int
    since: datetime
    text_since: int
    canaries: int


@dataclass(frozen=True, slots=True)
class SkillAttempt:
    """Turns that were to teach something together, and under what name."""

    number: int
    kind: str
    generation: int
    turns: tuple[TurnId, ...]


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """What is gone, and what was learned from it; see `Descent`. `carried_in` are sessions whose prompts held such a skill."""

    sessions: int
    turns: int
    candidates: tuple[CandidateId, ...] = ()
    skills: tuple[SkillName, ...] = ()
    edited: tuple[SkillName, ...] = ()
    carried_in: tuple[SessionId, ...] = ()
    batches: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()
