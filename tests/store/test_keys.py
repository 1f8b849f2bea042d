"""Keys of people: what they used is read from the turns, and what was changed stays noted."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from metaclaw.domain.chat import Usage
from metaclaw.domain.person import KeyRole, Limit, Person, parse_limits, period_of
from metaclaw.domain.turn import Scope, Turn
from metaclaw.proxy import Keyring
from metaclaw.store import Database, SqlKeys, SqlLedger
from tests.store.conftest import MOMENT

pytestmark = pytest.mark.anyio


async def test_tokens_and_money_of_recorded_turns_count_towards_limits(
    database: Database, ledger: SqlLedger, new_turn: Callable[..., Turn]
) -> None:
    keys = SqlKeys(database)
    limits = parse_limits("tokens=100/day,money=3/month")
    keys.create(Person("ada", KeyRole.READER, "lab", limits=limits))
    now = MOMENT.astimezone() + timedelta(minutes=1)
    ring = Keyring("home", keys, {}, lambda turn: turn.usage.output_tokens / 10, lambda: now)
    ring.read()
    (key,) = keys.all()
    assert (key.person.role, key.person.limits, len(key.hash)) == (KeyRole.READER, limits, 32)
    for user, usage in (("ada", Usage(40, 20)), ("bob", Usage(900, 90)), ("ada", None)):
        await ledger.record(new_turn(scope=Scope(user), usage=usage))
    for _ in range(2):  # what was read is not counted again
        ring.read()
        assert ring.used(key.person) == {"tokens=100/day": 60, "money=3/month": 2}
        assert ring.count_request(key.person) is None
    await ledger.record(new_turn(scope=Scope("ada"), usage=Usage(40, 2)))
    ring.read()
    reached = ring.count_request(key.person)
    assert reached is not None
    _, tomorrow = period_of(now, "day")
    assert reached == (Limit("tokens", 100, "day"), (tomorrow - now).total_seconds())
    # Another proxy, or this one after a restart, counts the same.
    other = Keyring("home", keys, {}, lambda turn: 0, lambda: now)
    other.read()
    assert other.used(key.person)["tokens=100/day"] == 102
    now = tomorrow
    assert ring.count_request(key.person) is None


def test_changes_are_listed_newest_first(database: Database) -> None:
    keys = SqlKeys(database)
    for number in range(4):
        keys.note("ada", "POST /api/rules", f"rule-{number}")
    newest = keys.changes(2)
    assert [one.target for one in newest] == ["rule-3", "rule-2"]
    assert [one.target for one in keys.changes(9, newest[-1].seq)] == ["rule-1", "rule-0"]


@pytest.mark.parametrize("wrong", ["requests=5", "words=5/min", "tokens=-1/day", "money=nan/day"])
def test_what_is_no_limit_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a limit"):
        parse_limits(wrong)
