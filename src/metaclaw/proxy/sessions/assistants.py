"""Personal assistants and research agents: how to recognise their requests, and their
peculiarities.
"""

import re
from typing import Final

from metaclaw.proxy.sessions.conversation import (
    AgentClient,
    Request,
    is_heartbeat,
    line_behind,
    line_with_path,
    reason_of,
)

_SESSION: Final = re.compile(r"\bsessionId=([^\s|]{1,200})")
_SUBAGENT: Final = re.compile(r"\bsession=agent:[^\s|]{1,200}:subagent:")
_METADATA: Final = re.compile(
    r"\A[^\n]{1,120}\(untrusted[^\n)]{0,80}\):\s*```(?:json)?\n.*?\n```\s*", re.DOTALL
)
# In newer versions each block about a message has this mark: data about it, or what others said before.
_CONTEXT: Final = re.compile(
    r"\A[^\n]{1,160} ⟦openclaw:ctx⟧[ \t]*\n(?:```json\n.*?\n```|(?:[^\n]+(?:\n|\Z))*)\s*", re.DOTALL
)
_DATE: Final = re.compile(r"\A\[(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[^\]\n]{0,40}\]\s*")
_MESSAGE_ID: Final = re.compile(r"\A\[message_id: [^\]\n]{0,200}\]\s*")
_RUNTIME: Final = re.compile(r"\n\nRuntime: (?:name=[^|\n]{0,200}\| )?agent=[^\n]*")
# The first line of a message in earlier versions: `[Telegram Alice id:7 +5m 2026-11-15 10:00 UTC]`.
_ENVELOPE: Final = re.compile(
    r"\A\[(?!(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b)(MS Teams|Google Chat|Nextcloud Talk|[A-Z]\w{1,30})"
    r" (?:[^\[\]\n]{0,300} )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d[^\[\]\n]{0,40}\]\s*"
)
_CHANNEL: Final = re.compile(r"\| channel=([^|\n]{1,64})")
_CHANNEL_OF_MESSAGE: Final = re.compile(
    r'"schema": "openclaw\.inbound_meta\.v\d+"[^{}]{0,600}?"channel": "([^"\n]{1,64})"'
)
_CRON: Final = re.compile(r"\A\[cron:[^\]\n]{1,200}\]")
_OPENCLAW_MESSAGES: Final = (
    "A new session was started via /new or /reset",
    "A scheduled reminder has been triggered",
    "System: [",
)
_OPENCLAW_PROMPTS: Final = {
    "Pre-compaction memory flush": "memory-flush",
    "Based on this conversation, generate a short 1-2 word filename slug": "openclaw-slug",
}


class OpenClaw(AgentClient):
    """No session header, but a Runtime line in the first message; dated and annotated user
    messages; heartbeats and cron.
    """

    directory_line = line_with_path(
        r"(?<=## Workspace\n)(?:Working directory|Your working directory is): "
    )

    def is_system_text(self, text: str) -> bool:
        head = text[:600]
        return "openclaw:attempt" in head or "running inside OpenClaw" in head

    def text_key(self, request: Request) -> str | None:
        found = _SESSION.search(_runtime_line(request))
        return found[1] if found else None

    def is_subagent(self, request: Request) -> bool:
        return _SUBAGENT.search(_runtime_line(request)) is not None

    def channel(self, request: Request) -> str | None:
        # The client's own lines are behind the files of the workspace.
        for text in reversed(request.conversation.system):
            line = line_behind(text, "Runtime: ", is_last=True) or ""
            if found := _CHANNEL.search(line) or _CHANNEL_OF_MESSAGE.search(text):
                return found[1]
        of_person = _runtime_line(request)
        # With lines behind it, it may be one that the person quotes.
        if "\n" not in of_person and (found := _CHANNEL.search(of_person)):
            return found[1]
        envelope = _ENVELOPE.match(request.prompt)
        return envelope[1] if envelope else None

    def side(self, request: Request) -> str | None:
        # All requests that follow such a prompt are side turns, also if the last entry is a tool's
        # output: hence `prompt`.
        text = _DATE.sub("", request.prompt).lstrip()
        if is_heartbeat(text):
            return "heartbeat"
        return "cron" if _CRON.match(text) else reason_of(_OPENCLAW_PROMPTS, text)

    def words(self, text: str) -> str:
        for _ in range(8):
            shorter = text.lstrip()
            for added in (_METADATA, _CONTEXT, _MESSAGE_ID, _ENVELOPE, _DATE):
                shorter = added.sub("", shorter, count=1)
            if shorter == text:
                break
            text = shorter
        text = _RUNTIME.sub("", text)
        return "" if text.startswith(_OPENCLAW_MESSAGES) or _CRON.match(text) else text


def _runtime_line(request: Request) -> str:
    """The Runtime line of the first user message, behind the person's words, with what follows it;
    empty if there is none.
    """
    chain = request.conversation
    text = chain.text_at(chain.users[0]) if chain.users else ""
    found = list(_RUNTIME.finditer(text))
    return text[found[-1].start() :].strip() if found else ""


# Beginnings of the prompts that Hermes writes as the user. Reviews continue the user's own
# conversation, with its system text and tools.
_HERMES_PROMPTS: Final = {
    "Review the conversation above and consider saving to memory": "hermes-memory",
    "Review the conversation above and update": "hermes-memory",
    "You are running as Hermes' background skill CURATOR": "hermes-skills",
    "[IMPORTANT: You are running as a scheduled cron job": "cron",
}
_HERMES_SYSTEMS: Final = {
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
_HERMES_SUBAGENT: Final = "You are a focused subagent working on a specific delegated task"
_HERMES_MESSAGES: Final = (
    "[Continuing toward your standing goal]",
    "[IMPORTANT: Background process",
    "[IMPORTANT: MCP servers",
    "[IMPORTANT: You are running as a scheduled cron job",
    "[CONTEXT SUMMARY]:",
    "You've reached the maximum number of tool-calling iterations",
)
# The message holds the full text of skills that the user called by name. The user's own words
# follow a single skill, and precede several.
_SKILLS: Final = (
    "[IMPORTANT: The user has invoked ",
    "[IMPORTANT: The user launched ",
    '[IMPORTANT: The "',
)
_BESIDE_ONE: Final = (
    "The user has provided the following instruction alongside the skill invocation: "
)
_BESIDE_SEVERAL: Final = re.compile(
    r"\nUser instruction: (.*?)(?=\n\n\[Loaded as part of the |\Z)", re.DOTALL
)
_NOTES: Final = re.compile(
    r"<memory-context>.*?(?:</memory-context>|\Z)|\[(?:System note|Runtime note|Note: model was"
    r" just switched)[^\]]{0,2000}\]",
    re.DOTALL,
)


class Hermes(AgentClient):
    """No session identifier at all; sub-agents and reviews in the background, titles and judges
    without tools.
    """

    directory_line = line_with_path("Current working directory: ")

    def is_system_text(self, text: str) -> bool:
        return "You are Hermes Agent" in text[:600] or text.startswith(tuple(_HERMES_SYSTEMS))

    def is_subagent(self, request: Request) -> bool:
        # It is behind a long system text, where the rules for unknown clients do not look.
        return any(_HERMES_SUBAGENT in text for text in request.conversation.system)

    def channel(self, request: Request) -> str | None:
        for text in request.conversation.system:
            context = text.partition("## Current Session Context\n")[2]
            if source := line_behind(context, "**Source:** "):
                return source.partition(" (")[0]
        return None

    def side(self, request: Request) -> str | None:
        # All requests that follow such a prompt are side turns, also if the last entry is a tool's
        # output: hence `prompt`.
        reason = reason_of(_HERMES_PROMPTS, request.prompt)
        return (
            reason
            if reason or request.has_tools
            else reason_of(_HERMES_SYSTEMS, request.system, request.last_text)
        )

    def words(self, text: str) -> str:
        if text.startswith(_HERMES_MESSAGES):
            return ""
        if text.startswith(_SKILLS):
            several = _BESIDE_SEVERAL.search(text)
            text = several[1] if several else text.partition(_BESIDE_ONE)[2]
        return _NOTES.sub("", text) if "[" in text or "<" in text else text


_BOOTSTRAP: Final = re.compile(
    r"\A# \S{1,4} (?:BOOTSTRAP MODE ACTIVATED|引导模式已激活).*?(?:\*\*Original user"
    r" message:\*\*|\*\*用户的原始消息：\*\*)\s*"
    r"|\A# (?:BOOTSTRAP MODE|引导模式)\n.*?\n---\n\s*",
    re.DOTALL,
)
_COPAW_SUMMARY: Final = (
    "You are a context compaction assistant",
    "你是一个上下文压缩助手",
    "You are a context summarization assistant",
)


class CoPaw(AgentClient):
    """Everything as text-part lists, a set-up text before the user's first words, summaries by a
    second conversation.
    """

    def is_system_text(self, text: str) -> bool:
        return (
            "CoPaw" in text
            or "copaw" in text
            or ("# AGENTS.md" in text[:200] and "# SOUL.md" in text)
        )

    def channel(self, request: Request) -> str | None:
        lines = (line_behind(text, "- Channel: ") for text in request.conversation.system)
        return next(filter(None, lines), None)

    def side(self, request: Request) -> str | None:
        return (
            "copaw-summary"
            if not request.has_tools and request.system.startswith(_COPAW_SUMMARY)
            else None
        )

    def words(self, text: str) -> str:
        return _BOOTSTRAP.sub("", text)


_RESEARCH_SYSTEMS: Final = {
    "You are a quality reviewer for an automated academic research pipeline": (
        "autoresearchclaw-judge"
    ),
    "You are a skill designer for an AI agent system": "autoresearchclaw-lesson",
}
# Sections that the client appends to a task.
_RESEARCH_NOTES: Final = re.compile(
    r"\n## (?:Lessons from Prior Runs|Learned Skills from Prior Runs|Matched Domain Skills)\b"
)


class AutoResearchClaw(AgentClient):
    """A research pipeline of one-shot calls without any identifier, and a last request that ends a
    session.
    """

    def is_system_text(self, text: str) -> bool:
        return _research_task(text) is not None

    def side(self, request: Request) -> str | None:
        return _research_task(request.system)

    def words(self, text: str) -> str:
        return _RESEARCH_NOTES.split(text, maxsplit=1)[0]


def _research_task(system: str) -> str | None:
    """The reason code of a side turn with this system text, or None. For some models the text
    begins with a demand for JSON.
    """
    is_json = system.startswith("You MUST respond with valid JSON")
    return reason_of(_RESEARCH_SYSTEMS, system.partition("\n\n")[2] if is_json else system)
