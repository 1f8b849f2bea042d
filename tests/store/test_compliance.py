"""How rules are followed is counted once for each turn, and goes with the turn."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event

from metaclaw.domain.compliance import Compliance, MeasuredTurn, Reminded, RuleOutcome, RuleResult
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Rule
from metaclaw.domain.turn import Turn
from metaclaw.store import (
    Database,
    LedgerReader,
    SqlCompliance,
    SqlForgetting,
    SqlGenerations,
    SqlLedger,
)

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
UV, DATES = SkillName("use-uv"), SkillName("iso-dates")
FOLLOWED, BROKEN, HELD, UNKNOWN = RuleResult
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def compliance(database: Database) -> SqlCompliance:
    rules = [
        Rule(
            name,
            "always",
            f"Follow {name}.",
        )
        for name in (UV, DATES)
    ]
    SqlGenerations(database).publish(rules, "noted")
    return SqlCompliance(database, lambda: NOON)


async def measured(
    ledger: SqlLedger,
    reader: LedgerReader,
    turn: Turn,
    *results: RuleResult,
    rule: SkillName = UV,
    agent: str = "codex",
    day: str = "2026-06-01",
) -> MeasuredTurn:
    """A recorded turn, and what it came to."""
    assert await ledger.record(turn)
    recorded = reader.turn(turn.id)
    assert recorded is not None
    outcomes = tuple(RuleOutcome(rule, "h1", result, Reminded.NOT_DUE, "why") for result in results)
    return MeasuredTurn(recorded.seq, turn.id, agent, "m-1", day, outcomes)


async def test_every_turn_is_counted_once_however_often_it_is_told(
    compliance: SqlCompliance, ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    assert compliance.cursor() is None
    turns = [
        await measured(ledger, reader, new_turn(), result)
        for result in (FOLLOWED, BROKEN, HELD, UNKNOWN)
    ]
    turns.append(await measured(ledger, reader, new_turn(), FOLLOWED, agent="claude-code"))
    compliance.record(turns[:2], turns[1].seq)
    compliance.record(
        turns, turns[-1].seq
    )  # as after a kill, by a loop that began again at the old cursor
    compliance.record(turns, turns[-1].seq)
    assert compliance.cursor() == turns[-1].seq
    codex, claude = Compliance(followed=1, broken=2, held=1, unknown=1), Compliance(followed=1)
    assert compliance.totals({UV: "h1", DATES: "h1"}) == {
        UV: {"codex": codex, "claude-code": claude},
        DATES: {},
    }
    assert (codex.applied, codex.checked) == (4, 3)
    assert compliance.totals({UV: "another text"}) == {UV: {}}
    record = compliance.of_rule(UV, "h1")
    assert (record.total, record.by_agent["codex"], record.by_model["m-1"]) == (
        codex + claude,
        codex,
        codex + claude,
    )
    assert list(record.by_day) == ["2026-06-01"]
    assert [(one.turn, one.is_held, one.reason) for one in record.violations] == [
        (turns[2].turn, True, "why"),
        (turns[1].turn, False, "why"),
    ]


async def test_a_broken_rule_is_an_event_each_time_and_a_notice_once_a_day(
    compliance: SqlCompliance, ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    days = ["2026-06-01", "2026-06-01", "2026-06-02"]
    turns = [await measured(ledger, reader, new_turn(), BROKEN, day=day) for day in days]
    unplaced = await measured(ledger, reader, new_turn(), BROKEN, rule=DATES)
    unplaced = replace(unplaced, outcomes=(replace(unplaced.outcomes[0], is_shown=False),))
    compliance.record([*turns, unplaced], unplaced.seq)
    told = [event for event in reader.events() if event.kind in ("rule_broken", "notice")]
    assert [event.kind for event in told] == [
        "rule_broken",
        "notice",
        "rule_broken",
        "rule_broken",
        "notice",
    ]
    broken = [event.data for event in told if event.kind == "rule_broken"]
    assert [(one["rule"], one["turn"], one["agent"], one["times"]) for one in broken] == [
        (UV, turn.turn, "codex", number) for number, turn in enumerate(turns, 1)
    ]
    assert told[1].data["skill"] == UV
    assert "for the 3rd time" in str(told[-1].data["text"])


async def test_many_results_are_counted_in_few_statements(
    database: Database,
    compliance: SqlCompliance,
    ledger: SqlLedger,
    reader: LedgerReader,
    new_turn: TurnMaker,
) -> None:
    """The ledger waits for the write lock meanwhile, and is degraded where that takes too long."""
    names = [SkillName(f"rule-{number}") for number in range(30)]
    SqlGenerations(database).publish(
        [
            Rule(
                name,
                "always",
                "x",
            )
            for name in names
        ],
        "noted",
    )
    found = []
    for number in range(20):
        turn = await measured(ledger, reader, new_turn())
        result = BROKEN if number % 2 else FOLLOWED
        found.append(
            replace(turn, outcomes=tuple(RuleOutcome(name, "h1", result) for name in names))
        )
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    compliance.record(found, found[-1].seq)
    assert len(statements) < 20
    assert all(
        compliance.of_rule(name, "h1").total == Compliance(followed=10, broken=10) for name in names
    )
    broken = [
        one.data["times"]
        for one in reader.events()
        if one.kind == "rule_broken" and one.data["rule"] == names[0]
    ]
    assert broken[:3] == [1, 2, 3]


async def test_it_is_known_in_which_turn_a_rule_was_broken_last(
    compliance: SqlCompliance, ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    turns = [
        await measured(ledger, reader, new_turn(), result) for result in (BROKEN, HELD, FOLLOWED)
    ]
    compliance.record(turns, turns[-1].seq)
    assert compliance.last_broken() == {(UV, "h1"): turns[1].seq}
    assert compliance.last_broken("2026-06-02") == {}


async def test_a_check_that_failed_on_the_last_turn_is_told_until_it_runs_again(
    compliance: SqlCompliance, ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    hashes = {UV: "h1", DATES: "h1"}
    for result, is_failed in ((FOLLOWED, False), (UNKNOWN, True), (BROKEN, False), (UNKNOWN, True)):
        turn = await measured(ledger, reader, new_turn(), result)
        compliance.record([turn], turn.seq)
        assert compliance.failed_checks(hashes) == ({UV: "why"} if is_failed else {})
    assert compliance.failed_checks({UV: "another text"}) == {}
    assert (
        SqlCompliance(compliance._database, lambda: NOON + timedelta(days=30)).failed_checks(hashes)
        == {}
    )


async def test_what_a_judge_finds_replaces_what_was_unknown(
    compliance: SqlCompliance, ledger: SqlLedger, reader: LedgerReader, new_turn: TurnMaker
) -> None:
    turn = await measured(ledger, reader, new_turn(), UNKNOWN)
    compliance.record([turn], turn.seq)
    judged = replace(turn, outcomes=(replace(turn.outcomes[0], result=BROKEN),))
    assert compliance.settle(judged)
    assert not compliance.settle(judged)
    assert compliance.of_rule(UV, "h1").total == Compliance(broken=1)
    assert [event.kind for event in reader.events()][-2:] == ["rule_broken", "notice"]


async def test_the_counts_of_forgotten_and_of_old_turns_go_with_them(
    database: Database,
    compliance: SqlCompliance,
    ledger: SqlLedger,
    reader: LedgerReader,
    new_turn: TurnMaker,
) -> None:
    first = await measured(ledger, reader, new_turn("s_1"), BROKEN)
    second = await measured(ledger, reader, new_turn("s_2"), BROKEN)
    third = await measured(ledger, reader, new_turn("s_3"), FOLLOWED)
    late = await measured(ledger, reader, new_turn("s_4"), BROKEN)
    compliance.record([first, second, third], third.seq)
    forgetting = SqlForgetting(database)
    forgetting.forget_session(SessionId("s_1"))
    assert compliance.of_rule(UV, "h1").total == Compliance(followed=1, broken=1)
    assert [one.turn for one in compliance.violations(UV, "h1")] == [second.turn]
    forgetting.forget_session(SessionId("s_4"))
    compliance.record([late], late.seq)  # it was measured before it was forgotten
    assert compliance.of_rule(UV, "h1").total == Compliance(followed=1, broken=1)
    forgetting.forget_before(datetime.now(UTC) + timedelta(days=1))
    assert (compliance.of_rule(UV, "h1").total, compliance.counted()) == (Compliance(), [])
