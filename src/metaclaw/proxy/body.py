"""Reading a request's body: bounded, unpacked, and checked to be one JSON object."""

import asyncio
import json
import zlib
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.errors import WireError
from metaclaw.proxy.client import ClientGone, Receive

_decode = msgspec.json.Decoder().decode


async def read_body(receive: Receive, headers: Mapping[str, str], *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body. WireError 413 when it is too large, 408 when it does not come, ClientGone when the client leaves."""
    declared = headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    # The first piece has nearly always come together with the head. A client that sends none keeps nobody waiting but itself.
    body, more = _piece(await receive())
    if more:
        body = await _read_rest(receive, body, max_bytes, timeout_s)
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    return body if encoding in ("", "identity") else unpack(body, encoding, max_bytes)


async def _next(receive: Receive, timeout_s: float) -> tuple[bytes, bool]:
    try:
        async with asyncio.timeout(timeout_s):
            message = await receive()
    except TimeoutError as error:
        raise WireError(f"the request body did not arrive within {timeout_s:g} s", status=408, code="request_timeout") from error
    return _piece(message)


def _piece(message: Mapping[str, Any]) -> tuple[bytes, bool]:
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), bool(message.get("more_body", False))


async def _read_rest(receive: Receive, first: bytes, max_bytes: int, timeout_s: float) -> bytes:
    pieces, size, more = [first], len(first), True
    while more:
        piece, more = await _next(receive, timeout_s)
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        pieces.append(piece)
    return b"".join(pieces)


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
        raise _too_large(max_bytes)
    if not stream.eof:
        raise WireError(f"the {encoding} body ends too early")
    return unpacked


def parse_object(body: bytes) -> dict[str, Json]:
    """The body as a JSON object, or a WireError that says what is wrong with it."""
    try:
        value = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = _parse_leniently(body)
    except RecursionError as error:
        raise WireError("the JSON body is nested too deeply") from error
    if not isinstance(value, dict):
        raise WireError(f"the body must be a JSON object, not {_kind(value)}")
    return value


def _parse_leniently(body: bytes) -> Json:
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


def _too_large(max_bytes: int) -> WireError:
    return WireError(
        f"the request body is larger than {max_bytes} bytes; raise proxy.max_body_bytes if you mean it",
        status=413,
        code="request_too_large",
    )
