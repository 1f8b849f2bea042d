"""Turns: one request and its answer, stamped when its prompt is built and never edited; the origin
of a request, what held rules did to tool calls, and the step that learning makes of a turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from metaclaw.domain.chat import (
    Finish,
    Message,
    Part,
    SampledTokens,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    Wire,
)
from metaclaw.domain.ids import SessionId, SkillName, TurnId

ATTEMPT: Final = "attempt"
"""The `kind_reason` of a turn that is one attempt at an answer. Attempts are stored with the turn
that the client saw.
"""

TRIAL_QUESTION: Final = "Reply with one short sentence: which model are you?"
"""The question that `metaclaw agents test` asks through an agent. It is not judged, and nothing is
learned from it.
"""
STOPPED_BY_US: Final = "MetaClaw stopped a tool call"
"""The beginning of a text that the client gets in place of calls."""


class HoldEnd(StrEnum):
    """What the client got: calls that comply, a text in place of the calls, or the calls with a
    warning.
    """

    COMPLIED = "complied"
    STOPPED = "stopped"
    WARNED = "warned"


@dataclass(frozen=True, slots=True)
class EnforcedRule:
    """A rule that held calls: how many attempts broke it, what the client got, and why. If no
    attempt broke it, its check could not be run: the rule is neither followed nor broken."""

    rule: SkillName
    attempts: int
    end: HoldEnd
    reason: str = ""

    @property
    def is_checked(self) -> bool:
        return self.attempts > 0


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A tool call as the client got it. Its id identifies the message in later requests."""

    id: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TrueAnswer:
    """The messages that the provider really sent and got, in place of one message that the client
    got.

    `messages` is a JSON list in the format of `wire`: attempt, refusal, attempt. `calls` are the
    calls that the client got. A message without calls is recognised by `mark`: the turn's id in its
    text, or its whole text. `answer_id` is the answer's id for the client, `last_id` the id of the
    last attempt. `rest` is a JSON list of what follows the last attempt, for a provider that stores
    answers itself and has everything before it."""

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
"""The anchor of a reminder of rules at the end of a conversation. It is in one prompt only."""
WITHHELD: Final = b"withheld reminder"
"""The anchor of a reminder that was due and left out, to measure its effect. It has no text."""
_RESULT: Final = b"result "
"""The beginning of the anchor of a lesson behind a tool's result; the id of the call follows."""
_ASKED: Final = b"asked "
"""The beginning of the anchor of a skill that the model asked for; the digest of its task follows.
"""
_CHANNEL_CHARS: Final = 64
TOOLS: Final = b"tools"
"""The anchor of the names of the tools that the program offers in a session."""


class TurnKind(StrEnum):
    """A main turn works for the user; a side turn is the agent's own (title, summary,
    heartbeat).
    """

    MAIN = "main"
    SIDE = "side"


class TurnEnd(StrEnum):
    """How serving a turn ended, as the client saw it."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Scope:
    """The user, the workspace and the channel of a turn; None if unknown. A channel is how the
    person reaches the agent, as its client names it: `slack`, `telegram`, `email`."""

    user: str | None = None
    workspace: str | None = None
    channel: str | None = None


def channel_name(said: str) -> str | None:
    """The name of a channel as a scope: `MS Teams` and `msteams` are one. None if it has no
    letters and no digits."""
    return "".join(filter(str.isalnum, said.casefold()))[:_CHANNEL_CHARS] or None


@dataclass(frozen=True, slots=True)
class Stamp:
    """Generation and policy version, and the rules, facts and skills placed in full, fixed when the
    prompt was built.
    """

    generation: int
    policy_version: int
    library_hash: str
    skills: tuple[SkillName, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """A block of rules, facts and skills in the prompt. It follows the message whose digest is
    `anchor`; with an empty `anchor` it is at the end of the client's system text. The same bytes
    stay at the same place until the client changes the session's history. `skills` names the rules,
    facts and skills that it holds in full, `listed` the skills that it lists in one line.

    With the anchor `REMINDER` or `WITHHELD` it is a reminder of rules, for one request only. With
    that of `behind_result` it is a lesson behind the result of a call. With that of `asked` it is a
    skill that the model asked for and that the history holds; with `TOOLS` its text names the tools
    of ours that the session has."""

    anchor: bytes
    skills: tuple[SkillName, ...]
    text: str
    listed: tuple[SkillName, ...] = ()

    @staticmethod
    def behind_result(call_id: str, lesson: SkillName, text: str) -> "Placement":
        """A lesson behind the result of this call."""
        return Placement(_RESULT + call_id.encode("utf-8", "surrogatepass"), (lesson,), text)

    @staticmethod
    def asked(task: bytes, skill: SkillName, text: str) -> "Placement":
        """A skill that the model asked for in the task with this anchor."""
        return Placement(_ASKED + task, (skill,), text)

    @property
    def asked_in(self) -> bytes | None:
        """The anchor of the task in which the model asked for it; None if it did not."""
        return self.anchor.removeprefix(_ASKED) if self.anchor.startswith(_ASKED) else None

    @property
    def call_id(self) -> str | None:
        """The call behind whose result it is; None if it is elsewhere."""
        if not self.anchor.startswith(_RESULT):
            return None
        return self.anchor.removeprefix(_RESULT).decode("utf-8", "surrogatepass")

    @property
    def is_block(self) -> bool:
        """Whether it is a block of rules, facts and skills."""
        return self.anchor != TOOLS and not self.anchor.startswith((_RESULT, _ASKED))

    @property
    def is_lasting(self) -> bool:
        """Whether it stays in the prompts of its session."""
        return self.anchor != REMINDER and self.anchor != WITHHELD


def listed_names(placements: Sequence[Placement]) -> tuple[SkillName, ...]:
    """The skills that these blocks list and none of them holds in full."""
    if len(placements) == 1:
        return placements[0].listed
    listed = [name for placement in placements for name in placement.listed]
    if not listed:
        return ()
    full = {name for placement in placements for name in placement.skills}
    return tuple([name for name in listed if name not in full])


@dataclass(frozen=True, slots=True)
class Splice:
    """Bytes inserted at `offset` of the client's body to make the provider's body."""

    offset: int
    inserted: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """The bytes of a turn. The provider got the client's body with `splices` applied (same wire) or
    `translated`. The client saw `said`, the provider's bytes, unless `seen` is set."""

    request: bytes
    splices: tuple[Splice, ...] = ()
    translated: bytes | None = None
    said: bytes = b""
    seen: bytes | None = None

    @property
    def sent(self) -> bytes:
        """The body the provider got."""
        return (
            self.translated
            if self.translated is not None
            else apply_splices(self.request, self.splices)
        )

    @property
    def shown(self) -> bytes:
        """The body the client saw."""
        return self.said if self.seen is None else self.seen


def apply_splices(body: bytes, splices: tuple[Splice, ...]) -> bytes:
    """The body with every splice inserted. Offsets refer to the original body and must not
    decrease.
    """
    if not splices:
        return body
    pieces: list[bytes | memoryview] = []
    whole = memoryview(body)  # a slice of it copies nothing
    at = 0
    for splice in splices:
        if splice.offset < at or splice.offset > len(body):
            raise ValueError(
                f"splice at {splice.offset} is out of order or beyond the body's {len(body)} bytes"
            )
        pieces += (whole[at : splice.offset], splice.inserted)
        at = splice.offset
    pieces.append(whole[at:])
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Times:
    """When the request came, and seconds from then to the first byte and to the end of the
    answer. `asked_s` is when the provider that answered was asked; it is not stored.
    """

    received_at: datetime
    first_byte_s: float | None
    duration_s: float
    asked_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """Everything that is known of one request and its answer when the answer ends."""

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
    enforcement: "Enforcement | None" = None
    """What held rules did to the answer; None if no call was held."""
    truncated: bool = False
    """Whether only a part of the answer is recorded, because it was too long. Such a turn never
    trains.
    """

    @property
    def listed(self) -> tuple[SkillName, ...]:
        """The skills that its prompt lists in one line and does not hold in full."""
        return listed_names(self.placements)

    @property
    def is_subagent(self) -> bool:
        """Whether another agent made the request: its user messages are that agent's, not a
        person's.
        """
        return self.parent is not None or self.kind_reason == SUBAGENT


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What held rules did to one answer: the rules, each attempt as a turn, and the messages that
    replace the client's in later requests."""

    rules: tuple[EnforcedRule, ...]
    attempts: tuple[Turn, ...] = ()
    answer: TrueAnswer | None = None


class Anchor(msgspec.Struct, frozen=True, gc=False):
    """The user message that began a segment: its index in this request's message list (`messages`
    or `input`), and the digest of the conversation up to and including it, which is the same in
    later requests."""

    index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class SessionTrace:
    """What the proxy needs to recognise the next request of a session, also after a restart."""

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

    `segment` counts the user's tasks in this session; `segment_began` is true on the first request
    of a segment. `task` is the user's own words of this segment. `anchors` has one entry for each
    segment in this request's history, oldest first; the last is the current segment's. `head` is
    the digest of the whole normalised request; `key` is the session identifier that the client
    sent, if any."""

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
class ModelAt:
    """A model by its name at a provider."""

    provider: str
    model: str


@dataclass(frozen=True, slots=True)
class Step:
    """One main turn in its session.

    `task` is the person's own words of the task. `history` has all messages of the request, without
    the placed skills. `after` has the messages that the session's next request added after the
    answer (tool results, the person's next message); it is empty if there is no next request.
    `said_after` is the person's own words among them, or None. `is_last` is true once the session
    is known to have ended here. `previous` is the step before this one, for detectors that need two
    turns. `finish` is why the model stopped, None if unknown. `is_subagent` is true if another
    agent set the task: then no text is a person's."""

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
    provider: str = ""

    @property
    def served_by(self) -> ModelAt:
        """The model that gave the answer."""
        return ModelAt(self.provider, self.model)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the answer."""
        return tuple(part for part in self.answer if isinstance(part, ToolCall))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The tool results in the next request."""
        return tuple(
            part for message in self.after for part in message.parts if isinstance(part, ToolResult)
        )
