"""What real agents sent, in the order they sent it: who was speaking, in which session and segment,
and about what.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import new_turn_id
from metaclaw.domain.turn import Origin, TurnEnd, TurnKind
from metaclaw.proxy.sessions import Origins

WIRES = {
    "chat/completions": Wire.CHAT,
    "responses": Wire.RESPONSES,
    "messages": Wire.MESSAGES,
    "messages/count_tokens": Wire.MESSAGES,
}


@dataclass(frozen=True, slots=True)
class Expected:
    """One capture and what it must be taken for. `session` is a name of ours: equal names are equal
    sessions.
    """

    capture: str
    session: str
    agent: str
    reason: str = "main"
    segment: int = 0
    began: bool = False
    task: str | None = None
    parent: str | None = None
    anchors: tuple[int, ...] | None = None


SAY = "say hello and run one command"
RUN = "run one command and say hello"
SEQUENCES: dict[str, list[Expected]] = {
    "claude-code": [
        Expected(
            "claude-code-2.1.325__main_first",
            "cc",
            "claude-code",
            began=True,
            task=RUN,
            anchors=(0,),
        ),
        Expected(
            "claude-code-2.1.325__main_tool_result", "cc", "claude-code", task=RUN, anchors=(0,)
        ),
        Expected(
            "claude-code-2.1.325__main_parallel_tool_results",
            "cc",
            "claude-code",
            task=RUN,
            anchors=(0,),
        ),
        Expected(
            "claude-code-2.1.325__continue_main_first",
            "cc",
            "claude-code",
            segment=1,
            began=True,
            task="second prompt",
            anchors=(0, 7),
        ),
        Expected(
            "claude-code-2.1.325__continue_main_tool_result",
            "cc",
            "claude-code",
            segment=1,
            task="second prompt",
            anchors=(0, 7),
        ),
        Expected(
            "claude-code-2.1.325__continue_main_parallel_tool_results",
            "cc",
            "claude-code",
            segment=1,
            task="second prompt",
            anchors=(0, 7),
        ),
        Expected(
            "claude-code-2.1.325__interactive_title",
            "cc-interactive",
            "claude-code",
            "claude-code-title",
        ),
        Expected(
            "claude-code-2.1.325__subagent",
            "cc-helper",
            "claude-code",
            began=True,
            task="do the sub job",
            parent="cc-parent",
        ),
        Expected(
            "claude-code-2.1.325__subagent_nested",
            "cc-nested",
            "claude-code",
            began=True,
            task="do the sub job",
            parent="cc-helper",
        ),
        Expected(
            "claude-code-2.1.325__compaction", "cc-parent", "claude-code", "claude-code-compaction"
        ),
    ],
    "codex": [
        Expected("codex-0.166.0__main_first", "cx", "codex", began=True, task=SAY, anchors=(3,)),
        Expected("codex-0.166.0__main_tool_result", "cx", "codex", task=SAY, anchors=(3,)),
        Expected(
            "codex-0.166.0__main_parallel_tool_results", "cx", "codex", task=SAY, anchors=(3,)
        ),
        Expected(
            "codex-0.166.0__resume_main_first",
            "cx",
            "codex",
            segment=1,
            began=True,
            task="second prompt please",
            anchors=(3, 16),
        ),
        Expected(
            "codex-0.166.0__resume_main_tool_result",
            "cx",
            "codex",
            segment=1,
            task="second prompt please",
            anchors=(3, 16),
        ),
        Expected(
            "codex-0.166.0__resume_main_parallel_tool_results",
            "cx",
            "codex",
            segment=1,
            task="second prompt please",
            anchors=(3, 16),
        ),
        Expected("codex-0.166.0__compaction", "cx-compacted", "codex", "codex-compaction"),
        Expected(
            "codex-0.166.0__after_compaction",
            "cx-compacted",
            "codex",
            began=True,
            task="hello",
            anchors=(3,),
        ),
    ],
    "openclaw": [
        Expected(
            "openclaw-2026.9.6__chat_main_first",
            "oc",
            "openclaw",
            began=True,
            task=SAY,
            anchors=(1,),
        ),
        Expected(
            "openclaw-2026.9.6__chat_main_tool_result", "oc", "openclaw", task=SAY, anchors=(1,)
        ),
        Expected(
            "openclaw-2026.9.6__chat_main_parallel_tool_results",
            "oc",
            "openclaw",
            task=SAY,
            anchors=(1,),
        ),
    ],
    "hermes": [
        Expected(
            "hermes-agent-0.19.0__chat_main_first",
            "he",
            "hermes",
            began=True,
            task=SAY,
            anchors=(1,),
        ),
        Expected(
            "hermes-agent-0.19.0__chat_main_tool_result", "he", "hermes", task=SAY, anchors=(1,)
        ),
        Expected(
            "hermes-agent-0.19.0__chat_main_parallel_tool_results",
            "he",
            "hermes",
            task=SAY,
            anchors=(1,),
        ),
    ],
    "mini-swe-agent": [
        Expected(
            "mini-swe-agent-2.4.6__main_first",
            "ms",
            "mini-swe-agent",
            began=True,
            task=SAY,
            anchors=(1,),
        ),
        Expected(
            "mini-swe-agent-2.4.6__main_tool_result", "ms", "mini-swe-agent", task=SAY, anchors=(1,)
        ),
        Expected(
            "mini-swe-agent-2.4.6__main_parallel_tool_results",
            "ms",
            "mini-swe-agent",
            task=SAY,
            anchors=(1,),
        ),
    ],
    "aider": [
        Expected(
            "aider-0.86.2__main_first",
            "ai",
            "aider",
            began=True,
            task="make it print hello from mock",
            anchors=(9,),
        ),
        Expected("aider-0.86.2__commit_message", "ai-commit", "aider", "aider-commit-message"),
    ],
    "autoresearchclaw": [
        Expected(
            "autoresearchclaw-e2e23c9__stage_call_json_mode",
            "arc-1",
            "autoresearchclaw",
            began=True,
        ),
        Expected(
            "autoresearchclaw-e2e23c9__stage_call_with_skill_overlay",
            "arc-2",
            "autoresearchclaw",
            began=True,
        ),
        Expected(
            "autoresearchclaw-e2e23c9__prm_judge",
            "arc-3",
            "autoresearchclaw",
            "autoresearchclaw-judge",
        ),
        Expected(
            "autoresearchclaw-e2e23c9__lesson_to_skill",
            "arc-4",
            "autoresearchclaw",
            "autoresearchclaw-lesson",
        ),
        Expected(
            "autoresearchclaw-e2e23c9__session_end", "arc-5", "autoresearchclaw", "session-end"
        ),
    ],
    "openai-sdk": [
        Expected(
            "openai-sdk-3.49.0__chat_nonstream", "sess-1", "openai-sdk", began=True, task="run it"
        ),
        Expected(
            "openai-sdk-3.49.0__chat_nonstream_tool_results", "sess-1", "openai-sdk", task="run it"
        ),
        Expected(
            "openai-sdk-3.49.0__responses_stream",
            "sess-1",
            "openai-sdk",
            segment=1,
            began=True,
            task="run",
        ),
    ],
    "anthropic-sdk": [
        Expected(
            "anthropic-sdk-2.8.0__messages_nonstream",
            "an",
            "anthropic-sdk",
            began=True,
            task="run it",
        ),
        Expected(
            "anthropic-sdk-2.8.0__messages_tool_results", "an", "anthropic-sdk", task="run it"
        ),
        Expected("anthropic-sdk-2.8.0__count_tokens", "an-count", "anthropic-sdk", "count-tokens"),
    ],
}


def load(shared: Path, name: str) -> dict[str, Any]:
    path = shared / "captures" / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"needs the recorded request {name}: docs/captures.md tells how to record it")
    capture: dict[str, Any] = json.loads(path.read_text())
    return capture


def identify(
    origins: Origins, capture: dict[str, Any], *, without: frozenset[str] = frozenset()
) -> Origin:
    wire = WIRES[capture["path"].partition("?")[0].removeprefix("/v1").lstrip("/")]
    headers = {
        name.lower(): value for name, value in capture["headers"] if name.lower() not in without
    }
    origin = origins.identify(wire, headers, capture["body"], "127.0.0.1")
    origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
    return origin


def new_origins() -> Origins:
    return Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))


def assert_expected(seen: dict[str, str], origin: Origin, expected: Expected) -> None:
    assert seen.setdefault(expected.session, origin.session) == origin.session
    assert len(set(seen.values())) == len(seen)
    assert (origin.agent, origin.kind_reason) == (expected.agent, expected.reason)
    assert origin.kind is (TurnKind.MAIN if expected.reason == "main" else TurnKind.SIDE)
    assert (origin.segment, origin.segment_began) == (expected.segment, expected.began)
    if expected.task is not None:
        assert origin.task == expected.task
    if expected.anchors is not None:
        assert tuple(anchor.index for anchor in origin.anchors) == expected.anchors
    if expected.parent is not None:
        assert seen.setdefault(expected.parent, origin.parent or "") == origin.parent


@pytest.mark.parametrize("client", SEQUENCES)
def test_a_real_client_is_followed_through_its_session(shared: Path, client: str) -> None:
    origins, seen = new_origins(), dict[str, str]()
    for expected in SEQUENCES[client]:
        assert_expected(seen, identify(origins, load(shared, expected.capture)), expected)


def test_all_clients_at_once_are_told_apart(shared: Path) -> None:
    """One request of each client in turn, so that every conversation is interleaved with all the
    others.
    """
    origins, seen = new_origins(), dict[str, str]()
    longest = max(map(len, SEQUENCES.values()))
    for step in range(longest):
        for sequence in SEQUENCES.values():
            if step < len(sequence):
                assert_expected(
                    seen, identify(origins, load(shared, sequence[step].capture)), sequence[step]
                )


@pytest.mark.parametrize("client", ["claude-code", "codex", "openclaw"])
def test_the_chain_alone_follows_a_client_whose_keys_are_taken_away(
    shared: Path, client: str
) -> None:
    """What the client sends as a key is a help, not a crutch: the same conversation is found by its
    prefixes.
    """
    origins = new_origins()
    keys = frozenset(
        (
            "x-claude-code-session-id",
            "session-id",
            "thread-id",
            "x-client-request-id",
            "x-codex-window-id",
        )
    )
    first = SEQUENCES[client][0].session
    sessions = set()
    for expected in (expected for expected in SEQUENCES[client] if expected.session == first):
        capture = load(shared, expected.capture)
        for name in ("metadata", "prompt_cache_key", "client_metadata"):
            capture["body"].pop(name, None)
        body = json.loads(json.dumps(capture["body"]).replace("sessionId=", "session "))
        origin = identify(origins, {**capture, "body": body}, without=keys)
        assert origin.key is None
        sessions.add(origin.session)
    assert len(sessions) == 1


def test_a_retry_of_every_main_request_is_recognised(shared: Path) -> None:
    for sequence in SEQUENCES.values():
        origins = new_origins()
        capture = load(shared, sequence[0].capture)
        headers = {name.lower(): value for name, value in capture["headers"]}
        wire = WIRES[capture["path"].partition("?")[0].removeprefix("/v1").lstrip("/")]
        turn = new_turn_id()
        failed = origins.identify(wire, headers, capture["body"])
        origins.finished(failed, turn, TurnEnd.FAILED)
        retry = origins.identify(wire, headers, capture["body"])
        assert (retry.session, retry.retry_of, retry.segment) == (failed.session, turn, 0)


def test_every_capture_that_is_there_is_understood(shared: Path) -> None:
    origins = new_origins()
    for path in sorted((shared / "captures").glob("*.json")):
        capture = json.loads(path.read_text())
        if isinstance(capture["body"], dict):
            origin = identify(origins, capture)
            assert origin.agent != "unknown", path.name
