"""Reading a request's body: bounded, unpacked, and checked to be one JSON object."""

import json
import zlib
from collections.abc import Mapping
from typing import Protocol, cast

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.errors import WireError
from metaclaw.proxy.client import too_large

_decode = msgspec.json.Decoder().decode


class Source(Protocol):
    """Where a body comes from."""

    async def read(self, max_bytes: int, timeout_s: float) -> bytes: ...


async def read_body(source: Source, headers: Mapping[str, str], *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body, unpacked. Raises WireError 413 when it is too large and whatever else the source raises."""
    declared = headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > max_bytes:
        raise too_large(max_bytes)
    body = await source.read(max_bytes, timeout_s)
    encoding = headers.get("content-encoding")
    if encoding is None:
        return body
    encoding = encoding.strip().lower()
    return body if encoding in ("", "identity") else unpack(body, encoding, max_bytes)


def unpack(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Undo gzip or deflate, refusing to grow beyond the limit."""
    bits = {"gzip": 31, "x-gzip": 31, "deflate": 15}.get(encoding)
    if bits is None:
        raise WireError(
            f"content-encoding {encoding!r} is not understood; send gzip, deflate or none", status=415, code="unsupported_encoding"
        )
    stream = zlib.decompressobj(bits)
    try:
        unpacked = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise WireError(f"the body is not valid {encoding}: {error}") from error
    if len(unpacked) > max_bytes:
        raise too_large(max_bytes)
    if not stream.eof:
        raise WireError(f"the {encoding} body ends too early")
    return unpacked


def parse_object(body: bytes) -> dict[str, Json]:
    """The body as a JSON object, or a WireError that says what is wrong with it."""
    try:
        value = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = parse_leniently(body)
    except RecursionError as error:
        raise WireError("the JSON body is nested too deeply") from error
    if not isinstance(value, dict):
        raise WireError(f"the body must be a JSON object, not {_kind(value)}")
    return value


def parse_leniently(body: bytes) -> Json:
    """JavaScript clients may send lone surrogates, which strict parsers refuse; they are a client's text all the same."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"the body is not valid UTF-8 at byte {error.start}") from error
    try:
        return cast(Json, json.loads(text, parse_constant=_no_constant))
    except RecursionError as error:
        raise WireError("the JSON body is nested too deeply") from error
    except ValueError as error:
        raise WireError(f"the body is not valid JSON: {error}") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _kind(value: Json) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
