"""`metaclaw key`: the proxy's own key, plain, and none made in passing."""

from pathlib import Path

import pytest

from metaclaw.config import ensure_api_key
from tests.cli.program import metaclaw


def test_the_key_is_printed_plain_and_nothing_else(home: Path) -> None:
    key = ensure_api_key(home).resolve()
    assert metaclaw("key").out == f"{key}\n"
    assert metaclaw("key", "--json").facts["api_key"] == key
    assert key not in metaclaw("config", "show").out


def test_without_a_key_none_is_made_and_the_way_to_one_is_told(home: Path) -> None:
    refused = metaclaw("key")
    assert (refused.code, refused.out) == (2, "")
    assert "metaclaw start" in refused.err
    assert not home.exists()


def test_a_key_that_lies_elsewhere_is_fetched_from_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METACLAW__PROXY__API_KEY", "env:MY_KEY")
    assert "MY_KEY" in metaclaw("key").err
    monkeypatch.setenv("MY_KEY", "from-elsewhere")
    assert metaclaw("key").out == "from-elsewhere\n"


@pytest.mark.parametrize(
    "arguments", [("start",), ("start", "--detach"), ("setup", "--yes", "--agents", "none")]
)
def test_our_own_key_in_a_providers_variable_is_never_sent_to_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    provider = (
        '[[providers]]\nname = "mine"\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\napi_key'
        ' = "env:OPENAI_API_KEY"\n'
    )
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(f'[proxy]\nport = 0\napi_key = "mc-own"\n{provider}')
    monkeypatch.setenv("OPENAI_API_KEY", "mc-own")
    refused = metaclaw(*arguments)
    assert refused.code == 2
    assert "provider mine is MetaClaw's own key" in refused.err
    assert "export OPENAI_API_KEY=<the key of mine>" in refused.err
