"""What a provider gets of a request, what the client gets of its headers, and that secrets stay
inside.
"""

import gzip
import json
import logging
import zlib
from collections.abc import Iterable

import pytest

from metaclaw.domain.chat import Wire
from metaclaw.errors import ConfigError, UpstreamError, WireError
from metaclaw.ports import Call, HttpProvider, Purpose
from metaclaw.upstream import PASSTHROUGH, ApiKey, HttpEndpoint, Kind, list_models, reply_headers
from tests.support.cases import each
from tests.upstream.loopback import (
    Conversation,
    Heard,
    answering,
    endpoint,
    plain,
    post,
    read,
    serve,
)


async def sent(
    call: Call,
    *,
    kind: Kind = "openai",
    path: str = "/v1",
    api_key: ApiKey = None,
    caller: Iterable[tuple[str, str]] = (),
) -> Heard:
    """The request a provider hears for a call."""
    heard: list[Heard] = []

    async def script(conversation: Conversation) -> None:
        heard.append(await conversation.hear())
        await conversation.say(plain(b"{}"))

    async with (
        serve(script) as loopback,
        endpoint(loopback.url + path, kind, api_key=api_key) as provider,
    ):
        as_port: HttpProvider = provider
        await read(await as_port.call(call, dict(caller)))
    return heard[0]


@pytest.mark.anyio
@each(
    ("kind", "base", "path", "target"),
    [
        ("openai", "/v1", "/chat/completions", "/v1/chat/completions"),
        ("openai", "/v1/", "/v1/chat/completions", "/v1/chat/completions"),
        ("openai", "", "/chat/completions", "/v1/chat/completions"),
        ("openai", "/", "/v1/models", "/v1/models"),
        ("openai", "/api/v1", "/responses", "/api/v1/responses"),
        ("openai", "/api/paas/v4", "/v1/chat/completions", "/api/paas/v4/chat/completions"),
        ("openai", "/v1beta/openai/", "/models", "/v1beta/openai/models"),
        ("anthropic", "", "/v1/messages", "/v1/messages"),
        ("anthropic", "/", "/messages", "/v1/messages"),
        ("anthropic", "/v1", "/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("anthropic", "/v1/", "/messages", "/v1/messages"),
        ("anthropic", "/api/anthropic", "/v1/messages", "/api/anthropic/v1/messages"),
        ("openai", "/v1", "/v1x", "/v1/v1x"),
        ("openai", "/v1", "/files/a b\u00e9?#", "/v1/files/a%20b%C3%A9%3F%23"),
        ("openai", "/v1", "/files/a%20b", "/v1/files/a%20b"),
    ],
)
async def test_base_url_and_path_meet_at_one_v1(
    kind: Kind, base: str, path: str, target: str
) -> None:
    assert (await sent(post(path), kind=kind, path=base)).line == f"POST {target} HTTP/1.1"


@pytest.mark.anyio
async def test_the_query_is_kept_and_joined_to_the_base_urls_own() -> None:
    assert (
        await sent(post("/v1/messages", query="beta=true&x=%20"), path="")
    ).line == "POST /v1/messages?beta=true&x=%20 HTTP/1.1"
    joined = await sent(post("/chat/completions", query="x=1"), path="/openai?api-version=2")
    assert joined.line == "POST /openai/chat/completions?api-version=2&x=1 HTTP/1.1"


@pytest.mark.anyio
async def test_headers_are_forwarded_verbatim_and_in_order_but_for_ours_and_this_hops() -> None:
    forwarded = [
        ("User-Agent", "OpenAI/JS 7.15.0"),
        ("x-stainless-retry-count", "0"),
        ("anthropic-beta", "a,b"),
        ("session-id", "01a1"),
        ("OpenAI-Organization", "org"),
        ("traceparent", "00-1"),
        ("anthropic-beta", "c"),
        ("content-type", "application/json"),
        ("x-latin", "caf\u00e9"),
    ]
    kept_back = [
        ("Host", "proxy.local"),
        ("Connection", "keep-alive, X-Mine"),
        ("x-mine", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Transfer-Encoding", "chunked"),
        ("TE", "trailers"),
        ("Content-Length", "999"),
        ("Accept-Encoding", "gzip, br"),
        ("Expect", "100-continue"),
        ("Proxy-Authorization", "Basic x"),
        ("Authorization", "Bearer client"),
        ("X-Api-Key", "client"),
        ("Cookie", "a=b"),
        ("X-Metaclaw-Key", "k"),
        ("X-Session-Id", "s"),
        ("X-Turn-Type", "main"),
        ("X-Session-Done", "true"),
        ("X-User-Id", "u"),
        ("X-Workspace-Id", "w"),
    ]
    mixed = [pair for both in zip(forwarded, kept_back, strict=False) for pair in both] + kept_back[
        len(forwarded) :
    ]
    heard = await sent(post(headers=mixed, body=b'{"a":1}'))
    ours = ("host", "accept-encoding", "content-length")
    assert [(name, value) for name, value in heard.headers if name not in ours] == forwarded
    assert heard.header("accept-encoding") == "identity"
    assert heard.header("content-length") == "7"
    assert heard.body == b'{"a":1}'


@pytest.mark.anyio
async def test_the_configured_key_is_sent_in_the_vendors_own_way() -> None:
    client = [("authorization", "Bearer client"), ("x-api-key", "client")]
    openai = await sent(post(headers=client), api_key="sk-mine", caller=client)
    assert (openai.header("authorization"), openai.header("x-api-key")) == ("Bearer sk-mine", None)
    anthropic = await sent(post(headers=client), kind="anthropic", api_key="sk-mine", caller=client)
    assert (anthropic.header("authorization"), anthropic.header("x-api-key")) == (None, "sk-mine")
    keyless = await sent(post(headers=client), caller=client)
    assert (keyless.header("authorization"), keyless.header("x-api-key")) == (None, None)


@pytest.mark.anyio
async def test_passthrough_sends_the_callers_credentials() -> None:
    heard = await sent(
        post(),
        kind="anthropic",
        api_key=PASSTHROUGH,
        caller=[("authorization", "Bearer sub"), ("x-metaclaw-key", "k")],
    )
    assert heard.header("authorization") == "Bearer sub"
    assert heard.header("x-metaclaw-key") is None
    heard = await sent(
        post(headers=[("x-api-key", "own")]),
        kind="anthropic",
        api_key=PASSTHROUGH,
        caller=[("x-api-key", "own")],
    )
    assert heard.header("x-api-key") == "own"


@pytest.mark.anyio
async def test_anthropic_gets_a_version_unless_the_client_names_one() -> None:
    assert (await sent(post(), kind="anthropic")).header("anthropic-version") == "2023-06-01"
    named = await sent(post(headers=[("Anthropic-Version", "2026-10-21")]), kind="anthropic")
    assert named.header("anthropic-version") == "2026-10-21"
    assert (await sent(post())).header("anthropic-version") is None


@pytest.mark.anyio
async def test_a_call_without_a_body_has_no_length_and_an_empty_post_has_zero() -> None:
    assert (await sent(Call("GET", "/models", "", (), b""))).header("content-length") is None
    assert (await sent(Call("POST", "/models", "", (), b""))).header("content-length") == "0"


@pytest.mark.anyio
@each(
    "call",
    [
        Call("GET", "/models", "", [("x", "a\r\ninjected: 1")], b""),
        Call("GET", "/models", "", [("x\r\n", "a")], b""),
        Call("GET", "/models", "", [("x", "a\nb")], b""),
        Call("GET", "/models", "", [("x", "a\0")], b""),
        Call("GET", "/models", "", [("x", "\u20ac")], b""),
        Call("GET", "/models", "a=b HTTP/1.1\r\nx: y", (), b""),
        Call("GET /", "/models", "", (), b""),
    ],
)
async def test_what_would_break_out_of_its_line_is_refused(call: Call) -> None:
    async with serve(answering()) as loopback, endpoint(loopback.url) as provider:
        with pytest.raises(WireError):
            await provider.call(call, {})
        assert not loopback.conversations


@pytest.mark.anyio
async def test_a_path_cannot_break_out_of_its_line() -> None:
    assert (
        await sent(post("/a HTTP/1.1\r\nx: y"))
    ).line == "POST /v1/a%20HTTP/1.1%0D%0Ax:%20y HTTP/1.1"


@each("api_key", ["", "a\r\nb", "schl\u00fcssel", "a\0"])
def test_a_key_that_cannot_be_sent_is_a_configuration_error_that_does_not_repeat_it(
    api_key: str,
) -> None:
    with pytest.raises(ConfigError, match="api_key of provider primary") as caught:
        HttpEndpoint("primary", "openai", "http://127.0.0.1:1/v1", api_key=api_key)
    assert not api_key or api_key not in str(caught.value)


@pytest.mark.anyio
async def test_a_key_shows_in_no_error_no_repr_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        serve(answering(b"nonsense\r\n\r\n")) as loopback,
        endpoint(loopback.url, api_key="sk-hush") as provider,
    ):
        with pytest.raises(UpstreamError) as caught:
            await provider.call(
                post(headers=[("x-api-key", "sk-client")]), {"x-api-key": "sk-client"}
            )
        told = repr(provider) + repr(caught.value) + str(caught.value.__cause__) + caplog.text
        assert "sk-" not in told


def test_each_kind_speaks_its_own_wires_unless_told_otherwise() -> None:
    url = "http://127.0.0.1:1"
    assert HttpEndpoint("a", "openai", url).wires == {Wire.CHAT, Wire.RESPONSES}
    assert HttpEndpoint("a", "openai", url, wires=[Wire.CHAT]).wires == {Wire.CHAT}
    assert HttpEndpoint("a", "anthropic", url, models=["m"]).wires == {Wire.MESSAGES}
    assert HttpEndpoint("a", "anthropic", url, models=["m"]).models == ("m",)


def test_reply_headers_keep_what_clients_read_and_drop_this_hops() -> None:
    kept = [
        ("content-type", "text/event-stream"),
        ("x-request-id", "req_1"),
        ("retry-after", "3"),
        ("openai-processing-ms", "12"),
        ("anthropic-ratelimit-requests-remaining", "9"),
        ("x-ratelimit-remaining-tokens", "1"),
    ]
    dropped = [
        ("Connection", "close, X-Hop"),
        ("x-hop", "1"),
        ("transfer-encoding", "chunked"),
        ("keep-alive", "timeout=5"),
        ("alt-svc", 'h3=":443"'),
        ("Set-Cookie", "a=b"),
        ("set-cookie", "c=d"),
        ("X-Metaclaw-Turn", "t_other"),
    ]
    described = [("content-length", "12"), ("content-encoding", "br")]
    assert list(reply_headers([*dropped, *kept, *described])) == [*kept, *described]


DEFLATE = zlib.compressobj(wbits=-15)
PLAIN = b"data: {}\n\n" * 100_000


@pytest.mark.anyio
@each(
    ("coding", "packed", "unpacked"),
    [
        ("gzip", gzip.compress(PLAIN), PLAIN),
        ("x-gzip", gzip.compress(b"a") + gzip.compress(b"b"), b"ab"),
        ("GZIP", gzip.compress(b"a") + b"\0\0\0", b"a"),
        ("deflate", zlib.compress(PLAIN), PLAIN),
        ("deflate", DEFLATE.compress(b"bare") + DEFLATE.flush(), b"bare"),
        ("gzip", b"", b""),
        ("br", b"\x8b\x00", b"\x8b\x00"),
        ("identity", b"x", b"x"),
    ],
    ids=["gzip", "members", "padded", "zlib", "bare", "empty", "unknown", "identity"],
)
@each("piece_bytes", [1, 1 << 20])
async def test_a_compression_nobody_asked_for_is_undone(
    coding: str, packed: bytes, unpacked: bytes, piece_bytes: int
) -> None:
    answer = plain(packed, "200 OK", f"Content-Encoding: {coding}")
    pieces = [answer[at : at + piece_bytes] for at in range(0, len(answer), piece_bytes)]
    async with serve(answering(*pieces)) as loopback, endpoint(loopback.url) as provider:
        reply = await provider.call(post(), {})
        names = [name for name, _ in reply.headers]
        assert ("content-encoding" in names) == (coding in ("br", "identity"))
        assert ("content-length" in names) == (coding in ("br", "identity"))
        chunks = [chunk async for chunk in reply.chunks()]
        assert b"".join(chunks) == unpacked
        assert all(len(chunk) <= 256 * 1024 for chunk in chunks)


@pytest.mark.anyio
@each("packed", [gzip.compress(PLAIN)[:-9], b"\x1f\x8bnonsense nonsense", b"\x1f"])
async def test_a_compressed_answer_that_is_broken_is_an_upstream_error(packed: bytes) -> None:
    async with (
        serve(answering(plain(packed, "200 OK", "Content-Encoding: gzip"))) as loopback,
        endpoint(loopback.url) as provider,
    ):
        reply = await provider.call(post(), {})
        with pytest.raises(UpstreamError, match="provider primary"):
            await read(reply)
        await reply.aclose()


@pytest.mark.anyio
async def test_calls_that_begin_alike_differ_in_what_is_theirs() -> None:
    heard: list[Heard] = []

    async def script(conversation: Conversation) -> None:
        for _ in range(4):
            heard.append(await conversation.hear())
            await conversation.say(plain(b"{}"))

    fields = (("x-agent", "a"),)
    calls = [
        (Call("POST", "/chat/completions", "", fields, b"one"), {"authorization": "Bearer mine"}),
        (
            Call("POST", "/chat/completions", "", fields, b"other"),
            {"authorization": "Bearer theirs"},
        ),
        (Call("POST", "/chat/completions", "", fields, b"", Purpose.JUDGE), {"x-api-key": "own"}),
        (Call("POST", "/chat/completions", "", (("x-agent", "b"),), b""), {"x-api-key": "own"}),
    ]
    async with (
        serve(script) as loopback,
        endpoint(loopback.url + "/v1", api_key=PASSTHROUGH) as provider,
    ):
        for call, caller in calls:
            await read(await provider.call(call, caller))
    names = ("content-length", "authorization", "x-metaclaw-purpose", "x-agent")
    assert [tuple(one.header(name) for name in names) for one in heard] == [
        ("3", "Bearer mine", None, "a"),
        ("5", "Bearer theirs", None, "a"),
        ("0", None, "judge", "a"),
        ("0", None, None, "b"),
    ]


@pytest.mark.anyio
@each(
    ("kind", "entry", "found"),
    [
        ("openai", {"id": "dev-1", "object": "model"}, ["dev-1"]),
        ("anthropic", {"id": "dev-1", "object": "model"}, []),
        ("anthropic", {"id": "claude-x", "type": "model", "display_name": "X"}, ["claude-x"]),
    ],
)
async def test_models_that_a_server_lists_for_another_wire_are_not_the_providers(
    kind: Kind, entry: dict[str, str], found: list[str]
) -> None:
    body = json.dumps({"data": [entry]}).encode()
    async with (
        serve(answering(plain(body))) as loopback,
        endpoint(loopback.url, kind) as provider,
    ):
        assert await list_models(provider) == found
