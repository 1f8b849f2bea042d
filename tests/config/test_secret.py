"""Secrets: read late, shown never."""

import json
from pathlib import Path

import pytest

from metaclaw.config import MASK, Secret, SecretUrl, build, load, missing_secrets, without_password
from metaclaw.errors import ConfigError
from tests.support.cases import each


def test_a_literal_is_never_shown(home: Path) -> None:
    config = load(
        home, {}, ["proxy.api_key=hunter2", "store.url=postgresql://me:hunter2@db/ledger"]
    )
    shown = " ".join(
        [
            repr(config),
            str(config),
            json.dumps(config.model_dump(mode="json")),
            config.model_dump_json(),
            f"{config.proxy.api_key}",
        ]
    )
    assert "hunter2" not in shown
    assert MASK in shown
    assert config.store.url.resolve() == "postgresql://me:hunter2@db/ledger"
    assert str(config.store.url) == f"postgresql://me:{MASK}@db/ledger"


def test_a_refused_secret_is_not_repeated(home: Path) -> None:
    for setting in (
        "proxy.api_key=hunter2 with/slash",
        "providers.0.api_key=\thunter2",
        "store.url=hunter2",
    ):
        with pytest.raises(ConfigError) as caught:
            load(home, {}, [setting])
        assert "hunter2" not in str(caught.value)


def test_a_reference_is_resolved_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = Secret("env:SOME_KEY")
    with pytest.raises(ConfigError, match="set the environment variable SOME_KEY"):
        secret.resolve({})
    monkeypatch.setenv("SOME_KEY", " from-env \n")
    assert secret.resolve() == "from-env"
    path = tmp_path / "key"
    with pytest.raises(ConfigError, match="readable text file"):
        Secret(f"file:{path}").resolve()
    path.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        Secret(f"file:{path}").resolve()
    path.write_text("from-file\n")
    assert Secret(f"file:{path}").resolve() == "from-file"
    assert str(Secret(f"file:{path}")) == f"file:{path}"


def test_secrets_compare_by_what_was_written() -> None:
    assert Secret("a") == Secret("a")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != SecretUrl("a")
    assert Secret("passthrough").is_passthrough
    assert not Secret("passthrough").is_literal


def test_missing_secrets_are_found_with_their_place(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        "[[providers]]\nname = 'a'\nkind = 'openai'\napi_key = 'env:NOT_THERE'\n"
    )
    (problem,) = missing_secrets(load(home, {}), {})
    assert (problem.place, problem.key) == (f"{home / 'config.toml'}:4", "providers.a.api_key")
    assert problem.remedy.startswith("set the environment variable NOT_THERE")
    assert missing_secrets(load(home, {}), {"NOT_THERE": "x"}) == []


@each(
    ("url", "shown"),
    [
        ("https://host/v1", "https://host/v1"),
        ("https://me:pw@host:1/v1", f"https://me:{MASK}@host:1/v1"),
        ("postgresql://:pw@host/db?a=b", f"postgresql://:{MASK}@host/db?a=b"),
        ("http://[broken", MASK),
    ],
)
def test_a_password_in_an_address_is_masked(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_an_empty_or_padded_secret_is_refused(home: Path) -> None:
    for text in ("", " a", "a\n", "file:relative"):
        with pytest.raises(ConfigError):
            build({"proxy": {"api_key": text}}, home)
