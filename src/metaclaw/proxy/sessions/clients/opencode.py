"""opencode: its own x-session-id (so our header is already there), a title request beside the first turn, prompts in quotes."""

from typing import Final

from metaclaw.proxy.sessions.clients.client import AgentClient, Request

_HEADERS: Final = ({"x-session-affinity": ("",)}, {"user-agent": ("opencode",)})
_TITLE: Final = "You are a title generator."
_COMPACTION: Final = (
    "You are an anchored context summarization assistant",
    "You are a helpful AI assistant tasked with summarizing",
)


def _system(text: str) -> bool:
    return text.startswith(("You are opencode", "You are OpenCode", _TITLE))


def _side(request: Request) -> str | None:
    if request.has_tools:
        return None
    if request.system.startswith(_TITLE) or request.prompt.startswith("Generate a title for this conversation"):
        return "opencode-title"
    if request.system.startswith(_COMPACTION) or request.last_text.startswith("Provide a detailed prompt for continuing"):
        return "opencode-compaction"
    return None


def _words(text: str) -> str:
    bare = text.strip()
    return bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] == '"' and '"' not in bare[1:-1] else text


CLIENT: Final = AgentClient("opencode", _HEADERS, _system, side=_side, words=_words)
