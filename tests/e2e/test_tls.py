"""The program behind its own certificate: SDKs, commands, the page, and a renewal while it serves."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from metaclaw.certificate import trusting
from tests.cli.program import program as command
from tests.support.certificates import Certificate, make_certificate
from tests.support.program import KEY, NOT_LEARNING, Program, providers_toml
from tests.support.provider import Provider


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certificate:
    """The proxy's certificate, which clients of this test trust by SSL_CERT_FILE."""
    made = make_certificate(tmp_path / "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(made.cert))
    return made


@pytest.fixture
def program(provider: Provider, home: Path, certificate: Certificate) -> Iterator[Program]:
    config = providers_toml(provider.url)
    running = Program(home, config, proxy=certificate.config, env=NOT_LEARNING).start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def test_sdks_and_commands_reach_it_and_the_cookie_is_secure(
    program: Program, home: Path, certificate: Certificate
) -> None:
    import anthropic  # four thousand modules, which every worker would import to collect this file
    import openai

    assert program.url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(certificate.cert))
    with openai.OpenAI(
        base_url=f"{program.url}/v1",
        api_key=KEY,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=trusted),
    ) as client:
        stream = client.chat.completions.create(
            model="openai/echo", messages=[{"role": "user", "content": "one two"}], stream=True
        )
        said = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        assert "".join(said).strip() == "echo: one two"
    with anthropic.Anthropic(
        base_url=program.url,
        api_key=KEY,
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(verify=trusted),
    ) as claude:
        answer = claude.messages.create(
            model="anthropic/echo",
            max_tokens=100,
            messages=[{"role": "user", "content": "x" * 200_000}],
        )
        assert answer.usage.output_tokens == 7
    status = command("--home", str(home), "status", "--json").facts
    assert status["url"] == program.url
    found = command("--home", str(home), "doctor", "--json").facts["checks"]
    assert {one["state"] for one in found if one["name"] in ("certificate", "port")} == {"ok"}
    link = command("--home", str(home), "page", "--json").facts["url"]
    assert link.startswith(f"{program.url}/ui/sign-in?token=")
    with httpx.Client(headers={"accept": "text/html", "origin": program.url}) as browser:
        cookie = browser.get(link).headers["set-cookie"]
        assert cookie.endswith("; Secure")
        assert "Rules" in browser.get(f"{program.url}/").text
    with pytest.raises(httpx.HTTPError):
        httpx.get(program.url.replace("https", "http"))
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{program.url}/healthz", verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def test_a_renewed_certificate_is_shown_without_a_restart(
    program: Program, home: Path, certificate: Certificate, tmp_path: Path
) -> None:
    certificate.replace_by(make_certificate(tmp_path / "renewed"))
    renewed = trusting(certificate.cert)
    assert httpx.get(f"{program.url}/healthz", verify=renewed).status_code == 200
    assert command("--home", str(home), "status").code == 0


def test_a_key_that_every_user_can_read_is_warned_of(
    provider: Provider, home: Path, certificate: Certificate
) -> None:
    certificate.key.chmod(0o644)
    config = providers_toml(provider.url)
    running = Program(home, config, proxy=certificate.config, env=NOT_LEARNING).start()
    try:
        assert running.log.read_text().count("tls_key_readable") == 1
        found = command("--home", str(home), "doctor", "--json").facts["checks"]
        told = [one for one in found if one["name"] == "certificate"]
        assert [one["state"] for one in told] == ["warn", "ok"]
        assert told[0]["remedy"] == f"chmod 600 {certificate.key}"
    finally:
        assert running.stop() == 0


def test_a_certificate_that_cannot_be_used_stops_the_start(home: Path, tmp_path: Path) -> None:
    made, other = make_certificate(tmp_path / "tls"), make_certificate(tmp_path / "tls", "other")
    Program(home, proxy=Certificate(made.cert, other.key).config)
    refused = command("--home", str(home), "start")
    assert refused.code == 2
    assert "the key in" in refused.err
    assert "proxy.tls_key" in refused.err
    checks = command("--home", str(home), "doctor", "--json").facts["checks"]
    assert [one["state"] for one in checks if one["name"] == "certificate"] == ["fail"]
    Program(home, proxy=f'tls_key = "{other.key}"')
    assert "needs tls_cert as well" in command("--home", str(home), "config", "check").err
