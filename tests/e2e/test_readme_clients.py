"""The configuration and client table of docs/agents.md, on the running program: credentials arrive
where they should.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.support.program import KEY, NOT_LEARNING, Program
from tests.support.provider import Provider

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "agents.md").read_text()
ADDRESS = "http://127.0.0.1:30000"
MESSAGE = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def row(client: str) -> str:
    return next(line for line in PAGE.splitlines() if line.startswith(f"| {client}"))


def base_url(client: str, running: Program) -> str:
    """The address that a row of the table gives, on the running program."""
    found = re.search(rf"{ADDRESS}[^\s`]*(?: key>)?[^\s`]*", row(client))
    assert found
    return found[0].replace(ADDRESS, running.url).replace("<MetaClaw key>", KEY)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    running = Provider().start()
    yield running
    running.stop()


@pytest.fixture(scope="module", params=["sample", "passthrough"])
def running(
    request: pytest.FixtureRequest, provider: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    config = block("toml")
    for vendor in ("https://api.openai.com", "https://api.anthropic.com"):
        assert vendor in config
        config = config.replace(vendor, provider.url)
    if request.param == "passthrough":
        config = re.sub(r'"env:\w+"', '"passthrough"', config)
    env = {**NOT_LEARNING, "OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-anthropic"}
    program = Program(tmp_path_factory.mktemp(request.param) / "home", config, env=env).start()
    yield program
    program.stop()


sample = pytest.mark.parametrize("running", ["sample"], indirect=True)
passthrough = pytest.mark.parametrize("running", ["passthrough"], indirect=True)


@sample
def test_an_anthropic_client_with_our_key_is_served_with_the_providers(
    running: Program, provider: Provider
) -> None:
    assert "`ANTHROPIC_AUTH_TOKEN` = the MetaClaw key" in row("Claude Code, any Anthropic")
    address = base_url("Claude Code, any Anthropic", running)
    assert (
        httpx.post(f"{address}/v1/messages", json=MESSAGE, headers=running.auth).status_code == 200
    )
    seen = provider.requests[-1]
    assert (seen.header("x-api-key"), seen.header("authorization")) == ("sk-anthropic", None)


@sample
def test_codex_and_other_openai_clients_are_served_with_the_providers_key(
    running: Program, provider: Provider
) -> None:
    codex = tomllib.loads(block("ini"))
    entry = codex["model_providers"][codex["model_provider"]]
    assert (entry["env_key"], entry["wire_api"]) == ("METACLAW_KEY", "responses")
    assert entry["base_url"].replace(ADDRESS, running.url) == base_url("any OpenAI client", running)
    address = base_url("any OpenAI client", running)
    asked = {"model": "gpt", "input": "hello"}
    assert httpx.post(f"{address}/responses", json=asked, headers=running.auth).status_code == 200
    assert provider.requests[-1].header("authorization") == "Bearer sk-openai"


@passthrough
@pytest.mark.parametrize(
    "own", [{"authorization": "Bearer sk-ant-oat01-login"}, {"x-api-key": "sk-ant-mine"}]
)
def test_claude_codes_own_login_or_key_is_forwarded(
    running: Program, provider: Provider, own: dict[str, str]
) -> None:
    address = base_url("Claude Code with a subscription", running)
    assert httpx.post(f"{address}/v1/messages", json=MESSAGE, headers=own).status_code == 200
    seen = provider.requests[-1]
    assert {
        name: value for name, value in seen.headers if name in ("authorization", "x-api-key")
    } == own
    assert KEY not in seen.path + str(seen.headers)


@passthrough
def test_a_client_with_its_own_key_is_forwarded(running: Program, provider: Provider) -> None:
    address = base_url("any client with its own key", running)
    asked = {"model": "gpt", "messages": MESSAGE["messages"]}
    own = {"authorization": "Bearer sk-mine"}
    assert httpx.post(f"{address}/chat/completions", json=asked, headers=own).status_code == 200
    assert provider.requests[-1].header("authorization") == "Bearer sk-mine"


def banner(running: Program) -> str:
    """What the program printed; into a file it prints the command for the key, whose output a shell
    would put there.
    """
    return re.sub(r"\$\([^()]* key\)", KEY, running.log.read_text())


@passthrough
def test_the_banner_gives_addresses_that_pass_credentials_on(running: Program) -> None:
    told = banner(running)
    assert f"export ANTHROPIC_BASE_URL={running.url}/k/{KEY} " in told
    assert f"export OPENAI_BASE_URL={running.url}/k/{KEY}/v1 " in told
    assert "ANTHROPIC_AUTH_TOKEN" not in told


@sample
def test_the_request_that_the_banner_gives_is_answered(running: Program) -> None:
    (line,) = [line for line in banner(running).splitlines() if line.startswith("Or by hand: ")]
    words = shlex.split(line.removeprefix("Or by hand: "))
    headers = dict(word.split(": ", 1) for flag, word in pairwise(words) if flag == "-H")
    answer = httpx.post(words[1], headers=headers, content=words[words.index("-d") + 1])
    assert answer.status_code == 200


@passthrough
def test_our_key_as_the_only_credential_is_refused_with_what_to_set(running: Program) -> None:
    refused = httpx.post(f"{running.url}/v1/messages", json=MESSAGE, headers=running.auth)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (401, "false")
    assert "/k/<MetaClaw key>" in refused.json()["error"]["message"]
