"""CoPaw: everything as text-part lists, a set-up text before the user's first words, summaries by a second conversation."""

import re
from typing import Final

from metaclaw.proxy.sessions.clients.client import AgentClient, Request

_BOOTSTRAP: Final = re.compile(
    r"\A# \S{1,4} (?:BOOTSTRAP MODE ACTIVATED|引导模式已激活).*?(?:\*\*Original user message:\*\*|\*\*用户的原始消息：\*\*)\s*",
    re.DOTALL,
)
_SUMMARY: Final = ("You are a context compaction assistant", "你是一个上下文压缩助手", "You are a context summarization assistant")


def _system(text: str) -> bool:
    return "CoPaw" in text or "copaw" in text or ("# AGENTS.md" in text[:200] and "# SOUL.md" in text)


def _side(request: Request) -> str | None:
    return "copaw-summary" if not request.has_tools and request.system.startswith(_SUMMARY) else None


def _words(text: str) -> str:
    return _BOOTSTRAP.sub("", text)


CLIENT: Final = AgentClient("copaw", system=_system, side=_side, words=_words)
