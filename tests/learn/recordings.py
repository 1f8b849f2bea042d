"""Sessions to learn from: a scripted agent for any wire, and the turns that a ledger would record
of it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from metaclaw.domain.chat import (
    ChatRequest,
    Completion,
    Finish,
    Message,
    Part,
    Role,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    Wire,
)
from metaclaw.domain.ids import SessionId, new_session_id, new_turn_id
from metaclaw.domain.turn import Exchange, Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.store import RecordedTurn
from metaclaw.wires import deltas_of, encode_json, wire_format

MOMENT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
SYSTEM = "You are a coding agent."
TOOLS = tuple(
    Tool(
        name,
        f"Use {name}.",
        {"type": "object", "properties": {key: {"type": "string"} for key in keys}},
    )
    for name, keys in (
        ("Read", ("file_path", "limit")),
        ("Grep", ("pattern", "path")),
        ("Write", ("file_path", "content")),
        ("Edit", ("file_path", "old_string", "new_string")),
        ("Bash", ("command", "description")),
        ("TodoWrite", ("todos",)),
        ("WebFetch", ("url",)),
        ("Deploy", ("target",)),
    )
)


def words(agent: str, text: str) -> str:
    """As the proxy's own: without reminders, and nothing where a program speaks."""
    kept = text.split("<system-reminder>")[0].strip()
    return (
        "" if kept.startswith(("[Request interrupted", "This session is being continued")) else kept
    )


def say(text: str) -> Message:
    return Message(Role.USER, (Text(text),))


def call(name: str, /, **arguments: Any) -> ToolCall:
    """A call without an id; whoever makes it gives one."""
    return ToolCall("", name, json.dumps(arguments))


def exchange_bytes(
    wire: Wire, request: ChatRequest, answer: Completion, stream: bool
) -> tuple[bytes, bytes]:
    """The bytes of a request and of its answer."""
    form = wire_format(wire)
    asked = encode_json(form.render_request(replace(request, stream=stream)))
    if not stream:
        return asked, form.render_answer(answer, request)
    writer = form.writer(request)
    return asked, b"".join(writer.write(delta) for delta in deltas_of(answer))


def turn_of(
    request: ChatRequest,
    answer: Sequence[Part],
    session: str = "s",
    *,
    stream: bool = False,
    number: int = 0,
    **fields: Any,
) -> Turn:
    """A turn as the ledger holds it."""
    called = any(isinstance(part, ToolCall) for part in answer)
    finish = Finish.TOOL_CALLS if called else Finish.STOP
    completion = Completion(f"answer{number}", request.model, tuple(answer), finish, Usage(100, 20))
    asked, shown = exchange_bytes(request.wire, request, completion, stream)
    turn = Turn(
        id=new_turn_id(),
        session=SessionId(session),
        kind=TurnKind.MAIN,
        kind_reason="main",
        scope=Scope("ada", "lab"),
        stamp=Stamp(1, 0, "h", ()),
        agent="scripted",
        wire=request.wire,
        path="/v1/x",
        stream=stream,
        model=request.model,
        provider="primary",
        provider_wire=request.wire,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        exchange=Exchange(asked, said=shown),
        finish=finish,
        usage=Usage(100, 20),
        tokens=None,
        times=Times(MOMENT + timedelta(seconds=number), 0.1, 0.2),
    )
    return replace(turn, **fields)


def answered(call_id: str, text: str, *, is_error: bool = False) -> ToolResult:
    return ToolResult(call_id, (Text(text),) if text else (), is_error)


@dataclass
class Agent:
    """A scripted agent and its session. Each answer becomes a turn; what it is given afterwards
    goes into the next request.
    """

    wire: Wire
    stream: bool = False
    system: str = SYSTEM
    model: str = "m-1"
    session: str = field(default_factory=new_session_id)
    messages: list[Message] = field(default_factory=list)
    turns: list[RecordedTurn] = field(default_factory=list)
    calls: int = 0

    @property
    def request(self) -> ChatRequest:
        head = (Message(Role.SYSTEM, (Text(self.system),)),) if self.system else ()
        return ChatRequest(
            self.wire,
            self.model,
            (*head, *self.messages),
            TOOLS,
            sampling=Sampling(max_tokens=512, temperature=0.5),
        )

    def hear(self, text: str) -> "Agent":
        """The person says something."""
        self.messages.append(say(text))
        return self

    def answer(self, *parts: Part, **fields: Any) -> "Agent":
        """The model answers; calls without an id get one."""
        made: list[Part] = []
        for part in parts:
            if isinstance(part, ToolCall) and not part.id:
                self.calls += 1
                part = replace(part, id=f"call_{self.calls}")
            made.append(part)
        number = len(self.turns)
        turn = turn_of(
            self.request, made, self.session, stream=self.stream, number=number, **fields
        )
        self.turns.append(RecordedTurn(number + 1, turn))
        self.messages.append(Message(Role.ASSISTANT, tuple(made)))
        return self

    def give(self, *texts: str, is_error: bool = False) -> "Agent":
        """The tools that were called last give this back."""
        ids = [part.id for part in self.messages[-1].parts if isinstance(part, ToolCall)]
        results = [
            answered(identity, text, is_error=is_error)
            for identity, text in zip(ids, texts, strict=True)
        ]
        if self.wire is Wire.MESSAGES:
            self.messages.append(Message(Role.USER, tuple(results)))
        else:
            self.messages += [Message(Role.TOOL, (result,)) for result in results]
        return self

    def use(self, wanted: ToolCall, result: str, *, is_error: bool = False) -> "Agent":
        """One call and its result."""
        return self.answer(wanted).give(result, is_error=is_error)
