"""The sessions in memory: their ids, the newest digest of each of their conversations, and which of
them a request may continue.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope
from metaclaw.proxy.sessions.conversation import MessageChain

MAX_THREADS: Final = 8
# After `_MAX_SILENCES` times the allowed silence a session ends even if an answer is still running.
_MAX_SILENCES: Final = 8
# Thousands of conversations may have the same digest (a load test); only the newest are compared
# with each other.
_MAX_COMPARED: Final = 64
_SAFE_CHARS: Final = 96
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._:@+=-]")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-")
_LONG_RUN: Final = re.compile(r"(?=[A-Za-z]*\d)[A-Za-z0-9]{16,}")
_DIRECTORY: Final = re.compile(r"/|~/|[A-Za-z]:[\\/]")


@dataclass(frozen=True, slots=True)
class Key:
    """A session identifier as a client sent it.

    `named`: it came in our own header and becomes the session's id. `shared`: several conversations
    may use the same value, so it only narrows the search. `parent` is the identifier of the session
    that started this one."""

    value: str
    named: bool = False
    shared: bool = False
    parent: str | None = None


def looks_unique(value: str) -> bool:
    """Whether an identifier is probably unique: a UUID or a long run of letters and digits."""
    return _UUID.search(value) is not None or _LONG_RUN.search(value) is not None


def safe_id(value: str) -> SessionId:
    """The value as a session id, with characters replaced that are unsafe in a URL, a header or a
    file name.
    """
    safe = _UNSAFE.sub("_", value)
    if len(safe) <= _SAFE_CHARS:
        return SessionId(safe)
    return SessionId(
        f"{safe[: _SAFE_CHARS - 17]}.{sha256(value.encode('utf-8', 'replace')).hexdigest()[:16]}"
    )


def derived_id(scope: Scope, value: str) -> SessionId:
    """A session id that depends only on the identifier, so that a forgotten session gets the same
    id again.
    """
    text = "\0".join((scope.user or "", scope.workspace or "", value))
    return SessionId(f"s_{sha256(text.encode('utf-8', 'replace')).hexdigest()[:26]}")


def session_id(scope: Scope, key: Key) -> SessionId:
    return safe_id(key.value) if key.named else derived_id(scope, key.value)


def identity(scope: Scope) -> Scope:
    """The part of a scope that distinguishes sessions. A directory is left out: it may come from
    the prompt, where it is found only after the session, and the record does not say where it came
    from. So is the channel: a session may go on on another one."""
    workspace = scope.workspace
    if workspace is None:
        return scope if scope.channel is None else Scope(scope.user)
    return Scope(scope.user, None if _DIRECTORY.match(workspace) else workspace)


class SenderHints(NamedTuple):
    """Properties of a request's sender that distinguish sessions with equal histories. Only
    `linked`, the session whose answer the request refers to by id, excludes all other sessions."""

    peer: str | None
    trace: str
    agent: str
    linked: SessionId | None = None

    def may_be(self, other: "SenderHints") -> bool:
        """Whether both can be the same program on the same machine. Unknown properties count as
        equal.
        """
        return (not self.peer or not other.peer or self.peer == other.peer) and (
            not self.agent or self.agent == other.agent
        )


_NO_HINTS: Final = SenderHints(None, "", "")


@dataclass(slots=True, eq=False, repr=False)
class Thread:
    """One linear conversation of a session: the digest of its last request (`head`), and how that
    request ended.

    A session without a key has one thread; a session with a key may have several at once. While the
    last request is failed, the thread is also indexed at the digest before it (`before`), so that a
    client may continue from there."""

    session: "Session"
    head: bytes
    before: bytes | None = None
    segment: int = 0
    task: str = ""
    anchors: frozenset[bytes] | None = None
    turn: TurnId | None = None
    failed: bool = False
    in_flight: int = 0
    tail: int = 0
    fits: int = 0
    hints: SenderHints = _NO_HINTS
    calls: frozenset[str] = frozenset()
    said: str | None = None
    is_behind: bool = False
    """Whether its history has answers that were not given here."""

    def answer_fits(self, chain: MessageChain, position: int) -> int:
        """1 if the thread's answer follows this position, -1 if another answer does, 0 if
        unknown.
        """
        if self.said is None:
            return 0
        answer = chain.answer_after(position)
        if answer is None:
            return 0
        calls, words = answer
        if self.calls:
            return 1 if self.calls & calls else -1
        return 1 if not calls and squeezed(words) == self.said else -1


@dataclass(slots=True, eq=False, repr=False)
class Session:
    """The state of one session.

    `scope` distinguishes it from other sessions (see `identity`); `speaker` is its user and
    project. `heads` indexes its threads, alone or together with those of other sessions, as
    `SessionRegistry` decides."""

    id: SessionId
    scope: Scope
    credential: int | None
    agent: str
    last_at: datetime
    parent: SessionId | None = None
    speaker: Scope = field(init=False)
    key: Key | None = None
    heads: "ThreadHeads" = field(init=False)
    threads: list[Thread] = field(default_factory=list)
    segment: int = -1
    task: str = ""
    in_flight: int = 0
    ended: bool = False

    def __post_init__(self) -> None:
        self.speaker, self.heads = self.scope, NO_HEADS

    def admits(self, credential: int | None) -> bool:
        """Whether the session may belong to this caller: the credentials are equal, or one of them
        is unknown.
        """
        return credential is None or self.credential is None or self.credential == credential

    def thread_at(self, head: bytes) -> Thread | None:
        """The thread whose last request had this digest."""
        for thread in reversed(self.threads):
            if thread.head == head:
                return thread
        return None


class ThreadHeads:
    """The threads by the digest of their last request, and those whose last request failed and may
    be repeated.
    """

    __slots__ = ("_failed", "_standing")

    def __init__(self) -> None:
        self._standing: dict[bytes, dict[Thread, None]] = {}
        self._failed: dict[bytes, dict[Thread, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._standing)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._standing

    def has_none(self, digests: list[bytes]) -> bool:
        """Whether no thread is at any of these digests."""
        return self._standing.keys().isdisjoint(digests)

    def put(self, digest: bytes, thread: Thread) -> None:
        """Index the thread at this digest."""
        self._standing.setdefault(digest, {})[thread] = None

    def fail(self, thread: Thread) -> None:
        """Record that the thread's last request failed: the client may repeat it, or continue from
        the digest before it.
        """
        self._failed.setdefault(thread.head, {})[thread] = None
        if thread.before is not None:
            self.put(thread.before, thread)

    def drop(self, thread: Thread) -> None:
        """Remove the thread."""
        _discard(self._standing, thread.head, thread)
        self.retry(thread)

    def retry(self, thread: Thread) -> None:
        """Record that the thread's failed request has been repeated."""
        _discard(self._failed, thread.head, thread)
        if thread.before is not None:
            _discard(self._standing, thread.before, thread)

    def is_shared(self, digest: bytes) -> bool:
        return len(self._standing.get(digest, ())) > 1

    def has_failed(self, digest: bytes) -> bool:
        """Whether a thread's failed request has this digest."""
        return digest in self._failed

    def at(
        self, digest: bytes, credential: int | None, *, failed_only: bool = False
    ) -> Iterator[Thread]:
        """The newest threads at this digest that this caller may continue, newest first."""
        threads = (self._failed if failed_only else self._standing).get(digest, {})
        return (
            thread
            for thread in islice(reversed(threads), _MAX_COMPARED)
            if thread.session.admits(credential)
        )


NO_HEADS: Final = ThreadHeads()
"""For sessions without threads: never changed."""


def _discard(places: dict[bytes, dict[Thread, None]], digest: bytes, thread: Thread) -> None:
    threads = places.get(digest)
    if threads is not None:
        threads.pop(thread, None)
        if not threads:
            del places[digest]


@dataclass(slots=True)
class Match:
    """The thread that a request continues from `position`, or whose last request it repeats."""

    thread: Thread
    position: int
    score: int
    repeats: bool = False


def continued(
    heads: ThreadHeads, chain: MessageChain, hints: SenderHints, credential: int | None
) -> Match | None:
    """The thread at the longest strict prefix of this request."""
    digests = chain.digests
    if heads.has_none(digests):
        return None
    for position in range(len(digests) - 2, -1, -1):
        if digests[position] in heads:
            found = _best(heads.at(digests[position], credential), chain, position, hints)
            if found is not None:
                return found
    return None


def repeated(
    heads: ThreadHeads,
    chain: MessageChain,
    hints: SenderHints,
    credential: int | None,
    *,
    failed_only: bool = False,
) -> Match | None:
    """The thread whose last request said exactly the same, tool outputs included."""
    if not chain.digests:
        return None
    position = len(chain.digests) - 1
    digest = chain.digests[position]
    if not heads.has_failed(digest) and (failed_only or digest not in heads):
        return None
    tail = chain.tail_at(position)
    standing = heads.at(digest, credential, failed_only=failed_only)
    same = (
        thread
        for thread in standing
        if thread.head == digest and thread.tail in (tail, 0) and thread.hints.may_be(hints)
    )
    found = _best(same, chain, position, hints)
    if found is not None:
        found.repeats = True
    return found


def matched(
    heads: ThreadHeads, chain: MessageChain, hints: SenderHints, credential: int | None
) -> Match | None:
    """The thread that this request repeats, else the one that it continues."""
    return repeated(heads, chain, hints, credential) or continued(heads, chain, hints, credential)


def _best(
    threads: Iterable[Thread], chain: MessageChain, position: int, hints: SenderHints
) -> Match | None:
    best: Match | None = None
    for thread in threads:
        if hints.linked is not None and thread.session.id != hints.linked:
            continue
        score = _score(thread, chain, position, hints)
        if best is None or score > best.score:
            best = Match(thread, position, score)
    return best


def _score(thread: Thread, chain: MessageChain, position: int, hints: SenderHints) -> int:
    """How well a thread at this position fits the request. Whether the request holds the thread's
    answer counts most.
    """
    known = thread.hints
    score = 0 if thread.in_flight else 1
    if thread.failed and thread.head != chain.digests[position]:
        score -= 2
    if known is not _NO_HINTS:
        score += 4 * (known.agent == hints.agent) + 8 * (known.peer == hints.peer)
        score += 16 * (bool(hints.trace) and known.trace == hints.trace)
    if thread.tail and thread.head == chain.digests[position]:
        score += 64 if thread.tail == chain.tail_at(position) else -64
    # A repetition has no answer yet: use the fit of the request that it repeats.
    is_last = position == len(chain.digests) - 1
    return score + 256 * (thread.fits if is_last else thread.answer_fits(chain, position))


def squeezed(text: str) -> str:
    """The beginning of a text without white space, for comparing: clients trim and join answers
    differently.
    """
    return "".join(text[:4000].split())[:1000]


_PAST_PER_SESSION: Final = 3
_RESPONSES_PER_SESSION: Final = 4
_K = TypeVar("_K")
_V = TypeVar("_V")


class SessionRegistry:
    """Holds at most `max_sessions` sessions, and forgets the oldest first."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._active: OrderedDict[SessionId, Session] = OrderedDict()
        self._ended: OrderedDict[SessionId, Session] = OrderedDict()
        # Indexed by the fields of the scope, because the hash of a scope is not cached.
        self._keyed: dict[tuple[str | None, str | None, bool, str], list[Session]] = {}
        self._spaces: dict[tuple[str | None, str | None, str | None], ThreadHeads] = {}
        self._past: OrderedDict[bytes, SessionId] = OrderedDict()
        self._responses: OrderedDict[str, tuple[SessionId, bytes]] = OrderedDict()
        self._forgotten: list[SessionId] = []

    @property
    def active(self) -> int:
        """The number of sessions that have not ended."""
        return len(self._active)

    def get(self, session: SessionId) -> Session | None:
        """A session by its id, ended or not."""
        return self._active.get(session) or self._ended.get(session)

    def keyed(self, scope: Scope, key: Key) -> list[Session]:
        """The sessions with this key. Several callers may use the same key."""
        return self._keyed.get((scope.user, scope.workspace, key.named, key.value), [])

    def space(self, scope: Scope, key: Key | None) -> ThreadHeads:
        """The heads of conversations without a key of their own, by scope and shared key."""
        return self._spaces.get(_space(scope, key), NO_HEADS)

    def add(self, session: Session, key: Key | None) -> None:
        """Add a new session; forget the oldest if there are too many."""
        scope, session.key = session.scope, key
        if key is None or key.shared:
            session.heads = self._spaces.setdefault(_space(scope, key), ThreadHeads())
        else:
            session.heads = ThreadHeads()
            known = self._keyed.setdefault((scope.user, scope.workspace, key.named, key.value), [])
            known.append(session)
        self._active[session.id] = session
        if len(self._active) + len(self._ended) > self._max_sessions:
            self._forget_oldest()

    def touch(self, session: Session, now: datetime) -> None:
        """Record activity of a session; this revives an ended session."""
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

    def end_silent(self, now: datetime, silence: timedelta) -> list[SessionId]:
        """End the sessions that were silent for longer than `silence`; return them and those
        forgotten since the last call.
        """
        silent: list[SessionId] = []
        for session in self._active.values():
            # If the clock was ahead, this session and those behind it would stay open.
            session.last_at = min(session.last_at, now)
            age = now - session.last_at
            if age <= silence:
                break
            if not session.in_flight or age > silence * _MAX_SILENCES:
                silent.append(session.id)
        for session_id in silent:
            self.end(session_id)
        forgotten, self._forgotten = self._forgotten, []
        return forgotten + silent

    def move(self, thread: Thread, head: bytes, came_from: bytes | None) -> None:
        """Move the thread to a new digest; no other request can continue it from the old one."""
        heads = thread.session.heads
        if thread.head:
            heads.drop(thread)
        thread.head, thread.before = head, came_from
        heads.put(head, thread)
        _remember(self._past, head, thread.session.id, _PAST_PER_SESSION * self._max_sessions)

    def open_thread(self, session: Session) -> Thread:
        """Add a conversation to a session; drop the oldest if there are more than MAX_THREADS."""
        thread = Thread(session, b"")
        session.threads.append(thread)
        if len(session.threads) > MAX_THREADS:
            session.heads.drop(session.threads.pop(0))
        return thread

    def branch(
        self, chain: MessageChain, scope: Scope, credential: int | None, beyond: int = -1
    ) -> Session | None:
        """The session that was once at the longest strict prefix of this request, beyond position
        `beyond`.
        """
        digests = chain.digests
        if self._past.keys().isdisjoint(digests):
            return None
        for position in range(len(digests) - 2, beyond, -1):
            found = self._past.get(digests[position])
            session = self.get(found) if found is not None else None
            if session is not None and session.scope == scope and session.admits(credential):
                return session
        return None

    def answered(self, response_id: str, session: SessionId, head: bytes) -> None:
        """Record the id of a response, by which a later request may refer to its history."""
        _remember(
            self._responses,
            response_id,
            (session, head),
            _RESPONSES_PER_SESSION * self._max_sessions,
        )

    def response(self, response_id: str) -> tuple[SessionId, bytes] | None:
        """The session and digest that this response answered."""
        return self._responses.get(response_id)

    def _forget_oldest(self) -> None:
        """Forget the oldest ended session, or else the oldest active one, which the next
        `end_silent` reports as ended.
        """
        session = next(iter(self._ended.values() if self._ended else self._active.values()))
        if not session.ended:
            self._forgotten.append(session.id)
            del self._forgotten[: -self._max_sessions]
        self.forget(session)

    def forget(self, session: Session) -> None:
        """Drop all state of a session."""
        self._active.pop(session.id, None)
        self._ended.pop(session.id, None)
        for thread in session.threads:
            session.heads.drop(thread)
        session.threads.clear()  # break the reference cycle, so that both are freed at once
        scope, key = session.scope, session.key
        if key is not None and not key.shared:
            index = (scope.user, scope.workspace, key.named, key.value)
            others = [other for other in self._keyed.pop(index, ()) if other is not session]
            if others:
                self._keyed[index] = others
        elif not session.heads:
            self._spaces.pop(_space(scope, key), None)


def _space(scope: Scope, key: Key | None) -> tuple[str | None, str | None, str | None]:
    return scope.user, scope.workspace, key.value if key is not None else None


def _remember(memory: "OrderedDict[_K, _V]", key: _K, value: _V, limit: int) -> None:
    if key in memory:
        memory.move_to_end(key)
    memory[key] = value
    if len(memory) > limit:
        memory.popitem(last=False)
