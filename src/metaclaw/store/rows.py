"""Pack values into columns (text, instants as microseconds, tokens as arrays), and convert between
turns and rows of `schema`.
"""

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from inspect import signature
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import msgspec
from sqlalchemy import Row

from metaclaw.domain.chat import Finish, Json, SampledTokens, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.turn import (
    Exchange,
    Placement,
    Scope,
    Stamp,
    Times,
    Turn,
    TurnEnd,
    TurnKind,
)

Value: TypeAlias = bool | int | float | str | bytes | None
Values: TypeAlias = tuple[Value, ...]
"""The values of a row to insert, in the order of its columns."""
ResultRow: TypeAlias = Row[*tuple[Any, ...]]
"""A row that a query returned."""

_NO_NAME = ""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# PostgreSQL refuses NUL in text and both databases refuse lone surrogates; clients and providers
# send both.
_ESCAPE = "\x1a"
_UNSAFE = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")


def pack_text(text: str) -> str:
    """Replace characters that a database refuses by an escape and four hex digits; nearly all texts
    stay the same.
    """
    if _is_safe(text):
        return text
    return _UNSAFE.sub(lambda match: f"{_ESCAPE}{ord(match[0]):04x}", text)


def _is_safe(text: str) -> bool:
    if text.isascii():
        return "\x00" not in text and _ESCAPE not in text  # ten times faster than the expression
    return _UNSAFE.search(text) is None


def unpack_text(stored: str) -> str:
    """Undo `pack_text`."""
    if _ESCAPE not in stored:
        return stored
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), stored)


def pack_texts(row: Values) -> Values:
    """Pack every text in a row; for nearly every row one test of all texts together is enough."""
    if _is_safe("".join([value for value in row if type(value) is str])):
        return row
    return tuple(pack_text(value) if isinstance(value, str) else value for value in row)


def pack_names(names: Iterable[str]) -> str:
    """A JSON list of strings; JSON has its own escapes, so the result needs no packing."""
    return _pack_names(tuple(names))


@lru_cache(maxsize=1024)  # the same few combinations of skills recur
def _pack_names(names: tuple[str, ...]) -> str:
    return msgspec.json.encode([pack_text(name) for name in names]).decode()


def unpack_names(stored: str) -> tuple[str, ...]:
    """Undo `pack_names`."""
    return tuple(unpack_text(name) for name in msgspec.json.decode(stored, type=list[str]))


def pack_placed(placed: tuple[str, ...], listed: tuple[str, ...]) -> str:
    """The names of placed and of listed skills as one JSON list, separated by an empty string if
    any is listed.
    """
    return _pack_names((*placed, _NO_NAME, *listed) if listed else placed)


def unpack_placed(stored: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Undo `pack_placed`."""
    names = unpack_names(stored)
    if _NO_NAME not in names:
        return names, ()
    at = names.index(_NO_NAME)
    return names[:at], names[at + 1 :]


def pack_json(value: Mapping[str, object]) -> str:
    """A JSON object; values without a JSON type (a date in a skill's front matter) become text."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def unpack_json(stored: str) -> dict[str, Json]:
    """Undo `pack_json`."""
    value: dict[str, Json] = msgspec.json.decode(stored, type=dict)
    return value


def pack_instant(instant: datetime) -> int:
    """Microseconds since 1970. Raises ValueError for an instant without a time zone."""
    if instant.tzinfo is None:
        raise ValueError("an instant without a time zone cannot be recorded")
    return (instant - _EPOCH) // _MICROSECOND


def unpack_instant(microseconds: int) -> datetime:
    """The instant, in UTC."""
    return _EPOCH + microseconds * _MICROSECOND


# Token ids as int32, log-probabilities as float64, so that every bit is kept.
_IDS, _LOGPROBS = "i", "d"


def _pack_numbers(kind: str, numbers: tuple[float, ...]) -> bytes:
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)


def _unpack_numbers(kind: str, stored: bytes) -> tuple[Any, ...]:
    return struct.unpack(f"<{len(stored) // struct.calcsize(kind)}{kind}", stored)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in a list. `last_at` is the time of its last request."""

    id: SessionId
    key: str | None
    agent: str
    scope: Scope
    parent: SessionId | None
    began_at: datetime
    last_at: datetime
    ended_at: datetime | None
    end_reason: str | None
    turns: int
    main_turns: int


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn in a list: the facts without the bytes. `seq` is the cursor to read on from."""

    seq: int
    id: TurnId
    session: SessionId
    kind: TurnKind
    kind_reason: str
    stamp: Stamp
    wire: Wire
    path: str
    stream: bool
    model: str
    provider: str
    status: int
    end: TurnEnd
    error: str | None
    finish: Finish | None
    usage: Usage | None
    times: Times
    segment: int
    retry_of: TurnId | None


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """An event; `seq` is the cursor to resume from."""

    seq: int
    at: datetime
    kind: str
    data: dict[str, Json]


T = TypeVar("T")


def pack_document(value: object) -> str:
    """A dataclass, or a tuple of them, as JSON. Values without a JSON type (a date in a skill's
    front matter) become text.
    """
    return msgspec.json.encode(
        _each_text(msgspec.to_builtins(value, enc_hook=str), pack_text)
    ).decode()


def unpack_document(stored: str, kind: type[T]) -> T:
    """Undo `pack_document`, with the checks of the dataclass."""
    value: object = msgspec.json.decode(stored)
    return msgspec.convert(_each_text(value, unpack_text), kind)


def _each_text(value: object, change: Callable[[str], str]) -> object:
    match value:
        case str():
            return change(value)
        case dict():
            return {
                _each_text(key, change): _each_text(item, change) for key, item in value.items()
            }
        case list() | tuple():
            return [_each_text(item, change) for item in value]
        case float() if value - value != 0.0:
            raise ValueError(f"{value} cannot be stored")
        case _:
            return value


_MAIN = TurnKind.MAIN  # looking up an enum's member takes longer than comparing it
_NO_USAGE: Values = (None, None, None, None, None)
_USAGE = attrgetter(
    "input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens"
)


def turn_row(turn: Turn, placements: bytes | None) -> Values:
    # `_value_` is an enum's `value` without the cost of a property.
    stamp, usage, times = turn.stamp, turn.usage, turn.times
    return pack_texts(
        (
            turn.id,
            turn.session,
            turn.kind._value_,
            turn.kind_reason,
            turn.scope.user,
            turn.scope.workspace,
            stamp.generation,
            stamp.policy_version,
            stamp.library_hash,
            pack_names(stamp.skills) if stamp.skills else "[]",
            turn.agent,
            turn.wire._value_,
            turn.path,
            turn.stream,
            turn.model,
            turn.provider,
            turn.provider_wire._value_,
            turn.status,
            turn.end._value_,
            turn.error,
            None if turn.finish is None else turn.finish._value_,
            *(_NO_USAGE if usage is None else _USAGE(usage)),
            pack_instant(times.received_at),
            times.first_byte_s,
            times.duration_s,
            turn.segment,
            turn.retry_of,
            turn.parent,
            turn.key,
            turn.head,
            placements,
            turn.truncated,
            turn.scope.channel,
        )
    )


def tokens_row(seq: int, tokens: SampledTokens) -> Values:
    return (
        seq,
        _pack_numbers(_IDS, tokens.prompt_ids),
        _pack_numbers(_IDS, tokens.sampled_ids),
        _pack_numbers(_LOGPROBS, tokens.logprobs),
    )


def session_rows(turns: Iterable[Turn]) -> list[Values]:
    """What these turns add to their sessions: one row each, always in the same order, so that two
    writers cannot deadlock.
    """
    of_session: dict[str, list[Turn]] = {}
    for turn in turns:
        of_session.setdefault(turn.session, []).append(turn)
    return [_session_row(of_session[session]) for session in sorted(of_session)]


def _session_row(turns: list[Turn]) -> Values:
    turn, scope = turns[0], turns[0].scope
    received = [pack_instant(each.times.received_at) for each in turns]
    main_turns = sum(each.kind is _MAIN for each in turns)
    who = (turn.session, turn.key, turn.agent, scope.user, scope.workspace, turn.parent)
    return pack_texts((*who, min(received), max(received), None, None, len(turns), main_turns))


def record(kind: Callable[..., T], row: ResultRow, **known: object) -> T:
    """A dataclass or named tuple with these values; its other fields are the row's columns of the
    same names.
    """
    columns = row._mapping
    return kind(**{name: columns[name] for name in _fields(kind) if name not in known}, **known)


@cache
def _fields(kind: Callable[..., object]) -> tuple[str, ...]:
    return tuple(signature(kind).parameters)


def session_of(row: ResultRow) -> SessionRow:
    times = {"began_at": row.began_us, "last_at": row.last_us, "ended_at": row.ended_us}
    scope = Scope(row.user_id, row.workspace_id)
    return record(SessionRow, row, scope=scope, **times)


def event_of(row: ResultRow) -> LedgerEvent:
    return LedgerEvent(row.seq, row.at_us, row.kind, unpack_json(row.data))


def turn_row_of(row: ResultRow) -> TurnRow:
    """Convert a row of `turns` for a list."""
    return record(
        TurnRow,
        row,
        stamp=stamp_of(row),
        end=row.outcome,
        usage=None if row.input_tokens is None else record(Usage, row),
        times=Times(row.received_us, row.first_byte_s, row.duration_s),
    )


def turn_of(
    row: ResultRow,
    exchange: Exchange,
    tokens: SampledTokens | None,
    placements: tuple[Placement, ...],
) -> Turn:
    """Build a turn from a row of `turns` and the data of other tables."""
    facts = turn_row_of(row)
    return Turn(
        **{name: getattr(facts, name) for name in _fields(TurnRow) if name != "seq"},
        scope=scope_of(row),
        agent=row.agent,
        provider_wire=row.provider_wire,
        exchange=exchange,
        tokens=tokens,
        parent=row.parent,
        key=row.key,
        head=row.head,
        placements=placements,
        truncated=row.truncated,
    )


def tokens_of(row: ResultRow) -> SampledTokens:
    return SampledTokens(
        _unpack_numbers(_IDS, row.prompt_ids),
        _unpack_numbers(_IDS, row.sampled_ids),
        _unpack_numbers(_LOGPROBS, row.logprobs),
    )


def placement_of(row: ResultRow) -> Placement:
    """Convert a row of `placements` with the body of its snippet."""
    placed, listed = (tuple(map(SkillName, names)) for names in unpack_placed(row.skills))
    return Placement(row.anchor, placed, row.body.decode("utf-8", "surrogatepass"), listed)


def scope_of(row: ResultRow) -> Scope:
    """The user, workspace and channel of a row of `turns`."""
    return Scope(row.user_id, row.workspace_id, row.channel)


def stamp_of(row: ResultRow) -> Stamp:
    """The stamp in a row of `turns`."""
    skills = tuple(map(SkillName, unpack_names(row.skills)))
    return record(Stamp, row, skills=skills)
