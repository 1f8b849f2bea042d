"""AutoResearchClaw: a research pipeline of one-shot calls without any identifier, and a last request that ends a session."""

from typing import Final

from metaclaw.proxy.origin.clients.client import Client
from metaclaw.proxy.origin.request import Request

_JUDGE: Final = "You are a quality reviewer for an automated academic research pipeline"
_LESSON: Final = "You are a skill designer for an AI agent system"
_OVERLAY: Final = "\n## Learned Skills from Prior Runs"


def is_session_end(request: Request) -> bool:
    """The request by which it says that a run is over; nobody waits for a real answer."""
    return request.body.get("model") == "session-end" and request.prompt.strip().lower() == "session complete"


def _speaks(request: Request) -> bool:
    # A browser's name, but an encoding no browser asks for: the standard library's urllib in disguise.
    disguised = (
        request.header("user-agent").startswith("Mozilla/5.0 (Macintosh") and request.header("accept-encoding") == "identity"
    )
    return disguised or request.header("x-session-id").startswith("arc-") or request.system.startswith((_JUDGE, _LESSON))


def _side(request: Request) -> str | None:
    if request.system.startswith(_JUDGE):
        return "autoresearchclaw-judge"
    return "autoresearchclaw-lesson" if request.system.startswith(_LESSON) else None


def _words(text: str) -> str:
    return text.split(_OVERLAY, 1)[0]


CLIENT: Final = Client("autoresearchclaw", _speaks, side=_side, words=_words)
