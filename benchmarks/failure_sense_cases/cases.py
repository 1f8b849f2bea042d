"""Labelled turns as steps: reads `train.jsonl` and `test.jsonl`. No family of turns is in both."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from metaclaw.domain.chat import Finish, Message, Part, Role, Text, ToolCall, ToolResult
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Scope, Stamp, Step, TurnEnd

FOLDER = Path(__file__).parent
_STAMP = Stamp(generation=0, policy_version=0, library_hash="", skills=())


class CallRow(msgspec.Struct, forbid_unknown_fields=True):
    """A call; its arguments as an object, or as the text the model wrote."""

    id: str
    name: str
    arguments: dict[str, object] | str


class ResultRow(msgspec.Struct, forbid_unknown_fields=True):
    """What a tool gave back; only some clients flag errors."""

    id: str
    text: str
    is_error: bool = False


class PartRow(msgspec.Struct, forbid_unknown_fields=True):
    """One of three."""

    text: str | None = None
    call: CallRow | None = None
    result: ResultRow | None = None


class MessageRow(msgspec.Struct, forbid_unknown_fields=True):
    """A message."""

    role: str
    parts: list[PartRow]


class OtherRow(msgspec.Struct, forbid_unknown_fields=True):
    """The step before, or after."""

    answer: list[PartRow]
    task: str = ""


class CaseRow(msgspec.Struct, forbid_unknown_fields=True):
    """One labelled turn. `expect` names the detectors that ought to speak; `why` defends the
    label.
    """

    id: str
    family: str
    group: str
    label: Literal["pass", "fail", "environment"]
    expect: list[str]
    why: str
    client: str
    task: str
    answer: list[PartRow]
    after: list[MessageRow]
    then: str | None = None
    history: list[MessageRow] = []
    end: TurnEnd = TurnEnd.COMPLETED
    finish: Finish | None = None
    is_last: bool = False
    previous: OtherRow | None = None
    later: OtherRow | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled turn, ready to be sensed."""

    row: CaseRow
    step: Step
    later: Step | None

    @property
    def failed(self) -> bool:
        """Whether the agent failed; what the environment did is not its failure."""
        return self.row.label == "fail"


def load(split: Literal["train", "test"]) -> list[Case]:
    """All turns of one split."""
    decoder = msgspec.json.Decoder(CaseRow)
    with (FOLDER / f"{split}.jsonl").open("rb") as lines:
        return [_case(decoder.decode(line)) for line in lines]


def _case(row: CaseRow) -> Case:
    step = Step(
        turn=TurnId(f"t_{row.id}"),
        session=SessionId(f"s_{row.id}"),
        scope=Scope(),
        stamp=_STAMP,
        model="labelled",
        task=row.task,
        history=(Message(Role.USER, (Text(row.task),)), *map(_message, row.history)),
        tools=(),
        answer=_parts(row.answer),
        end=row.end,
        after=tuple(map(_message, row.after)),
        said_after=row.then,
        is_last=row.is_last,
        previous=None if row.previous is None else _other(row, row.previous),
        finish=row.finish,
    )
    return Case(row, step, None if row.later is None else _other(row, row.later))


def _other(row: CaseRow, other: OtherRow) -> Step:
    return Step(
        turn=TurnId(f"t_{row.id}_other"),
        session=SessionId(f"s_{row.id}"),
        scope=Scope(),
        stamp=_STAMP,
        model="labelled",
        task=other.task or row.task,
        history=(),
        tools=(),
        answer=_parts(other.answer),
        end=TurnEnd.COMPLETED,
    )


def _message(row: MessageRow) -> Message:
    return Message(Role(row.role), _parts(row.parts))


def _parts(rows: Iterable[PartRow]) -> tuple[Part, ...]:
    return tuple(map(_part, rows))


def _part(row: PartRow) -> Part:
    if row.call is not None:
        return ToolCall(row.call.id, row.call.name, _written(row.call.arguments))
    if row.result is not None:
        return ToolResult(row.result.id, (Text(row.result.text),), row.result.is_error)
    return Text(row.text or "")


def _written(arguments: Mapping[str, object] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
