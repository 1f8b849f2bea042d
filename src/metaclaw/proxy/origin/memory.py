"""The sessions that are remembered, each found by key, by digest or by response id; bounded, the longest silent go first."""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

from metaclaw.domain.ids import SessionId
from metaclaw.domain.turn import Scope
from metaclaw.proxy.origin.conversation import Conversation
from metaclaw.proxy.origin.keys import Key
from metaclaw.proxy.origin.sessions import MAX_THREADS, NOWHERE, Heads, Session, Thread

_PAST_PER_SESSION: Final = 3
_RESPONSES_PER_SESSION: Final = 4
_K = TypeVar("_K")
_V = TypeVar("_V")


class Memory:
    """Owns every session. What is not in here any more begins anew."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._active: OrderedDict[SessionId, Session] = OrderedDict()
        self._ended: OrderedDict[SessionId, Session] = OrderedDict()
        # Indexed by the scope's two names rather than by the scope itself, whose hash is computed anew each time.
        self._keyed: dict[tuple[str | None, str | None, bool, str], list[Session]] = {}
        self._spaces: dict[tuple[str | None, str | None, str | None], Heads] = {}
        self._past: OrderedDict[bytes, SessionId] = OrderedDict()
        self._responses: OrderedDict[str, tuple[SessionId, bytes]] = OrderedDict()
        self._forgotten: list[SessionId] = []

    @property
    def active(self) -> int:
        """How many sessions have not ended."""
        return len(self._active)

    def get(self, session: SessionId) -> Session | None:
        """A session by its id, ended or not."""
        return self._active.get(session) or self._ended.get(session)

    def keyed(self, scope: Scope, key: Key) -> list[Session]:
        """The sessions under a client's own key; more than one where several callers use the same."""
        return self._keyed.get((scope.user, scope.workspace, key.named, key.value), [])

    def space(self, scope: Scope, shared: str | None) -> Heads:
        """Where the conversations without a key of their own stand: one space for each scope and shared identifier."""
        heads = self._spaces.get((scope.user, scope.workspace, shared))
        return NOWHERE if heads is None else heads

    def add(self, session: Session, key: Key | None) -> None:
        """Remember a new session; forget the longest silent one if there are too many."""
        scope = session.scope
        if key is not None:
            session.key, session.named, session.shared = key.value, key.named, key.shared
        if key is not None and not key.shared:
            session.heads = Heads()
            self._keyed.setdefault((scope.user, scope.workspace, key.named, key.value), []).append(session)
        else:
            space = (scope.user, scope.workspace, session.key)
            heads = self._spaces.get(space)
            if heads is None:
                heads = self._spaces[space] = Heads()
            session.heads = heads
        self._active[session.id] = session
        if len(self._active) + len(self._ended) > self._max_sessions:
            self._forget_oldest()

    def touch(self, session: Session, now: datetime) -> None:
        """The session was just heard of; if it had ended, it lives again."""
        session.last_at = now
        if session.ended:
            session.ended = False
            self._ended.pop(session.id, None)
            self._active[session.id] = session
        self._active.move_to_end(session.id)

    def end(self, session: SessionId) -> bool:
        """Move a session to the ended ones; False if it is unknown or has ended already."""
        found = self._active.pop(session, None)
        if found is None:
            return False
        found.ended = True
        self._ended[session] = found
        return True

    def end_silent(self, is_silent: Callable[[Session], bool | None]) -> list[SessionId]:
        """End sessions from the longest silent on; `is_silent` says None at the first one that was heard of too recently."""
        silent: list[SessionId] = []
        for session in self._active.values():
            verdict = is_silent(session)
            if verdict is None:
                break
            if verdict:
                silent.append(session.id)
        for session_id in silent:
            self.end(session_id)
        forgotten, self._forgotten = self._forgotten, []
        return forgotten + silent

    def move(self, thread: Thread, head: bytes, came_from: bytes | None) -> None:
        """The thread goes on to a new digest; nobody else can continue it from where it stood."""
        heads = thread.session.heads
        if thread.head:
            heads.drop(thread)
        thread.head, thread.before = head, came_from
        heads.put(head, thread)
        _remember(self._past, head, thread.session.id, _PAST_PER_SESSION * self._max_sessions)

    def open_thread(self, session: Session) -> Thread:
        """One more conversation of a session; the oldest goes if there are too many."""
        thread = Thread(session, b"")
        session.threads.append(thread)
        if len(session.threads) > MAX_THREADS:
            session.heads.drop(session.threads.pop(0))
        return thread

    def branch(self, spoken: Conversation, scope: Scope, credential: int | None, beyond: int = -1) -> Session | None:
        """The session that once stood at the longest strict prefix of this request that is longer than `beyond`."""
        digests = spoken.digests
        if self._past.keys().isdisjoint(digests):
            return None
        for position in range(len(digests) - 2, beyond, -1):
            found = self._past.get(digests[position])
            session = self.get(found) if found is not None else None
            if session is not None and session.scope == scope and session.admits(credential):
                return session
        return None

    def answered(self, response_id: str, session: SessionId, head: bytes) -> None:
        """A later request may refer to its history by the id of this response."""
        _remember(self._responses, response_id, (session, head), _RESPONSES_PER_SESSION * self._max_sessions)

    def response(self, response_id: str) -> tuple[SessionId, bytes] | None:
        """The session and digest that this response answered."""
        return self._responses.get(response_id)

    def _forget_oldest(self) -> None:
        """Ended sessions go first. One that was still active is reported as ended by the next `end_silent`."""
        session = next(iter(self._ended.values() if self._ended else self._active.values()))
        if not session.ended:
            self._forgotten.append(session.id)
            del self._forgotten[: -self._max_sessions]
        self.forget(session)

    def forget(self, session: Session) -> None:
        """Remember nothing of a session."""
        self._active.pop(session.id, None)
        self._ended.pop(session.id, None)
        for thread in session.threads:
            session.heads.drop(thread)
        session.threads.clear()  # threads and sessions know each other; apart, both are freed at once
        scope = session.scope
        if session.key is not None and not session.shared:
            self._unkey(session, session.key)
        elif not session.heads:
            self._spaces.pop((scope.user, scope.workspace, session.key), None)

    def _unkey(self, session: Session, key: str) -> None:
        index = (session.scope.user, session.scope.workspace, session.named, key)
        others = [other for other in self._keyed.get(index, ()) if other is not session]
        if others:
            self._keyed[index] = others
        else:
            self._keyed.pop(index, None)


def _remember(memory: "OrderedDict[_K, _V]", key: _K, value: _V, limit: int) -> None:
    if key in memory:
        memory.move_to_end(key)
    memory[key] = value
    if len(memory) > limit:
        memory.popitem(last=False)
