"""A turn: one request and its answer, stamped when its prompt is built and never edited; its origin, what held rules did to its
tool calls, and the step that learning makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from metaclaw.domain.chat import Finish, Message, Part, SampledTokens, Tool, ToolCall, ToolResult, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId

ATTEMPT: Final = "attempt"
"""The `kind_reason` of a turn that is one attempt at an answer. Attempts are kept under the turn that the client saw."""

TRIAL_QUESTION: Final = "Reply with one short sentence: which model are you?"
"""What `metaclaw agents test` has an agent asked. Nothing is learned from it and it is not judged."""
KEEP_RULES: Final = "metaclaw-keep-rules"
"""The name of the rule that is built in while others are held: an agent does not lift the person's rules itself."""
STOPPED_BY_US: Final = "MetaClaw stopped a tool call"
"""How a text begins that stands in the place of calls."""


class HoldEnd(StrEnum):
    """What the client got: calls that comply, a text in place of the calls, or the calls with a warning."""

    COMPLIED = "complied"
    STOPPED = "stopped"
    WARNED = "warned"


@dataclass(frozen=True, slots=True)
class EnforcedRule:
    """A rule that held calls back: in how many attempts it was broken, what the client got, and why it was held."""

    rule: SkillName
    attempts: int
    end: HoldEnd
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A tool call as the client was shown it. Its id tells the message again in later requests."""

    id: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TrueAnswer:
    """The messages that the provider really sent and got, in place of one message that the client was shown.

    `messages` is a JSON list in the terms of `wire`: attempt, refusal, attempt. `calls` are what the client was shown; where there
    are none, the message is known by `mark`: the turn's id in its text, or all of its text. `answer_id` is the answer's id as the
    client knows it, `last_id` that of the last attempt, and `rest` a JSON list of what follows that attempt: a provider that keeps
    answers itself has all the others.
    """

    wire: Wire
    calls: tuple[ShownCall, ...]
    mark: str
    answer_id: str
    last_id: str
    messages: bytes
    rest: bytes


SUBAGENT: Final = "subagent"
"""The reason of main turns whose request comes from another agent that is not named."""
REMINDER: Final = b"reminder"
"""The anchor of a reminder of rules at the end of a conversation: it is in one prompt and not carried into the next."""
WITHHELD: Final = b"withheld reminder"
"""The anchor of a reminder that was due and left out, to compare. It has no text."""


class TurnKind(StrEnum):
    """A main turn is the agent at work for its person; a side turn is its housekeeping (titles, summaries, heartbeats)."""

    MAIN = "main"
    SIDE = "side"


class TurnEnd(StrEnum):
    """How serving a turn ended, as the client saw it."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Scope:
    """The user and the workspace of a turn; None if unknown."""

    user: str | None = None
    workspace: str | None = None


@dataclass(frozen=True, slots=True)
class Stamp:
    """Both clocks and the names of the rules, facts and skills placed in full, read once, when the prompt was built."""

    generation: int
    policy_version: int
    library_hash: str
    skills: tuple[SkillName, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """A block of rules, facts and skills as it stands in the prompt: after the message whose digest is `anchor`, or, where that is
    empty, at the end of the client's system text. The same bytes go to the same place for as long as the session's history holds.
    `skills` names what stands in it in full, rules and facts included, `listed` the skills that are listed in one line.

    A reminder of rules has an anchor of its own (`REMINDER`, `WITHHELD`) and is no such block: it is for one request."""

    anchor: bytes
    skills: tuple[SkillName, ...]
    text: str
    listed: tuple[SkillName, ...] = ()

    @property
    def is_lasting(self) -> bool:
        """Whether it stays in the prompts of its session."""
        return self.anchor != REMINDER and self.anchor != WITHHELD


def listed_names(placements: Sequence[Placement]) -> tuple[SkillName, ...]:
    """The skills that these blocks list and none of them holds in full."""
    if len(placements) == 1:
        return placements[0].listed
    named = [name for placement in placements for name in placement.listed]
    if not named:
        return ()
    full = {name for placement in placements for name in placement.skills}
    return tuple([name for name in named if name not in full])


@dataclass(frozen=True, slots=True)
class Draw:
    """A skill that matched and whose placing was left to chance: whether it was placed, and with what probability it would be."""

    skill: SkillName
    placed: bool
    propensity: float


@dataclass(frozen=True, slots=True)
class Splice:
    """Bytes that were put into the client's body at `offset` (counted in the client's body) to make the provider's."""

    offset: int
    inserted: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """The bytes of a turn. What the provider got is either the client's body with `splices` applied (wires match) or `translated`.
    What the client saw is what the provider said, unless `seen` holds something else."""

    request: bytes
    splices: tuple[Splice, ...] = ()
    translated: bytes | None = None
    said: bytes = b""
    seen: bytes | None = None

    @property
    def sent(self) -> bytes:
        """The body the provider got."""
        return self.translated if self.translated is not None else apply_splices(self.request, self.splices)

    @property
    def shown(self) -> bytes:
        """The body the client saw."""
        return self.said if self.seen is None else self.seen


def apply_splices(body: bytes, splices: tuple[Splice, ...]) -> bytes:
    """The body with every splice put in; offsets count in the original body and must not decrease."""
    if not splices:
        return body
    pieces: list[bytes] = []
    at = 0
    for splice in splices:
        if splice.offset < at or splice.offset > len(body):
            raise ValueError(f"splice at {splice.offset} is out of order or beyond the body's {len(body)} bytes")
        pieces += (body[at : splice.offset], splice.inserted)
        at = splice.offset
    pieces.append(body[at:])
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Times:
    """When the request came, and seconds from then to the first byte and to the end of the answer."""

    received_at: datetime
    first_byte_s: float | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Everything about one request and its answer that can be known when the answer ends."""

    id: TurnId
    session: SessionId
    kind: TurnKind
    kind_reason: str
    scope: Scope
    stamp: Stamp
    agent: str
    wire: Wire
    path: str
    stream: bool
    model: str
    provider: str
    provider_wire: Wire
    status: int
    end: TurnEnd
    error: str | None
    exchange: Exchange
    finish: Finish | None
    usage: Usage | None
    tokens: SampledTokens | None
    times: Times
    segment: int = 0
    retry_of: TurnId | None = None
    parent: SessionId | None = None
    key: str | None = None
    head: bytes = b""
    placements: tuple[Placement, ...] = ()
    draws: tuple[Draw, ...] = ()
    enforcement: "Enforcement | None" = None
    """What held rules did to the answer; None for nearly all turns."""

    @property
    def listed(self) -> tuple[SkillName, ...]:
        """The skills that its prompt lists in one line and does not hold in full."""
        return listed_names(self.placements)

    @property
    def is_subagent(self) -> bool:
        """Whether another agent asked for it: what stands in a user's place is that agent's, and no person's."""
        return self.parent is not None or self.kind_reason == SUBAGENT


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What held rules did to one answer: the rules, each attempt at the answer as a turn of its own, and what later requests must
    say in place of the message that the client was shown."""

    rules: tuple[EnforcedRule, ...]
    attempts: tuple[Turn, ...] = ()
    answer: TrueAnswer | None = None


class Anchor(msgspec.Struct, frozen=True, gc=False):
    """The user message that began a segment: its index in this request's own message list (`messages` or `input`),
    and the digest of the conversation up to and including it, which stays the same from request to request."""

    index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class SessionTrace:
    """What identifies a session, so that its next request is recognised, also after a restart."""

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


@dataclass(frozen=True, slots=True)
class Step:
    """One main turn in its session.

    `task` is the person's own words of the task the turn was made for; `history` is every message of the request, without our
    skills; `answer` is what the model said; `after` is what the session's next request added behind that answer (tool results,
    the person's next words), empty where there is no next request; `said_after` is the person's own next words, without what a
    client glues to them, or None where they said nothing; `is_last` is true once the session is known to have ended here.
    `previous` is the step before this one in its session, for what can only be seen over two turns; `finish` is why the model
    stopped, None if unknown. `is_subagent` is true for a sub-agent's turn: its task comes from another agent, and nothing in it
    is a person's word. `is_drawn` is true where chance decided whether a skill was placed: the outcome is part of a live trial.
    """

    turn: TurnId
    session: SessionId
    scope: Scope
    stamp: Stamp
    model: str
    task: str
    history: tuple[Message, ...]
    tools: tuple[Tool, ...]
    answer: tuple[Part, ...]
    end: TurnEnd
    after: tuple[Message, ...] = ()
    said_after: str | None = None
    is_last: bool = False
    previous: "Step | None" = None
    finish: Finish | None = None
    is_subagent: bool = False
    is_drawn: bool = False

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tools the answer asked for."""
        return tuple(part for part in self.answer if isinstance(part, ToolCall))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """What the tools gave back, as far as the next request shows it."""
        return tuple(part for message in self.after for part in message.parts if isinstance(part, ToolResult))
