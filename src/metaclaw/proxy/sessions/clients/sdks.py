"""Programs that speak through an SDK and show nothing else of themselves."""

from typing import Final

from metaclaw.proxy.sessions.clients.client import AgentClient

CLIENTS: Final = (
    AgentClient("litellm", ({"user-agent": ("litellm",)},)),
    AgentClient("openai-sdk", ({"user-agent": ("OpenAI/", "AsyncOpenAI/")},)),
    AgentClient("anthropic-sdk", ({"user-agent": ("Anthropic/", "AsyncAnthropic/")},)),
)
