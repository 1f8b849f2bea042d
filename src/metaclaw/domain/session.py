"""Who is speaking: what is known about the origin of one request before it is answered."""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope, TurnKind


class Anchor(msgspec.Struct, frozen=True, gc=False):
    """The user message that began a segment: its index in this request's own message list (`messages` or `input`),
    and the digest of the conversation up to and including it, which stays the same from request to request."""

    index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class SessionTrace:
    """What must be remembered of a session so that its next request is recognised, also after a restart."""

    session: SessionId
    key: str | None
    agent: str
    scope: Scope
    head: bytes
    segment: int
    last_turn: TurnId
    last_at: datetime


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The session a request belongs to and its place in it.

    `segment` counts the user's tasks in this session; `segment_began` is true on the first request of a segment.
    `task` is the user's own words of this segment, without anything a client or channel glued to them.
    `anchors` are the positions of the user messages that began each segment seen in this request's history, oldest first;
    the last one is the current segment's. `head` is the digest of the whole normalised request; `key` is the client's own
    session identifier, where it sends one.
    """

    session: SessionId
    session_began: bool
    kind: TurnKind
    kind_reason: str
    scope: Scope
    agent: str
    segment: int
    segment_began: bool
    task: str
    anchors: tuple[Anchor, ...]
    head: bytes
    key: str | None = None
    retry_of: TurnId | None = None
    parent: SessionId | None = None
    ends_session: bool = False
