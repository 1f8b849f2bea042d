"""What connecting writes into files as people have them, to the letter."""

import pytest

from metaclaw.agents import Endpoint, find_agent
from metaclaw.agents.connection import applied
from metaclaw.errors import ConfigError

ENDPOINT = Endpoint(
    "http://127.0.0.1:30000", "mc-key", "gpt-5.1", frozenset({"openai", "anthropic"})
)

HERMES = """\
# my model
model:
  default: anthropic/claude  # fast
  provider: openrouter
toolsets: [all]
"""
HERMES_CONNECTED = """\
# my model
model:
  base_url: "http://127.0.0.1:30000/v1"
  api_key: "mc-key"
  default: "gpt-5.1"  # fast
  provider: "custom"
toolsets: [all]
"""
OPENCLAW = """\
{
  // mine
  agents: {
    defaults: {
      model: 'anthropic/claude', models: { 'anthropic/claude': {} },
      sandbox: { mode: "all" },
    },
  },
}
"""
CODEX = """\
model_provider = "other"   # mine

[model_providers.other]
name = "Other"
"""
CODEX_CONNECTED = """\
model_provider = "metaclaw"   # mine

[model_providers.other]
name = "Other"

[model_providers.metaclaw]
name = "MetaClaw"
base_url = "http://127.0.0.1:30000/v1"
wire_api = "responses"
http_headers = {X-Metaclaw-Key = "mc-key"}
"""
CLAUDE = '{"permissions": {"deny": ["Bash"]}, "env": {"A": "1"}}'
CLAUDE_CONNECTED = (
    '{"permissions": {"deny": ["Bash"]}, "env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:30000",'
    ' "ANTHROPIC_AUTH_TOKEN": "mc-key", "A": "1"}}'
)


def connected(name: str, content: str) -> str:
    agent = find_agent(name)
    assert agent.file is not None
    assert agent.text is not None
    return applied(agent.file({"HOME": "/home/me"}), agent.text, content, agent.settings(ENDPOINT))[
        0
    ]


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("hermes", HERMES, HERMES_CONNECTED),
        ("codex", CODEX, CODEX_CONNECTED),
        ("claude-code", CLAUDE, CLAUDE_CONNECTED),
    ],
)
def test_only_the_needed_lines_change(name: str, content: str, wanted: str) -> None:
    assert connected(name, content) == wanted


def test_a_model_in_the_short_form_and_a_list_of_allowed_models_are_understood() -> None:
    text = connected("openclaw", OPENCLAW)
    agent = find_agent("openclaw")
    assert agent.text is not None
    tree = agent.text.read(text)
    assert isinstance(tree, dict)
    defaults = tree["agents"]["defaults"]
    assert defaults["model"] == {"primary": "metaclaw/gpt-5.1"}
    assert defaults["models"] == {"metaclaw/gpt-5.1": {"alias": "MetaClaw"}, "anthropic/claude": {}}
    assert '      sandbox: { mode: "all" },\n' in text
    assert "  // mine\n" in text


def test_models_are_not_restricted_where_they_were_not() -> None:
    assert "alias" not in connected("openclaw", "{}")


def test_a_provider_that_wants_the_callers_key_is_refused_for_agents_without_one() -> None:
    endpoint = Endpoint(
        "http://127.0.0.1:30000", "mc-key", "gpt-5.1", frozenset({"openai"}), frozenset({"openai"})
    )
    with pytest.raises(ConfigError, match="never written for you"):
        find_agent("hermes").settings(endpoint)
