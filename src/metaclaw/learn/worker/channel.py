"""Messages between the serving process and the learner: pickled values, each behind its length, on private pipes.

Both ends are the same program, so pickle is safe: nothing from outside is unpickled, except as text inside a message.
"""

import pickle
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final, TypeAlias

from metaclaw.config import Config
from metaclaw.domain.ids import SessionId
from metaclaw.errors import MetaClawError
from metaclaw.learn.worker.supervision import WorkItem

_LENGTH: Final = struct.Struct("!Q")
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LearnerStart:
    """The first message to a learner: the configuration, and every provider in order, with its models. Those that are not on HTTP
    can be asked only through the program."""

    config: Config
    providers: tuple[tuple[str, tuple[str, ...] | None], ...]


@dataclass(frozen=True, slots=True)
class WakeLearner:
    """There is something to learn from."""


@dataclass(frozen=True, slots=True)
class ForgetSession:
    """A session is to be forgotten: nothing that was read of it may stay in memory."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class StoreCall:
    """Carry out a call for the learner; answered by `CallResult` or `CallError`."""

    number: int
    name: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call."""

    number: int
    value: object


@dataclass(frozen=True, slots=True)
class CallError:
    """The error of a call."""

    number: int
    error: MetaClawError


@dataclass(frozen=True, slots=True)
class LearnerReport:
    """The state of learning: facts for `status`, how many requests wait for the budget by purpose, the states of its loops,
    counts of pending work (`reached` is the last row of the ledger it has looked at for messages), and items it has set aside,
    with the number of attempts."""

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
    """One end: something to read from and something to write to. Any thread may send; one receives."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        """Both without a buffer of their own, or what is sent waits in it."""
        self._incoming = incoming
        self._outgoing = outgoing
        self._sending = threading.Lock()

    def send(self, message: ToLearner | FromLearner) -> None:
        """Blocks until the other side has room for it. Raises OSError where it has gone."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._sending:
            rest = memoryview(_LENGTH.pack(len(body)) + body)
            while rest:
                rest = rest[self._outgoing.write(rest) :]

    def receive(self) -> object:
        """The next message; None where the other side has gone. Blocks."""
        head = self._read(_LENGTH.size)
        body = None if head is None else self._read(_LENGTH.unpack(head)[0])
        return None if body is None else pickle.loads(body)

    def close(self) -> None:
        """Close the sending side: the other side receives None from then on."""
        with self._sending, suppress(OSError):
            self._outgoing.close()

    def _read(self, size: int) -> bytes | None:
        found = bytearray()
        while len(found) < size:
            piece = self._incoming.read(min(size - len(found), _PIECE_BYTES))
            if not piece:
                return None
            found += piece
        return bytes(found)
