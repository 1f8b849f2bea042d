"""Hermes Agent: no session identifier at all; sub-agents and reviews in the background, titles and judges without tools."""

import re
from typing import Final

from metaclaw.proxy.sessions.clients.client import AgentClient, Request

# Beginnings of what it says in a person's place. Reviews go on from the person's own conversation, with its system text and tools.
_SIDE_PROMPTS: Final = {
    "Review the conversation above and consider saving to memory": "hermes-memory",
    "Review the conversation above and update": "hermes-memory",
    "You are running as Hermes' background skill CURATOR": "hermes-skills",
    "[IMPORTANT: You are running as a scheduled cron job": "cron",
}
_SIDE_SYSTEMS: Final = {
    "You name chat sessions.": "hermes-title",
    "Generate a short, descriptive title": "hermes-title",
    "You are a summarization agent creating a context checkpoint": "hermes-summary",
    "You are reviewing a past conversation transcript": "hermes-summary",
    "You are a reference advisor in a Mixture of Agents": "hermes-advisor",
    "You are a strict judge evaluating whether an autonomous agent": "hermes-judge",
    "You turn a user's plain-language objective into": "hermes-goal",
    "You are the Kanban ": "hermes-kanban",
    "You are a profile-describer for the Hermes Agent": "hermes-kanban",
}
_SUBAGENT: Final = "You are a focused subagent working on a specific delegated task"
_PROGRAM: Final = (
    "[Continuing toward your standing goal]",
    "[IMPORTANT: Background process",
    "[IMPORTANT: MCP servers",
    "[IMPORTANT: You are running as a scheduled cron job",
    "[CONTEXT SUMMARY]:",
    "You've reached the maximum number of tool-calling iterations",
)
# Skills that a person called by name stand there whole; what they said beside the name stands behind one, and before several.
_SKILLS: Final = ("[IMPORTANT: The user has invoked ", "[IMPORTANT: The user launched ", '[IMPORTANT: The "')
_BESIDE_ONE: Final = "The user has provided the following instruction alongside the skill invocation: "
_BESIDE_SEVERAL: Final = re.compile(r"\nUser instruction: (.*?)(?=\n\n\[Loaded as part of the |\Z)", re.DOTALL)
_NOTES: Final = re.compile(
    r"<memory-context>.*?(?:</memory-context>|\Z)|\[(?:System note|Runtime note|Note: model was just switched)[^\]]{0,2000}\]",
    re.DOTALL,
)


def _system(text: str) -> bool:
    return "You are Hermes Agent" in text[:600] or text.startswith(tuple(_SIDE_SYSTEMS))


def _side(request: Request) -> str | None:
    # The whole run of such a prompt is housekeeping, also when its last entry is a tool's output: hence `prompt`.
    prompt = request.prompt
    for beginning, reason in _SIDE_PROMPTS.items():
        if prompt.startswith(beginning):
            return reason
    if request.has_tools:
        return None
    texts = (request.system, request.last_text)
    return next((reason for words, reason in _SIDE_SYSTEMS.items() if any(text.startswith(words) for text in texts)), None)


def _is_subagent(request: Request) -> bool:
    # Behind its own long system text, so further down than the rules for unknown clients look.
    return any(_SUBAGENT in text for text in request.conversation.system)


def _words(text: str) -> str:
    if text.startswith(_PROGRAM):
        return ""
    if text.startswith(_SKILLS):
        several = _BESIDE_SEVERAL.search(text)
        text = several[1] if several else text.partition(_BESIDE_ONE)[2]
    return _NOTES.sub("", text) if "[" in text or "<" in text else text


CLIENT: Final = AgentClient("hermes", system=_system, is_subagent=_is_subagent, side=_side, words=_words)
