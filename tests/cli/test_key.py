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


def test_a_key_that_lies_elsewhere_is_fetched_from_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METACLAW__PROXY__API_KEY", "env:MY_KEY")
    assert "MY_KEY" in metaclaw("key").err
    monkeypatch.setenv("MY_KEY", "from-elsewhere")
    assert metaclaw("key").out == "from-elsewhere\n"
