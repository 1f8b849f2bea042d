"""Coding agents: how to recognise their requests, and their peculiarities."""

import re
from typing import Final

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.proxy.sessions.conversation import (
    AIDER_FILES,
    AgentClient,
    Helper,
    Request,
    line_with_path,
    reason_of,
    without_reminder,
)

# Beginnings of the last user text. Compaction requests may offer tools.
_CLAUDE_PROMPTS: Final = {
    "CRITICAL: Respond with TEXT ONLY": "claude-code-compaction",
    "Your task is to create a detailed summary of": "claude-code-compaction",
    "[SUGGESTION MODE:": "claude-code-suggestion",
    "Describe your most recent action in 3-5 words": "claude-code-summary",
    "# Dream: Memory Consolidation": "claude-code-memory",
    "You are now acting as the memory extraction subagent": "claude-code-memory",
    "The user stepped away and is coming back": "claude-code-summary",
}
_CLAUDE_SYSTEMS: Final = {
    "Analyze if this message indicates a new conversation topic": "claude-code-title",
    "Generate a concise, sentence-case title": "claude-code-title",
    "Summarize this coding conversation": "claude-code-title",
    "Your task is to process Bash commands": "claude-code-command-prefix",
}
_SESSION_IN_USER_ID: Final = re.compile(r"_session_([A-Za-z0-9-]+)$")
_COMMAND_ARGUMENTS: Final = re.compile(r"<command-args>(.*?)</command-args>", re.DOTALL)


class ClaudeCode(AgentClient):
    """Claude Code and programs on its agent SDK: a session header, sub-agents within the session,
    many side turns.
    """

    # Older versions have the second.
    directory_line = line_with_path(
        "- Primary working directory: ", r"(?<=<env>\n)Working directory: "
    )

    def key(self, request: Request) -> str | None:
        return request.header("x-claude-code-session-id") or None

    def helper(self, request: Request) -> Helper | None:
        agent = request.header("x-claude-code-agent-id")
        return (
            Helper(agent, request.header("x-claude-code-parent-agent-id") or None)
            if agent
            else None
        )

    def side(self, request: Request) -> str | None:
        if _asks_for_title_only(request):
            return "claude-code-title"
        # Test each block, because the instruction may follow a tool's output or the user's own
        # words.
        reason = next(
            filter(None, (reason_of(_CLAUDE_PROMPTS, part) for part in request.last_parts)), None
        )
        if reason or request.has_tools:
            return reason
        if request.last_text.startswith("Web page content:"):
            return "claude-code-web-page"
        return next(
            filter(
                None, (reason_of(_CLAUDE_SYSTEMS, text) for text in request.conversation.system)
            ),
            None,
        )

    def words(self, text: str) -> str:
        arguments = _COMMAND_ARGUMENTS.search(text)
        return arguments[1].strip() if arguments else text


def session_in_user_id(user_id: str) -> str | None:
    """The session inside `metadata.user_id`: a JSON object in newer versions of Claude Code, a
    suffix in older ones.
    """
    if user_id.startswith("{"):
        try:
            inside: Json = msgspec.json.decode(user_id.encode("utf-8", "replace"))
        except (msgspec.DecodeError, RecursionError):
            return None
        session = inside.get("session_id") if isinstance(inside, dict) else None
        return session if isinstance(session, str) and session else None
    return user_id if _SESSION_IN_USER_ID.search(user_id) else None


def _asks_for_title_only(request: Request) -> bool:
    config = request.body.get("output_config")
    form = config.get("format") if isinstance(config, dict) else None
    schema = form.get("schema") if isinstance(form, dict) else None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return isinstance(properties, dict) and properties.keys() == {"title"} and not request.has_tools


_CODEX_COMPACTION: Final = "You are performing a CONTEXT CHECKPOINT COMPACTION"
_CODEX_INSTRUCTIONS: Final = ("# AGENTS.md instructions", "<INSTRUCTIONS>", "<skill>")
_CODEX_HOUSEKEEPERS: Final = {"compact": "codex-compaction", "memory_consolidation": "codex-memory"}


class Codex(AgentClient):
    """Session and thread headers, the kind of each request in its metadata, tools possibly in an
    input item.
    """

    directory_line = line_with_path("<cwd>")

    def key(self, request: Request) -> str | None:
        return (
            request.header("session-id")
            or request.header("session_id")
            or request.header("thread-id")
            or None
        )

    def helper(self, request: Request) -> Helper | None:
        session, thread = self.key(request), request.header("thread-id")
        if not thread or thread == session:
            return None
        parent = request.header("x-codex-parent-thread-id")
        return Helper(thread, parent if parent and parent != session else None)

    def is_subagent(self, request: Request) -> bool:
        # For example a review, which has no thread of its own.
        return bool(request.header("x-openai-subagent"))

    def side(self, request: Request) -> str | None:
        if request.header("x-openai-memgen-request").lower() == "true":
            return "codex-memory"
        if housekeeping := _CODEX_HOUSEKEEPERS.get(request.header("x-openai-subagent")):
            return housekeeping
        metadata = request.header("x-codex-turn-metadata") or request.text(
            "client_metadata", "x-codex-turn-metadata"
        )
        if '"request_kind":"compaction"' in metadata.replace(
            " ", ""
        ) or request.last_text.startswith(_CODEX_COMPACTION):
            return "codex-compaction"
        return None

    def words(self, text: str) -> str:
        return "" if text.startswith(_CODEX_INSTRUCTIONS) else text


_OPENCODE_TITLE: Final = "You are a title generator."
_OPENCODE_COMPACTION: Final = (
    "You are an anchored context summarization assistant",
    "You are a helpful AI assistant tasked with summarizing",
)


class OpenCode(AgentClient):
    """It sends x-session-id (the header we read first), a title request beside the first turn, and
    prompts in quotes.
    """

    directory_line = line_with_path(r"(?<=<env>\n  )Working directory: ")

    def is_system_text(self, text: str) -> bool:
        return text.startswith(("You are opencode", "You are OpenCode", _OPENCODE_TITLE))

    def side(self, request: Request) -> str | None:
        if request.has_tools:
            return None
        if request.system.startswith(_OPENCODE_TITLE) or request.prompt.startswith(
            "Generate a title for this conversation"
        ):
            return "opencode-title"
        is_asked = request.last_text.startswith("Provide a detailed prompt for continuing")
        return (
            "opencode-compaction"
            if is_asked or request.system.startswith(_OPENCODE_COMPACTION)
            else None
        )

    def words(self, text: str) -> str:
        bare = text.strip()
        return (
            bare[1:-1]
            if len(bare) > 1 and bare[0] == bare[-1] == '"' and '"' not in bare[1:-1]
            else text
        )


# Beginnings of the system text or of the last user message.
_QWEN_BEGINNINGS: Final = {
    "You are now acting as the managed memory extraction subagent": "qwen-code-memory",
    "You are performing a managed memory dream": "qwen-code-memory",
    "You are selecting memories that will be useful": "qwen-code-memory",
    "You are reviewing this conversation to extract reusable skills": "qwen-code-skills",
    "You are the component that summarizes internal chat history": "qwen-code-compaction",
    "Analyze *only* the content and structure of your immediately preceding response": (
        "qwen-code-next-speaker"
    ),
    "Generate a concise, sentence-case title": "qwen-code-title",
    "You generate session recaps": "qwen-code-summary",
    "You are an assistant that rewrites raw coding-agent output": "qwen-code-summary",
    "[SUGGESTION MODE:": "qwen-code-suggestion",
}
_QWEN_SUBAGENTS: Final = (
    "You are a forked worker process",
    "You are a general-purpose agent",
    "You are a file search specialist agent",
    "You are a status line setup agent",
)


class QwenCode(AgentClient):
    """No session identifier, a first message that sets up the chat, sub-agents, and many side turns
    with tools.
    """

    # If there are several directories, the first is the one in which it was started.
    directory_line = line_with_path(
        "I'm currently working in the directory: ",
        r"I'm currently working in the following directories:\n  - ",
    )

    def is_system_text(self, text: str) -> bool:
        return text.lstrip().startswith("You are Qwen Code,")

    def is_subagent(self, request: Request) -> bool:
        is_named = request.system.lstrip().startswith(_QWEN_SUBAGENTS)
        return is_named or any("<fork-boilerplate>" in part for part in request.prompt_parts)

    def side(self, request: Request) -> str | None:
        return reason_of(_QWEN_BEGINNINGS, request.system.lstrip(), request.last_text)

    def words(self, text: str) -> str:
        return (
            ""
            if text.startswith("This is the Qwen Code. We are setting up the context for our chat.")
            else text
        )


_GEMINI_BEGINNINGS: Final = {
    "You are a specialized system component responsible for distilling": "gemini-compaction",
    "You are a specialized Task Routing AI": "gemini-routing",
    "You are a diagnostic agent that determines whether": "gemini-loop",
    "You are an expert code-editing assistant": "gemini-edit",
    "Analyze *only* the content and structure of your": "gemini-next-speaker",
    "Summarize the user's primary intent": "gemini-summary",
    "Summarize the following tool output": "gemini-summary",
}


class GeminiCli(AgentClient):
    """No session identifier, and side turns by their text. Its directories are in the first part of
    the first message.
    """

    # If there are several directories, the first is the one in which it was started.
    directory_line = line_with_path(r"- \*\*Workspace Directories:\*\*\n  - ")

    def is_system_text(self, text: str) -> bool:
        return text.lstrip().startswith("You are Gemini CLI,")

    def side(self, request: Request) -> str | None:
        return reason_of(_GEMINI_BEGINNINGS, request.system.lstrip(), request.last_text.lstrip())


_AIDER_MAIN: Final = (
    "Act as an expert software developer",
    "Act as an expert code analyst",
    "Act as an expert software engineer",
    "Act as an expert architect",
)
_AIDER_COMMIT: Final = "one-line Git commit messages"
_AIDER_SUMMARY: Final = (
    "*Briefly* summarize this partial conversation",
    "I spoke to you previously about a number of things",
)
# User messages that aider writes: examples, and files that it moves from request to request.
_AIDER_MESSAGES: Final = (
    "Change the greeting to be more casual",
    "Change get_factorial() to use math.factorial",
    "Refactor hello() into its own file",
    "I switched to a new code base",
    *AIDER_FILES,
)


class Aider(AgentClient):
    """No tools, examples and files as user messages, a reminder behind the prompt, commit messages
    on the side.
    """

    def is_system_text(self, text: str) -> bool:
        return text.startswith((*_AIDER_MAIN, *_AIDER_SUMMARY)) or _AIDER_COMMIT in text[:400]

    def side(self, request: Request) -> str | None:
        if request.has_tools:
            return None
        if _AIDER_COMMIT in request.system[:400]:
            return "aider-commit-message"
        return "aider-summary" if request.system.startswith(_AIDER_SUMMARY) else None

    def words(self, text: str) -> str:
        return "" if text.startswith(_AIDER_MESSAGES) else without_reminder(text)


_ISSUE: Final = re.compile(
    r"\APlease solve this issue: (.*?)(?:\n\nYou can execute bash commands|\Z)", re.DOTALL
)


class MiniSweAgent(AgentClient):
    """The task is between a fixed beginning and fixed instructions."""

    def is_system_text(self, text: str) -> bool:
        return text.startswith("You are a helpful assistant that can interact")

    def words(self, text: str) -> str:
        task = _ISSUE.match(text)
        return task[1] if task else text
