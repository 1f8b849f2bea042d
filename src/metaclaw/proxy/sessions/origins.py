"""Find the session of every request, its kind (main or side turn), and its segment, from what
clients send anyway.

If the client sends a key, the key is the session. If not, a request belongs to the session whose
last request is its longest strict prefix. Every request that continues a session moves it to a new
digest. So two agents with equal histories stay two sessions: the second finds no session at the old
digest, and continues its own session or begins one. An equal request is a retry only if the earlier
one failed. A request that continues an older digest is a branch: a new session, with a parent.

A session ends when its client says so, by `end`, or after a time of silence. A request for an ended
session revives it under the same id, as a new segment. Side turns belong to a session but do not
move it.

All state is in memory and bounded. Everything runs on the event loop; nothing blocks or writes to
disk."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from metaclaw.clock import utc_now
from metaclaw.domain.chat import Json, Part, Text, ToolCall, Wire
from metaclaw.domain.ids import SessionId, TurnId, new_session_id
from metaclaw.domain.turn import (
    Anchor,
    Origin,
    Scope,
    SessionTrace,
    TurnEnd,
    TurnKind,
    channel_name,
)
from metaclaw.proxy.sessions.conversation import AgentClient, DigestCache, Request, bare_id
from metaclaw.proxy.sessions.recognition import (
    NO_SCOPE,
    Recogniser,
    Tasks,
    Workspaces,
    classify,
    credential_of,
    find_key,
    known_anchors,
    scope_of,
)
from metaclaw.proxy.sessions.registry import (
    Key,
    Match,
    SenderHints,
    Session,
    SessionRegistry,
    Thread,
    continued,
    derived_id,
    identity,
    looks_unique,
    matched,
    repeated,
    safe_id,
    session_id,
    squeezed,
)
from metaclaw.wires import wire_format

log = logging.getLogger(__name__)

_TRUE: Final = frozenset(("true", "1", "yes", "on"))


@dataclass(slots=True)
class _ReadRequest:
    """A request and the properties of its sender. `scope` identifies the session, `said` is the
    scope as the caller sent it.
    """

    request: Request
    client: AgentClient
    kind: TurnKind
    reason: str
    scope: Scope
    said: Scope
    credential: int | None
    key: Key | None
    hints: SenderHints
    now: datetime


@dataclass(slots=True)
class _Assigned:
    """The session of a request, whether it is new, and the thread that the request continues or
    repeats.
    """

    session: Session
    began: bool = False
    match: Match | None = None


class Origins:
    """Keeps the sessions of all clients, and assigns every request to one of them."""

    def __init__(
        self,
        *,
        silence_s: float = 1800.0,
        max_sessions: int = 4096,
        now: Callable[[], datetime] = utc_now,
        is_shared: bool = False,
    ) -> None:
        """`is_shared`: other programs may serve the same sessions."""
        self._is_shared = is_shared
        self._silence = timedelta(seconds=silence_s)
        self._sessions = SessionRegistry(max_sessions)
        self._digests = DigestCache()
        self._clients = Recogniser()
        self._workspaces = Workspaces()
        self._now = now

    @property
    def active(self) -> int:
        """The number of sessions that have not ended."""
        return self._sessions.active

    def identify(
        self,
        wire: Wire,
        headers: Mapping[str, str],
        body: Mapping[str, Json],
        peer: str | None = None,
        *,
        path: str = "",
    ) -> Origin:
        """Find the origin of a request. `headers` have lower-case names; `body` may have any
        shape.
        """
        seen = self._read(wire, headers, body, peer, path)
        key = seen.key
        if key is not None and not key.shared:
            assigned = self._assign_by_key(seen, key)
        elif seen.kind is TurnKind.SIDE:
            assigned = self._assign_side_turn(seen)
        else:
            assigned = self._assign_by_history(seen)
        assigned.session.in_flight += 1
        return (
            self._side(seen, assigned) if seen.kind is TurnKind.SIDE else self._main(seen, assigned)
        )

    def prefixes(
        self, wire: Wire, headers: Mapping[str, str], body: Mapping[str, Json], path: str
    ) -> list[bytes]:
        """The digests at which another program may have seen this conversation last."""
        return self._read(wire, headers, body, None, path).request.conversation.digests[:-1]

    def finished(self, origin: Origin, turn: TurnId | None, end: TurnEnd) -> None:
        """Record the end of an answer; `turn` is None if none was recorded. After a failure the
        client may repeat the request, or continue from the request before it."""
        session = self._sessions.get(origin.session)
        if session is None:
            return
        session.in_flight = max(0, session.in_flight - 1)
        if not session.ended:
            self._sessions.touch(session, self._now())
        thread = session.thread_at(origin.head) if origin.kind is TurnKind.MAIN else None
        if thread is None:
            return
        thread.in_flight = max(0, thread.in_flight - 1)
        thread.turn = turn
        thread.failed = end is not TurnEnd.COMPLETED and not thread.in_flight
        if thread.failed:
            session.heads.fail(thread)

    def withdraw(self, origin: Origin) -> bool:
        """Forget the session of a refused request, if the request began it and no other is in
        flight there. True if forgotten.
        """
        session = self._sessions.get(origin.session)
        if session is None or not origin.session_began or session.in_flight > 1:
            return False
        self._sessions.forget(session)
        return True

    def is_behind(self, origin: Origin) -> bool:
        """Whether another program seems to have answered requests of this conversation since it was
        last here.
        """
        session = self._sessions.get(origin.session) if self._is_shared else None
        thread = session.thread_at(origin.head) if session is not None else None
        return thread is not None and thread.is_behind

    def catch_up(self, origin: Origin, trace: SessionTrace) -> bool:
        """Take the request back, and have its conversation be where another program left it, so
        that it can be identified anew. False if that is where it is.
        """
        session = self._sessions.get(origin.session)
        thread = session.thread_at(origin.head) if session is not None else None
        if session is None or thread is None or thread.turn == trace.last_turn:
            return False
        session.in_flight -= 1
        others = (other.segment for other in session.threads if other is not thread)
        session.segment = max([trace.segment, *others])
        thread.in_flight, thread.segment, thread.turn = 0, trace.segment, trace.last_turn
        thread.anchors, thread.said, thread.calls = None, None, frozenset()
        self._sessions.move(thread, trace.head, None)
        return True

    def answered(self, origin: Origin, response_id: str, parts: Sequence[Part] = ()) -> None:
        """Record an answer: its id, by which a later request may refer to its history, and its
        words and calls, which distinguish agents with equal histories."""
        if origin.kind is not TurnKind.MAIN:
            return
        if response_id:
            self._sessions.answered(response_id, origin.session, origin.head)
        session = self._sessions.get(origin.session) if parts else None
        thread = session.thread_at(origin.head) if session is not None else None
        if thread is not None:
            thread.calls = frozenset(
                bare_id(part.id) for part in parts if isinstance(part, ToolCall)
            )
            thread.said = squeezed("".join(part.text for part in parts if isinstance(part, Text)))

    def has_double(self, origin: Origin) -> bool:
        """Whether another conversation has the same history, so that only the answers can
        distinguish them.
        """
        session = self._sessions.get(origin.session)
        return session is not None and origin.key is None and session.heads.is_shared(origin.head)

    def is_active(self, session: SessionId) -> bool:
        known = self._sessions.get(session)
        return known is not None and not known.ended

    def end(self, session: SessionId) -> bool:
        """End a session; False if it is unknown or has ended already."""
        return self._sessions.end(session)

    def sweep(self) -> list[SessionId]:
        """End sessions that have been silent for too long; return those that ended so since the
        last sweep.
        """
        return self._sessions.end_silent(self._now(), self._silence)

    def restore(self, traces: Iterable[SessionTrace]) -> None:
        """Restore the sessions of an earlier run, oldest first."""
        for trace in sorted(traces, key=lambda trace: trace.last_at):
            if self._sessions.get(trace.session) is None:
                self._restore(trace)

    def _restore(self, trace: SessionTrace) -> None:
        session = Session(trace.session, identity(trace.scope), None, trace.agent, trace.last_at)
        session.speaker = trace.scope
        self._sessions.add(session, _key_of(trace))
        session.segment = trace.segment
        if trace.head:
            thread = self._sessions.open_thread(session)
            thread.segment, thread.turn = trace.segment, trace.last_turn
            self._sessions.move(thread, trace.head, None)

    def _read(
        self,
        wire: Wire,
        headers: Mapping[str, str],
        body: Mapping[str, Json],
        peer: str | None,
        path: str,
    ) -> _ReadRequest:
        earlier, linked = self._earlier(wire, body)
        request = Request(wire, headers, body, self._digests, earlier)
        client = self._clients.recognise(request)
        kind, reason = classify(request, client, path)
        hints = SenderHints(
            peer, headers.get("traceparent", "")[:35], headers.get("user-agent", ""), linked
        )
        key = find_key(request, client)
        said = scope_of(headers)
        scope = identity(said)
        return _ReadRequest(
            request,
            client,
            kind,
            reason,
            scope,
            said,
            credential_of(headers),
            key,
            hints,
            self._now(),
        )

    def _earlier(
        self, wire: Wire, body: Mapping[str, Json]
    ) -> tuple[bytes | None, SessionId | None]:
        """The digest of a history that the request only refers to by id, and its session if
        known.
        """
        response_id = body.get(wire_format(wire).previous_key)
        if not isinstance(response_id, str) or not response_id:
            return None, None
        known = self._sessions.response(response_id)
        if known is not None:
            return known[1], known[0]
        return sha256(response_id.encode("utf-8", "replace")).digest(), None

    def _assign_by_key(self, seen: _ReadRequest, key: Key) -> _Assigned:
        sessions = self._sessions.keyed(seen.scope, key)
        if seen.said.workspace is not None:
            sessions = [
                session
                for session in sessions
                if session.speaker.workspace in (None, seen.said.workspace)
            ]
        admitting = [session for session in sessions if session.admits(seen.credential)]
        if not admitting and looks_unique(key.value):
            # The credential was renewed: it is another one, but the request continues exactly this
            # session.
            chain = seen.request.conversation
            admitting = [
                session
                for session in sessions
                if continued(session.heads, chain, seen.hints, session.credential)
            ]
        found = [self._assign_in(session, seen) for session in admitting]
        assigned = next(
            (assigned for assigned in found if assigned.match is not None),
            found[-1] if found else None,
        )
        if assigned is None:
            return _Assigned(self._begin(seen, self._parent(seen.scope, key)), began=True)
        if seen.credential is not None:
            assigned.session.credential = seen.credential
        return assigned

    @staticmethod
    def _assign_in(session: Session, seen: _ReadRequest) -> _Assigned:
        if seen.kind is TurnKind.SIDE:
            return _Assigned(session)
        chain = seen.request.conversation
        match = matched(session.heads, chain, seen.hints, session.credential)
        return _Assigned(session, match=match)

    def _assign_by_history(self, seen: _ReadRequest) -> _Assigned:
        chain = seen.request.conversation
        heads = self._sessions.space(seen.scope, seen.key)
        again = repeated(heads, chain, seen.hints, seen.credential, failed_only=True)
        onward = continued(heads, chain, seen.hints, seen.credential)
        if again is not None and (onward is None or again.score >= onward.score):
            return self._joined(again, seen)
        doubtful = onward is not None and onward.thread.answer_fits(chain, onward.position) < 0
        if onward is not None and not doubtful:
            return self._joined(onward, seen)
        parent = seen.hints.linked
        if parent is None:
            branch = self._sessions.branch(
                chain, seen.scope, seen.credential, onward.position if onward is not None else -1
            )
            parent = branch.id if branch is not None else None
        if onward is not None and parent is None:
            return self._joined(onward, seen)
        return _Assigned(self._begin(seen, parent), began=True)

    @staticmethod
    def _joined(match: Match, seen: _ReadRequest) -> _Assigned:
        session = match.thread.session
        if session.credential is None:
            session.credential = seen.credential
        return _Assigned(session, match=match)

    def _assign_side_turn(self, seen: _ReadRequest) -> _Assigned:
        """A side turn without a key belongs to the session whose history it holds; else it begins a
        session.
        """
        chain = seen.request.conversation
        heads = self._sessions.space(seen.scope, seen.key)
        found = matched(heads, chain, seen.hints, seen.credential)
        if found is not None:
            return _Assigned(found.thread.session)
        branch = self._sessions.branch(chain, seen.scope, seen.credential)
        if branch is not None:
            return _Assigned(branch)
        return _Assigned(self._begin(seen, None), began=True)

    def _begin(self, seen: _ReadRequest, parent: SessionId | None) -> Session:
        key = seen.key
        new_id = new_session_id() if key is None or key.shared else session_id(seen.scope, key)
        if key is not None and self._sessions.get(new_id) is not None:
            # Another session has this key already.
            new_id = (
                SessionId(f"{new_id}.{new_session_id()[-10:]}") if key.named else new_session_id()
            )
        session = Session(new_id, seen.scope, seen.credential, seen.client.name, seen.now, parent)
        session.speaker = seen.said
        self._sessions.add(session, key)
        log.debug(
            "session_began session=%s agent=%s keyed=%s", session.id, session.agent, key is not None
        )
        return session

    def _parent(self, scope: Scope, key: Key) -> SessionId | None:
        if key.parent is None:
            return None
        above = Key(key.parent, key.named)
        known = self._sessions.keyed(scope, above)
        return known[-1].id if known else session_id(scope, above)

    def _side(self, seen: _ReadRequest, assigned: _Assigned) -> Origin:
        session, chain = assigned.session, seen.request.conversation
        self._sessions.touch(session, seen.now)
        known = frozenset[bytes]().union(
            *(thread.anchors for thread in session.threads if thread.anchors)
        )
        return self._origin(
            seen,
            assigned,
            segment=max(0, session.segment),
            segment_began=False,
            task=session.task,
            anchors=known_anchors(chain, known),
        )

    def _main(self, seen: _ReadRequest, assigned: _Assigned) -> Origin:
        session, match, chain = assigned.session, assigned.match, seen.request.conversation
        revived = session.ended or (
            not assigned.began
            and session.in_flight <= 1
            and seen.now - session.last_at > self._silence
        )
        thread = match.thread if match is not None else self._sessions.open_thread(session)
        upto = match.position if match is not None else -1
        retry_of = thread.turn if match is not None and match.repeats and thread.failed else None
        tasks = Tasks(chain, seen.client, thread.anchors, upto)
        segment_began = match is None or (retry_of is None and (tasks.began or revived))
        if segment_began:
            session.segment += 1
            thread.segment = session.segment
            self._find_place(seen, session)
        thread.task = tasks.last or thread.task or session.task
        thread.anchors = frozenset([anchor.digest for anchor in tasks.anchors])
        self._advance(seen, assigned, thread)
        session.task = thread.task
        return self._origin(
            seen,
            assigned,
            segment=thread.segment,
            segment_began=segment_began,
            task=thread.task,
            anchors=tasks.anchors,
            retry_of=retry_of,
        )

    def _find_place(self, seen: _ReadRequest, session: Session) -> None:
        """Take the project, unless it is known, and the channel from the request, else from the
        parent session.
        """
        parent = self._sessions.get(session.parent) if session.parent is not None else None
        above = NO_SCOPE if parent is None else parent.speaker
        known, request = session.speaker, seen.request
        workspace = known.workspace or self._workspaces.find(request, seen.client)
        channel = seen.said.channel or channel_name(seen.client.channel(request) or "")
        session.speaker = Scope(known.user, workspace or above.workspace, channel or above.channel)

    def _advance(self, seen: _ReadRequest, assigned: _Assigned, thread: Thread) -> None:
        """Move the thread to this request, which is now in flight."""
        match, chain = assigned.match, seen.request.conversation
        if match is not None and match.repeats:
            thread.in_flight += 1
            thread.session.heads.retry(thread)
        else:
            if self._is_shared:
                position = -1 if match is None else match.position
                thread.is_behind = chain.has_answers_after(position, 0 if match is None else 1)
            thread.in_flight = 1
            thread.fits = thread.answer_fits(chain, match.position) if match is not None else 0
            thread.said, thread.calls = None, frozenset()
            self._sessions.move(
                thread, chain.head, chain.digests[match.position] if match is not None else None
            )
        thread.failed = False
        thread.tail = chain.tail_at(len(chain.digests) - 1) if chain.digests else 0
        thread.hints = seen.hints
        if not assigned.began:
            self._sessions.touch(thread.session, seen.now)

    @staticmethod
    def _origin(
        seen: _ReadRequest,
        assigned: _Assigned,
        *,
        segment: int,
        segment_began: bool,
        task: str,
        anchors: tuple[Anchor, ...],
        retry_of: TurnId | None = None,
    ) -> Origin:
        return Origin(
            session=assigned.session.id,
            session_began=assigned.began,
            kind=seen.kind,
            kind_reason=seen.reason,
            scope=assigned.session.speaker,
            agent=seen.client.name,
            segment=segment,
            segment_began=segment_began,
            task=task,
            anchors=anchors,
            head=seen.request.conversation.head,
            key=seen.key.value if seen.key is not None else None,
            retry_of=retry_of,
            parent=assigned.session.parent,
            ends_session=seen.reason == "session-end" or _says_done(seen.request),
        )


def _says_done(request: Request) -> bool:
    said = request.headers.get("x-session-done")
    return said is not None and said.strip().lower() in _TRUE


def _key_of(trace: SessionTrace) -> Key | None:
    """Reconstruct the key of a session of an earlier run from its id."""
    if not trace.key:
        return None
    called = safe_id(trace.key)
    if trace.session == called or trace.session.startswith(f"{called}."):
        return Key(trace.key, named=True)
    return Key(
        trace.key,
        shared=trace.session != derived_id(identity(trace.scope), trace.key)
        and not looks_unique(trace.key),
    )
