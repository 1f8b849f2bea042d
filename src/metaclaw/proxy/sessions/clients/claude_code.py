"""Claude Code (and what is built on its agent SDK): a session header, sub-agents within the session, much housekeeping."""

import re
from typing import Final

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.proxy.sessions.clients.client import AgentClient, Helper, Request

# Beginnings of the last user text. Compaction keeps its tools, so tools tell nothing here.
_SIDE_BEGINNINGS: Final = {
    "CRITICAL: Respond with TEXT ONLY": "claude-code-compaction",
    "Your task is to create a detailed summary of": "claude-code-compaction",
    "[SUGGESTION MODE:": "claude-code-suggestion",
    "Describe your most recent action in 3-5 words": "claude-code-summary",
    "# Dream: Memory Consolidation": "claude-code-memory",
    "You are now acting as the memory extraction subagent": "claude-code-memory",
    "The user stepped away and is coming back": "claude-code-summary",
}
_SIDE_SYSTEMS: Final = {
    "Analyze if this message indicates a new conversation topic": "claude-code-title",
    "Generate a concise, sentence-case title": "claude-code-title",
    "Summarize this coding conversation": "claude-code-title",
    "Your task is to process Bash commands": "claude-code-command-prefix",
}
_SESSION_IN_USER_ID: Final = re.compile(r"_session_([A-Za-z0-9-]+)$")
_ARGUMENTS: Final = re.compile(r"<command-args>(.*?)</command-args>", re.DOTALL)


def _key(request: Request) -> str | None:
    return request.header("x-claude-code-session-id") or None


def _helper(request: Request) -> Helper | None:
    agent = request.header("x-claude-code-agent-id")
    return Helper(agent, request.header("x-claude-code-parent-agent-id") or None) if agent else None


def session_in_user_id(user_id: str) -> str | None:
    """The session inside `metadata.user_id`: a JSON object in newer versions, a suffix in older ones."""
    if user_id.startswith("{"):
        try:
            inside: Json = msgspec.json.decode(user_id.encode("utf-8", "replace"))
        except (msgspec.DecodeError, RecursionError):
            return None
        session = inside.get("session_id") if isinstance(inside, dict) else None
        return session if isinstance(session, str) and session else None
    return user_id if _SESSION_IN_USER_ID.search(user_id) else None


def _side(request: Request) -> str | None:
    if _asks_for_title_only(request):
        return "claude-code-title"
    # Each block by itself: the instruction may stand behind a tool's output or the user's own words.
    for part in request.last_parts:
        for beginning, reason in _SIDE_BEGINNINGS.items():
            if part.startswith(beginning):
                return reason
    return None if request.has_tools else _toolless_side(request)


def _toolless_side(request: Request) -> str | None:
    if request.last_text.startswith("Web page content:"):
        return "claude-code-web-page"
    for text in request.conversation.system:
        for beginning, reason in _SIDE_SYSTEMS.items():
            if text.startswith(beginning):
                return reason
    return None


def _asks_for_title_only(request: Request) -> bool:
    config = request.body.get("output_config")
    form = config.get("format") if isinstance(config, dict) else None
    schema = form.get("schema") if isinstance(form, dict) else None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return isinstance(properties, dict) and properties.keys() == {"title"} and not request.has_tools


def _words(text: str) -> str:
    arguments = _ARGUMENTS.search(text)
    return arguments[1].strip() if arguments else text


_HEADERS: Final = ({"x-claude-code-session-id": ("",)}, {"user-agent": ("claude-cli/",)})

CLIENT: Final = AgentClient("claude-code", _HEADERS, key=_key, helper=_helper, side=_side, words=_words)
