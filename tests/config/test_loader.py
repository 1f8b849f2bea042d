"""The tree: what it accepts, what it refuses, and in which words."""

import re
from pathlib import Path

import pytest

from metaclaw.config import Config, InvalidConfigError, ProviderConfig, build, flatten, load
from metaclaw.config.editor import template
from metaclaw.domain.chat import Wire


def refused(
    home: Path, text: str, *, env: dict[str, str] | None = None, sets: tuple[str, ...] = ()
) -> str:
    """The words a configuration is refused with; the file must be as it was."""
    home.mkdir(exist_ok=True)
    path = home / "config.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidConfigError) as caught:
        load(home, env or {}, sets)
    assert path.read_text("utf-8") == text
    return str(caught.value).replace(str(path), "FILE")


def test_without_a_file_the_defaults_are_those_we_promise(home: Path) -> None:
    config = load(home, {})
    assert (config.proxy.host, config.proxy.port, config.proxy.api_key) == (
        "127.0.0.1",
        30000,
        None,
    )
    assert config.providers == ()
    assert (config.skills.max_placed, config.skills.dir) == (3, home / "skills")
    assert config.store.url.resolve() == f"sqlite:///{home}/ledger.db"
    assert not home.exists()


def test_the_tree_cannot_be_changed(home: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load(home, {}).proxy.port = 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[proxy]\n# a comment\nprot = 1\n",
            "FILE:3: proxy.prot is not a known key; did you mean port?",
        ),
        ("[skils]\n", "FILE:1: skils is not a known section; did you mean skills?"),
        (
            "[proxy]\nport = '30000'\n",
            "FILE:2: proxy.port is not a whole number; write, for example, port = 30000",
        ),
        (
            "[proxy]\nport = 70000\n",
            (
                "FILE:2: proxy.port must be less than or equal to 65535; write, for example, port ="
                " 30000"
            ),
        ),
        (
            "[skills]\nenabled = 1\n",
            "FILE:2: skills.enabled is not true or false; write, for example, enabled = true",
        ),
        (
            "[log]\nlevel = 'loud'\n",
            "FILE:2: log.level must be 'debug', 'info', 'warning' or 'error'",
        ),
        ("proxy = 3\n", "FILE:1: proxy is not a section; write [proxy] on a line of its own"),
        (
            "[telemetry]\nzipkin = 'x'\n",
            "FILE:2: telemetry.zipkin is not a known key; write one of prometheus",
        ),
        ("[judge]\nvotes = 0\n", "FILE:2: judge.votes"),
        ("[judge]\nprovider = 'nobody'\n", "judge.provider names nobody, which is no provider"),
        ("[skills]\nembeddings_provider = 'nobody'\n", "skills needs embeddings_model as well"),
        ("[skills]\nembeddings_model = 'e'\n", "skills needs embeddings_provider as well"),
        (
            "[skills]\nembeddings_provider = 'nobody'\nembeddings_model = 'e'\n",
            "skills.embeddings_provider names nobody, which is no provider",
        ),
        (
            (
                "[skills]\nembeddings_provider = 'a'\nembeddings_model = 'e'\n[[providers]]\nname ="
                " 'a'\nkind = 'anthropic'\n"
            ),
            (
                "skills.embeddings_provider names a, which is not of kind openai and has no"
                " /v1/embeddings"
            ),
        ),
        (
            (
                "[skills]\nembeddings_provider = 'a'\nembeddings_model = 'e'\n"
                "[[providers]]\nname = 'a'\nkind = 'openai'\napi_key = 'passthrough'\n"
            ),
            (
                "skills.embeddings_provider names a, which forwards its callers' credentials and"
                " has no key of its own"
            ),
        ),
        ("[[teams]]\nname = 'core'\n", "FILE:1: teams.core.users is missing"),
        ("[skills]\ngate = 'maybe'\n", "FILE:2: skills.gate"),
        (
            "[skills]\nretrieval = 'dense'\n",
            "FILE:2: skills.retrieval must be 'auto', 'words' or 'hybrid'",
        ),
        (
            "[skills]\ndir = 'skills'\n",
            "FILE:2: skills.dir is not a whole path; begin it with /, ~ or {home}",
        ),
        (
            "[store]\nurl = 'mysql://u:hunter2@h/d'\n",
            "FILE:2: store.url is not a sqlite:/// or postgresql:// address",
        ),
        (
            "[store]\nurl = 'sqlite:///ledger.db'\n",
            "FILE:2: store.url must name a file by its absolute path",
        ),
        (
            "[[providers]]\nname = 'a'\n",
            'FILE:1: providers.a.kind is missing; write, for example, kind = "openai"',
        ),
        (
            (
                "[[providers]]\nname = 'a'\nkind = 'openai'\n[[providers]]\nname = 'b'\nkind ="
                " 'openai'\nbase_url = 'ftp://x'\n"
            ),
            "FILE:7: providers.b.base_url is not an http:// or https:// address",
        ),
        (
            "[[providers]]\nname = 'a'\nkind = 'anthropic'\nbase_url = 'https://x/v1'\n",
            "FILE:4: providers.a.base_url ends in /v1",
        ),
        (
            "[[providers]]\nname = 'a'\nkind = 'anthropic'\nbase_url = 'https://x:8/p/v1/'\n",
            'an anthropic address is written without it; write base_url = "https://x:8/p"',
        ),
        (
            "[[providers]]\nname = 'a'\nkind = 'anthropic'\nbase_url = 'https://u:hunter2@x/v1'\n",
            'write base_url = "https://u:********@x"',
        ),
        (
            "[[providers]]\nkind = 'openai'\nprot = 1\n",
            "FILE:3: providers.0.prot is not a known key",
        ),
        (
            "[[providers]]\nname = '7'\nkind = 'openai'\nprot = 1\n",
            "FILE:4: providers.0.prot is not a known key",
        ),
        (
            "[[providers]]\nname = 'A b'\nkind = 'openai'\n",
            "FILE:2: providers.0.name is not a word",
        ),
        (
            "[[providers]]\nname = 'a'\nkind = 'embedded'\napi_key = 'x'\n",
            "FILE:4: providers.a.api_key does not apply to the embedded",
        ),
        (
            "[[providers]]\nname = 'a'\nkind = 'openai'\nwires = ['messages']\n",
            "FILE:4: providers.a.wires must be among chat and responses",
        ),
        (
            (
                "[[providers]]\nname = 'a'\nkind = 'openai'\n[[providers]]\nname = 'a'\nkind ="
                " 'openai'\n"
            ),
            "providers has two entries named a",
        ),
        ("[proxy]\nport = thirty\n", "FILE:2: port is not valid TOML"),
        ("[proxy\nport = 1\n", "FILE:1: is not valid TOML"),
        (
            "[proxy]\nport = 1\nport = 2\n",
            "FILE:3: port is not valid TOML (Cannot overwrite a value)",
        ),
        ("x = '''never ends\n\n", "FILE:2: is not valid TOML"),
        ("[proxy]\napi_key = 'passthrough'\n", "FILE:2: proxy.api_key cannot be passthrough"),
        (
            "[proxy]\napi_key = 'env:not a name'\n",
            "FILE:2: proxy.api_key does not name an environment variable",
        ),
        ("[proxy]\ndrain_s = inf\n", "FILE:2: proxy.drain_s"),
    ],
)
def test_a_mistake_is_named_with_file_line_key_and_remedy(
    home: Path, text: str, words: str
) -> None:
    said = refused(home, text)
    assert words in said
    assert "hunter2" not in said


def test_all_mistakes_are_named_at_once(home: Path) -> None:
    said = refused(home, "[proxy]\nport = 'x'\nhots = 'y'\n[log]\nlevel = 1\n")
    assert said.count("\n") == 2


def test_a_file_that_is_not_text_is_refused_with_the_line(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_bytes(b"[proxy]\nhost = '\xff'\n")
    with pytest.raises(InvalidConfigError, match=r"config.toml:2: is not UTF-8"):
        load(home, {})


def test_a_folder_in_place_of_the_file_is_refused(home: Path) -> None:
    (home / "config.toml").mkdir(parents=True)
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        load(home, {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_a_host_others_can_reach_needs_a_key(home: Path, host: str) -> None:
    assert "proxy.host needs proxy.api_key" in refused(home, "", sets=(f"proxy.host={host}",))
    assert load(home, {}, [f"proxy.host={host}", "proxy.api_key=a-key"]).proxy.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_needs_no_key(home: Path, host: str) -> None:
    assert load(home, {}, [f"proxy.host={host}"]).proxy.host == host


def test_the_file_is_below_the_environment_and_that_below_the_options(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        "[proxy]\nport = 1\nmax_concurrency = 2\nhost = 'localhost'\n"
    )
    env = {
        "METACLAW__PROXY__PORT": "10",
        "METACLAW__PROXY__MAX_CONCURRENCY": "20",
        "METACLAW_HOME": "/nowhere",
    }
    config = load(home, env, ["proxy.port=100"])
    assert (
        config.proxy.port,
        config.proxy.max_concurrency,
        config.proxy.host,
        config.proxy.drain_s,
    ) == (
        100,
        20,
        "localhost",
        30.0,
    )
    places = [
        str(config.where(f"proxy.{key}")) for key in ("port", "max_concurrency", "host", "drain_s")
    ]
    assert places == [
        "--set",
        "METACLAW__PROXY__MAX_CONCURRENCY",
        f"{home / 'config.toml'}:4",
        "default",
    ]


def test_a_mistake_outside_the_file_names_the_variable_or_the_option(home: Path) -> None:
    assert refused(home, "", env={"METACLAW__PROXY__PRT": "1"}).startswith(
        "METACLAW__PROXY__PRT: proxy.prt is not a known key"
    )
    assert refused(home, "", sets=("proxy.port=x",)).startswith(
        "--set: proxy.port is not a whole number"
    )
    assert "has no =" in refused(home, "", sets=("proxy.port",))
    assert "is not a key" in refused(home, "", sets=("proxy..port=1",))
    assert "leads into" in refused(home, "[proxy]\nport = 1\n", sets=("proxy.port.deep.er=1",))
    assert "there are only 0 providers" in refused(home, "", sets=("providers.3.name=x",))


def test_providers_are_set_by_position_and_by_name(home: Path) -> None:
    env = {
        "METACLAW__PROVIDERS__0__NAME": "one",
        "METACLAW__PROVIDERS__0__KIND": "openai",
        "METACLAW__PROVIDERS__0__API_KEY": "12345",
    }
    sets = [
        "providers.one.models=a, b",
        "providers.two.kind=anthropic",
        "providers.two.timeout_s=5",
        'providers.one.wires=["chat"]',
    ]
    one, two = load(home, env, sets).providers
    assert (one.name, one.models, one.wires, one.base_url) == (
        "one",
        ("a", "b"),
        (Wire.CHAT,),
        "https://api.openai.com/v1",
    )
    assert one.api_key is not None
    assert one.api_key.resolve() == "12345"
    assert (two.name, two.kind, two.timeout_s, two.wires) == (
        "two",
        "anthropic",
        5.0,
        (Wire.MESSAGES,),
    )


def test_a_whole_list_of_providers_fits_into_one_option(home: Path) -> None:
    sets = ['providers=[{name = "a", kind = "openai", base_url = "http://127.0.0.1:1/v1/"}]']
    assert load(home, {}, sets).providers[0].base_url == "http://127.0.0.1:1/v1"


def test_fallback_follows_order_then_position(home: Path) -> None:
    tree = {
        "providers": [
            {"name": name, "kind": "openai"} | more
            for name, more in (("a", {}), ("b", {"order": 0}), ("c", {}), ("d", {"order": 9}))
        ]
    }
    assert [provider.name for provider in build(tree, home).fallback_order] == ["a", "b", "c", "d"]
    tree["providers"][0]["order"] = 5
    assert [provider.name for provider in build(tree, home).fallback_order] == ["b", "c", "a", "d"]


def test_sections_may_be_made_in_code() -> None:
    provider = ProviderConfig(name="x", kind="openai")
    assert provider.wires == (Wire.CHAT, Wire.RESPONSES)
    assert Config(providers=(provider,)).providers == (provider,)


def test_the_first_file_is_right_and_says_every_key(home: Path) -> None:
    text = template("a-key")
    home.mkdir()
    (home / "config.toml").write_text(text)
    assert load(home, {}).proxy.api_key is not None
    is_written = re.compile(r"# (\[|\w+ = )")
    uncommented = "".join(
        line.removeprefix("# ") if is_written.match(line) else line
        for line in text.splitlines(keepends=True)
    )
    # Of keys that exclude each other the template names all.
    for default, other in (
        ('backend = "embedded"', 'backend = "tinker"'),
        ('serve = "backend"', 'serve = "vllm"'),
    ):
        assert uncommented.count(default) == 1
        uncommented = uncommented.replace(default, other)
    (home / "config.toml").write_text(uncommented)
    whole = load(home, {})
    assert whole.proxy.port == 30000
    for section in Config.model_fields:
        assert str(whole.where(section)).startswith(str(home / "config.toml")), section
    unwritten = {key for key, _ in flatten(whole) if str(whole.where(key)) == "default"}
    assert unwritten == set()
