"""Pictures and documents: the same thing said in each wire's words."""

import base64
import binascii
from dataclasses import dataclass

from metaclaw.domain.chat import Json, Opaque, Wire
from metaclaw.errors import WireError
from metaclaw.wires.fields import Object, object_of, text_of


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
    value = object_of(part.value)
    match part.wire:
        case Wire.CHAT:
            file = object_of(value.get("file"))
            return _from_file(file.get("file_data"), file.get("filename")) if value.get("type") == "file" else None
        case Wire.RESPONSES:
            if value.get("type") != "input_file":
                return None
            if url := text_of(value.get("file_url")):
                return Document(text_of(value.get("filename")) or None, url=url)
            return _from_file(value.get("file_data"), value.get("filename"))
        case Wire.MESSAGES:
            return _from_source(value) if value.get("type") == "document" else None


def _from_file(file_data: Json, filename: Json) -> Document | None:
    if not isinstance(file_data, str):
        return None
    media_type, payload = split_data_url(file_data) or ("application/pdf", file_data)
    return Document(text_of(filename) or None, media_type, payload)


def _from_source(value: Object) -> Document | None:
    source, name = object_of(value.get("source")), text_of(value.get("title")) or None
    match source.get("type"):
        case "base64":
            return Document(name, text_of(source.get("media_type")) or "application/pdf", text_of(source.get("data")))
        case "url":
            return Document(name, url=text_of(source.get("url")))
        case "text":
            return Document(name, "text/plain", text=text_of(source.get("data")))
        case _:
            return None


def chat_document(document: Document) -> Object:
    """A document as a chat content part."""
    if document.text is not None:
        return {"type": "text", "text": document.text}
    if document.payload is None:
        raise WireError("a document given by URL cannot be sent to this provider; send its bytes", param="messages")
    name = document.name or "document.pdf"
    return {"type": "file", "file": {"filename": name, "file_data": data_url(document.media_type, document.payload)}}


def responses_document(document: Document) -> Object:
    """A document as a Responses content part."""
    if document.text is not None:
        return {"type": "input_text", "text": document.text}
    if document.payload is None:
        return {"type": "input_file", "file_url": document.url}
    name = document.name or "document.pdf"
    return {"type": "input_file", "filename": name, "file_data": data_url(document.media_type, document.payload)}


def messages_document(document: Document) -> Object:
    """A document as an Anthropic content block."""
    title: Object = {"title": document.name} if document.name else {}
    text = document.text
    if text is None and document.payload is not None and document.media_type.startswith("text/"):
        text = _decoded(document.payload)
    if text is not None:
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}
    if document.payload is None:
        return {"type": "document", "source": {"type": "url", "url": document.url}, **title}
    source: Object = {"type": "base64", "media_type": document.media_type, "data": document.payload}
    return {"type": "document", "source": source, **title}


def _decoded(payload: str) -> str:
    try:
        return base64.b64decode(payload, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError) as error:
        raise WireError(f"a document's bytes are not base64: {error}", param="messages") from error
