"""Messages between the program and the embedding process."""

from typing import Final, TypeAlias

import msgspec

from metaclaw.engine.frames import pack as pack


class Put(msgspec.Struct, tag="put", frozen=True):
    """Index these texts under a name, in place of its earlier texts."""

    name: str
    scope: str
    kind: str
    texts: list[str]


class Drop(msgspec.Struct, tag="drop", frozen=True):
    """Forget a name and its texts, in memory and on disk."""

    name: str


class Whole(msgspec.Struct, tag="whole", frozen=True):
    """The whole library has been sent: vectors of other texts may be removed from the file."""


class NearestQuery(msgspec.Struct, tag="ask", frozen=True):
    """Which names in these scopes are nearest to a text? `vector` is set if a provider computed
    it.
    """

    id: int
    text: str
    scopes: list[str]
    limit: int
    vector: bytes = b""


class Vectors(msgspec.Struct, tag="vectors", frozen=True):
    """Vectors from a provider, as float32, for texts that were missing."""

    texts: list[str]
    vectors: list[bytes]


class ModelReady(msgspec.Struct, tag="ready", frozen=True):
    """The model is loaded."""


class LoadFailed(msgspec.Struct, tag="broken", frozen=True):
    """The model cannot be loaded, and trying again will not help."""

    message: str


class IndexProgress(msgspec.Struct, tag="pending", frozen=True):
    """How many texts still wait to be indexed."""

    texts: int


class MissingVectors(msgspec.Struct, tag="missing", frozen=True):
    """Texts whose vectors a provider must compute."""

    texts: list[str]


class Near(msgspec.Struct, tag="near", frozen=True):
    """The nearest names, and the similarity to the most similar ordinary request. `is_known` is
    False if vectors are missing.
    """

    id: int
    similar: list[tuple[str, float]]
    background: float
    is_known: bool = True


ToModel: TypeAlias = Put | Drop | Whole | NearestQuery | Vectors
FromModel: TypeAlias = ModelReady | LoadFailed | IndexProgress | MissingVectors | Near

to_model: Final = msgspec.msgpack.Decoder(ToModel)
from_model: Final = msgspec.msgpack.Decoder(FromModel)
