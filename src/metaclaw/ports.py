"""What we need from the world: one Protocol per need, spoken in domain types."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from metaclaw.domain.chat import ChatRequest, Delta, Wire
from metaclaw.domain.ids import SessionId
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.domain.status import StoreHealth
from metaclaw.domain.turn import Turn

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
    """One HTTP call to a provider. `path` begins with a slash and follows the provider's base URL; `query` has no `?`."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes


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
    def publish(self, skills: Sequence[Skill], reason: str) -> SkillGeneration:
        """One atomic change: the next generation with exactly these live skills. Raises StoreError."""
