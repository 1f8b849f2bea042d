"""Messages between the learner process and the serving process, and stores whose writes the serving
process carries out.

Messages are pickled values on private pipes. Both ends are the same
program, so pickle is safe: data from outside is only text inside a message.

The learner reads the store directly; the serving process writes for it. So a killed learner leaves
no half-done write, and serving never waits for a lock of the learner. A store with a `StoreClient`
sends its writes by itself (`store.RemoteWrites`); the `Remote` classes have the interface of what
they replace."""

import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from anyio.to_thread import run_sync

from metaclaw.config import Config
from metaclaw.domain.chat import ChatRequest, Delta
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.policy import BASE_POLICY
from metaclaw.domain.skill import LearnedFrom, Skill
from metaclaw.errors import MetaClawError
from metaclaw.learn.supervision import WorkItem
from metaclaw.skills import LibraryView, SkillLibrary
from metaclaw.store import RemoteWrites, SqlGenerations


@dataclass(frozen=True, slots=True)
class LearnerStart:
    """The first message to a learner: the configuration, every provider in order, with its models
    if the learner must ask it through the serving process (it has no HTTP endpoint), else None, and
    the folder of the skills."""

    config: Config
    providers: tuple[tuple[str, tuple[str, ...] | None], ...]
    skills: Path


@dataclass(frozen=True, slots=True)
class WakeLearner:
    """Tell the learner that a turn failed."""


@dataclass(frozen=True, slots=True)
class ForgetSession:
    """Tell the learner to drop a session from its memory."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class StoreCall:
    """Carry out a call for the learner; answered by `CallResult` or `CallError`."""

    number: int
    name: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CallResult:
    number: int
    value: object


@dataclass(frozen=True, slots=True)
class CallError:
    number: int
    error: MetaClawError


@dataclass(frozen=True, slots=True)
class LearnerReport:
    """The state of learning: facts for `status`, the number of requests that wait for the budget by
    purpose, the states of the loops, counts of pending work (`reached` is the last row of the
    ledger that was read for messages), and items that are set aside, with the number of
    attempts."""

    facts: Mapping[str, object]
    waiting: Mapping[str, int]
    loops: Mapping[str, str]
    reading: int
    reached: int
    lessons: int
    writing: int
    set_aside: Mapping[WorkItem, int]


ToLearner: TypeAlias = LearnerStart | WakeLearner | ForgetSession | CallResult | CallError
FromLearner: TypeAlias = StoreCall | LearnerReport


class Channel:
    """One end of a pair of pipes, given by their handles, which it closes. Any thread may send; only
    one thread may receive."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = Connection(incoming, writable=False)
        self._outgoing = Connection(outgoing, readable=False)
        self._sending = threading.Lock()

    def send(self, message: ToLearner | FromLearner) -> None:
        """Send a message. Blocks while the pipe is full. Raises OSError if the other side has
        gone.
        """
        with self._sending:
            self._outgoing.send(message)

    def receive(self) -> object:
        """The next message; None if the other side has gone. Blocks."""
        try:
            return self._incoming.recv()
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        """Close the sending side: the other side receives None from then on."""
        with self._sending:
            self._outgoing.close()


class StoreClient:
    """Sends calls over a channel, and hands each answer to the thread that waits for it."""

    def __init__(self, send: Callable[[StoreCall], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[object]] = {}
        self._lock = threading.Lock()

    def run(self, name: str, *arguments: object) -> Any:
        """Send a call and wait for its answer. Any number of threads may wait at once."""
        answer: Future[object] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answer
        self._send(StoreCall(number, name, arguments))
        return answer.result()

    def hear(self, answer: CallResult | CallError) -> None:
        """Pass the answer of a call to the thread that waits for it."""
        with self._lock:
            waiting = self._waiting.pop(answer.number)
        if isinstance(answer, CallResult):
            waiting.set_result(answer.value)
        else:
            waiting.set_exception(answer.error)


class RemoteLibrary:
    """The skills in force, read from the store; the serving process publishes, and writes their
    `folder`.
    """

    def __init__(self, generations: SqlGenerations, calls: RemoteWrites, folder: Path) -> None:
        self.folder = folder
        self._generations = generations
        self._calls = calls
        self._following = threading.Lock()
        self._view = LibraryView.of(0, ())

    @property
    def view(self) -> LibraryView:
        """The generation that was read last."""
        return self._view

    def follow(self) -> LibraryView:
        """Load the generations that were published since the last call. Blocks."""
        with self._following:
            changes = self._generations.since(self._view.generation)
            if changes.number != self._view.generation:
                self._view = LibraryView(
                    changes.number, self._view.index.changed(changes.put, changes.gone)
                )
                if self._view.hash != changes.hash:  # another home has forgotten a session
                    self._view = self._read_anew()
            return self._view

    def follow_anew(self) -> LibraryView:
        """Read all skills again, because forgetting a session edits earlier generations. Blocks."""
        with self._following:
            self._view = self._read_anew()
            return self._view

    def _read_anew(self) -> LibraryView:
        changes = self._generations.since(0)
        return LibraryView.of(changes.number, changes.put)

    def publish(
        self,
        put: Sequence[Skill],
        retire: Iterable[SkillName],
        reason: str,
        *,
        expected: Mapping[SkillName, str | None] | None = None,
        learned: LearnedFrom | None = None,
        by_person: bool = False,
    ) -> LibraryView:
        """As `SkillLibrary.publish`; the view afterwards has at least this change."""
        self._calls.run(
            "publish", tuple(put), tuple(retire), reason, dict(expected or {}), learned, by_person
        )
        return self.follow()


AnyLibrary: TypeAlias = SkillLibrary | RemoteLibrary
"""The skills in force, in the serving process or in the learner."""


class RemoteProvider:
    """A `ModelProvider` that asks the serving process to generate."""

    def __init__(self, name: str, models: tuple[str, ...], calls: RemoteWrites) -> None:
        self.name = name
        self.models = models
        self._calls = calls

    async def generate(
        self, request: ChatRequest, version: int = BASE_POLICY
    ) -> AsyncGenerator[Delta, None]:
        """Yield the answer when it is complete."""
        deltas = await run_sync(
            self._calls.run, "generate", self.name, request, version, abandon_on_cancel=True
        )
        assert isinstance(deltas, tuple)
        for delta in deltas:
            yield delta

    async def aclose(self) -> None:
        """Nothing is open here."""
