"""The known clients. A new one is a new file with an `AgentClient`, and its entry in `CLIENTS`."""

from typing import Final

from metaclaw.proxy.sessions.clients import (
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

# The first that recognises a request counts. SDKs, which many programs are built on, come last.
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
    *sdks.CLIENTS,
)
