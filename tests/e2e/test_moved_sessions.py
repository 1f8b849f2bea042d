"""A conversation that a load balancer sends now to one, now to the other of two proxies on one
store is one conversation: what one of them placed or held, the other goes on with.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.holding import Got, new_agent, write_rule
from tests.support.postgres import running_postgres
from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.strict_provider import GOOD, StrictProvider

TARGETS = [("chat", "openai"), ("messages", "anthropic"), ("responses", "openai")]
LISTS = {"chat": "messages", "messages": "messages", "responses": "input"}
SYSTEMS = {"messages": "system", "responses": "instructions"}


@pytest.fixture(scope="module")
def provider() -> Iterator[StrictProvider]:
    running = StrictProvider().start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def pair(
    provider: StrictProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Program]]:
    folder: Path = tmp_path_factory.mktemp("pair")
    with running_postgres() as server:
        config = f'{providers_toml(provider.url)}\n[store]\nurl = "{server.prepared_database()}"\n'
        programs = [Program(folder / name, config, env=NOT_LEARNING) for name in "ab"]
        write_rule(programs[0])
        yield [program.start() for program in programs]
        for program in programs:
            program.kill()


class MovingAgent:
    """A client whose next request may go to either proxy."""

    def __init__(self, wire: str, target: str, pair: list[Program], **headers: str) -> None:
        self._agent: Any = new_agent(wire, pair[0].url, f"{target}/m", False, headers)
        path = "" if wire == "messages" else "/v1"
        self._urls = {program.home.name: f"{program.url}{path}" for program in pair}

    def ask(self, name: str, words: str) -> Got:
        self._agent.client.base_url = self._urls[name]
        got: Got = self._agent.ask(words)
        return got

    def answer_calls(self, name: str) -> Got:
        self._agent.client.base_url = self._urls[name]
        got: Got = self._agent.answer_calls()
        return got


def add_rule(pair: list[Program], text: str) -> None:
    """Lay down a rule that every proxy places from then on."""
    said = {"text": text}
    url = f"{pair[0].url}/api/rules"
    httpx.post(url, json=said, headers=pair[0].auth, timeout=PATIENCE_S).raise_for_status()
    for program in pair:
        program.wait_for(
            "/api/rules", lambda found: any(text in rule["text"] for rule in found["rules"])
        )


@pytest.mark.parametrize(("wire", "target"), TARGETS)
def test_what_one_proxy_has_placed_stays_byte_for_byte_at_the_other(
    pair: list[Program], provider: StrictProvider, wire: str, target: str
) -> None:
    provider.refused.clear()
    before = len(provider.bodies)
    headers = {"x-session-id": "trip"} if wire == "messages" else {}
    agent = MovingAgent(wire, target, pair, **headers)
    answers = []
    rules = [f"Always mention {wire}{letter}." for letter in "stuvwxy"]
    at = [("a", "a"), ("b", "b"), ("b", "b"), ("a", "b"), ("b", "a"), ("a", "a"), ("b", "a")]
    for place, (asked, called) in enumerate(at):  # rules come before a task and during the next
        if place % 2 == 0:
            add_rule(pair, rules[place])
        answers.append(agent.ask(asked, "PLAN good\nNow."))
        if place % 2:
            add_rule(pair, rules[place])
        answers.append(agent.answer_calls(called))
    assert len({answer.headers["x-metaclaw-session"] for answer in answers}) == 1
    sent = [body for _, body, _ in provider.bodies[before:]]
    assert (len(sent), provider.refused) == (14, [])
    key, system = LISTS[wire], SYSTEMS.get(wire, "")
    for earlier, later in itertools.pairwise(sent):
        assert later.get(system) == earlier.get(system)
        assert later[key][: len(earlier[key])] == earlier[key]
    assert [str(sent[-1]).count(rule) for rule in rules] == [1] * 7
    turns = [answer.headers["x-metaclaw-turn"] for answer in answers]
    segments = [pair[0].get(f"/api/turns/{turn}")["segment"] for turn in turns]
    assert segments == [number // 2 for number in range(14)]
    for turn in turns:
        whys = [program.get(f"/api/turns/{turn}/why") for program in pair]
        assert whys[0] == whys[1]


@pytest.mark.parametrize(("wire", "target"), TARGETS)
def test_an_answer_that_one_proxy_held_is_put_back_by_the_other_at_once(
    pair: list[Program], provider: StrictProvider, wire: str, target: str
) -> None:
    provider.refused.clear()
    agent = MovingAgent(wire, target, pair)
    for plan, calls in (("bad good", [GOOD]), ("mixed bad two", [GOOD, "git status"])) * 3:
        got = agent.ask("a", f"PLAN {plan}")
        assert [command for _, command in got.calls] == calls
        agent.answer_calls("b")
    assert provider.refused == []
