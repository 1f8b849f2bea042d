"""What became of an answer whose tool calls broke a held rule."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SkillName

ATTEMPT: Final = "attempt"
"""The `kind_reason` of a turn that is one attempt at an answer. Attempts are kept under the turn that the client saw."""


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
    """What the provider really said and was told, in the place of one message that only the client knows.

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
