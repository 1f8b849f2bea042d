"""vLLM as a policy host: a LoRA adapter in PEFT's format is loaded under a name of its own, and asked for as a model.

The server must be started with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`, and with room for the versions that
answer at the same time (`--max-loras`).
"""

from collections.abc import Callable

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.train.hosts.admin import Admin, Said
from metaclaw.train.hosts.loading import LoadingHost, nothing
from metaclaw.train.hosts.naming import name_of


class Vllm:
    """vLLM's routes for adapters."""

    def load(self, name: str, folder: str) -> tuple[str, Json]:
        """Without `load_inplace`: a name is never given to other weights."""
        return "/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}

    def unload(self, name: str) -> tuple[str, Json]:
        """By its name."""
        return "/v1/unload_lora_adapter", {"lora_name": name}

    def complaint(self, said: Said) -> str | None:
        """The error's own words."""
        return None if said.status < 300 else f"{_words(said.text)} (status {said.status})"

    def is_taken(self, complaint: str) -> bool:
        """In the words of 0.32."""
        return "has already been loaded" in complaint

    def is_gone(self, complaint: str) -> bool:
        """In the words of 0.32."""
        return "cannot be found" in complaint


def vllm_host(
    base_url: str,
    api_key: str | None = None,
    *,
    keeps: int = 2,
    in_use: Callable[[], frozenset[int]] = nothing,
    timeout_s: float = 120.0,
) -> LoadingHost:
    """A PolicyHost on a vLLM server; `model_of` names a version in requests."""
    return LoadingHost(Admin(base_url, api_key, timeout_s=timeout_s), Vllm(), keeps=keeps, in_use=in_use)


def model_of(version: int) -> str:
    """The model to ask for."""
    return name_of(version)


def _words(text: str) -> str:
    """The message of an error, wherever this version of the server puts it."""
    try:
        answer = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.strip()[:300] or "no reason given"
    inner = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = inner.get("message") or inner.get("detail") if isinstance(inner, dict) else inner
    return str(message or answer)[:300]
