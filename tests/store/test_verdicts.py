"""Verdicts: every one is kept, one of each turn stands, and failures are found from them."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Stamp, Turn, TurnKind
from metaclaw.domain.verdict import Fault, OpenFailure, Outcome, Signal, Source, Verdict, Votes
from metaclaw.store import (
    Database,
    LedgerReader,
    RefusedError,
    SqlCandidates,
    SqlGenerations,
    SqlLedger,
    SqlVerdicts,
)
from metaclaw.store.learning import OPEN_FOR

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(database: Database) -> SqlVerdicts:
    return SqlVerdicts(database, clock=lambda: NOON)


def failed(turn: TurnId, source: Source = Source.DETECTOR, fault: Fault = Fault.AGENT) -> Verdict:
    return Verdict(turn, Outcome.FAIL, source, 0.9, fault=fault)


def passed(turn: TurnId, source: Source = Source.DETECTOR) -> Verdict:
    return Verdict(turn, Outcome.PASS, source, 0.1)


async def record(ledger: SqlLedger, *turns: Turn) -> None:
    assert all(await asyncio.gather(*(ledger.record(turn) for turn in turns)))


async def test_an_empty_store_knows_nothing(store: SqlVerdicts) -> None:
    assert store.verdict_of(TurnId("t_nobody")) is None
    assert store.open_failures(0) == []


async def test_a_verdict_is_read_back_with_all_its_evidence(
    ledger: SqlLedger, store: SqlVerdicts, new_turn: TurnMaker
) -> None:
    turn = new_turn()
    await record(ledger, turn)
    odd = "quoted \x00 \ud800 \x1a0000 é"
    verdict = Verdict(
        turn.id,
        Outcome.FAIL,
        Source.JUDGE,
        0.1 + 0.2,
        signals=(Signal(odd, -1e-300, odd, Fault.ENVIRONMENT), Signal("exit", 2.0, "")),
        votes=Votes(1, 2, 0, "judge-1", (odd, "no")),
        fault=Fault.AGENT,
        comment=odd,
    )
    assert store.record_verdict(verdict)
    assert store.verdict_of(turn.id) == verdict
    assert store.verdicts_of(turn.id) == [verdict]


async def test_the_strongest_word_stands_and_every_word_is_kept(
    ledger: SqlLedger, store: SqlVerdicts, new_turn: TurnMaker
) -> None:
    turn = new_turn()
    await record(ledger, turn)
    nobody_knows = Verdict(turn.id, Outcome.UNKNOWN, Source.JUDGE, None)
    said = [
        (nobody_knows, True),
        (failed(turn.id), True),
        (passed(turn.id, Source.JUDGE), False),
        (nobody_knows, False),
        (passed(turn.id, Source.USER), True),
        (failed(turn.id, Source.CHECK), False),
        (failed(turn.id, Source.USER), True),
    ]
    for verdict, stands in said:
        assert store.record_verdict(verdict) is stands
    assert store.verdict_of(turn.id) == said[-1][0]
    assert store.verdicts_of(turn.id) == [verdict for verdict, _ in said]


async def test_a_verdict_on_nothing_is_refused(store: SqlVerdicts) -> None:
    with pytest.raises(RefusedError, match="no turn t_nobody"):
        store.record_verdict(failed(TurnId("t_nobody")))


async def test_two_who_speak_at_once_leave_one_verdict_that_stands(
    ledger: SqlLedger, store: SqlVerdicts, database: Database, new_turn: TurnMaker
) -> None:
    turn = new_turn()
    await record(ledger, turn)
    stood: list[bool] = []

    def speak(source: Source) -> None:
        stood.extend(store.record_verdict(passed(turn.id, source)) for _ in range(10))

    threads = [
        threading.Thread(target=speak, args=(source,))
        for source in (Source.USER, Source.JUDGE, Source.DETECTOR)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(stood) == len(store.verdicts_of(turn.id)) == 30
    found = store.verdict_of(turn.id)
    assert found is not None
    assert found.source is Source.USER
    with database.reading("counting") as connection:
        assert connection.execute(text("SELECT count(*) FROM stands")).scalar() == 1


async def test_open_failures_are_main_turns_up_to_the_generation_that_failed_by_the_agents_fault_and_taught_nothing(
    ledger: SqlLedger, store: SqlVerdicts, database: Database, new_turn: TurnMaker
) -> None:
    now, before = Stamp(3, 0, "", ()), Stamp(2, 0, "", ())
    first, second, third = (new_turn("s_1", stamp=now) for _ in range(3))
    others = {
        "side": new_turn("s_1", stamp=now, kind=TurnKind.SIDE),
        "old": new_turn("s_1", stamp=before),
        "passed": new_turn("s_1", stamp=now),
        "unknown": new_turn("s_1", stamp=now),
        "environment": new_turn("s_1", stamp=now),
        "silent": new_turn("s_1", stamp=now),
        "support": new_turn("s_1", stamp=now),
    }
    for turn in (first, second, third, *others.values()):
        await record(ledger, turn)
    for turn in (third, first, second, others["side"], others["old"], others["support"]):
        store.record_verdict(failed(turn.id))
    store.record_verdict(failed(others["environment"].id, fault=Fault.ENVIRONMENT))
    store.record_verdict(Verdict(others["unknown"].id, Outcome.UNKNOWN, Source.UNDECIDED, None))
    store.record_verdict(failed(others["passed"].id))
    store.record_verdict(passed(others["passed"].id, Source.USER))
    SqlCandidates(database).begin_attempt("kind", 3, [others["support"].id])
    old = others["old"]
    found = store.open_failures(3)
    assert [one.turn for one in found] == [first.id, second.id, third.id, old.id]
    assert found[0] == OpenFailure(first.id, first.scope, 3, NOON)
    assert [one.turn for one in store.open_failures(3, limit=2)] == [third.id, old.id], "the newest"
    assert [one.turn for one in store.open_failures(2)] == [old.id]
    assert store.open_failures(4) == found


async def test_failures_are_open_for_a_time_after_their_verdict_and_until_a_revert(
    ledger: SqlLedger, store: SqlVerdicts, database: Database, new_turn: TurnMaker
) -> None:
    turn = new_turn(stamp=Stamp(0, 0, "", ()))
    await record(ledger, turn)
    store.record_verdict(failed(turn.id))
    last, after = NOON + OPEN_FOR, NOON + OPEN_FOR + timedelta(seconds=1)
    assert [one.turn for one in SqlVerdicts(database, lambda: last).open_failures(0)] == [turn.id]
    assert SqlVerdicts(database, lambda: after).open_failures(0) == []
    generations = SqlGenerations(database)
    generations.publish([Skill(SkillName("one"), "when", "do")], "by hand")
    assert [one.turn for one in store.open_failures(1)] == [turn.id]
    generations.publish([], "reverted", reverted_to=0)
    assert store.open_failures(2) == []


async def test_what_turns_came_to_is_known_together(
    ledger: SqlLedger, store: SqlVerdicts, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    one, other = new_turn(), new_turn()
    await record(ledger, one, other)
    store.record_verdict(failed(one.id))
    standings = reader.standings_of([one.id, other.id, TurnId("t_nobody")])
    assert {
        turn: (known.verdict, known.role, known.taught) for turn, known in standings.items()
    } == {
        one.id: (failed(one.id), None, False),
        other.id: (None, None, False),
    }
    assert reader.standing_of(TurnId("t_nobody")) is None
    assert reader.role_of(one.id) is None
    counts = reader.learning_counts().verdicts
    assert counts == {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.UNKNOWN: 0}
    store.record_verdict(replace(passed(one.id), source=Source.USER))
    assert reader.learning_counts().verdicts == {
        Outcome.PASS: 1,
        Outcome.FAIL: 0,
        Outcome.UNKNOWN: 0,
    }


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE verdicts SET outcome = 'pass', fault = NULL",
        "DELETE FROM verdicts",
        (
            "INSERT INTO verdicts (turn, at_us, outcome, source, signals, comment) VALUES (99, 0,"
            " 'pass', 'user', '[]', '')"
        ),
        (
            "INSERT INTO verdicts (turn, at_us, outcome, source, signals, comment) VALUES (1, 0,"
            " 'fail', 'user', '[]', '')"
        ),
        (
            "INSERT INTO verdicts (turn, at_us, outcome, source, p_fail, signals, comment) VALUES"
            " (1, 0, 'pass', 'u', 2, '[]', '')"
        ),
        (
            "INSERT INTO verdicts (turn, at_us, outcome, source, signals, comment) VALUES (1, 0,"
            " 'perhaps', 'user', '[]', '')"
        ),
    ],
)
async def test_the_database_itself_keeps_every_verdict(
    ledger: SqlLedger, store: SqlVerdicts, database: Database, new_turn: TurnMaker, statement: str
) -> None:
    turn = new_turn()
    await record(ledger, turn)
    store.record_verdict(failed(turn.id))
    with pytest.raises(RefusedError):
        with database.writing("cheating") as connection:
            connection.execute(text(statement))
    assert store.verdicts_of(turn.id) == [failed(turn.id)]
