"""A model's name put in place of another, in the client's own bytes."""

import msgspec

from metaclaw.errors import WireError
from metaclaw.proxy.spans import Document, UnsafeBytesError


def replace_model(body: bytes, model: str) -> bytes:
    """The same bytes with another model named in them."""
    try:
        begin, end = Document(body).field("model")
    except (UnsafeBytesError, msgspec.MsgspecError) as error:
        raise WireError(f"the model's name cannot be found in the body: {error}", param="model") from error
    return body[:begin] + msgspec.json.encode(model) + body[end:]
