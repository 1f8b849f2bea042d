"""The clients we know, in the order in which they are asked. A new agent is one new file and one line here."""

from typing import Final

from metaclaw.proxy.origin.clients import (
    aider,
    autoresearchclaw,
    claude_code,
    codex,
    copaw,
    hermes,
    mini_swe_agent,
    openclaw,
    opencode,
    qwen_code,
    sdks,
)
from metaclaw.proxy.origin.clients.client import Client, Helper
from metaclaw.proxy.origin.request import Request

__all__ = ["CLIENTS", "Client", "Helper", "Recogniser"]

# Those that name themselves in a header come first, then those that only their system text gives away, then the SDKs.
CLIENTS: Final = (
    claude_code.CLIENT,
    codex.CLIENT,
    opencode.CLIENT,
    qwen_code.CLIENT,
    autoresearchclaw.CLIENT,
    openclaw.CLIENT,
    hermes.CLIENT,
    aider.CLIENT,
    mini_swe_agent.CLIENT,
    copaw.CLIENT,
    sdks.LITELLM,
    sdks.OPENAI,
    sdks.ANTHROPIC,
)


# Headers by which a client names itself, whatever its system text.
_TELLING: Final = frozenset(
    ("x-claude-code-session-id", "x-codex-turn-metadata", "originator", "x-session-affinity", "x-session-done")
)
_MAX_KNOWN: Final = 1024


class Recogniser:
    """Finds the family a request comes from. Asks every file once for each program and system text, then remembers."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bytes], Client] = {}

    def recognise(self, request: Request) -> Client:
        """The family this request comes from."""
        headers = request.headers
        if not _TELLING.isdisjoint(headers):
            return _ask_all(request)
        mark = (headers.get("user-agent", ""), headers.get("accept-encoding", ""), request.conversation.root)
        known = self._known.get(mark)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[mark] = _ask_all(request)
        return known


def _ask_all(request: Request) -> Client:
    for client in CLIENTS:
        if client.speaks(request):
            return client
    return sdks.UNKNOWN
