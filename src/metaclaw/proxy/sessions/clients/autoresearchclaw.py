"""AutoResearchClaw: a research pipeline of one-shot calls without any identifier, and a last request that ends a session."""

import re
from typing import Final

from metaclaw.proxy.sessions.clients.client import AgentClient, Request

_JUDGE: Final = "You are a quality reviewer for an automated academic research pipeline"
_LESSON: Final = "You are a skill designer for an AI agent system"
# To models of some names it says this before anything else when it wants JSON.
_JSON_ONLY: Final = "You MUST respond with valid JSON"
# What it puts behind a task by itself, in this order, as far as a version has it.
_OVERLAY: Final = re.compile(r"\n## (?:Lessons from Prior Runs|Learned Skills from Prior Runs|Matched Domain Skills)\b")


# A browser's name, but an encoding that no browser asks for: the standard library's urllib in disguise.
_DISGUISED: Final = {"user-agent": ("Mozilla/5.0 (Macintosh",), "accept-encoding": ("identity",)}


def _side(request: Request) -> str | None:
    return _task(request.system)


def _task(system: str) -> str | None:
    """The side task that this system text is for."""
    if system.startswith(_JSON_ONLY):
        system = system.partition("\n\n")[2]
    if system.startswith(_JUDGE):
        return "autoresearchclaw-judge"
    return "autoresearchclaw-lesson" if system.startswith(_LESSON) else None


def _words(text: str) -> str:
    return _OVERLAY.split(text, maxsplit=1)[0]


def _system(text: str) -> bool:
    return _task(text) is not None


CLIENT: Final = AgentClient("autoresearchclaw", (_DISGUISED, {"x-session-id": ("arc-",)}), _system, side=_side, words=_words)
