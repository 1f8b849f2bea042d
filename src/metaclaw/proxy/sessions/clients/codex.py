"""Codex: session and thread headers, the kind of each request in its metadata, tools that may travel as an input item."""

from typing import Final

from metaclaw.proxy.sessions.clients.client import AgentClient, Helper, Request

_HEADERS: Final = (
    {"x-codex-turn-metadata": ("",)},
    {"originator": ("codex",)},
    {"user-agent": ("codex_", "codex-", "codex/")},
)
_COMPACTION: Final = ("You are performing a CONTEXT CHECKPOINT COMPACTION",)
_INSTRUCTIONS: Final = ("# AGENTS.md instructions", "<INSTRUCTIONS>", "<skill>")
_HOUSEKEEPERS: Final = {"compact": "codex-compaction", "memory_consolidation": "codex-memory"}


def _key(request: Request) -> str | None:
    return request.header("session-id") or request.header("session_id") or request.header("thread-id") or None


def _helper(request: Request) -> Helper | None:
    session, thread = _key(request), request.header("thread-id")
    if not thread or thread == session:
        return None
    parent = request.header("x-codex-parent-thread-id")
    return Helper(thread, parent if parent and parent != session else None)


def _side(request: Request) -> str | None:
    if request.header("x-openai-memgen-request").lower() == "true":
        return "codex-memory"
    housekeeping = _HOUSEKEEPERS.get(request.header("x-openai-subagent"))
    if housekeeping:
        return housekeeping
    metadata = request.header("x-codex-turn-metadata") or request.text("client_metadata", "x-codex-turn-metadata")
    if '"request_kind":"compaction"' in metadata.replace(" ", "") or request.last_text.startswith(_COMPACTION):
        return "codex-compaction"
    return None


def _is_subagent(request: Request) -> bool:
    # A review, say, that has no thread of its own.
    return bool(request.header("x-openai-subagent"))


def _words(text: str) -> str:
    return "" if text.startswith(_INSTRUCTIONS) else text


CLIENT: Final = AgentClient("codex", _HEADERS, key=_key, helper=_helper, is_subagent=_is_subagent, side=_side, words=_words)
