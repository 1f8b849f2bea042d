"""What calls cost is added up by day, purpose, model and item; agents' turns are counted once;
forgotten names leave the sums.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest

from metaclaw.domain.candidate import Candidate, CandidateId, Change, Proposal, Standing
from metaclaw.domain.chat import Usage
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.status import ENFORCED, SERVED, Spending, SpendingKey
from metaclaw.domain.turn import ATTEMPT, EnforcedRule, Enforcement, HoldEnd, Times, Turn, TurnKind
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.store import (
    Database,
    SqlCandidates,
    SqlForgetting,
    SqlGenerations,
    SqlLedger,
    SqlSpending,
    SqlVerdicts,
)
from tests.store.conftest import MOMENT

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
DAY = "2026-03-04"


def key(purpose: str = "judge", item: str = "", day: str = DAY) -> SpendingKey:
    return SpendingKey(day, purpose, "world/m\x00del", item)


def calls(number: int, tokens: int = 10) -> Spending:
    return Spending(
        turns=1,
        calls=number,
        failures=1,
        input_tokens=tokens,
        output_tokens=1,
        unpriced_tokens=tokens + 1,
        cost=0.5,
    )


def price(
    purpose: str, received_at: datetime, model: str, usage: Usage
) -> tuple[SpendingKey, Spending]:
    tokens = Spending(
        turns=1, calls=1, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens
    )
    return SpendingKey(received_at.date().isoformat(), purpose, model), tokens


async def test_sums_add_up_and_are_told_with_and_without_items(database: Database) -> None:
    SqlGenerations(database).publish([Skill(SkillName("known"), "when", "do")], "by hand")
    spending = SqlSpending(database)
    spending.add({})
    spending.add(
        {key(): calls(1), key(item="known"): calls(2), key("evolve", day="2026-03-05"): calls(3)}
    )
    spending.add({key(): calls(4)})
    assert spending.sums(by_item=True) == {
        key(): calls(1) + calls(4),
        key(item="known"): calls(2),
        key("evolve", day="2026-03-05"): calls(3),
    }
    assert spending.sums() == {
        key(): calls(1) + calls(2) + calls(4),
        key("evolve", day="2026-03-05"): calls(3),
    }
    assert list(spending.sums("2026-03-05")) == [key("evolve", day="2026-03-05")]


async def test_processes_that_count_at_once_lose_nothing(database: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(SqlSpending(database).add, {key(): calls(1)}) for _ in range(40)]:
            done.result()
    (spent,) = SqlSpending(database).sums().values()
    assert (spent.calls, spent.tokens, spent.cost) == (40, 440, 20.0)


@pytest.mark.parametrize("kind", [TurnKind.MAIN, TurnKind.SIDE])
async def test_what_is_asked_again_for_a_held_rule_is_counted_apart_and_the_sum_is_that_of_the_turn(
    ledger: SqlLedger, database: Database, new_turn: TurnMaker, kind: TurnKind
) -> None:
    spent = (Usage(10, 5), Usage(20, 6), Usage(30, 7))
    attempts = tuple(
        new_turn(kind=TurnKind.SIDE, kind_reason=ATTEMPT, usage=usage) for usage in spent
    )
    rules = (EnforcedRule(SkillName("no-force-push"), 2, HoldEnd.COMPLIED, "pushed"),)
    assert await ledger.record(
        new_turn(kind=kind, usage=Usage(60, 18), enforcement=Enforcement(rules, attempts))
    )
    spending = SqlSpending(database)
    assert spending.add_served(price) == 4
    sums = {key.purpose: spent for key, spent in spending.sums().items()}
    if kind is TurnKind.SIDE:
        assert sums == {}
    else:
        assert sums == {
            SERVED: Spending(turns=1, calls=1, input_tokens=10, output_tokens=5),
            ENFORCED: Spending(turns=2, calls=2, input_tokens=50, output_tokens=13),
        }


async def test_agents_main_turns_are_counted_once_by_day(
    ledger: SqlLedger, database: Database, new_turn: TurnMaker
) -> None:
    spending = SqlSpending(database)
    assert spending.add_served(price) == 0
    tomorrow = Times(MOMENT + timedelta(days=1), 0.1, 0.2)
    for turn in (
        new_turn(),
        new_turn(),
        new_turn(kind=TurnKind.SIDE),
        new_turn(usage=None),
        new_turn(times=tomorrow),
    ):
        assert await ledger.record(turn)
    assert SqlSpending(database).add_served(price) == 5
    assert spending.add_served(price) == 0
    assert await ledger.record(new_turn())
    assert spending.add_served(price) == 1
    assert spending.sums() == {
        SpendingKey(DAY, SERVED, "main/gpt-x"): Spending(
            turns=4, calls=4, input_tokens=30, output_tokens=15
        ),
        SpendingKey("2026-03-05", SERVED, "main/gpt-x"): Spending(
            turns=1, calls=1, input_tokens=10, output_tokens=5
        ),
    }


async def test_old_days_keep_their_sums_without_the_items(database: Database) -> None:
    SqlGenerations(database).publish([Skill(SkillName("known"), "when", "do")], "by hand")
    spending = SqlSpending(database)
    spending.add(
        {
            key(): calls(1),
            key(item="known"): calls(2),
            key(item="known", day="2026-03-05"): calls(3),
        }
    )
    for _ in range(2):
        spending.forget_items_before("2026-03-05")
    assert spending.sums(by_item=True) == {
        key(): calls(1) + calls(2),
        key(item="known", day="2026-03-05"): calls(3),
    }


async def test_the_name_of_a_forgotten_skill_leaves_the_sums_and_does_not_come_back(
    ledger: SqlLedger, database: Database, new_turn: TurnMaker
) -> None:
    turn = new_turn(session="s_private")
    assert await ledger.record(turn)
    SqlVerdicts(database).record_verdict(
        Verdict(turn.id, Outcome.FAIL, Source.USER, 1.0, fault=Fault.AGENT)
    )
    skill = Skill(
        SkillName("aunt-marys-address"),
        "when",
        "do",
        author=Authorship.EVOLVER,
    )
    proposal = Proposal(skill, Change.NEW, (), (turn.id,), "kind", "evolver")
    SqlCandidates(database).save_candidate(
        Candidate(CandidateId("c_1"), proposal, Standing.REJECTED, "why", 0, MOMENT)
    )
    spending, forgetting = SqlSpending(database), SqlForgetting(database)
    spending.add({key("replay", skill.name): calls(2), key("replay"): calls(1)})
    assert key("replay", skill.name) in spending.sums(by_item=True)
    forgetting.forget_session(SessionId("s_private"))
    assert forgetting.erase("forgotten")
    assert spending.sums(by_item=True) == {key("replay"): calls(1) + calls(2)}
    spending.add({key("replay", skill.name): calls(1)})  # a learner was still busy with it
    assert spending.sums(by_item=True) == {key("replay"): calls(1) + calls(2) + calls(1)}
