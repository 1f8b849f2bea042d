"""Who is speaking: session, main or side turn, segment and end of every request, from what clients send anyway.

With a key of the client's own, the key is the session. Without one, a request belongs to the session whose last request is its
longest strict prefix. A session moves on with every request that continues it, so two agents that say the same stay two: the
second finds the place taken and continues its own session, or begins one. The same request again is a retry only if the earlier
one failed. A request that continues an older point is a branch: a session of its own, with a parent.

A session ends by a word of its client, by `end`, or by silence. A request for an ended session revives it under the same id, as a
new segment. Side turns belong to a session but never move it.

Everything is held in memory, bounded, and runs on the event loop; nothing here waits or writes.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from metaclaw.domain.chat import Json, Part, Text, ToolCall, Wire
from metaclaw.domain.ids import SessionId, TurnId, new_session_id
from metaclaw.domain.turn import Anchor, Origin, Scope, SessionTrace, TurnEnd, TurnKind
from metaclaw.proxy.sessions.conversation import AgentClient, DigestCache, Request, bare_id
from metaclaw.proxy.sessions.recognition import (
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
    repeated,
    safe_id,
    session_id,
    squeezed,
)
from metaclaw.wires import wire_format

log = logging.getLogger(__name__)

_TRUE: Final = frozenset(("true", "1", "yes", "on"))
# An answer may take long, but not for ever: after so many silences a session is over even if its last turn never ended.
_PATIENCE: Final = 8


@dataclass(slots=True)
class _Sighting:
    """One request, read."""

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
class _Place:
    """Where a request belongs: its session, whether it is new, and how it relates to what was said there."""

    session: Session
    began: bool = False
    match: Match | None = None


class Origins:
    """Knows the sessions of all clients, and says of every request which one it belongs to."""

    def __init__(self, *, silence_s: float = 1800.0, max_sessions: int = 4096, now: Callable[[], datetime]) -> None:
        self._silence = timedelta(seconds=silence_s)
        self._memory = SessionRegistry(max_sessions)
        self._digests = DigestCache()
        self._clients = Recogniser()
        self._workspaces = Workspaces()
        self._now = now

    @property
    def active(self) -> int:
        """How many sessions have not ended."""
        return self._memory.active

    def identify(
        self, wire: Wire, headers: Mapping[str, str], body: Mapping[str, Json], peer: str | None = None, *, path: str = ""
    ) -> Origin:
        """Say whose request this is. `headers` have lower-case names; no body is too odd."""
        sighting = self._see(wire, headers, body, peer, path)
        key = sighting.key
        if key is not None and not key.shared:
            place = self._place_by_key(sighting, key)
        elif sighting.kind is TurnKind.SIDE:
            place = self._place_aside(sighting)
        else:
            place = self._place_by_chain(sighting)
        place.session.flying += 1
        return self._side(sighting, place) if sighting.kind is TurnKind.SIDE else self._main(sighting, place)

    def finished(self, origin: Origin, turn: TurnId | None, end: TurnEnd) -> None:
        """The answer has ended; `turn` is None if none was recorded. After a failure the client may send the same again, or go on
        from where it was before."""
        session = self._memory.get(origin.session)
        if session is None:
            return
        session.flying = max(0, session.flying - 1)
        if not session.ended:
            self._memory.touch(session, self._now())
        thread = session.thread_at(origin.head) if origin.kind is TurnKind.MAIN else None
        if thread is None:
            return
        thread.flying = max(0, thread.flying - 1)
        thread.turn = turn
        thread.failed = end is not TurnEnd.COMPLETED and not thread.flying
        if thread.failed:
            session.heads.fail(thread)

    def withdraw(self, origin: Origin) -> bool:
        """A request was refused. If it began its session, and nothing else is under way there, forget the session: True."""
        session = self._memory.get(origin.session)
        if session is None or not origin.session_began or session.flying > 1:
            return False
        self._memory.forget(session)
        return True

    def answered(self, origin: Origin, response_id: str, parts: Sequence[Part] = ()) -> None:
        """What was answered: its id, by which a later request may name its history, and its words and calls, which tell
        apart agents that have said exactly the same so far."""
        if origin.kind is not TurnKind.MAIN:
            return
        if response_id:
            self._memory.answered(response_id, origin.session, origin.head)
        session = self._memory.get(origin.session) if parts else None
        thread = session.thread_at(origin.head) if session is not None else None
        if thread is not None:
            thread.calls = frozenset(bare_id(part.id) for part in parts if isinstance(part, ToolCall))
            thread.said = squeezed("".join(part.text for part in parts if isinstance(part, Text)))

    def has_double(self, origin: Origin) -> bool:
        """Whether another conversation stands exactly where this one does, so that only their answers can tell them apart."""
        session = self._memory.get(origin.session)
        return session is not None and origin.key is None and session.heads.is_shared(origin.head)

    def is_active(self, session: SessionId) -> bool:
        known = self._memory.get(session)
        return known is not None and not known.ended

    def end(self, session: SessionId) -> bool:
        """End a session; False if it is unknown or has ended already."""
        return self._memory.end(session)

    def sweep(self) -> list[SessionId]:
        """End what has been silent for too long; return the sessions that ended so since the last sweep."""
        now = self._now()

        def is_silent(session: Session) -> bool | None:
            if session.last_at > now:
                session.last_at = now  # the clock was ahead then; it must not keep this session, and those behind it, open
            age = now - session.last_at
            if age <= self._silence:
                return None
            return not session.flying or age > self._silence * _PATIENCE

        return self._memory.end_silent(is_silent)

    def restore(self, traces: Iterable[SessionTrace]) -> None:
        """Take up the sessions of an earlier run, oldest first."""
        for trace in sorted(traces, key=lambda trace: trace.last_at):
            if self._memory.get(trace.session) is None:
                self._restore(trace)

    def _restore(self, trace: SessionTrace) -> None:
        session = Session(trace.session, identity(trace.scope), None, trace.agent, trace.last_at)
        session.speaker = trace.scope
        self._memory.add(session, _key_of(trace))
        session.segment = trace.segment
        if trace.head:
            thread = self._memory.open_thread(session)
            thread.segment, thread.turn = trace.segment, trace.last_turn
            self._memory.move(thread, trace.head, None)

    def _see(self, wire: Wire, headers: Mapping[str, str], body: Mapping[str, Json], peer: str | None, path: str) -> _Sighting:
        earlier, linked = self._earlier(wire, body)
        request = Request(wire, headers, body, self._digests, earlier)
        client = self._clients.recognise(request)
        kind, reason = classify(request, client, path)
        hints = SenderHints(peer, headers.get("traceparent", "")[:35], headers.get("user-agent", ""), linked)
        key = find_key(request, client)
        said = scope_of(headers)
        scope = said if said.workspace is None else identity(said)
        return _Sighting(request, client, kind, reason, scope, said, credential_of(headers), key, hints, self._now())

    def _earlier(self, wire: Wire, body: Mapping[str, Json]) -> tuple[bytes | None, SessionId | None]:
        """The history that a request only refers to: its digest, and the session it belongs to where we know it."""
        response_id = body.get(wire_format(wire).previous_key)
        if not isinstance(response_id, str) or not response_id:
            return None, None
        known = self._memory.response(response_id)
        if known is not None:
            return known[1], known[0]
        return sha256(response_id.encode("utf-8", "replace")).digest(), None

    def _place_by_key(self, seen: _Sighting, key: Key) -> _Place:
        sessions = self._memory.keyed(seen.scope, key)
        if seen.said.workspace is not None:
            sessions = [one for one in sessions if one.speaker.workspace in (None, seen.said.workspace)]
        admitting = [session for session in sessions if session.admits(seen.credential)]
        if not admitting and looks_unique(key.value):
            # A token that was renewed: another credential, but it goes on exactly where the session stands.
            spoken = seen.request.conversation
            admitting = [session for session in sessions if continued(session.heads, spoken, seen.hints, session.credential)]
        places = [self._place_in(session, seen) for session in admitting]
        place = next((place for place in places if place.match is not None), places[-1] if places else None)
        if place is None:
            return _Place(self._begin(seen, self._parent(seen.scope, key)), began=True)
        if seen.credential is not None:
            place.session.credential = seen.credential
        return place

    @staticmethod
    def _place_in(session: Session, seen: _Sighting) -> _Place:
        if seen.kind is TurnKind.SIDE:
            return _Place(session)
        heads, spoken, credential = session.heads, seen.request.conversation, session.credential
        match = repeated(heads, spoken, seen.hints, credential, failed_only=False) or continued(
            heads, spoken, seen.hints, credential
        )
        return _Place(session, match=match)

    def _place_by_chain(self, seen: _Sighting) -> _Place:
        spoken = seen.request.conversation
        heads = self._memory.space(seen.scope, seen.key.value if seen.key else None)
        again = repeated(heads, spoken, seen.hints, seen.credential, failed_only=True)
        onward = continued(heads, spoken, seen.hints, seen.credential)
        if again is not None and (onward is None or again.score >= onward.score):
            return self._joined(again, seen)
        doubtful = onward is not None and onward.thread.answer_fits(spoken, onward.position) < 0
        if onward is not None and not doubtful:
            return self._joined(onward, seen)
        parent = seen.hints.linked
        if parent is None:
            branch = self._memory.branch(spoken, seen.scope, seen.credential, onward.position if onward is not None else -1)
            parent = branch.id if branch is not None else None
        if onward is not None and parent is None:
            return self._joined(onward, seen)
        return _Place(self._begin(seen, parent), began=True)

    @staticmethod
    def _joined(match: Match, seen: _Sighting) -> _Place:
        session = match.thread.session
        if session.credential is None:
            session.credential = seen.credential
        return _Place(session, match=match)

    def _place_aside(self, seen: _Sighting) -> _Place:
        """Housekeeping without a key belongs to the session whose history it shows; else it stands alone."""
        spoken = seen.request.conversation
        heads = self._memory.space(seen.scope, seen.key.value if seen.key else None)
        found = repeated(heads, spoken, seen.hints, seen.credential, failed_only=False) or continued(
            heads, spoken, seen.hints, seen.credential
        )
        if found is not None:
            return _Place(found.thread.session)
        branch = self._memory.branch(spoken, seen.scope, seen.credential)
        return _Place(branch) if branch is not None else _Place(self._begin(seen, None), began=True)

    def _begin(self, seen: _Sighting, parent: SessionId | None) -> Session:
        key = seen.key
        wanted = new_session_id() if key is None or key.shared else session_id(seen.scope, key)
        if key is not None and self._memory.get(wanted) is not None:
            # Another session has this key already.
            wanted = SessionId(f"{wanted}.{new_session_id()[-10:]}") if key.named else new_session_id()
        session = Session(wanted, seen.scope, seen.credential, seen.client.name, seen.now, parent)
        session.speaker = seen.said
        self._memory.add(session, key)
        log.debug("session_began session=%s agent=%s keyed=%s", session.id, session.agent, key is not None)
        return session

    def _parent(self, scope: Scope, key: Key) -> SessionId | None:
        if key.parent is None:
            return None
        above = Key(key.parent, key.named)
        known = self._memory.keyed(scope, above)
        return known[-1].id if known else session_id(scope, above)

    def _side(self, seen: _Sighting, place: _Place) -> Origin:
        session, spoken = place.session, seen.request.conversation
        self._memory.touch(session, seen.now)
        known = frozenset[bytes]().union(*(thread.anchors for thread in session.threads if thread.anchors))
        return self._origin(
            seen,
            place,
            segment=max(0, session.segment),
            segment_began=False,
            task=session.task,
            anchors=known_anchors(spoken, known),
        )

    def _main(self, seen: _Sighting, place: _Place) -> Origin:
        session, match, spoken = place.session, place.match, seen.request.conversation
        revived = session.ended or (not place.began and session.flying <= 1 and seen.now - session.last_at > self._silence)
        thread = match.thread if match is not None else self._memory.open_thread(session)
        upto = match.position if match is not None else -1
        retry_of = thread.turn if match is not None and match.repeats and thread.failed else None
        tasks = Tasks(spoken, seen.client, thread.anchors, upto)
        segment_began = match is None or (retry_of is None and (tasks.began or revived))
        if segment_began:
            session.segment += 1
            thread.segment = session.segment
            if session.speaker.workspace is None:
                self._find_workspace(seen, session)
        thread.task = tasks.last or thread.task or session.task
        thread.anchors = frozenset([anchor.digest for anchor in tasks.anchors])
        self._advance(seen, place, thread)
        session.task = thread.task
        return self._origin(
            seen,
            place,
            segment=thread.segment,
            segment_began=segment_began,
            task=thread.task,
            anchors=tasks.anchors,
            retry_of=retry_of,
        )

    def _find_workspace(self, seen: _Sighting, session: Session) -> None:
        """Take the project from the request, else from the session this one works for."""
        parent = self._memory.get(session.parent) if session.parent is not None else None
        workspace = self._workspaces.find(seen.request, seen.client) or (None if parent is None else parent.speaker.workspace)
        if workspace is not None:
            session.speaker = Scope(session.speaker.user, workspace)

    def _advance(self, seen: _Sighting, place: _Place, thread: Thread) -> None:
        """The thread now stands at this request, and waits for its answer."""
        match, spoken = place.match, seen.request.conversation
        if match is not None and match.repeats:
            thread.flying += 1
            thread.session.heads.retry(thread)
        else:
            thread.flying = 1
            thread.fits = thread.answer_fits(spoken, match.position) if match is not None else 0
            thread.said, thread.calls = None, frozenset()
            self._memory.move(thread, spoken.head, spoken.digests[match.position] if match is not None else None)
        thread.failed = False
        thread.tail = spoken.tail_at(len(spoken.digests) - 1) if spoken.digests else 0
        thread.hints = seen.hints
        if not place.began:
            self._memory.touch(thread.session, seen.now)

    @staticmethod
    def _origin(
        seen: _Sighting,
        place: _Place,
        *,
        segment: int,
        segment_began: bool,
        task: str,
        anchors: tuple[Anchor, ...],
        retry_of: TurnId | None = None,
    ) -> Origin:
        return Origin(
            session=place.session.id,
            session_began=place.began,
            kind=seen.kind,
            kind_reason=seen.reason,
            scope=place.session.speaker,
            agent=seen.client.name,
            segment=segment,
            segment_began=segment_began,
            task=task,
            anchors=anchors,
            head=seen.request.conversation.head,
            key=seen.key.value if seen.key is not None else None,
            retry_of=retry_of,
            parent=place.session.parent,
            ends_session=seen.reason == "session-end" or _says_done(seen.request),
        )


def _says_done(request: Request) -> bool:
    said = request.headers.get("x-session-done")
    return said is not None and said.strip().lower() in _TRUE


def _key_of(trace: SessionTrace) -> Key | None:
    """How a session of an earlier run was found, told from its id."""
    if not trace.key:
        return None
    called = safe_id(trace.key)
    if trace.session == called or trace.session.startswith(f"{called}."):
        return Key(trace.key, named=True)
    return Key(trace.key, shared=trace.session != derived_id(identity(trace.scope), trace.key) and not looks_unique(trace.key))
