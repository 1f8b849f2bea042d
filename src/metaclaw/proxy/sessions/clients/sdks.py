"""Programs that speak through an SDK and show nothing else of themselves."""

from typing import Final

from metaclaw.proxy.sessions.clients.client import Client

CLIENTS: Final = (
    Client("litellm", ({"user-agent": ("litellm",)},)),
    Client("openai-sdk", ({"user-agent": ("OpenAI/", "AsyncOpenAI/")},)),
    Client("anthropic-sdk", ({"user-agent": ("Anthropic/", "AsyncAnthropic/")},)),
)
