"""SGLang as a server of trained weights: the entry point `sglang` of `metaclaw.model_hosts`. It
takes and returns tokens by its own route `/generate`.

It must be started with `--enable-lora --max-lora-rank … --lora-target-modules all`. Written after the
source of SGLang 0.5.23; it was not tried on a server."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.training import (
    HostSettings,
    ModelHost,
    SampleRequest,
    ServerReply,
    TokenPiece,
    token_host,
)

__version__ = "0.1.0"


def connect(settings: HostSettings) -> ModelHost:
    """The entry point."""
    return token_host(settings, SglangRoutes(lambda: settings.vocabulary().end_ids))


class _Change(msgspec.Struct):
    success: bool
    error_message: str | None = None


class _Finish(msgspec.Struct):
    type: str


class _Meta(msgspec.Struct):
    output_token_logprobs: list[tuple[float, int, str | None]] = []
    output_token_logprobs_length: int | None = None
    finish_reason: _Finish | None = None


class _Answer(msgspec.Struct):
    meta_info: _Meta


_one: Final = msgspec.json.Decoder(_Answer)
_several: Final = msgspec.json.Decoder(list[_Answer])


@dataclass(frozen=True, slots=True)
class SglangRoutes:
    """Its routes."""

    end_ids: Callable[[], Collection[int]]

    def load(self, name: str, folder: str) -> tuple[str, Json]:
        """Not pinned: the server may evict it while it is not used."""
        return "/load_lora_adapter", {"lora_name": name, "lora_path": folder, "pinned": False}

    def unload(self, name: str) -> tuple[str, Json]:
        return "/unload_lora_adapter", {"lora_name": name}

    def complaint(self, reply: ServerReply) -> str | None:
        """By the `success` field: the status does not tell whether the request failed."""
        try:
            answer = msgspec.json.decode(reply.text, type=_Change)
        except msgspec.DecodeError:
            return f"{reply.text.strip()[:300] or 'no reason given'} (status {reply.status})"
        return None if answer.success else (answer.error_message or "no reason given")[:300]

    def is_taken(self, complaint: str) -> bool:
        return any(
            words in complaint
            for words in ("it is already loaded", "already exists", "incomplete unload")
        )

    def is_gone(self, complaint: str) -> bool:
        return "does not exist" in complaint

    def draw(self, request: SampleRequest, name: str | None, *, streams: bool) -> tuple[str, Json]:
        sampling: dict[str, Json] = {
            "n": request.count,
            "max_new_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k or -1,
            "sampling_seed": request.seed,
            "stop_token_ids": list[Json](sorted(self.end_ids())),
        }
        return "/generate", {
            "input_ids": list(request.prompt),
            "sampling_params": sampling,
            "return_logprob": True,
            "lora_path": name,
            "stream": streams,
        }

    def read(self, text: str, seen: int) -> list[TokenPiece]:
        """One answer is an object, several are a list. By the server's options an event holds all
        tokens so far or only new ones; their number always counts all."""
        answers = _several.decode(text) if text.lstrip().startswith("[") else [_one.decode(text)]
        return [_piece(answer, seen, number) for number, answer in enumerate(answers)]


def _piece(answer: _Answer, seen: int, index: int) -> TokenPiece:
    meta = answer.meta_info
    tokens = meta.output_token_logprobs
    total = meta.output_token_logprobs_length
    first = 0 if total is None else total - len(tokens)
    new = tokens[max(0, seen - first) :]
    return TokenPiece(
        index,
        tuple(token for _, token, _ in new),
        tuple(logprob for logprob, _, _ in new),
        None if meta.finish_reason is None else meta.finish_reason.type,
    )
