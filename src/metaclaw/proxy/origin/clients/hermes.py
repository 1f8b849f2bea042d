"""Hermes Agent: no session identifier at all; titles and summaries by a second, tool-less conversation."""

from typing import Final

from metaclaw.proxy.origin.clients.client import Client
from metaclaw.proxy.origin.request import Request

_TITLE: Final = ("You name chat sessions.", "Generate a short, descriptive title")
_SUMMARY: Final = (
    "You are a summarization agent creating a context checkpoint",
    "You are reviewing a past conversation transcript",
)


def _speaks(request: Request) -> bool:
    return "You are Hermes Agent" in request.system[:600] or request.system.startswith((*_TITLE, *_SUMMARY))


def _side(request: Request) -> str | None:
    if request.has_tools:
        return None
    if request.system.startswith(_TITLE):
        return "hermes-title"
    if request.system.startswith(_SUMMARY) or request.last_text.startswith(_SUMMARY):
        return "hermes-summary"
    return None


CLIENT: Final = Client("hermes", _speaks, side=_side)
