"""What is remembered of sessions: where each of their conversations stands, and which of them a request may continue."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Final

from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope
from metaclaw.proxy.origin.conversation import Conversation

MAX_THREADS: Final = 8
# Thousands of conversations may stand at the same digest (a load test); only the newest are compared with each other.
_MAX_COMPARED: Final = 64


class Hints:
    """What a request shows of its sender besides its words. None of it decides alone; it tells equals apart. Only `linked`, the
    session whose answer the request refers to by id, excludes all others."""

    __slots__ = ("agent", "linked", "peer", "trace")

    def __init__(self, peer: str | None, trace: str, agent: str, linked: SessionId | None = None) -> None:
        self.peer = peer
        self.trace = trace
        self.agent = agent
        self.linked = linked

    def may_be(self, other: "Hints") -> bool:
        """Whether both can be the same program on the same machine; what is unknown is no difference."""
        return (not self.peer or not other.peer or self.peer == other.peer) and (not self.agent or self.agent == other.agent)


class Thread:
    """One linear conversation of a session: where its last request stood, and how that ended.

    An unkeyed session has one; under a client's own key several may run side by side. While the last turn is failed, the thread
    also stands where it stood before (`before`), so that a client may go on from there.
    """

    __slots__ = (
        "anchors",
        "before",
        "calls",
        "failed",
        "fits",
        "flying",
        "head",
        "hints",
        "said",
        "segment",
        "session",
        "tail",
        "task",
        "turn",
    )

    def __init__(self, session: "Session", head: bytes) -> None:
        self.session = session
        self.head = head
        self.before: bytes | None = None
        self.segment = 0
        self.task = ""
        self.anchors: frozenset[bytes] | None = None
        self.turn: TurnId | None = None
        self.failed = False
        self.flying = 0
        self.tail = 0
        self.fits = 0
        self.hints = _NO_HINTS
        self.calls: frozenset[str] = frozenset()
        self.said: str | None = None

    def answer_fits(self, spoken: Conversation, position: int) -> int:
        """1 if what follows this position is the answer the thread was given, -1 if it is another one, 0 if nobody can say."""
        if self.said is None:
            return 0
        answer = spoken.answer_after(position)
        if answer is None:
            return 0
        calls, words = answer
        if self.calls:
            return 1 if self.calls & calls else -1
        return 1 if not calls and squeezed(words) == self.said else -1


class Session:
    """Everything that is remembered of one session."""

    __slots__ = (
        "agent",
        "credential",
        "ended",
        "flying",
        "heads",
        "id",
        "key",
        "last_at",
        "named",
        "parent",
        "scope",
        "segment",
        "shared",
        "speaker",
        "task",
        "threads",
    )

    def __init__(
        self, session: SessionId, scope: Scope, credential: int | None, agent: str, now: datetime, parent: SessionId | None = None
    ) -> None:
        self.id = session
        self.scope = scope
        """What tells it apart from sessions of others; see `workspace.identity`."""
        self.speaker = scope
        """Whose it is, and which project it is about."""
        self.credential = credential
        self.agent = agent
        self.parent = parent
        self.key: str | None = None
        self.named = False
        self.shared = False
        self.heads = NOWHERE
        """Where its threads stand: a place of its own or one it shares, as `Memory` decides."""
        self.threads: list[Thread] = []
        self.segment = -1
        self.task = ""
        self.last_at = now
        self.flying = 0
        self.ended = False

    def admits(self, credential: int | None) -> bool:
        """Whether this caller may be the session's; a credential that one side does not show is no difference."""
        return credential is None or self.credential is None or self.credential == credential

    def thread_at(self, head: bytes) -> Thread | None:
        """The thread whose last request had this digest."""
        for thread in reversed(self.threads):
            if thread.head == head:
                return thread
        return None


class Heads:
    """Which threads stand at which digest, and which of them wait for a failed request to come again."""

    __slots__ = ("_failed", "_standing")

    def __init__(self) -> None:
        self._standing: dict[bytes, dict[Thread, None]] = {}
        self._failed: dict[bytes, dict[Thread, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._standing)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._standing

    def has_none(self, digests: list[bytes]) -> bool:
        """Whether no thread stands at any of these digests."""
        return self._standing.keys().isdisjoint(digests)

    def are_strange(self, digests: list[bytes]) -> bool:
        """Whether nobody stands at any of these digests, or waits for one of them to come again."""
        return self._standing.keys().isdisjoint(digests) and self._failed.keys().isdisjoint(digests)

    def put(self, digest: bytes, thread: Thread) -> None:
        """From now on the thread can be continued from here."""
        self._standing.setdefault(digest, {})[thread] = None

    def fail(self, thread: Thread) -> None:
        """The thread's last request failed: it may come again, or the thread may be continued from where it was before."""
        self._failed.setdefault(thread.head, {})[thread] = None
        if thread.before is not None:
            self.put(thread.before, thread)

    def drop(self, thread: Thread) -> None:
        """The thread stands nowhere any more."""
        _discard(self._standing, thread.head, thread)
        self.retry(thread)

    def retry(self, thread: Thread) -> None:
        """The thread's failed request has come again."""
        _discard(self._failed, thread.head, thread)
        if thread.before is not None:
            _discard(self._standing, thread.before, thread)

    def is_shared(self, digest: bytes) -> bool:
        """Whether several threads stand at this digest."""
        return len(self._standing.get(digest, ())) > 1

    def has_failed(self, digest: bytes) -> bool:
        """Whether a thread waits for the request with this digest to come again."""
        return digest in self._failed

    def at(self, digest: bytes, credential: int | None, *, failed_only: bool = False) -> Iterator[Thread]:
        """The newest threads at this digest that this caller may continue."""
        threads = (self._failed if failed_only else self._standing).get(digest, {})
        return (thread for thread in islice(reversed(threads), _MAX_COMPARED) if thread.session.admits(credential))


NOWHERE: Final = Heads()
"""No thread ever stands here."""


def _discard(places: dict[bytes, dict[Thread, None]], digest: bytes, thread: Thread) -> None:
    threads = places.get(digest)
    if threads is not None:
        threads.pop(thread, None)
        if not threads:
            del places[digest]


class Match:
    """How a request relates to what is known: the thread it continues and from which position, or whose repetition it is."""

    __slots__ = ("position", "repeats", "score", "thread")

    def __init__(self, thread: Thread, position: int, score: int, repeats: bool = False) -> None:
        self.thread = thread
        self.position = position
        self.score = score
        self.repeats = repeats


def continued(heads: Heads, spoken: Conversation, hints: Hints, credential: int | None) -> Match | None:
    """The thread at the longest strict prefix of this request."""
    digests = spoken.digests
    if heads.has_none(digests):
        return None
    for position in range(len(digests) - 2, -1, -1):
        if digests[position] in heads:
            found = _best(heads.at(digests[position], credential), spoken, position, hints)
            if found is not None:
                return found
    return None


def repeated(heads: Heads, spoken: Conversation, hints: Hints, credential: int | None, *, failed_only: bool) -> Match | None:
    """The thread whose last request said exactly the same, tool outputs included."""
    if not spoken.digests:
        return None
    position = len(spoken.digests) - 1
    digest = spoken.digests[position]
    if not heads.has_failed(digest) and (failed_only or digest not in heads):
        return None
    tail = spoken.tail_at(position)
    standing = heads.at(digest, credential, failed_only=failed_only)
    same = (thread for thread in standing if thread.head == digest and thread.tail in (tail, 0) and thread.hints.may_be(hints))
    found = _best(same, spoken, position, hints)
    if found is not None:
        found.repeats = True
    return found


def _best(threads: Iterable[Thread], spoken: Conversation, position: int, hints: Hints) -> Match | None:
    best: Match | None = None
    for thread in threads:
        if hints.linked is not None and thread.session.id != hints.linked:
            continue
        score = _score(thread, spoken, position, hints)
        if best is None or score > best.score:
            best = Match(thread, position, score)
    return best


def _score(thread: Thread, spoken: Conversation, position: int, hints: Hints) -> int:
    """How well a thread that stands at this position fits the request; the answer it was given counts most."""
    known = thread.hints
    score = 0 if thread.flying else 1
    if thread.failed and thread.head != spoken.digests[position]:
        score -= 2
    if known is not _NO_HINTS:
        score += 4 * (known.agent == hints.agent) + 8 * (known.peer == hints.peer)
        score += 16 * (bool(hints.trace) and known.trace == hints.trace)
    if thread.tail and thread.head == spoken.digests[position]:
        score += 64 if thread.tail == spoken.tail_at(position) else -64
    # A repetition has no answer yet; it fits as well as the request did that it repeats.
    is_last = position == len(spoken.digests) - 1
    return score + 256 * (thread.fits if is_last else thread.answer_fits(spoken, position))


def squeezed(text: str) -> str:
    """Words without white space, cut short: clients trim and join answers in their own ways."""
    return "".join(text[:4000].split())[:1000]


_NO_HINTS: Final = Hints(None, "", "")
