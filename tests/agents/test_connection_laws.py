"""Laws of connecting, for generated files of every agent in `TRIED`: it can be undone byte for byte,
and repeating it is harmless.
"""

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.agents import COMMON_AGENTS, Agent, Connections, ConnectionState, Endpoint
from metaclaw.agents.formats import YamlFormat, lookup, with_value
from metaclaw.agents.jsonc import JsonFormat
from metaclaw.agents.toml import TomlFormat
from metaclaw.errors import ConfigError

TRIED = [agent for agent in COMMON_AGENTS if agent.is_automatic]
TRIED += [agent.mcp_file for agent in COMMON_AGENTS if agent.mcp_file is not None]
VENDORS = frozenset({"openai", "anthropic"})
ENDPOINT = Endpoint(
    "http://127.0.0.1:30000", "mc-test-key", "gpt-5.1", VENDORS, mcp=("/usr/bin/python3", "mcp")
)
OTHER_ENDPOINT = Endpoint(
    "http://127.0.0.1:31000", "mc-other-key", "gpt-6", VENDORS, mcp=("/opt/python3", "mcp")
)
KEYS = st.sampled_from(
    [
        "model",
        "env",
        "security",
        "models",
        "agents",
        "defaults",
        "provider",
        "providers",
        "auth",
        "theme",
        "ünï",
        "a.b",
    ]
)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(10**6), 10**6), st.text(alphabet="ab /\\\"'#:{},é\t", max_size=8)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.dictionaries(KEYS, inner, max_size=3), st.lists(inner, max_size=2)),
    max_leaves=10,
)
SECTIONS = st.dictionaries(KEYS, TREES, max_size=4)


@st.composite
def contents(draw: st.DrawFn, agent: Agent) -> str:
    """A file as a person may have written it: comments, other keys, either line ending, with or
    without a last one.
    """
    seed = random.Random(draw(st.integers(0, 2**32)))
    text = WRITERS[type(agent.text)](draw(SECTIONS), seed)
    if seed.random() < 0.3:
        text = text.rstrip("\n")
    return text.replace("\n", "\r\n") if seed.random() < 0.4 else text


def _json(tree: Any, seed: random.Random) -> str:
    return f"{_comment(seed)}{_json_value(tree, seed, '')}\n{_comment(seed)}"


def _json_value(value: Any, seed: random.Random, indent: str) -> str:
    if not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=seed.random() < 0.5)
    is_wide = seed.random() < 0.7
    inner = indent + "  " if is_wide else indent
    gap = f"\n{inner}" if is_wide else " "
    items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    parts = [
        ("" if key is None else f"{json.dumps(key)}: ") + _json_value(item, seed, inner)
        for key, item in items
    ]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if not parts:
        return seed.choice(
            [
                opening + closing,
                f"{opening} {closing}",
                f"{opening} // nothing\n{indent}{closing}",
                f"{opening}\n{closing}",
            ]
        )
    notes = [seed.choice(["", "", f"/* note */{gap}", f"// note, with {{\n{inner}"]) for _ in parts]
    body = f",{gap}".join(note + part for note, part in zip(notes, parts, strict=True))
    return (
        opening
        + gap
        + body
        + seed.choice(["", ","])
        + (f"\n{indent}" if is_wide else " ")
        + closing
    )


def _comment(seed: random.Random) -> str:
    return seed.choice(["", "", "// mine\n", "/* mine,\n too */\n"])


def _toml(tree: Any, seed: random.Random) -> str:
    lines = [
        f"{json.dumps(key)} = {json.dumps(value)}{seed.choice(['', '  # why'])}"
        for key, value in tree.items()
        if not _is_deep(value)
    ]
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += [seed.choice(["", "# a section"]), f"[{json.dumps(key)}]"]
            lines += [
                f"  {json.dumps(name)} = {json.dumps(item)}"
                for name, item in value.items()
                if not _is_deep(item)
            ]
    if seed.random() < 0.5:
        lines += [
            "[model_providers.other]",
            'name = "other"',
            'base_url = """x\n[y]"""',
            "",
            "# the end",
        ]
    if seed.random() < 0.5:
        lines.insert(0, 'model_provider   =  "other"   # mine')
    return "\n".join(lines) + "\n"


def _is_deep(value: Any) -> bool:
    return isinstance(value, dict | list)


def _yaml(tree: Any, seed: random.Random) -> str:
    if not tree:
        return seed.choice(["", "# nothing yet\n", "{}\n", "---\n"])
    text = yaml.safe_dump(
        tree,
        default_flow_style=seed.choice([None, False, True]),
        allow_unicode=True,
        sort_keys=False,
    )
    head = seed.choice(["", "# mine\n", "---\n"])
    extra = (
        "" if text.startswith("{") else seed.choice(["", "# last\n", "note: |\n  line\n\n# last\n"])
    )
    return head + text + extra


WRITERS: dict[type, Callable[[Any, random.Random], str]] = {
    JsonFormat: _json,
    TomlFormat: _toml,
    YamlFormat: _yaml,
}


@contextmanager
def place_of(agent: Agent, content: bytes | None) -> Iterator[tuple[Connections, Path]]:
    """A user's folder with this file in it."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"HOME": folder}
        assert agent.file is not None
        file = agent.file(env)
        if content is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        yield Connections(Path(folder) / "metaclaw", env), file


def connect(connections: Connections, agent: Agent, endpoint: Endpoint = ENDPOINT) -> bool:
    plan = connections.plan_connect(agent, endpoint)
    connections.connect(agent, plan)
    return plan.change.is_needed


def disconnect(connections: Connections, agent: Agent) -> None:
    connections.disconnect(agent, connections.plan_disconnect(agent))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_connecting_and_disconnecting_is_the_identity_on_bytes(
    agent: Agent, data: st.DataObject
) -> None:
    content = data.draw(contents(agent)).encode()
    with place_of(agent, content) as (connections, file):
        assert connect(connections, agent)
        assert connections.state(agent) is ConnectionState.CONNECTED
        connected = file.read_bytes()
        assert not connect(connections, agent)
        assert file.read_bytes() == connected
        connect(connections, agent, OTHER_ENDPOINT)
        assert b"30000" not in file.read_bytes()
        disconnect(connections, agent)
        assert file.read_bytes() == content
        assert connections.state(agent) is ConnectionState.NOT_CONNECTED


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_connecting_leaves_every_other_value_and_comment(agent: Agent, data: st.DataObject) -> None:
    content = data.draw(contents(agent))
    assert agent.text is not None
    with place_of(agent, content.encode()) as (connections, file):
        plan = connections.plan_connect(agent, ENDPOINT)
        wanted = agent.text.read(content)
        for setting in reversed(plan.settings):
            wanted = with_value(wanted, setting.path, setting.value)
        connections.connect(agent, plan)
        changed = file.read_bytes().decode()
        assert agent.text.read(changed) == wanted
        assert all(
            changed.count(note) >= content.count(note)
            for note in ("# mine", "# last", "# why", "# the end", "/* mine,")
        )
        assert ("\r\n" in content) <= ("\n" not in changed.replace("\r\n", ""))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_a_file_changed_since_loses_only_what_connecting_added(
    agent: Agent, data: st.DataObject
) -> None:
    content = data.draw(contents(agent))
    text = agent.text
    assert text is not None
    with place_of(agent, content.encode()) as (connections, file):
        connect(connections, agent)
        file.write_bytes(text.put(file.read_bytes().decode(), ("LATER",), "mine").encode())
        disconnect(connections, agent)
        assert text.read(file.read_bytes().decode()) == with_value(
            text.read(content), ("LATER",), "mine"
        )


def test_a_value_that_somebody_changed_since_stays(agent: Agent) -> None:
    text = agent.text
    assert text is not None
    with place_of(agent, None) as (connections, file):
        plan = connections.plan_connect(agent, ENDPOINT)
        connections.connect(agent, plan)
        path = plan.settings[-1].path
        file.write_bytes(text.put(file.read_bytes().decode(), path, "mine").encode())
        assert connections.state(agent) is ConnectionState.CHANGED
        change = connections.plan_disconnect(agent)
        assert len(change.notes) == 1
        connections.disconnect(agent, change)
        assert lookup(text.read(file.read_bytes().decode()), path) == (True, "mine")
        assert b"mc-test-key" not in file.read_bytes()


def test_a_file_that_was_not_there_is_gone_again_with_its_folders(agent: Agent) -> None:
    with place_of(agent, None) as (connections, file):
        connect(connections, agent)
        assert file.stat().st_mode & 0o777 == 0o600
        disconnect(connections, agent)
        assert not file.exists()
        assert agent.name in ("aider", "claude-code-mcp") or not file.parent.exists()


BROKEN: dict[type, list[str]] = {
    JsonFormat: ['{"a": ', '{"a" 1}', "[1]", '{"a": 1} x', "{a: b c}", "nonsense"],
    TomlFormat: ["a = ", "[a\nb = 1", "a = 1\na = 2"],
    YamlFormat: ["a: [1", "- 1\n- 2\n", "a: b: c", "just words\n"],
}


def test_a_broken_file_is_refused_in_words_and_left_alone(agent: Agent) -> None:
    for content in BROKEN[type(agent.text)]:
        with place_of(agent, content.encode()) as (connections, file):
            with pytest.raises(ConfigError, match=r"is not valid .* The file was left as it is"):
                connections.plan_connect(agent, ENDPOINT)
            assert file.read_bytes() == content.encode()
            assert connections.state(agent) is ConnectionState.NOT_CONNECTED


def test_a_file_that_is_not_utf_8_is_refused(agent: Agent) -> None:
    with place_of(agent, b"\xff\xfe{") as (connections, file):
        with pytest.raises(ConfigError, match="UTF-8"):
            connections.plan_connect(agent, ENDPOINT)
        assert file.read_bytes() == b"\xff\xfe{"
