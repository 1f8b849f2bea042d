"""What held rules did is recorded with its turn: rules, attempts and the true answer."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SkillName, new_turn_id
from metaclaw.domain.turn import (
    ATTEMPT,
    EnforcedRule,
    Enforcement,
    Exchange,
    HoldEnd,
    ShownCall,
    TrueAnswer,
    Turn,
    TurnKind,
)
from metaclaw.store import Database, LedgerReader, SqlForgetting, SqlLedger, SqlTrueAnswers

pytestmark = pytest.mark.anyio

ANSWER = TrueAnswer(
    Wire.CHAT,
    (ShownCall("call_1", '{"a": "\\u0000"}'),),
    "t_x",
    "chatcmpl-1",
    "chatcmpl-2",
    b"[1]",
    b"[]",
)


def held(turn: Turn) -> Turn:
    attempts = tuple(
        replace(
            turn,
            id=new_turn_id(),
            kind=TurnKind.SIDE,
            kind_reason=ATTEMPT,
            exchange=Exchange(b"request %d" % number, said=b"said %d" % number),
            placements=(),
        )
        for number in range(2)
    )
    rules = (
        EnforcedRule(SkillName("no-force"), 1, HoldEnd.COMPLIED, "why"),
        EnforcedRule(SkillName("b"), 2, HoldEnd.STOPPED),
    )
    return replace(turn, enforcement=Enforcement(rules, attempts, ANSWER))


async def test_a_turn_keeps_its_attempts_and_lists_show_it_once(
    database: Database, ledger: SqlLedger, new_turn: Callable[..., Turn]
) -> None:
    turn, plain = held(new_turn()), new_turn()
    assert turn.enforcement is not None
    await ledger.record(turn)
    await ledger.record(plain)
    reader = LedgerReader(database)
    found = reader.turn(turn.id)
    assert found is not None
    assert found.turn == turn
    attempt = reader.turn(turn.enforcement.attempts[0].id)
    assert attempt is not None
    assert attempt.turn == turn.enforcement.attempts[0]
    assert [row.id for row in reader.turns_of(turn.session)] == [turn.id] + (
        [plain.id] if plain.session == turn.session else []
    )
    assert [row.id for row in reader.turns_after(0)] == [turn.id, plain.id]
    assert reader.attempts_in([turn.session]) == {turn.session: 2}
    assert reader.broken_rules(turn.id) == []


async def test_true_answers_are_found_again_and_go_with_their_session(
    database: Database, ledger: SqlLedger, new_turn: Callable[..., Turn]
) -> None:
    turn = held(new_turn())
    await ledger.record(turn)
    answers = SqlTrueAnswers(database)
    (stored,) = answers.newest()
    assert (stored.turn, stored.session, stored.user) == (turn.id, turn.session, turn.scope.user)
    assert stored.answer == replace(ANSWER, messages=b"", rest=b"")
    assert answers.read(turn.id) == ANSWER
    SqlForgetting(database).forget_session(turn.session)
    assert answers.read(turn.id) is None
    assert LedgerReader(database).turns_after(0) == []
