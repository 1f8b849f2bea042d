"""A scripted embedding model behind `/v1/embeddings`. Its vectors count words, and words of one
meaning are one dimension.
"""

import asyncio
import json
import zlib
from typing import Any

from tests.support.provider import Json, Provider, Seen, _json

DIMENSIONS = 256
_MEANINGS = (
    ("trip", "hotel", "sleep", "travel", "journey", "lodging"),
    ("book", "reserve", "find", "arrange"),
)
_SAME = {word: f"meaning {number}" for number, words in enumerate(_MEANINGS) for word in words}


def toy_vector(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Many texts share a little, as with real models: the first dimension is common to all."""
    vector = [0.0] * dimensions
    vector[0] = 0.3
    for word in text.lower().replace(",", " ").replace("?", " ").split():
        same = _SAME.get(word)
        vector[1 + zlib.crc32((same or word).encode()) % (dimensions - 1)] += 3.0 if same else 1.0
    return vector


class EmbeddingProvider(Provider):
    """The scripted provider with embeddings. `embedding_status` other than 200 fails;
    `embedding_delay_s` is waited before each.
    """

    embedding_status = 200
    embedding_delay_s = 0.0
    most_texts = 1_000

    @property
    def embedded(self) -> list[Json]:
        """The embedding requests so far."""
        return [seen.json for seen in list(self.requests) if seen.path.endswith("/embeddings")]

    async def _answer(self, seen: Seen, receive: Any, send: Any) -> None:
        if not seen.path.endswith("/embeddings"):
            await super()._answer(seen, receive, send)
            return
        texts = json.loads(seen.body)["input"]
        await asyncio.sleep(self.embedding_delay_s)
        status = 400 if len(texts) > self.most_texts else self.embedding_status
        if status != 200:
            await _json(
                send, status, {"error": {"message": "no embeddings today", "type": "server_error"}}
            )
            return
        data = [
            {"object": "embedding", "index": at, "embedding": toy_vector(text)}
            for at, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        await _json(
            send, 200, {"object": "list", "data": data[::-1], "model": "toy", "usage": usage}
        )
