"""TLS is checked, and the environment's proxies are used, tunnelled through and bypassed."""

import asyncio
import base64
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaclaw.errors import ConfigError, UpstreamError
from metaclaw.upstream import HttpEndpoint
from metaclaw.upstream.transport import Proxy, read_address
from tests.support.cases import each
from tests.upstream.loopback import Conversation, answering, endpoint, plain, post, read, serve


@dataclass
class Certificate:
    """A certificate for localhost and provider.test that signs itself."""

    path: Path
    server: ssl.SSLContext


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the command openssl to make a certificate: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    path, key = folder / "cert.pem", folder / "key.pem"
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    command += [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost,DNS:provider.test",
    ]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(path)], check=True, capture_output=True
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path, key)
    return Certificate(path, context)


async def ask(provider: HttpEndpoint) -> bytes:
    return await read(await provider.call(post(body=b"{}"), {}))


@pytest.mark.anyio
async def test_a_certificate_nobody_vouches_for_is_refused(certificate: Certificate) -> None:
    async with serve(answering(plain(b"x")), certificate.server) as loopback:
        async with endpoint(f"https://localhost:{loopback.port}") as provider:
            with pytest.raises(UpstreamError, match="certificate refused") as caught:
                await ask(provider)
            assert caught.value.code == "upstream_unreachable"


@pytest.mark.anyio
async def test_ssl_cert_file_says_whom_to_trust(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
    async with serve(answering(plain(b"x" * 100_000)), certificate.server) as loopback:
        async with endpoint(f"https://localhost:{loopback.port}") as provider:
            assert await ask(provider) == b"x" * 100_000
            assert await ask(provider) == b"x" * 100_000
            assert len(loopback.conversations) == 1


@pytest.mark.anyio
async def test_a_certificate_for_another_name_is_refused(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
    async with serve(answering(plain(b"x")), certificate.server) as loopback:
        async with endpoint(f"https://127.0.0.1:{loopback.port}") as provider:
            with pytest.raises(UpstreamError, match="certificate refused"):
                await ask(provider)


@pytest.mark.anyio
async def test_plain_http_goes_through_the_proxy_in_absolute_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[tuple[str, str | None, str | None]] = []

    async def proxy(conversation: Conversation) -> None:
        heard = await conversation.hear()
        lines.append((heard.line, heard.header("host"), heard.header("proxy-authorization")))
        await conversation.say(plain(b"via"))

    async with serve(proxy) as loopback:
        monkeypatch.setenv("http_proxy", f"http://us%40er:pa%3Ass@127.0.0.1:{loopback.port}")
        async with endpoint("http://provider.test:8000/v1") as provider:
            assert await ask(provider) == b"via"
    basic = "Basic " + base64.b64encode(b"us@er:pa:ss").decode()
    assert lines == [
        ("POST http://provider.test:8000/v1/chat/completions HTTP/1.1", "provider.test:8000", basic)
    ]


@pytest.mark.anyio
async def test_https_goes_through_a_tunnel(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
    asked: list[str] = []
    async with serve(answering(plain(b"secret")), certificate.server) as origin:

        async def proxy(conversation: Conversation) -> None:
            asked.append((await conversation.hear()).line)
            await conversation.say(
                b"HTTP/1.1 200 ProviderConnection established\r\nVia: test\r\n\r\n"
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", origin.port)
            await asyncio.gather(
                pump(conversation.reader, writer), pump(reader, conversation.writer)
            )

        async with serve(proxy) as tunnel:
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{tunnel.port}")
            async with endpoint("https://provider.test/v1") as provider:
                assert await ask(provider) == b"secret"
                assert await ask(provider) == b"secret"
    assert asked == ["CONNECT provider.test:443 HTTP/1.1"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407"),
        (b"", "closed the connection"),
        (b"x" * 20_000, "no end"),
    ],
)
async def test_a_tunnel_that_is_refused_says_so(
    answer: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(answering(answer, close=True)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        async with endpoint("https://provider.test/v1") as provider:
            with pytest.raises(UpstreamError, match=words) as caught:
                await ask(provider)
            assert caught.value.code == "upstream_unreachable"
        await proxy.wait_until_all_gone()


@pytest.mark.parametrize(
    ("url", "no_proxy", "is_proxied"),
    [
        ("http://provider.test/v1", "", True),
        ("http://provider.test/v1", "provider.test", False),
        ("http://a.provider.test/v1", ".provider.test", False),
        ("http://provider.test/v1", "*", False),
        ("http://other.test/v1", "provider.test", True),
        ("http://127.0.0.1:8000/v1", "", False),
        ("http://localhost:8000/v1", "", False),
        ("http://[::1]:8000/v1", "", False),
        ("https://provider.test/v1", "", False),
    ],
)
def test_who_goes_through_the_proxy(
    url: str, no_proxy: str, is_proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "proxy.test:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert read_address(url).proxy == (Proxy("proxy.test", 3128) if is_proxied else None)


@each(
    ("url", "authority"),
    [
        ("https://api.test/v1", "api.test"),
        ("https://api.test:443", "api.test"),
        ("http://api.test:443", "api.test:443"),
        ("http://[::1]:80/v1", "[::1]"),
        ("http://[::1]:8000/v1", "[::1]:8000"),
    ],
)
def test_the_host_header_leaves_out_the_usual_port(url: str, authority: str) -> None:
    assert read_address(url).authority == authority


@each(
    "url", ["api.test/v1", "ftp://api.test", "http://", "http://api.test:x/", "http://[::1/v1", ""]
)
def test_a_base_url_that_is_none_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        read_address(url)


@pytest.mark.parametrize(
    "url", ["https://me:hush@api.test/v1", "https://me:hush@api.test:x/v1", "me:hush@api.test/v1"]
)
def test_credentials_in_a_base_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url") as caught:
        read_address(url)
    assert "hush" not in str(caught.value)


def test_a_proxy_of_another_kind_is_a_configuration_error_that_keeps_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("all_proxy", "socks5://me:hush@proxy.test:1080")
    with pytest.raises(ConfigError, match="http://") as caught:
        read_address("https://api.test/v1")
    assert "hush" not in str(caught.value)


def test_a_proxy_does_not_show_its_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:hush@proxy.test:3128")
    address = read_address("http://api.test/v1")
    assert address.proxy is not None
    assert address.proxy.authorization is not None
    assert address.proxy.authorization.removeprefix("Basic ") not in repr(address)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()
