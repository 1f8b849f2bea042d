"""Qwen Code: no session identifier, a first message that sets up the chat, sub-agents, and much housekeeping with tools."""

from typing import Final

from metaclaw.proxy.sessions.clients.client import AgentClient, Request

_SETTING_UP: Final = "This is the Qwen Code. We are setting up the context for our chat."
# Beginnings of the system text, or of the last words in a user's place.
_SIDE_BEGINNINGS: Final = {
    "You are now acting as the managed memory extraction subagent": "qwen-code-memory",
    "You are performing a managed memory dream": "qwen-code-memory",
    "You are selecting memories that will be useful": "qwen-code-memory",
    "You are reviewing this conversation to extract reusable skills": "qwen-code-skills",
    "You are the component that summarizes internal chat history": "qwen-code-compaction",
    "Analyze *only* the content and structure of your immediately preceding response": "qwen-code-next-speaker",
    "Generate a concise, sentence-case title": "qwen-code-title",
    "You generate session recaps": "qwen-code-summary",
    "You are an assistant that rewrites raw coding-agent output": "qwen-code-summary",
    "[SUGGESTION MODE:": "qwen-code-suggestion",
}
_SUBAGENT_SYSTEMS: Final = (
    "You are a forked worker process",
    "You are a general-purpose agent",
    "You are a file search specialist agent",
    "You are a status line setup agent",
)
_HEADERS: Final = ({"user-agent": ("QwenCode/",)},)
_FORK: Final = "<fork-boilerplate>"


def _system(text: str) -> bool:
    return text.lstrip().startswith("You are Qwen Code,")


def _side(request: Request) -> str | None:
    beginnings = (request.system.lstrip(), request.last_text)
    return next((reason for words, reason in _SIDE_BEGINNINGS.items() if any(one.startswith(words) for one in beginnings)), None)


def _is_subagent(request: Request) -> bool:
    return request.system.lstrip().startswith(_SUBAGENT_SYSTEMS) or any(_FORK in part for part in request.prompt_parts)


def _words(text: str) -> str:
    return "" if text.startswith(_SETTING_UP) else text


CLIENT: Final = AgentClient(
    "qwen-code", ({"user-agent": ("QwenCode/",)},), _system, is_subagent=_is_subagent, side=_side, words=_words
)
