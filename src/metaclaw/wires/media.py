"""Pictures and documents: the same thing said in each wire's words."""

from dataclasses import dataclass

from metaclaw.domain.chat import Json, Opaque
from metaclaw.wires.fields import object_of, text_of
from metaclaw.wires.format import wire_format


def split_data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 text of a data: URL; None for any other URL."""
    head, comma, payload = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[len("data:") : -len(";base64")], payload


def data_url(media_type: str, payload: str) -> str:
    """A data: URL of base64 text."""
    return f"data:{media_type};base64,{payload}"


@dataclass(frozen=True, slots=True)
class Document:
    """A file in a conversation: its bytes in base64, or where they lie, or its plain text."""

    name: str | None
    media_type: str = "application/pdf"
    payload: str | None = None
    url: str | None = None
    text: str | None = None


def read_document(part: Opaque) -> Document | None:
    """The document a part holds, or None if it is something else or lies in the provider's own file store."""
    return wire_format(part.wire).read_document(object_of(part.value))


def file_document(file_data: Json, filename: Json) -> Document | None:
    """A file as OpenAI's wires send it."""
    if not isinstance(file_data, str):
        return None
    media_type, payload = split_data_url(file_data) or ("application/pdf", file_data)
    return Document(text_of(filename) or None, media_type, payload)
