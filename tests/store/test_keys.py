"""Keys of people: what they used is read from the turns, and what was changed stays noted."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import event

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
        assert await ring.count_request(key.person) is None
    await ledger.record(new_turn(scope=Scope("ada"), usage=Usage(40, 2)))
    ring.read()
    reached = await ring.count_request(key.person)
    assert reached is not None
    _, tomorrow = period_of(now, "day")
    assert reached == (Limit("tokens", 100, "day"), (tomorrow - now).total_seconds())
    # Another proxy, or this one after a restart, counts the same.
    other = Keyring("home", keys, {}, lambda turn: 0, lambda: now)
    other.read()
    assert other.used(key.person)["tokens=100/day"] == 102
    now = tomorrow
    assert await ring.count_request(key.person) is None


async def test_proxies_on_one_store_share_a_limit_of_requests(database: Database) -> None:
    now = MOMENT.astimezone()
    person = Person("ada", limits=(Limit("requests", 60, "min"), Limit("requests", 100, "day")))
    rings = [Keyring("home", SqlKeys(database), {}, lambda turn: 0, lambda: now) for _ in "abc"]

    async def answered(asked: int) -> int:
        """How many of these requests are answered, by the proxies in turn, within a second."""
        found = [await rings[number % 3].count_request(person) for number in range(asked)]
        return found.count(None)

    begun = [await ring.count_request(person) for ring in rings]
    assert begun == [None] * 3
    for ring in rings[1:] * 2:  # nobody asks them any more
        await ring.settle()
    alone = [await rings[0].count_request(person) for _ in range(60)]
    assert alone.count(None) == 57
    assert [ring.used(person)["requests=60/min"] for ring in rings] == [60] * 3
    now += timedelta(minutes=1)
    assert await answered(200) == 40, "the day's limit"
    now += timedelta(days=1)
    assert await answered(200) == 60
    fresh = Keyring("home", SqlKeys(database), {}, lambda turn: 0, lambda: now)
    assert await fresh.count_request(person) is not None, "also after a restart"


async def test_requests_at_the_same_time_do_not_exceed_a_limit(database: Database) -> None:
    now = MOMENT.astimezone()
    person = Person("ada", limits=(Limit("requests", 20, "min"),))
    rings = [Keyring("home", SqlKeys(database), {}, lambda turn: 0, lambda: now) for _ in "ab"]
    found = await asyncio.gather(*(ring.count_request(person) for ring in rings * 30))
    assert found.count(None) <= 20
    for _ in range(2):
        for ring in rings:
            await ring.settle()
    found += [await rings[0].count_request(person) for _ in range(20)]
    assert found.count(None) == 20


async def test_a_share_answers_many_requests_with_one_write(database: Database) -> None:
    now = MOMENT.astimezone()
    ring = Keyring("home", SqlKeys(database), {}, lambda turn: 0, lambda: now)
    person = Person("ada", limits=(Limit("requests", 4000, "min"),))
    written: list[object] = []
    event.listen(database.engine, "commit", written.append)
    assert [await ring.count_request(person) for _ in range(400)] == [None] * 400
    assert len(written) == 4
    await ring.aclose()
    assert SqlKeys(database).requests_used("ada", person.limits[0], period_of(now, "min")[0]) == 400


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
