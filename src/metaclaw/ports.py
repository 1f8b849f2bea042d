"""Protocols for what the program needs from its parts and from outside, in domain types."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from metaclaw.domain.chat import ChatRequest, Completion, Delta, Wire
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.domain.skill import (
    ChangesSince,
    GenerationChange,
    LearnedFrom,
    RetiredSkill,
    Skill,
    SkillGeneration,
)
from metaclaw.domain.status import StoreHealth
from metaclaw.domain.training import (
    Adam,
    Datum,
    Drawing,
    Loss,
    PieceStats,
    Rollout,
    RunProgress,
    StepStats,
    Window,
)
from metaclaw.domain.turn import Turn

Headers = Sequence[tuple[str, str]]


class Reply(Protocol):
    """A provider's answer as it arrives. `chunks` may be iterated once; `aclose` before its end
    cancels the call.
    """

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    def chunks(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class Call(msgspec.Struct, frozen=True):
    """One HTTP call to a provider. `path` begins with a slash and follows the provider's base URL;
    `query` has no `?`.

    `purpose` is set if the program itself makes the call; it is sent as a header that no client can
    send. `session` is not sent: calls that wait for a busy provider are served session by session
    in turn."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    purpose: "Purpose | None" = None
    session: str = ""


class HttpProvider(Protocol):
    """A provider that is reached over HTTP and speaks some of the wires itself."""

    @property
    def name(self) -> str: ...
    @property
    def wires(self) -> frozenset[Wire]: ...
    @property
    def models(self) -> tuple[str, ...]: ...
    async def call(self, call: Call, caller: Mapping[str, str]) -> Reply:
        """Send the call and return once the status line has arrived. Raises UpstreamError if none
        arrives.

        `caller` has the client's header fields in lower case, from which passthrough credentials
        are taken."""

    async def aclose(self) -> None: ...


class ModelProvider(Protocol):
    """A model that answers in deltas with exact tokens: the embedded engine, a policy backend, a
    replayed recording.
    """

    @property
    def name(self) -> str: ...
    @property
    def models(self) -> tuple[str, ...]: ...
    def generate(
        self, request: ChatRequest, version: int = BASE_POLICY
    ) -> AsyncGenerator[Delta, None]:
        """Answer with this version of the weights. Closing the iterator early stops the model.
        Raises WireError or EngineError.
        """

    async def aclose(self) -> None: ...


class Ledger(Protocol):
    """Stores turns."""

    async def record(self, turn: Turn) -> bool:
        """Return True when the turn is on disk, False when the store cannot take it now (it may be
        kept in memory for later).
        """

    async def end_session(self, session: SessionId, reason: str) -> None:
        """Mark a session as ended. An unknown or ended session is no error."""

    @property
    def health(self) -> StoreHealth: ...


class GenerationStore(Protocol):
    """Stores skill generations."""

    def latest(self) -> SkillGeneration: ...
    def publish(
        self,
        skills: Sequence[Skill],
        reason: str,
        *,
        after: int | None = None,
        learned: LearnedFrom | None = None,
        reverted_to: int | None = None,
    ) -> SkillGeneration:
        """Store the next generation, with exactly these skills, in one transaction. Raises
        StoreError.

        `after` is the generation that the change was made on. Raises OvertakenError if it is no
        longer the newest. `learned` is the evidence of a change that no person made. Raises
        RefusedError if the evidence is older than the last revert, if the change brings back a
        skill that was retired after the evidence, or if a turn of the evidence was forgotten.
        `reverted_to` is set if a person reverts to an earlier generation."""

    def since(self, number: int) -> ChangesSince:
        """The changes from the generation of that number to the newest."""

    def at(self, number: int) -> SkillGeneration | None:
        """The generation of that number, or None."""


class GenerationHistory(Protocol):
    """Reads earlier generations. Every method blocks (call it in a thread) and may raise
    StoreError.
    """

    def changes(
        self, before: int | None = None, limit: int = 50, *, skip: str | None = None
    ) -> list[GenerationChange]:
        """The changes of generations numbered below `before`, newest first, without those whose
        reason begins with `skip`.
        """

    def retired(self) -> list[RetiredSkill]:
        """Retired skills, rules and facts, the last retired first."""

    def dates(self) -> dict[SkillName, tuple[datetime | None, datetime | None]]:
        """For each skill that is or was in force: when it first came into force, and when it was
        last changed.
        """


class Purpose(StrEnum):
    """Why the program itself asks a model. It is sent as `X-Metaclaw-Purpose`, and calls are
    counted by it.
    """

    LISTEN = "listen"
    CONFIRM = "confirm"
    CHECK = "check"
    JUDGE = "judge"
    EVOLVE = "evolve"
    ENFORCE = "enforce"


class Model(Protocol):
    """A model that the program itself asks: judge or evolver."""

    @property
    def name(self) -> str: ...
    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        """Return the whole answer. This model's name and wire replace those of the request. Raises
        UpstreamError.
        """


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a training backend can do. `yields`: it can pause anywhere within a piece.
    `has_own_processor`: it computes on a GPU or another machine and does not slow down answers on
    this machine's CPU. `scales`: it has `shrink`."""

    yields: bool
    has_own_processor: bool = False
    scales: bool = False


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One training run, resumable by its name. It starts from the weights `start` (None: the
    untrained model). A backend on this machine may keep its pieces in `folder`."""

    name: str
    start: Weights | None
    rank: int
    seed: int
    folder: Path


class TrainingBackend(Protocol):
    """Samples from weights and trains them, one run at a time. Every call may raise TrainingError.

    After `open`, a step is any number of `accumulate` (one bounded piece of work each) followed by
    `apply`; `sample` and `score` may be called at any time. Applied steps survive the end of the
    process; `open` returns how many pieces did."""

    @property
    def name(self) -> str: ...
    @property
    def abilities(self) -> Abilities: ...
    async def open(self, run: RunPlan) -> RunProgress:
        """Begin this run, or continue it."""

    async def sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, weights: Weights | None = None
    ) -> list[list[Rollout]]:
        """Draw `drawing.count` rollouts for each prompt from the run's current weights, or from
        `weights`, which needs no open run."""

    async def sample_base(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing
    ) -> list[list[Rollout]]:
        """The same from the untrained model."""

    async def score(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], weights: Weights | None = None
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of each pair's second part after its first."""

    async def score_base(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> list[tuple[float, ...]]:
        """The same under the untrained model."""

    async def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        """Add one piece's gradient: the sum over its drawn tokens."""

    async def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """Make one optimiser step with the accumulated gradient divided by `normaliser` (such as
        the number of drawn tokens). It is durable when this returns."""

    async def keep(self, label: str) -> Weights:
        """Save the current weights, for serving and for further training. It may be called several
        times in a run.
        """

    async def shrink(self, weights: Weights, scale: float, label: str) -> Weights:
        """Save a copy of kept weights with their change multiplied by `scale`. Called only if
        `abilities.scales`.
        """

    async def discard(self, weights: Weights) -> None:
        """Remove kept weights. Weights that are gone are no error; a service may keep its own
        copies.
        """

    async def close(self, *, discard: bool) -> None:
        """End the run; `discard` removes its pieces."""

    async def aclose(self) -> None:
        """Release all resources."""


class PolicyHost(Protocol):
    """Serves trained weights. Several versions are loaded at once, and none is changed in place."""

    async def load(self, version: int, weights: Weights) -> None:
        """Make a version ready to answer. Raises TrainingError and changes nothing if it cannot be
        loaded.
        """

    async def unload(self, version: int) -> None:
        """Unload a version once its running answers are finished."""

    @property
    def loaded(self) -> frozenset[int]: ...


class Tokeniser(Protocol):
    """Converts between text and tokens of the policy's model."""

    def prompt(self, request: ChatRequest) -> tuple[int, ...]:
        """The prompt tokens with which a request is served."""

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of an answer, without the end token."""

    @property
    def end(self) -> int:
        """The token that ends an answer."""


class Windows(Protocol):
    """Says when the slow loop may run. At most one window is open at a time."""

    @property
    def window(self) -> Window | None:
        """The open window, or None."""

    @property
    def shut_because(self) -> str:
        """Why no window is open; empty if one is."""

    async def until_open(self) -> Window:
        """Wait for an open window."""

    def on_change(self, hear: Callable[[Window | None], None]) -> None:
        """Call `hear` at once whenever a window opens or shuts. It must not block."""
