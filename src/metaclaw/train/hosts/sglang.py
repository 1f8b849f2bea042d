"""SGLang as a policy host: a LoRA adapter in PEFT's format is loaded under a name of its own, and asked for as `model:name`.

The server must be started with `--enable-lora --max-lora-rank … --lora-target-modules all`.
"""

from collections.abc import Callable

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.train.hosts.admin import Admin, Said
from metaclaw.train.hosts.loading import LoadingHost, nothing
from metaclaw.train.hosts.naming import name_of


class _Answer(msgspec.Struct):
    success: bool
    error_message: str | None = None


class Sglang:
    """SGLang's routes for adapters."""

    def load(self, name: str, folder: str) -> tuple[str, Json]:
        """Not pinned: the server may move it out of the way while nobody asks for it."""
        return "/load_lora_adapter", {"lora_name": name, "lora_path": folder, "pinned": False}

    def unload(self, name: str) -> tuple[str, Json]:
        """By its name; the server waits for its running answers."""
        return "/unload_lora_adapter", {"lora_name": name}

    def complaint(self, said: Said) -> str | None:
        """The server says whether it succeeded; its status alone does not tell."""
        try:
            answer = msgspec.json.decode(said.text, type=_Answer)
        except msgspec.DecodeError:
            return f"{said.text.strip()[:300] or 'no reason given'} (status {said.status})"
        return None if answer.success else (answer.error_message or "no reason given")[:300]

    def is_taken(self, complaint: str) -> bool:
        """In the words of 0.5.23."""
        return any(words in complaint for words in ("it is already loaded", "already exists", "incomplete unload"))

    def is_gone(self, complaint: str) -> bool:
        """In the words of 0.5.23."""
        return "does not exist" in complaint


def sglang_host(
    base_url: str,
    api_key: str | None = None,
    *,
    keeps: int = 2,
    in_use: Callable[[], frozenset[int]] = nothing,
    timeout_s: float = 120.0,
) -> LoadingHost:
    """A PolicyHost on an SGLang server; `model_of` names a version in requests."""
    return LoadingHost(Admin(base_url, api_key, timeout_s=timeout_s), Sglang(), keeps=keeps, in_use=in_use)


def model_of(base: str) -> Callable[[int], str]:
    """The model to ask for, given the name the server itself goes by."""
    return lambda version: f"{base}:{name_of(version)}"
