"""Who gets in: links that expire, sessions that end, and wrong keys that are slowed down."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from tests.support.clock import FakeClock
from tests.support.program import KEY, NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider

HTML = {"accept": "text/html"}


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> FakeClock:
    return FakeClock(tmp_path_factory.mktemp("clock") / "clock")


@pytest.fixture(scope="module")
def program(
    provider: Provider, tmp_path_factory: pytest.TempPathFactory, clock: FakeClock
) -> Iterator[Program]:
    home: Path = tmp_path_factory.mktemp("program") / "home"
    running = Program(home, providers_toml(provider.url), env={**NOT_LEARNING, **clock.env}).start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def new_link(program: Program) -> str:
    answer = httpx.post(f"{program.url}/api/sign-in", headers=program.auth, timeout=PATIENCE_S)
    return str(answer.raise_for_status().json()["url"])


@contextmanager
def sign_in(program: Program) -> Iterator[httpx.Client]:
    """A browser that is signed in."""
    with httpx.Client(
        base_url=program.url, headers={**HTML, "origin": program.url}, timeout=PATIENCE_S
    ) as browser:
        assert browser.get(new_link(program)).status_code == 200
        yield browser


def sign_out(browser: httpx.Client) -> None:
    found = re.search(
        r'action="/ui/sign-out"><input type="hidden" name="token" value="(\w+)"',
        browser.get("/ui").text,
    )
    assert found is not None
    assert browser.post("/ui/sign-out", data={"token": found[1]}).status_code == 303


def test_a_link_is_used_up_by_opening_it_and_not_by_a_head_request(program: Program) -> None:
    link = new_link(program)
    for _ in range(2):
        looked = httpx.head(link, headers=HTML, timeout=PATIENCE_S)
        assert (looked.status_code, "set-cookie" in looked.headers) == (200, False)
    assert "set-cookie" in httpx.get(link, headers=HTML, timeout=PATIENCE_S).headers
    assert httpx.head(link, headers=HTML, timeout=PATIENCE_S).status_code == 401
    assert httpx.get(link, headers=HTML, timeout=PATIENCE_S).status_code == 401


def test_a_link_expires_after_ten_minutes(program: Program, clock: FakeClock) -> None:
    in_time, late = new_link(program), new_link(program)
    try:
        clock.set_ahead(timedelta(minutes=9))
        assert httpx.get(in_time, headers=HTML, timeout=PATIENCE_S).status_code == 200
        clock.set_ahead(timedelta(minutes=11))
        assert httpx.head(late, headers=HTML, timeout=PATIENCE_S).status_code == 401
        refused = httpx.get(late, headers=HTML, timeout=PATIENCE_S)
    finally:
        clock.set_ahead(timedelta(0))
    assert (refused.status_code, "older than ten minutes" in refused.text) == (401, True)


def test_a_browser_that_is_signed_in_keeps_its_session_when_it_opens_another_link(
    program: Program,
) -> None:
    with sign_in(program) as browser:
        before, link = dict(browser.cookies), new_link(program)
        assert browser.get(link).status_code == 200
        assert dict(browser.cookies) == before
    assert httpx.get(link, headers=HTML, timeout=PATIENCE_S).status_code == 401


def test_signing_out_ends_the_session_of_the_cookie_also_after_a_restart(program: Program) -> None:
    with sign_in(program) as browser, sign_in(program) as other:
        stolen, is_open, ended = dict(browser.cookies), Event(), Event()

        def follow() -> None:
            with httpx.stream(
                "GET", f"{program.url}/ui/live", cookies=stolen, timeout=PATIENCE_S
            ) as live:
                for _ in live.iter_bytes():
                    is_open.set()
            ended.set()

        following = Thread(target=follow)
        following.start()
        assert is_open.wait(PATIENCE_S)
        sign_out(browser)
        assert ended.wait(PATIENCE_S), "a page that follows the program ends with its session"
        following.join()
        kept, port = dict(other.cookies), program.url.rpartition(":")[2]
        for is_restarted in (False, True):
            if is_restarted:
                program.stop()
                program.start("--port", port)
            for cookies, status in ((stolen, 401), (kept, 200)):
                assert (
                    httpx.get(
                        f"{program.url}/ui", cookies=cookies, headers=HTML, timeout=PATIENCE_S
                    ).status_code
                    == status
                )


def timed(send: httpx.Client, times: int, **headers: str) -> float:
    """How long so many requests took."""
    began = time.monotonic()
    for _ in range(times):
        send.get("/v1/models", headers=headers)
    return time.monotonic() - began


def from_address(program: Program, address: str) -> httpx.Client:
    return httpx.Client(
        base_url=program.url,
        transport=httpx.HTTPTransport(local_address=address),
        timeout=PATIENCE_S,
    )


def test_wrong_keys_are_slowed_down_for_their_address_and_right_keys_never(
    program: Program,
) -> None:
    with (
        from_address(program, "127.0.0.2") as guesser,
        from_address(program, "127.0.0.3") as neighbour,
    ):
        timed(guesser, 10, authorization="Bearer guess")
        assert timed(guesser, 4, **{"x-api-key": "guess"}) >= 1.5
        # Ten delayed answers would take ten seconds.
        assert timed(guesser, 10, authorization=f"Bearer {KEY}") < 10
        assert timed(guesser, 10) < 10, "a request without a key is no guess"
        assert timed(neighbour, 10, authorization="Bearer guess") < 10


def test_wrong_keys_on_the_sign_in_page_are_slowed_down_and_the_right_one_is_not(
    program: Program,
) -> None:
    fields = {**HTML, "origin": program.url}
    with from_address(program, "127.0.0.4") as guesser:
        for _ in range(13):
            began = time.monotonic()
            assert (
                guesser.post("/ui/sign-in", data={"key": "guess"}, headers=fields).status_code
                == 401
            )
        assert time.monotonic() - began >= 0.4
        assert timed(guesser, 1, authorization="Bearer guess") >= 0.8, (
            "the pages and the API count together"
        )
        assert guesser.post("/ui/sign-in", data={"key": KEY}, headers=fields).status_code == 200
