"""What the program and the embedding process say to each other: msgpack messages, each behind its length."""

from typing import Final, TypeAlias

import msgspec

from metaclaw.engine.pipe import framed


class Put(msgspec.Struct, tag="put", frozen=True):
    """Index these texts under a name, in place of any others it has."""

    name: str
    scope: str
    kind: str
    texts: list[str]


class Drop(msgspec.Struct, tag="drop", frozen=True):
    """Forget a name and its texts, in memory and on disk."""

    name: str


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """Which names in these scopes are nearest to a text?"""

    id: int
    text: str
    scopes: list[str]
    limit: int


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The model is loaded."""


class Broken(msgspec.Struct, tag="broken", frozen=True):
    """The model cannot be loaded, and trying again will not help."""

    message: str


class Pending(msgspec.Struct, tag="pending", frozen=True):
    """How many texts still wait to be indexed."""

    texts: int


class Near(msgspec.Struct, tag="near", frozen=True):
    """The nearest names, and the similarity to the most similar ordinary request."""

    id: int
    similar: list[tuple[str, float]]
    background: float


ToModel: TypeAlias = Put | Drop | Ask
FromModel: TypeAlias = Ready | Broken | Pending | Near

_encoder = msgspec.msgpack.Encoder()
to_model: Final = msgspec.msgpack.Decoder(ToModel)
from_model: Final = msgspec.msgpack.Decoder(FromModel)


def pack(message: ToModel | FromModel) -> bytes:
    """The message as bytes on the pipe."""
    return framed(_encoder.encode(message))
