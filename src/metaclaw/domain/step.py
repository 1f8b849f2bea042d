"""A turn with what came before and after it, as detectors, judge, evolver and gate look at it."""

from dataclasses import dataclass

from metaclaw.domain.chat import Finish, Message, Part, Tool, ToolCall, ToolResult
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope, Stamp, TurnEnd


@dataclass(frozen=True, slots=True)
class Step:
    """One main turn in its session.

    `task` is the person's own words of the task the turn was made for; `history` is every message of the request, without our
    skills; `answer` is what the model said; `after` is what the session's next request added behind that answer (tool results,
    the person's next words), empty where there is no next request; `said_after` is the person's own next words, without what a
    client glues to them, or None where they said nothing; `is_last` is true once the session is known to have ended here.
    `previous` is the step before this one in its session, for what can only be seen over two turns; `finish` is why the model
    stopped, None if unknown. `is_hired` is true for a sub-agent's turn: its task comes from another agent, and nothing in it
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
    is_hired: bool = False
    is_drawn: bool = False

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tools the answer asked for."""
        return tuple(part for part in self.answer if isinstance(part, ToolCall))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """What the tools gave back, as far as the next request shows it."""
        return tuple(part for message in self.after for part in message.parts if isinstance(part, ToolResult))
