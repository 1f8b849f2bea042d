"""What held rules did, as rows, and the true answers that later requests need."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select
from sqlalchemy import Row as SqlRow

from metaclaw.domain.chat import Wire
from metaclaw.domain.enforcement import ATTEMPT, EnforcedRule, HoldEnd, ShownCall, TrueAnswer
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.turn import Enforcement, Turn
from metaclaw.store.database import Database
from metaclaw.store.packing import Row, pack_json, pack_text, unpack_json, unpack_optional, unpack_text
from metaclaw.store.schema import held_rules, true_answers, turn_attempts, turns

__all__ = ["ATTEMPT", "IS_ATTEMPT", "SqlTrueAnswers", "StoredAnswer"]

_MOST_LOADED = 50_000


IS_ATTEMPT = turns.c.kind_reason == ATTEMPT
_RULES = select(held_rules).where(held_rules.c.turn == bindparam("seq")).order_by(held_rules.c.place)
_ATTEMPTS = (
    select(turns)
    .join(turn_attempts, turn_attempts.c.turn == turns.c.seq)
    .where(turn_attempts.c.parent == bindparam("seq"))
    .order_by(turn_attempts.c.place)
)
_ANSWER = select(true_answers).where(true_answers.c.turn == bindparam("seq"))


def attempts_of(turn: Turn) -> tuple[Turn, ...]:
    """The attempts at a turn's answer, to be recorded before it."""
    return () if turn.enforcement is None else turn.enforcement.attempts


def rule_rows(seq: int, found: Enforcement) -> list[Row]:
    """The rules that held."""
    return [
        (seq, place, pack_text(one.rule), one.attempts, one.end.value, pack_text(one.reason))
        for place, one in enumerate(found.rules)
    ]


def attempt_rows(seq: int, found: Enforcement, numbers: Mapping[TurnId, int]) -> list[Row]:
    """Which turns are attempts at the answer of turn `seq`."""
    return [(numbers[attempt.id], seq, place) for place, attempt in enumerate(found.attempts)]


def answer_rows(seq: int, found: Enforcement) -> list[Row]:
    """What the provider really said."""
    answer = found.answer
    if answer is None:
        return []
    calls = pack_json({"calls": [[call.id, call.arguments] for call in answer.calls]})
    texts = (calls, pack_text(answer.mark), pack_text(answer.answer_id), pack_text(answer.last_id))
    return [(seq, answer.wire.value, *texts, answer.messages, answer.rest)]


def enforcement_of(
    connection: Connection, seq: int, read_turn: Callable[[SqlRow[*tuple[object, ...]]], Turn]
) -> Enforcement | None:
    """What held rules did to the answer of turn `seq`."""
    rules = tuple(_rule(row) for row in connection.execute(_RULES, {"seq": seq}))
    if not rules:
        return None
    attempts = tuple(read_turn(row) for row in connection.execute(_ATTEMPTS, {"seq": seq}).all())
    answer = connection.execute(_ANSWER, {"seq": seq}).one_or_none()
    return Enforcement(rules, attempts, None if answer is None else _answer(answer))


class StoredAnswer(NamedTuple):
    """A true answer with the session and the speaker it belongs to."""

    turn: TurnId
    session: SessionId
    user: str | None
    answer: TrueAnswer


class SqlTrueAnswers:
    """Reads true answers. Blocks; raises StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def newest(self, limit: int = _MOST_LOADED) -> Iterable[StoredAnswer]:
        """The newest true answers, without their messages, newest first."""
        columns = [column for column in true_answers.c if column.name not in ("messages", "rest")]
        query = select(turns.c.id, turns.c.session, turns.c.user_id, *columns).join(turns, turns.c.seq == true_answers.c.turn)
        with self._database.reading("reading true answers") as connection:
            rows = connection.execute(query.order_by(true_answers.c.turn.desc()).limit(limit)).all()
        return [
            StoredAnswer(
                TurnId(unpack_text(row.id)),
                SessionId(unpack_text(row.session)),
                unpack_optional(row.user_id),
                _answer(row, has_messages=False),
            )
            for row in rows
        ]

    def read(self, turn: TurnId) -> TrueAnswer | None:
        """The true answer of a turn; None where there is none, or it was forgotten."""
        query = select(true_answers).join(turns, turns.c.seq == true_answers.c.turn).where(turns.c.id == pack_text(turn))
        with self._database.reading("reading a true answer") as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else _answer(row)


def _rule(row: SqlRow[*tuple[object, ...]]) -> EnforcedRule:
    return EnforcedRule(SkillName(unpack_text(row.rule)), row.attempts, HoldEnd(row.outcome), unpack_text(row.reason))


def _answer(row: SqlRow[*tuple[object, ...]], *, has_messages: bool = True) -> TrueAnswer:
    stored = unpack_json(row.calls)["calls"]
    calls = stored if isinstance(stored, list) else []
    return TrueAnswer(
        wire=Wire(row.wire),
        calls=tuple(ShownCall(str(one[0]), str(one[1])) for one in calls if isinstance(one, list)),
        mark=unpack_text(row.mark),
        answer_id=unpack_text(row.answer_id),
        last_id=unpack_text(row.last_id),
        messages=bytes(row.messages) if has_messages else b"",
        rest=bytes(row.rest) if has_messages else b"",
    )
