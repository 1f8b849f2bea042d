"""SGLang as a server of trained weights: the entry point `sglang` of `metaclaw.model_hosts`. Requests
are relayed to it as text, so what it answers does not train.

It must be started with `--enable-lora --max-lora-rank … --lora-target-modules all`."""

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.training import (
    AdminClient,
    HostSettings,
    LoadingHost,
    ModelHost,
    ServerReply,
    version_name,
)

__version__ = "0.1.0"


def connect(settings: HostSettings) -> ModelHost:
    """A version is asked for as `MODEL:policy-000012`."""
    admin = AdminClient(settings.base_url, settings.api_key)
    host = LoadingHost(admin, SglangRoutes(), in_use=settings.in_use)
    return ModelHost(host, lambda version: f"{settings.model}:{version_name(version)}")


class _SglangAnswer(msgspec.Struct):
    success: bool
    error_message: str | None = None


class SglangRoutes:
    """SGLang's routes for adapters."""

    def load(self, name: str, folder: str) -> tuple[str, Json]:
        """Not pinned: the server may evict it while it is not used."""
        return "/load_lora_adapter", {"lora_name": name, "lora_path": folder, "pinned": False}

    def unload(self, name: str) -> tuple[str, Json]:
        return "/unload_lora_adapter", {"lora_name": name}

    def complaint(self, reply: ServerReply) -> str | None:
        """By the `success` field: the status does not tell whether the request failed."""
        try:
            answer = msgspec.json.decode(reply.text, type=_SglangAnswer)
        except msgspec.DecodeError:
            return f"{reply.text.strip()[:300] or 'no reason given'} (status {reply.status})"
        return None if answer.success else (answer.error_message or "no reason given")[:300]

    def is_taken(self, complaint: str) -> bool:
        """By the messages of SGLang 0.5.23."""
        return any(
            words in complaint
            for words in ("it is already loaded", "already exists", "incomplete unload")
        )

    def is_gone(self, complaint: str) -> bool:
        """By the message of SGLang 0.5.23."""
        return "does not exist" in complaint
