"""What we need from the world: one Protocol per need, spoken in domain types."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from metaclaw.domain.candidate import Candidate, CandidateId, Probe, ReplayCost, ReplayResult, Standing
from metaclaw.domain.chat import ChatRequest, Completion, Delta, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.domain.skill import GenerationChange, LearnedFrom, RetiredSkill, Skill, SkillGeneration
from metaclaw.domain.status import StoreHealth
from metaclaw.domain.training import Adam, Datum, Drawing, Loss, LossKind, PieceStats, Rollout, RunProgress, StepStats, Window
from metaclaw.domain.turn import Turn
from metaclaw.domain.verdict import OpenFailure, Verdict

Headers = Sequence[tuple[str, str]]


class Reply(Protocol):
    """A provider's answer as it arrives. `chunks` may be iterated once; `aclose` before its end cancels the call."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    def chunks(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class Call(msgspec.Struct, frozen=True):
    """One HTTP call to a provider. `path` begins with a slash and follows the provider's base URL; `query` has no `?`.

    `purpose` is given where the program itself asks; it is sent along, and no client can send it. `session` is not sent: sessions
    take turns where calls have to wait for a busy provider.
    """

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
    def generate(self, request: ChatRequest, version: int = BASE_POLICY) -> AsyncGenerator[Delta, None]:
        """Answer with these weights; a model that has no versions knows only the base.

        Closing the iterator early stops the model. Raises WireError or EngineError.
        """

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
    def publish(
        self,
        skills: Sequence[Skill],
        reason: str,
        unwritten: Sequence[SkillName] = (),
        *,
        learned: LearnedFrom | None = None,
        reverted_to: int | None = None,
    ) -> SkillGeneration:
        """One atomic change: the next generation with exactly these skills. Raises StoreError.

        `unwritten` are the skills whose files do not say yet what the generation says; they are remembered until `written`.
        `learned` is given for a change the program makes by itself. It is a RefusedError if its evidence is older than the last
        revert, if it brings back a skill that was taken out of force after its evidence, or if a turn of it was forgotten.
        `reverted_to` is given where a person reverts to an earlier generation.
        """

    def unwritten(self) -> dict[SkillName, Skill | None]:
        """What files should say and may not, because the program was stopped in between: a skill, or None for no file."""

    def written(self, names: Iterable[SkillName]) -> None:
        """These files say now what the latest generation says."""

    def at(self, number: int) -> SkillGeneration | None:
        """The generation of that number, if there ever was one."""


class GenerationHistory(Protocol):
    """What was in force before. Blocking: call from a thread. Each raises StoreError."""

    def changes(self, before: int | None = None, limit: int = 50, *, skip: str | None = None) -> list[GenerationChange]:
        """What generations changed, newest first; only those of a lower number than `before`, and without those whose reason begins
        with `skip`, if given."""

    def retired(self) -> list[RetiredSkill]:
        """Skills, rules and facts that were in force and are not, the last to go first."""

    def dates(self) -> dict[SkillName, tuple[datetime | None, datetime | None]]:
        """Of each skill in force: when it first came into force, and when it was last changed."""


class Purpose(StrEnum):
    """Why the program itself asks a model. Goes along as `X-Metaclaw-Purpose` and is counted separately."""

    LISTEN = "listen"
    JUDGE = "judge"
    EVOLVE = "evolve"
    REPLAY = "replay"
    TEACH = "teach"
    ENFORCE = "enforce"


class Model(Protocol):
    """A model the program may ask for itself: judge, evolver, or the serving model in a replay."""

    @property
    def name(self) -> str: ...
    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        """A whole answer. The request's model and wire are replaced by this model's own. Raises UpstreamError."""


class Replayer(Protocol):
    """Recorded sessions as a proving ground: nothing outside is touched, and only a model is asked."""

    async def estimate(self, probe: Probe, skill: Skill) -> ReplayCost:
        """The tokens that one replay of this turn takes; 0 where it cannot be replayed and costs nothing."""

    async def replay(self, probe: Probe, skill: Skill, replaces: Sequence[SkillName], seed: int, limit: int) -> ReplayResult:
        """Replay the turn with the skill, which takes the place of those it replaces, for at most `limit` tokens. Never raises for
        a turn that cannot be replayed or judged: its outcome is then unknown and the note says why."""


class VerdictStore(Protocol):
    """What turns came to. Blocking: call from a thread. Each raises StoreError."""

    def record_verdict(self, verdict: Verdict) -> bool:
        """Keep a verdict for ever; True if it is the one that stands now (`domain.verdict.outranks`)."""

    def verdict_of(self, turn: TurnId) -> Verdict | None:
        """The verdict that stands."""

    def open_failures(self, generation: int, limit: int = 200) -> list[OpenFailure]:
        """The newest main turns made up to this generation whose standing verdict teaches, that have no role yet, and that are
        neither too old nor from before a revert; oldest first."""


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


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a training backend can do. `yields` says that it can stand still in the middle of a piece, wherever that is;
    `has_own_processor` that it computes on a GPU or elsewhere, and does not slow down what is served on this machine's CPU;
    `scales` that it can make the change of kept weights smaller (`shrink`)."""

    losses: frozenset[LossKind]
    has_kl: bool
    yields: bool
    has_own_processor: bool = False
    scales: bool = False


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One training run, resumable by its name. `start` are the weights it goes on from (None: the untrained model); `folder` is
    where a backend on this machine may keep its pieces."""

    name: str
    start: Weights | None
    rank: int
    seed: int
    folder: Path


class TrainingBackend(Protocol):
    """Weights that can be sampled from and taught, one run at a time. Every call raises TrainingError.

    A run is opened, then any number of: sample, score, accumulate…, apply. `accumulate` is one bounded piece; a step is its pieces
    followed by `apply`. What was applied survives the end of the process; whether accumulated pieces do, `open` tells.
    """

    @property
    def name(self) -> str: ...
    @property
    def abilities(self) -> Abilities: ...
    async def open(self, run: RunPlan) -> RunProgress:
        """Begin this run, or go on with it where it was."""

    async def sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, weights: Weights | None = None
    ) -> list[list[Rollout]]:
        """For each prompt `drawing.count` rollouts, from the run's present weights, or from kept ones. Works without an open run if
        weights are named."""

    async def sample_base(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]:
        """The same from the untrained model."""

    async def score(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], weights: Weights | None = None
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of each pair's second part after its first."""

    async def score_base(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        """The same under the untrained model."""

    async def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        """Add one piece's gradient: the sum over its drawn tokens."""

    async def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """One optimiser step with what was accumulated, divided by `normaliser` (such as the step's drawn tokens); durable when it
        returns."""

    async def keep(self, label: str) -> Weights:
        """The present weights, durable, loadable for serving and for going on. It may be called several times in a run."""

    async def shrink(self, weights: Weights, scale: float, label: str) -> Weights:
        """Kept weights under another label, with what was learned multiplied by `scale`; asked only where `abilities.scales`."""

    async def discard(self, weights: Weights) -> None:
        """Remove kept weights. What a service keeps by its own rules stays there; weights that are gone are no error."""

    async def close(self, *, discard: bool) -> None:
        """End the run; with `discard` its pieces go, too."""

    async def aclose(self) -> None:
        """Let go of everything."""


class PolicyHost(Protocol):
    """Who serves trained weights: versions are loaded beside each other and never changed in place."""

    async def load(self, version: int, weights: Weights) -> None:
        """Make a version ready to answer. Raises TrainingError, and changes nothing, if it cannot be loaded."""

    async def unload(self, version: int) -> None:
        """Let a version go once its running answers are finished."""

    @property
    def loaded(self) -> frozenset[int]: ...


class Tokeniser(Protocol):
    """Text and tokens of the policy's model."""

    def prompt(self, request: ChatRequest) -> tuple[int, ...]:
        """The tokens a request becomes, as when it is served."""

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of an answer, up to and without its end."""

    @property
    def end(self) -> int:
        """The token that ends an answer."""

    def word(self, token: int) -> str:
        """What one token says."""


class Windows(Protocol):
    """When the slow loop may run. At most one window is open at a time."""

    @property
    def window(self) -> Window | None:
        """The open window, or None while it is shut."""

    @property
    def shut_because(self) -> str:
        """Why no window is open; empty while one is."""

    async def until_open(self) -> Window:
        """Wait for an open window; at once if one is open."""

    def has_room(self, seconds: float) -> bool:
        """Whether a piece of work of this length will very likely finish before the open window shuts; False while it is shut."""

    def on_change(self, hear: Callable[[Window | None], None]) -> None:
        """Call this at once whenever the window opens or shuts. It must not block."""
