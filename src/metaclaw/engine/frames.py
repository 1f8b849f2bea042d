"""What the program and its engine process say to each other: msgpack messages, each behind its length."""

from typing import Final, TypeAlias

import msgspec

from metaclaw.engine.pipe import pack as pack


class Generate(msgspec.Struct, tag="generate", frozen=True):
    """Answer this with the weights of `version`. `beginning` is text the answer must begin with; it belongs to the prompt."""

    id: int
    turns: list[tuple[str, str]]
    beginning: str = ""
    version: int = 0
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    stop: list[str] = []
    top_logprobs: int | None = None


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """Cancel the request."""

    id: int


class Load(msgspec.Struct, tag="load", frozen=True):
    """Make a version ready beside the others: the model with the adapter in this folder (PEFT's format)."""

    id: int
    version: int
    adapter: str


class Unload(msgspec.Struct, tag="unload", frozen=True):
    """Let a version go: it takes no more requests, and is gone when those it has are answered."""

    version: int


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """How far the engine is with starting."""

    stage: str
    share: float


class EngineReady(msgspec.Struct, tag="ready", frozen=True):
    """The engine answers from now on."""

    context_tokens: int
    slots: int


class StartFailed(msgspec.Struct, tag="broken", frozen=True):
    """The engine cannot start, and trying again will not help."""

    message: str


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    """A version answers from now on."""

    id: int


class NotLoaded(msgspec.Struct, tag="not_loaded", frozen=True):
    """A version cannot be used; everything else is as it was. Without an id it was to be there from the beginning."""

    id: int | None
    version: int
    message: str


class Unloaded(msgspec.Struct, tag="unloaded", frozen=True):
    """A version and its memory are gone."""

    version: int


class Accepted(msgspec.Struct, tag="accepted", frozen=True):
    """A request has been understood and waits its turn."""

    id: int
    prompt_tokens: int


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A request cannot be answered; its sender must change it."""

    id: int
    message: str
    code: str
    param: str | None = None


class Unserved(msgspec.Struct, tag="unserved", frozen=True):
    """A request names a version that is not loaded; no other weights answer in its place."""

    id: int
    message: str


class Shown(msgspec.Struct, tag="shown", frozen=True, array_like=True):
    """A drawn token as text, for callers who want log-probabilities."""

    token: str
    logprob: float
    top: list[tuple[str, float]]


class Piece(msgspec.Struct, tag="piece", frozen=True):
    """More of an answer."""

    id: int
    text: str
    shown: list[Shown] = []


class Finished(msgspec.Struct, tag="finished", frozen=True):
    """An answer is whole: exactly what the model saw and drew."""

    id: int
    at_length: bool
    stop_sequence: str | None
    prompt_ids: list[int]
    sampled_ids: list[int]
    logprobs: list[float]
    cached_tokens: int


ToEngine: TypeAlias = Generate | Cancel | Load | Unload
Told: TypeAlias = Accepted | Refused | Unserved | Piece | Finished
"""What concerns one request."""
FromEngine: TypeAlias = Progress | EngineReady | StartFailed | Loaded | NotLoaded | Unloaded | Told

to_engine: Final = msgspec.msgpack.Decoder(ToEngine)
from_engine: Final = msgspec.msgpack.Decoder(FromEngine)
