"""Several proxies on one PostgreSQL: each serves, one learns, and another one when it dies.

`METACLAW_TAKEOVERS=50` kills the leader that often; `-s` shows the figures."""

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.postgres import running_postgres
from tests.support.program import PATIENCE_S, Program
from tests.support.teacher import Teacher, prompt_text

TAKEOVERS = int(os.environ.get("METACLAW_TAKEOVERS", "2"))
TAKEN_OVER_S = 5.0
TOLD_S = 1.0
_CONFIG = """
[[providers]]
name = "world"
kind = "openai"
base_url = "{provider}/v1"
api_key = "sk-world"
wires = ["chat"]

[learning]
daily_tokens = 100_000_000

[store]
url = "{store}"
"""


@pytest.fixture(scope="module")
def teacher() -> Iterator[Teacher]:
    provider = Teacher(listed=("worker",))
    provider.start()
    yield provider
    provider.stop()


@pytest.fixture
def homes(teacher: Teacher, tmp_path: Path) -> Iterator[list[Program]]:
    with running_postgres() as server:
        config = _CONFIG.format(provider=teacher.url, store=server.prepared_database())
        programs = [Program(tmp_path / name, config) for name in "ab"]
        yield programs
        for program in programs:
            program.kill()


def say(program: Program, text: str) -> None:
    body = {"model": "worker", "messages": [{"role": "user", "content": text}]}
    answer = httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=program.auth, timeout=PATIENCE_S
    )
    answer.raise_for_status()


def rules(program: Program) -> list[str]:
    return [rule["text"] for rule in program.get("/api/rules")["rules"]]


def leads(program: Program) -> bool:
    return bool(program.get("/api/status")["leads"])


def took_s(program: Program, path: str, wanted: Callable[[Any], bool]) -> float:
    """How long this took to become as wanted."""
    began = time.monotonic()
    program.wait_for(path, wanted)
    return time.monotonic() - began


def has_rule(word: str) -> Callable[[Any], bool]:
    return lambda found: any(word in rule["text"] for rule in found["rules"])


@dataclass
class Answers:
    """What a proxy answered to somebody who asks it again and again."""

    given: int = 0
    failed: int = 0

    @contextmanager
    def counted(self, program: Program) -> Iterator[None]:
        """Ask this proxy while the block runs."""
        stopping = threading.Event()
        thread = threading.Thread(target=self._ask, args=(program, stopping))
        thread.start()
        yield
        stopping.set()
        thread.join(PATIENCE_S)

    def _ask(self, program: Program, stopping: threading.Event) -> None:
        while not stopping.wait(0.05):
            self.given += 1
            try:
                say(program, "Hello")
            except httpx.HTTPError:
                self.failed += 1


def prompt_of(teacher: Teacher, program: Program, word: str) -> str:
    say(program, word)
    asked = teacher.asked(None)
    return next(found for seen in reversed(asked) if word in (found := prompt_text(seen.json)))


def test_a_rule_said_at_one_proxy_is_served_by_the_other_within_a_second(
    teacher: Teacher, homes: list[Program]
) -> None:
    first, second = (home.start() for home in homes)
    assert [leads(first), leads(second)] == [True, False]
    say(second, "From now on, always end with applemark.")
    first.wait_for("/api/rules", has_rule("applemark"))
    assert took_s(second, "/api/rules", has_rule("applemark")) < TOLD_S
    assert "applemark" in prompt_of(teacher, second, "probe one")
    httpx.post(
        f"{second.url}/api/enforce", json={"on": False}, headers=second.auth, timeout=PATIENCE_S
    ).raise_for_status()
    assert took_s(first, "/api/status", lambda found: not found["enforcement"]["on"]) < TOLD_S
    assert first.stop() == 0
    assert took_s(second, "/api/status", lambda found: found["leads"]) < TAKEN_OVER_S


def test_a_conversation_goes_on_at_another_proxy_in_its_session(homes: list[Program]) -> None:
    first, second = (home.start() for home in homes)

    def ask(program: Program, said: list[str], **headers: str) -> str:
        roles = ["user", "assistant"] * len(said)
        messages = [
            {"role": role, "content": text} for role, text in zip(roles, said, strict=False)
        ]
        answer = httpx.post(
            f"{program.url}/v1/chat/completions",
            json={"model": "worker", "messages": messages},
            headers={**program.auth, **headers},
            timeout=PATIENCE_S,
        )
        answer.raise_for_status()
        return answer.headers["x-metaclaw-session"]

    for headers in ({}, {"x-session-id": "trip"}):
        said = ["Plan a trip."]
        session = ask(first, said, **headers)
        for number, program in enumerate((second, first, second)):
            said += ["done", f"And then {number}?"]
            assert ask(program, said, **headers) == session
    assert ask(second, ["Plan a trip."]) != session
    told = ask(first, ["Something to forget."])
    httpx.post(
        f"{first.url}/api/sessions/{told}/forget", headers=first.auth, timeout=PATIENCE_S
    ).raise_for_status()
    time.sleep(TOLD_S)
    assert ask(second, ["Something to forget.", "done", "More?"]) != told


def test_learning_goes_on_when_the_leader_is_killed_again_and_again(
    teacher: Teacher, homes: list[Program]
) -> None:
    leader, follower = (home.start() for home in homes)
    words: list[str] = []
    takeovers_s: list[float] = []
    answers = Answers()
    for number in range(TAKEOVERS):
        words += [f"before{number}mark", f"after{number}mark"]
        say(follower, f"From now on, always end with {words[-2]}.")
        with answers.counted(follower):
            leader.kill()
            takeovers_s.append(took_s(follower, "/api/status", lambda found: found["leads"]))
        say(follower, f"From now on, always end with {words[-1]}.")
        for word in words[-2:]:
            follower.wait_for("/api/rules", has_rule(word))
        leader, follower = follower, leader.start()
        assert not leads(follower)
    print(  # noqa: T201
        f"{TAKEOVERS} takeovers: p50 {statistics.median(takeovers_s):.2f} s, most"
        f" {max(takeovers_s):.2f} s; {answers.failed} of {answers.given} requests to the other"
        " proxy failed"
    )
    for program in homes:
        program.wait_for("/api/rules", lambda found: len(found["rules"]) >= len(words), PATIENCE_S)
        texts = rules(program)
        assert [sum(word in text for text in texts) for word in words] == [1] * len(words)
    published = [row["reason"] for row in leader.get("/api/generations?limit=500")["generations"]]
    assert len([reason for reason in published if reason.startswith("files")]) == 0
    print(f"{len(published) - len(set(published))} of {len(published)} reasons twice")  # noqa: T201
    assert max(takeovers_s) < TAKEN_OVER_S


def test_a_leader_that_was_stopped_for_a_while_writes_nothing_any_more(
    teacher: Teacher, homes: list[Program]
) -> None:
    leader, follower = (home.start() for home in homes)
    assert leads(leader)
    say(leader, "From now on, always end with pausedmark.")
    assert leader.process is not None
    os.kill(leader.process.pid, signal.SIGSTOP)
    try:
        assert took_s(follower, "/api/status", lambda found: found["leads"]) < 2 * TAKEN_OVER_S
        follower.wait_for("/api/rules", has_rule("pausedmark"))
    finally:
        os.kill(leader.process.pid, signal.SIGCONT)
    leader.wait_for("/api/status", lambda found: not found["leads"])
    leader.wait_for("/api/rules", has_rule("pausedmark"))
    say(leader, "From now on, always end with resumedmark.")
    for program in (follower, leader):
        program.wait_for("/api/rules", has_rule("resumedmark"))
        texts = rules(program)
        assert [sum(word in text for text in texts) for word in ("pausedmark", "resumedmark")] == [
            1,
            1,
        ]
