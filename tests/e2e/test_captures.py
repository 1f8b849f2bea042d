"""What real agents send goes through the whole program: same meaning, their own prefix untouched,
their turns recognised.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cases import each
from tests.support.program import KEY, NOT_LEARNING, Program, providers_toml
from tests.support.provider import Provider

SIDE = ("compaction", "title", "commit_message", "session_end", "prm_judge", "lesson_to_skill")
NOT_SENT = (
    "host",
    "content-length",
    "authorization",
    "x-api-key",
    "accept-encoding",
    "connection",
    "transfer-encoding",
)
SKILL = """---
name: tail-the-ledger
description: When asked to reconcile the quarterly ledger, tail the audit journal first.
---
1. Tail the audit journal.
2. Reconcile the quarterly ledger against it.
"""
# What the person asked in the captures is too general for any skill; they ask this instead.
TASKS = (
    "say hello and run one command",
    "run one command and say hello",
    "make it print hello from mock",
    "use a subagent",
    "second prompt",
)
TASK = "reconcile the quarterly ledger with the audit journal"


def captures() -> list[Path]:
    beside = Path(__file__).resolve().parents[3] / "shared"
    folder = Path(os.environ.get("METACLAW_SHARED", beside)) / "captures"
    return sorted(
        path for path in folder.glob("*.json") if json.loads(path.read_text())["method"] == "POST"
    )


@pytest.fixture(scope="module")
def taught(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    home = tmp_path_factory.mktemp("captures") / "home"
    running = Program(home, providers_toml(provider.url), env=NOT_LEARNING)
    folder = home / "skills" / "tail-the-ledger"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    running.start()
    yield running
    assert running.stop() == 0


def replay(program: Program, capture: dict[str, Any], user: str = "") -> httpx.Response:
    headers = [
        (name.encode(), value.encode())
        for name, value in capture["headers"]
        if name.lower() not in NOT_SENT
    ]
    return httpx.post(
        program.url + capture["path"],
        content=client_bytes(capture),
        headers=[*headers, (b"x-metaclaw-key", KEY.encode()), (b"x-user-id", user.encode())],
        timeout=30,
    )


def client_bytes(capture: dict[str, Any]) -> bytes:
    text = json.dumps(capture["body"], ensure_ascii=False, separators=(",", ":"))
    for task in TASKS:
        text = text.replace(task, TASK)
    return text.encode()


@each("path", captures() or [None], ids=lambda path: path.stem if path else "absent")
def test_a_real_agents_request_keeps_its_meaning_and_its_prefix(
    taught: Program, provider: Provider, path: Path | None
) -> None:
    if path is None:
        pytest.skip(
            "needs recorded requests of real clients in $METACLAW_SHARED/captures: docs/captures.md"
            " tells how to record them"
        )
    capture = json.loads(path.read_text())
    sent = client_bytes(capture)
    before = len(provider.requests)
    answer = replay(taught, capture)
    assert answer.status_code == 200, answer.text[:500]
    if capture["path"].partition("?")[0].endswith("count_tokens"):
        return
    turn = taught.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")
    is_side = any(word in path.stem for word in SIDE) and "after_compaction" not in path.stem
    assert turn["kind"] == ("side" if is_side else "main"), turn["kind_reason"]
    if "session_end" in path.stem:
        assert len(provider.requests) == before
        return
    got = provider.requests[-1].body
    skills = answer.headers["x-metaclaw-skills"] + answer.headers["x-metaclaw-listed"]
    if is_side:
        assert skills == ""
        assert got == sent
    elif not skills:
        assert got == sent
    elif (
        "previous_response_id" not in capture["body"] or got != sent
    ):  # else the provider has the block from an earlier request
        assert_only_the_block_was_added(sent, got)
    assert sent.count(b"cache_control") == got.count(b"cache_control")


def assert_only_the_block_was_added(sent: bytes, got: bytes) -> None:
    """The client's bytes are all there, in order, and what stands between them is the skill."""
    rest = iter(got)
    assert all(byte in rest for byte in sent)
    assert b"tail-the-ledger" in got
    first = next(at for at in range(len(sent)) if sent[at] != got[at])
    assert got[:first] == sent[:first]
    assert len(got) - len(sent) < 1500


@pytest.mark.parametrize(
    "agent",
    [
        "claude-code-2.1.325",
        "codex-0.166.0",
        "openclaw-2026.9.6",
        "hermes-agent-0.19.0",
        "mini-swe-agent-2.4.6",
    ],
)
def test_the_turns_of_one_agent_run_are_one_session_with_one_placed_set(
    taught: Program, shared: Path, agent: str
) -> None:
    names = ["main_first", "main_tool_result", "main_parallel_tool_results"]
    found = [
        next(
            iter(
                sorted(
                    (shared / "captures").glob(f"{agent}__*{name}.json"),
                    key=lambda path: len(path.name),
                )
            ),
            None,
        )
        for name in names
    ]
    # As another user than the one whose single requests were replayed above, so that only these
    # three can be one session.
    answers = [
        replay(taught, json.loads(path.read_text()), "another")
        for path in found
        if path is not None
    ]
    assert len(answers) == 3
    assert len({answer.headers["x-metaclaw-session"] for answer in answers}) == 1
    assert {answer.headers["x-metaclaw-listed"] for answer in answers} == {"tail-the-ledger"}


def test_a_placed_skill_reaches_the_model_and_stays_in_place_while_the_conversation_grows(
    taught: Program, provider: Provider
) -> None:
    first: list[dict[str, Any]] = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "please " + TASK},
    ]
    later = [
        *first,
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "what is the weather on the moon"},
    ]
    bodies = []
    for messages in (first, later):
        answer = httpx.post(
            f"{taught.url}/v1/chat/completions",
            json={"model": "echo", "messages": messages},
            headers={**taught.auth, "x-session-id": "grow-1"},
        )
        assert answer.headers["x-metaclaw-skills"] == "tail-the-ledger"
        bodies.append(provider.requests[-1].json["messages"])
    assert bodies[1][: len(bodies[0])] == bodies[0]
    assert bodies[0][0]["content"].startswith("You are brief.")
    assert "tail-the-ledger" in bodies[0][0]["content"]


def test_unrelated_words_get_no_skill_in_full(taught: Program, provider: Provider) -> None:
    asked = {
        "model": "echo",
        "messages": [
            {"role": "user", "content": "Which vegetables grow well beside tomatoes in spring?"}
        ],
    }
    answer = httpx.post(f"{taught.url}/v1/chat/completions", json=asked, headers=taught.auth)
    assert answer.headers["x-metaclaw-skills"] == ""
    assert answer.headers["x-metaclaw-listed"] == "tail-the-ledger"
    assert "[tail-the-ledger]" not in provider.requests[-1].body.decode()


def test_a_skill_written_by_hand_is_noticed_and_makes_a_new_generation(taught: Program) -> None:
    before = taught.get("/api/status")["generation"]
    folder = taught.home / "skills" / "fold-napkins"
    folder.mkdir()
    (folder / "SKILL.md").write_text(
        "---\nname: fold-napkins\ndescription: When folding napkins for a banquet table\n---\nFold"
        " twice.\n"
    )
    status = taught.wait_for("/api/status", lambda status: status["generation"] > before)
    assert status["generation"] == before + 1
    asked = {
        "model": "echo",
        "messages": [
            {"role": "user", "content": "I am folding napkins for a banquet table, help me"}
        ],
    }
    answer = httpx.post(f"{taught.url}/v1/chat/completions", json=asked, headers=taught.auth)
    assert answer.headers["x-metaclaw-skills"] == "fold-napkins"
    assert answer.headers["x-metaclaw-generation"] == str(before + 1)
    (folder / "SKILL.md").write_text("no front matter")
    broken = taught.wait_for("/api/status", lambda status: bool(status["skills"]["skipped"]))
    assert "fold-napkins" in broken["skills"]["skipped"][0]["path"]
    (folder / "SKILL.md").unlink()
    folder.rmdir()
    taught.wait_for("/api/status", lambda status: not status["skills"]["skipped"])
