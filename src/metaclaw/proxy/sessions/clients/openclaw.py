"""OpenClaw: no session header, but a Runtime line in the first message; dated and annotated user messages; heartbeats and cron."""

import re
from typing import Final

from metaclaw.proxy.sessions.clients.client import AgentClient, Request
from metaclaw.proxy.sessions.conversation import is_heartbeat

_SESSION: Final = re.compile(r"\bsessionId=([^\s|]{1,200})")
_SUBAGENT: Final = re.compile(r"\bsession=agent:[^\s|]{1,200}:subagent:")
_METADATA: Final = re.compile(r"\A[^\n]{1,120}\(untrusted[^\n)]{0,80}\):\s*```(?:json)?\n.*?\n```\s*", re.DOTALL)
_DATE: Final = re.compile(r"\A\[(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[^\]\n]{0,40}\]\s*")
_MESSAGE_ID: Final = re.compile(r"\A\[message_id: [^\]\n]{0,200}\]\s*")
_RUNTIME: Final = re.compile(r"\n\nRuntime: agent=[^\n]*")
_CRON: Final = re.compile(r"\A\[cron:[^\]\n]{1,200}\]")
_STARTUP: Final = ("A new session was started via /new or /reset", "A scheduled reminder has been triggered", "System: [")


def _system(text: str) -> bool:
    head = text[:600]
    return "openclaw:attempt" in head or "running inside OpenClaw" in head


def _runtime(request: Request) -> str:
    """What the first message says about who runs where."""
    spoken = request.conversation
    text = spoken.text_at(spoken.users[0]) if spoken.users else ""
    at = text.rfind("Runtime: agent=")
    return text[at:] if at >= 0 else ""


def _text_key(request: Request) -> str | None:
    found = _SESSION.search(_runtime(request))
    return found[1] if found else None


def _is_subagent(request: Request) -> bool:
    return _SUBAGENT.search(_runtime(request)) is not None


def _side(request: Request) -> str | None:
    # The whole run of such a prompt is housekeeping, also when its last entry is a tool's output: hence `prompt`.
    text = _DATE.sub("", request.prompt).lstrip()
    if is_heartbeat(text):
        return "heartbeat"
    if text.startswith("Pre-compaction memory flush"):
        return "memory-flush"
    if _CRON.match(text):
        return "cron"
    if text.startswith("Based on this conversation, generate a short 1-2 word filename slug"):
        return "openclaw-slug"
    return None


def _words(text: str) -> str:
    for _ in range(8):
        shorter = text.lstrip()
        for glued in (_METADATA, _MESSAGE_ID, _DATE):
            shorter = glued.sub("", shorter, count=1)
        if shorter == text:
            break
        text = shorter
    text = _RUNTIME.sub("", text)
    return "" if text.startswith(_STARTUP) or _CRON.match(text) else text


CLIENT: Final = AgentClient("openclaw", system=_system, text_key=_text_key, is_subagent=_is_subagent, side=_side, words=_words)
