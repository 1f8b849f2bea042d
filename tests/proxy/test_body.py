"""Bodies: bounded, unpacked, checked; whatever comes is either a JSON object or a clear error."""

import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.errors import WireError
from metaclaw.proxy.http.body import parse_object
from metaclaw.proxy.http.client import Client, read_body, unpack
from tests.support.cases import each


class _NoLine:
    """A connection on which nothing happens any more."""

    peer: str | None = None
    is_full = False

    def send(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def answered(self, client: Client) -> None: ...


def arrived(body: bytes) -> Client:
    """A request whose body has come already."""
    client = Client(_NoLine(), "POST", b"/", {})
    client.feed(body)
    client.close_body()
    return client


@pytest.mark.anyio
async def test_a_body_that_says_it_is_too_large_is_not_even_read() -> None:
    client = arrived(b"abcde")
    with pytest.raises(WireError) as caught:
        await read_body(client, {"content-length": "5"}, max_bytes=4, timeout_s=1)
    assert caught.value.status == 413
    assert await client.read(5, 1) == b"abcde"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "headers",
    [{}, {"content-encoding": "Identity "}, {"content-encoding": ""}, {"content-length": "x"}],
)
async def test_a_plain_body_is_given_as_it_is(headers: dict[str, str]) -> None:
    assert await read_body(arrived(b"abc"), headers, max_bytes=3, timeout_s=1) == b"abc"


@pytest.mark.anyio
async def test_a_packed_body_is_unpacked() -> None:
    packed = gzip.compress(b'{"a":1}')
    assert (
        await read_body(arrived(packed), {"content-encoding": "gzip"}, max_bytes=100, timeout_s=1)
        == b'{"a":1}'
    )


def test_a_bomb_does_not_grow_beyond_the_limit() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(WireError) as caught:
        unpack(bomb, "deflate", max_bytes=1_000_000)
    assert caught.value.status == 413


def test_unknown_and_broken_encodings_are_named() -> None:
    with pytest.raises(WireError) as caught:
        unpack(b"", "br", 10)
    assert caught.value.status == 415
    with pytest.raises(WireError, match="not valid gzip"):
        unpack(b"not gzip", "gzip", 10)
    with pytest.raises(WireError, match="too early"):
        unpack(gzip.compress(b"hello")[:-9], "gzip", 10)


@each(
    ("body", "word"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "an array"),
        (b'"x"', "a string"),
        (b"null", "null"),
        (b"1e5", "a number"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": "\xff"}', "not valid UTF-8 at byte 7"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b"[" * 200_000 + b"]" * 200_000, "nested too deeply"),
    ],
)
def test_what_is_not_a_json_object_is_refused_with_the_reason(body: bytes, word: str) -> None:
    with pytest.raises(WireError, match=word) as caught:
        parse_object(body)
    assert caught.value.status == 400


def test_lone_surrogates_and_nuls_are_a_clients_text_like_any_other() -> None:
    assert parse_object(b'{"a": "\\ud83d", "b": "\\u0000"}') == {"a": "\ud83d", "b": "\0"}


@given(st.binary(max_size=60))
def test_any_bytes_give_an_object_or_a_wire_error(body: bytes) -> None:
    try:
        value = parse_object(body)
    except WireError:
        return
    assert value == json.loads(body)
