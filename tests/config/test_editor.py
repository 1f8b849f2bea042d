"""Changing the file: comments stay, what is written is read back, what is broken is left alone."""

import stat
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.config import InvalidConfigError, flatten, load
from metaclaw.config.editor import ensure_api_key, set_values
from metaclaw.errors import ConfigError
from tests.support.depth import tries

OWNERS_FILE = """\
# my settings
[proxy]
port = 1  # the port

# where the models are
[[providers]]
name = "a"   # mine
kind = "openai"

# last
[log]
level = "info"
"""


def written(home: Path, text: str) -> Path:
    home.mkdir(exist_ok=True)
    path = home / "config.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_change_keeps_everything_around_it(home: Path) -> None:
    path = written(home, OWNERS_FILE)
    set_values(
        home,
        [
            "proxy.port=2",
            "proxy.host=localhost",
            "providers.a.timeout_s=5.5",
            "skills.enabled=false",
        ],
        {},
    )
    assert path.read_text() == (
        OWNERS_FILE.replace(
            "port = 1  # the port\n", 'port = 2  # the port\nhost = "localhost"\n'
        ).replace('kind = "openai"\n', 'kind = "openai"\ntimeout_s = 5.5\n')
        + "\n[skills]\nenabled = false\n"
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_provider_stands_after_the_others(home: Path) -> None:
    path = written(home, OWNERS_FILE)
    set_values(home, ["providers.b.kind=anthropic", "providers.b.api_key=passthrough"], {})
    added = '\n[[providers]]\nname = "b"\nkind = "anthropic"\napi_key = "passthrough"\n'
    assert path.read_text() == OWNERS_FILE.replace('kind = "openai"\n', 'kind = "openai"\n' + added)


@pytest.mark.parametrize(
    "text",
    [
        "proxy.port = 1\n",
        "proxy = { port = 1 }\n",
        '["proxy"]\nport = 1',
        "[proxy]\r\nport = 1\r\n",
    ],
)
def test_every_way_to_write_a_table_can_be_changed(home: Path, text: str) -> None:
    written(home, text)
    set_values(home, ["proxy.port=2", "proxy.max_concurrency=7"], {})
    config = load(home, {})
    assert (config.proxy.port, config.proxy.max_concurrency) == (2, 7)


def test_providers_in_one_line_can_be_added_to(home: Path) -> None:
    written(home, 'providers = [{ name = "a", kind = "openai" }]\n')
    set_values(home, ["providers.b.kind=anthropic", "providers.a.order=3"], {})
    assert [(provider.name, provider.order) for provider in load(home, {}).providers] == [
        ("a", 3),
        ("b", None),
    ]


def test_nothing_is_written_unless_the_whole_is_right(home: Path) -> None:
    path = written(home, OWNERS_FILE)
    for setting in (
        "proxy.port=x",
        "proxy.prot=1",
        "proxy.host=0.0.0.0",
        "providers.b.base_url=http://x",
        "policy.group_size=3",
        "nothing",
    ):
        with pytest.raises(ConfigError):
            set_values(home, ["log.level=debug", setting], {})
        assert path.read_text() == OWNERS_FILE


def test_a_wrong_value_can_be_put_right(home: Path) -> None:
    path = written(home, "[proxy]\nport = 'x' # oops\n")
    set_values(home, ["proxy.port=3"], {})
    assert path.read_text() == "[proxy]\nport = 3 # oops\n"


def test_the_environment_counts_but_cannot_hide_a_wrong_value(home: Path) -> None:
    written(home, "")
    set_values(home, ["proxy.host=0.0.0.0"], {"METACLAW__PROXY__API_KEY": "k"})
    with pytest.raises(ConfigError):
        set_values(
            home, ["proxy.port=x"], {"METACLAW__PROXY__API_KEY": "k", "METACLAW__PROXY__PORT": "1"}
        )


def test_a_linked_file_stays_a_link(home: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("[proxy]\nport = 1\n")
    home.mkdir()
    (home / "config.toml").symlink_to(real)
    set_values(home, ["proxy.port=2"], {})
    assert (home / "config.toml").is_symlink()
    assert real.read_text() == "[proxy]\nport = 2\n"


def test_changes_at_the_same_time_are_all_kept(home: Path) -> None:
    settings_ = [f"providers.p{number}.kind=openai" for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda setting: set_values(home, [setting], {}), settings_))
    assert {provider.name for provider in load(home, {}).providers} == {
        f"p{number}" for number in range(12)
    }


def test_the_first_key_is_generated_once_and_private(home: Path) -> None:
    first = ensure_api_key(home, {})
    assert ensure_api_key(home, {}) == first
    assert len(first.resolve()) >= 32
    assert stat.S_IMODE((home / "config.toml").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert load(home, {}).proxy.api_key == first


def test_a_generated_key_joins_the_owners_file(home: Path) -> None:
    path = written(home, OWNERS_FILE)
    key = ensure_api_key(home, {}).resolve()
    assert path.read_text() == OWNERS_FILE.replace(
        "# the port\n", f'# the port\napi_key = "{key}"\n'
    )


def test_a_key_the_owner_wrote_is_kept(home: Path) -> None:
    path = written(home, "[proxy]\napi_key = 'env:MY_KEY'\n")
    assert str(ensure_api_key(home, {})) == "env:MY_KEY"
    assert path.read_text() == "[proxy]\napi_key = 'env:MY_KEY'\n"


def refusal(home: Path) -> str | None:
    try:
        load(home, {})
    except InvalidConfigError as error:
        return str(error)
    return None


@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
@settings(max_examples=tries(50, nightly=750), deadline=None)
def test_a_file_that_cannot_be_used_is_left_byte_for_byte(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "config.toml").write_bytes(content)
        words = refusal(home)
        if words is None:
            return
        assert "config.toml" in words
        for change in (
            lambda: set_values(home, ["log.level=debug"], {}),
            lambda: ensure_api_key(home, {}),
        ):
            try:
                change()
            except ConfigError:
                assert (home / "config.toml").read_bytes() == content


_TEXT = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=30
)
_VALUES = st.one_of(
    st.tuples(st.just("proxy.port"), st.integers(0, 65535)),
    st.tuples(st.just("proxy.max_body_bytes"), st.integers(1024, 2**30)),
    st.tuples(st.just("proxy.drain_s"), st.floats(0.001, 86_400)),
    st.tuples(st.just("skills.enabled"), st.booleans()),
    st.tuples(
        st.just("skills.dir"),
        _TEXT.map(lambda text: f"/{text}").filter(lambda text: "{home}" not in text),
    ),
    st.tuples(st.just("log.level"), st.sampled_from(["debug", "info", "warning", "error"])),
    st.tuples(st.just("providers.a.api_key"), _TEXT.filter(lambda text: ":" not in text)),
    st.tuples(
        st.just("providers.a.models"),
        st.lists(_TEXT | st.text(min_size=1, max_size=20), max_size=4),
    ),
)
_FILES = st.sampled_from(
    [
        OWNERS_FILE,
        "",
        "[[providers]]\nname='a'\nkind='openai'",
        "providers = [{name = 'a', kind = 'openai'}]\nproxy.port = 3\n",
    ]
)


def _as_option(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        import tomlkit

        return tomlkit.item(value).as_string()
    return str(value)


@given(_FILES, st.lists(_VALUES, min_size=1, max_size=4))
@settings(max_examples=tries(66, nightly=1000), deadline=None)
def test_any_value_that_is_set_is_read_back_equal(
    text: str, values: list[tuple[str, object]]
) -> None:
    with TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "config.toml").write_text(text, "utf-8")
        before = tomllib.loads(text)
        if not before.get("providers"):
            set_values(home, ["providers.a.kind=openai"], {})
        comments = [line for line in text.splitlines() if "#" in line]
        set_values(home, [f"{key}={_as_option(value)}" for key, value in values], {})
        found = dict(flatten(load(home, {})))
        for key, value in dict(values).items():
            kept = found[key.replace("providers.a", "providers.0")]
            plain = kept.resolve() if hasattr(kept, "resolve") and key.endswith("api_key") else kept
            if isinstance(plain, tuple):
                plain = list(plain)
            if isinstance(plain, Path):
                plain = str(plain)
            assert plain == (str(Path(str(value))) if key == "skills.dir" else value)
        after = (home / "config.toml").read_text("utf-8")
        assert all(line.partition("#")[2] in after for line in comments)
