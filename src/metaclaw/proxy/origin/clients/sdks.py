"""Programs that speak through an SDK and show nothing else of themselves."""

from typing import Final

from metaclaw.proxy.origin.clients.client import Client
from metaclaw.proxy.origin.request import Request


def _litellm(request: Request) -> bool:
    return request.header("user-agent").startswith("litellm")


def _openai(request: Request) -> bool:
    return request.header("user-agent").startswith(("OpenAI/", "AsyncOpenAI/"))


def _anthropic(request: Request) -> bool:
    return request.header("user-agent").startswith(("Anthropic/", "AsyncAnthropic/"))


def _anyone(_: Request) -> bool:
    return True


LITELLM: Final = Client("litellm", _litellm)
OPENAI: Final = Client("openai-sdk", _openai)
ANTHROPIC: Final = Client("anthropic-sdk", _anthropic)
UNKNOWN: Final = Client("unknown", _anyone)
