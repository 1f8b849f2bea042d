"""AutoResearchClaw: a research pipeline of one-shot calls without any identifier, and a last request that ends a session."""

import re
from typing import Final

from metaclaw.proxy.origin.clients.client import Client
from metaclaw.proxy.origin.request import Request

_JUDGE: Final = "You are a quality reviewer for an automated academic research pipeline"
_LESSON: Final = "You are a skill designer for an AI agent system"
# To models of some names it says this before anything else when it wants JSON.
_JSON_ONLY: Final = "You MUST respond with valid JSON"
# What it puts behind a task by itself, in this order, as far as a version has it.
_OVERLAY: Final = re.compile(r"\n## (?:Lessons from Prior Runs|Learned Skills from Prior Runs|Matched Domain Skills)\b")


def is_session_end(request: Request) -> bool:
    """The request by which it says that a run is over; nobody waits for a real answer."""
    return request.body.get("model") == "session-end" and request.prompt.strip().lower() == "session complete"


def _speaks(request: Request) -> bool:
    # A browser's name, but an encoding no browser asks for: the standard library's urllib in disguise.
    disguised = (
        request.header("user-agent").startswith("Mozilla/5.0 (Macintosh") and request.header("accept-encoding") == "identity"
    )
    return disguised or request.header("x-session-id").startswith("arc-") or _side(request) is not None


def _side(request: Request) -> str | None:
    system = request.system
    if system.startswith(_JSON_ONLY):
        system = system.partition("\n\n")[2]
    if system.startswith(_JUDGE):
        return "autoresearchclaw-judge"
    return "autoresearchclaw-lesson" if system.startswith(_LESSON) else None


def _words(text: str) -> str:
    return _OVERLAY.split(text, maxsplit=1)[0]


CLIENT: Final = Client("autoresearchclaw", _speaks, side=_side, words=_words)
