"""The key: where it may stand, and that it never travels on."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.clock import local_now
from metaclaw.domain.person import HOME, KeyRole, Limit, Person
from metaclaw.proxy.http.server import Gatekeeper, split_path_key
from metaclaw.proxy.http.wrong_keys import WrongKeys
from metaclaw.proxy.keyring import Keyring
from metaclaw.store import RefusedError, SqlKeys, connect, open_database

KEY = "mc-secret-key"


def keeper_of(key: str) -> Gatekeeper:
    """A gatekeeper of a home with one key, whose store is not read."""
    return Gatekeeper(Keyring(key, SqlKeys(connect("sqlite:////nowhere.db")), {}, lambda turn: 0.0))


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"x-api-key": KEY},
        {"x-api-key": f"Bearer {KEY}"},
        {"x-metaclaw-key": KEY},
        {"authorization": "Bearer sk-theirs", "x-metaclaw-key": KEY},
    ],
)
def test_the_key_is_found_wherever_a_client_can_put_it(headers: dict[str, str]) -> None:
    assert keeper_of(KEY).admit(headers, None) is not None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": f"Basic {KEY}"},
        {"x-api-key": KEY + "x"},
        {"x-api-key": KEY[:-1]},
        {"x-api-key": "ключ"},
    ],
)
def test_anything_else_is_refused(headers: dict[str, str]) -> None:
    assert keeper_of(KEY).admit(headers, None) is None


def test_a_key_in_the_path_opens_and_is_taken_out() -> None:
    path, key = split_path_key(f"/k/{KEY}/v1/messages")
    assert (path, key) == ("/v1/messages", KEY)
    assert keeper_of(KEY).admit({}, key) == (HOME, {})


def test_our_key_never_travels_on_but_the_callers_own_credentials_do() -> None:
    keeper = keeper_of(KEY)
    for sent, path_key, kept in (
        ({"authorization": f"Bearer {KEY}", "x-other": "1"}, None, {"x-other": "1"}),
        (
            {"x-api-key": KEY, "authorization": "Bearer sk-own"},
            None,
            {"authorization": "Bearer sk-own"},
        ),
        ({"x-metaclaw-key": "whatever", "x-api-key": "sk-own"}, KEY, {"x-api-key": "sk-own"}),
        ({"x-api-key": KEY, "authorization": f"Bearer {KEY}"}, KEY, {}),
    ):
        assert keeper.admit(sent, path_key) == (HOME, kept)


@given(st.text(max_size=40), st.text(min_size=1, max_size=40))
def test_only_the_key_itself_admits(key: str, offered: str) -> None:
    admitted = keeper_of(key).admit({}, offered)
    assert (admitted is not None) == (offered == key)


def key_of(keys: SqlKeys, keyring: Keyring, person: Person) -> str:
    secret = keys.create(person)
    keyring.read()
    return secret


@pytest.fixture
def keys(tmp_path: Path) -> SqlKeys:
    return SqlKeys(open_database(f"sqlite:///{tmp_path / 'ledger.db'}"))


def test_a_key_decides_who_speaks_and_whose_session_is_named(keys: SqlKeys) -> None:
    ring = Keyring(KEY, keys, {"core": {"bob"}}, lambda turn: 0.0)
    keeper = Gatekeeper(ring)
    alice = key_of(keys, ring, Person("alice", team="core"))
    gateway = key_of(keys, ring, Person("gateway", speaks_for_others=True))
    assert ring.teams == {"core": {"alice", "bob"}}
    claimed = {"x-user-id": "bob", "x-session-id": "chat"}
    for key, kept in (
        (alice, {"x-user-id": "alice", "x-session-id": "alice:chat"}),
        (gateway, {"x-user-id": "bob", "x-session-id": "bob:chat"}),
        (KEY, claimed),
    ):
        admitted = keeper.admit({"authorization": f"Bearer {key}", **claimed}, None)
        assert admitted is not None
        assert admitted[1] == kept
    # A client may send back the session that an answer named.
    assert keeper.admit({"x-session-id": "alice:chat"}, alice) == (
        ring.holder(alice),
        {"x-user-id": "alice", "x-session-id": "alice:chat"},
    )


def test_a_key_is_stored_as_a_hash_and_ends_when_it_is_replaced_or_revoked(
    keys: SqlKeys, tmp_path: Path
) -> None:
    ring = Keyring(KEY, keys, {}, lambda turn: 0.0)
    first = key_of(keys, ring, Person("alice"))
    assert first.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    with pytest.raises(RefusedError):
        keys.create(Person("alice"))
    second = keys.rotate("alice")
    assert second is not None
    ring.read()
    holder = ring.holder(second)
    assert (ring.holder(first), holder and holder.name) == (None, "alice")
    assert keys.revoke("alice")
    assert not keys.revoke("alice")
    assert keys.rotate("alice") is None
    ring.read()
    assert ring.holder(second) is None


@pytest.mark.anyio
async def test_a_limit_holds_until_its_period_ends(keys: SqlKeys) -> None:
    now = local_now().replace(day=3, hour=5, minute=7, second=15, microsecond=0)
    ring = Keyring(KEY, keys, {}, lambda turn: 0.0, lambda: now)
    limits = (Limit("requests", 2, "min"), Limit("requests", 3, "hour"))
    alice = Person("alice", limits=limits)
    reached = [await ring.count_request(alice) for _ in range(3)]
    assert reached == [None, None, (limits[0], 45.0)]
    now += timedelta(minutes=1)
    reached = [await ring.count_request(alice) for _ in range(2)]
    assert reached == [None, (limits[1], 51 * 60 + 45.0)]
    assert ring.used(alice) == {"requests=2/min": 1, "requests=3/hour": 3}
    now += timedelta(hours=1)
    assert await ring.count_request(alice) is None
    assert await ring.count_request(Person("bob", KeyRole.OWNER)) is None


@pytest.mark.anyio
async def test_while_the_store_cannot_be_reached_each_proxy_counts_by_itself(
    keys: SqlKeys, tmp_path: Path
) -> None:
    now = local_now().replace(day=3, hour=5)
    ring = Keyring(KEY, keys, {}, lambda turn: 0.0, lambda: now)
    alice = Person("alice", limits=(Limit("requests", 20, "day"),))
    (tmp_path / "ledger.db").rename(tmp_path / "away.db")
    lost = [await ring.count_request(alice) for _ in range(12)]
    assert (lost, ring.used(alice)) == ([None] * 12, {"requests=20/day": 12})
    (tmp_path / "away.db").rename(tmp_path / "ledger.db")
    await ring.settle()
    found = [await ring.count_request(alice) for _ in range(9)]
    assert [one is None for one in found] == [True] * 8 + [False], "the twelve are counted, too"


def test_wrong_keys_wait_longer_and_longer_until_a_minute_has_passed() -> None:
    now = 0.0
    wrong = WrongKeys(lambda: now)
    assert [wrong.count("10.0.0.1") for _ in range(16)] == [0.0] * 10 + [
        0.1,
        0.2,
        0.4,
        0.8,
        1.0,
        1.0,
    ]
    assert wrong.count("10.0.0.2") == 0.0
    now = 59.0
    assert wrong.count("10.0.0.1") == 1.0
    now = 120.0
    assert wrong.count("10.0.0.1") == 0.0


def test_addresses_that_sent_wrong_keys_are_forgotten_when_there_are_many_others() -> None:
    wrong = WrongKeys(lambda: 0.0)
    for _ in range(11):
        wrong.count("10.0.0.1")
    for number in range(5000):
        wrong.count(f"host-{number}")
    assert len(wrong._seen) == 1024
    assert wrong.count("10.0.0.1") == 0.0
