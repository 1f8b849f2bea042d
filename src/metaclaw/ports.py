"""What we need from the world: one Protocol per need, spoken in domain types."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from metaclaw.domain.candidate import Candidate, CandidateId, Probe, Standing, Trial
from metaclaw.domain.chat import ChatRequest, Completion, Delta, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.domain.status import StoreHealth
from metaclaw.domain.turn import Turn
from metaclaw.domain.verdict import Verdict

Headers = Sequence[tuple[str, str]]


class Reply(Protocol):
    """A provider's answer as it arrives. `chunks` may be iterated once; `aclose` before its end cancels the call."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    def chunks(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP call to a provider. `path` begins with a slash and follows the provider's base URL; `query` has no `?`.

    `purpose` is given where the program itself asks; it is sent along, and no client can send it.
    """

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    purpose: "Purpose | None" = None


class HttpProvider(Protocol):
    """A provider that is reached over HTTP and speaks some of the wires itself."""

    @property
    def name(self) -> str: ...
    @property
    def wires(self) -> frozenset[Wire]: ...
    @property
    def models(self) -> tuple[str, ...]: ...
    async def call(self, call: Call, caller: Mapping[str, str]) -> Reply:
        """Send; return once the status line is here. Raises UpstreamError if nothing came back.

        `caller` are the client's own header fields in lower case, from which passthrough credentials are taken.
        """

    async def aclose(self) -> None: ...


class ModelProvider(Protocol):
    """A model that answers in deltas with exact tokens: the embedded engine, a policy backend, a replayed recording."""

    @property
    def name(self) -> str: ...
    @property
    def models(self) -> tuple[str, ...]: ...
    def generate(self, request: ChatRequest) -> AsyncGenerator[Delta, None]:
        """Answer. Closing the iterator early stops the model. Raises WireError or EngineError."""

    async def aclose(self) -> None: ...


class Ledger(Protocol):
    """Where turns become durable."""

    async def record(self, turn: Turn) -> bool:
        """Return True when the turn is on disk, False when the store cannot take it now (it may be kept in memory for later)."""

    async def end_session(self, session: SessionId, reason: str) -> None:
        """Mark a session as ended. Ending an unknown or ended session is no error."""

    @property
    def health(self) -> StoreHealth: ...


class GenerationStore(Protocol):
    """Where skill generations are kept."""

    def latest(self) -> SkillGeneration: ...
    def publish(self, skills: Sequence[Skill], reason: str, unwritten: Sequence[SkillName] = ()) -> SkillGeneration:
        """One atomic change: the next generation with exactly these skills. Raises StoreError.

        `unwritten` are the skills whose files do not say yet what the generation says; they are remembered until `written`.
        """

    def unwritten(self) -> dict[SkillName, Skill | None]:
        """What files should say and may not, because the program was stopped in between: a skill, or None for no file."""

    def written(self, names: Iterable[SkillName]) -> None:
        """These files say now what the latest generation says."""

    def at(self, number: int) -> SkillGeneration | None:
        """The generation of that number, if there ever was one."""


class Purpose(StrEnum):
    """Why the program itself asks a model. Goes along as `X-Metaclaw-Purpose` and is counted separately."""

    JUDGE = "judge"
    EVOLVE = "evolve"
    REPLAY = "replay"
    TEACH = "teach"


class Model(Protocol):
    """A model the program may ask for itself: judge, evolver, or the serving model in a replay."""

    @property
    def name(self) -> str: ...
    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        """A whole answer. The request's model and wire are replaced by this model's own. Raises UpstreamError."""


class Replayer(Protocol):
    """Recorded sessions as a proving ground: nothing outside is touched, and only a model is asked."""

    async def trial(self, probe: Probe, skill: Skill, replaces: Sequence[SkillName], seed: int) -> Trial:
        """Replay the probe without and with the skill (which takes the place of those it replaces). Never raises for a
        probe that cannot be decided: its outcomes are then unknown and the note says why."""


class VerdictStore(Protocol):
    """What turns came to. Blocking: call from a thread. Each raises StoreError."""

    def record_verdict(self, verdict: Verdict) -> bool:
        """Keep a verdict for ever; True if it is the one that stands now (`domain.verdict.outranks`)."""

    def verdict_of(self, turn: TurnId) -> Verdict | None:
        """The verdict that stands."""

    def open_failures(self, generation: int, limit: int = 200) -> list[TurnId]:
        """Main turns made, or found to have failed, in this generation, whose standing verdict teaches and that have no role yet;
        oldest first."""


class CandidateStore(Protocol):
    """Attempts to learn, and what became of them. Blocking: call from a thread. Each raises StoreError."""

    def begin_attempt(self, kind: str, generation: int, turns: Sequence[TurnId]) -> int:
        """These turns are about to be shown to an evolver: in one transaction they become support of this generation, for ever.
        The attempt's number.

        Raises RefusedError, and changes nothing, if one of them has a role already: nothing learns twice from one failure.
        """

    def save_candidate(self, candidate: Candidate) -> None:
        """Insert it, or bring its standing, reason and certificate up to date; what it was before is kept in `events`."""

    def candidate(self, candidate: CandidateId) -> Candidate | None: ...
    def candidates(self, standing: Standing | None = None, limit: int = 100) -> list[Candidate]:
        """Newest first."""
