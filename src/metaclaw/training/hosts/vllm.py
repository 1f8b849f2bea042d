"""vLLM as a server of trained weights: the entry point `vllm` of `metaclaw.model_hosts`.

It must run with `--enable-lora`, `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True` and room for the versions
that answer at the same time (`--max-loras`). An answer relayed as text could not train, because its
exact tokens are unknown; with `return_token_ids` vLLM sends them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.training.backends.service import SampleRequest
from metaclaw.training.hosts.adapter_server import (
    HostSettings,
    ModelHost,
    ServerReply,
    token_host,
)
from metaclaw.training.hosts.token_model import TokenPiece


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None]


class _Choice(msgspec.Struct):
    index: int = 0
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    error: msgspec.Raw | None = None


_answers: Final = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class VllmRoutes:
    """Its routes, by the messages of vLLM 0.32. `model` is its name for the untrained model."""

    model: str
    end_ids: Callable[[], Collection[int]]

    def load(self, name: str, folder: str) -> tuple[str, Json]:
        return "/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}

    def unload(self, name: str) -> tuple[str, Json]:
        return "/v1/unload_lora_adapter", {"lora_name": name}

    def complaint(self, reply: ServerReply) -> str | None:
        return None if reply.status < 300 else f"{_words(reply.text)} (status {reply.status})"

    def is_taken(self, complaint: str) -> bool:
        return "has already been loaded" in complaint

    def is_gone(self, complaint: str) -> bool:
        return "cannot be found" in complaint

    def draw(self, request: SampleRequest, name: str | None, *, streams: bool) -> tuple[str, Json]:
        # The server draws special tokens like any other, so it must be told which of them end an
        # answer.
        return "/v1/completions", {
            "model": name or self.model,
            "prompt": list(request.prompt),
            "n": request.count,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            # The whole CPU build ends if it reads the prompt of a request with a seed in pieces, so
            # only callers that ask for one get one. What is drawn for training is in the journal.
            "seed": request.seed if streams else None,
            "stop_token_ids": list[Json](sorted(self.end_ids())),
            "logprobs": 0,
            "return_token_ids": True,
            "stream": streams,
        }

    def read(self, text: str, seen: int) -> list[TokenPiece]:
        answer = _answers.decode(text)
        if answer.error is not None:
            raise ValueError(bytes(answer.error).decode(errors="replace")[:300])
        return [
            TokenPiece(
                choice.index,
                tuple(choice.token_ids or ()),
                _known(choice.logprobs),
                choice.finish_reason,
            )
            for choice in answer.choices
        ]


def connect(settings: HostSettings) -> ModelHost:
    """The entry point."""
    return token_host(settings, VllmRoutes(settings.model, lambda: settings.vocabulary().end_ids))


def _known(logprobs: _Logprobs | None) -> tuple[float, ...]:
    values = () if logprobs is None else logprobs.token_logprobs
    return tuple(value for value in values if value is not None)


def _words(text: str) -> str:
    """The message in an error's body. Its place differs between versions of the server."""
    try:
        answer = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.strip()[:300] or "no reason given"
    inner = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = inner.get("message") or inner.get("detail") if isinstance(inner, dict) else inner
    return str(message or answer)[:300]
