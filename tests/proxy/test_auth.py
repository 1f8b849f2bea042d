"""The key: where it may stand, and that it never travels on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.proxy.http.server import Gatekeeper, split_path_key
from metaclaw.proxy.http.wrong_keys import WrongKeys

KEY = "mc-secret-key"


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
    assert Gatekeeper(KEY).admit(headers, None) is not None


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
    assert Gatekeeper(KEY).admit(headers, None) is None


def test_a_key_in_the_path_opens_and_is_taken_out() -> None:
    path, key = split_path_key(f"/k/{KEY}/v1/messages")
    assert (path, key) == ("/v1/messages", KEY)
    assert Gatekeeper(KEY).admit({}, key) == {}


def test_our_key_never_travels_on_but_the_callers_own_credentials_do() -> None:
    keeper = Gatekeeper(KEY)
    assert keeper.admit({"authorization": f"Bearer {KEY}", "x-other": "1"}, None) == {
        "x-other": "1"
    }
    assert keeper.admit({"x-api-key": KEY, "authorization": "Bearer sk-own"}, None) == {
        "authorization": "Bearer sk-own"
    }
    assert keeper.admit({"x-metaclaw-key": "whatever", "x-api-key": "sk-own"}, KEY) == {
        "x-api-key": "sk-own"
    }
    assert keeper.admit({"x-api-key": KEY, "authorization": f"Bearer {KEY}"}, KEY) == {}


@given(st.text(max_size=40), st.text(min_size=1, max_size=40))
def test_only_the_key_itself_admits(key: str, offered: str) -> None:
    assert Gatekeeper(key).is_ours(offered) == (offered == key)


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
