"""The agents that can be connected: their files, formats and settings. Plugins add more."""

from pathlib import Path

from metaclaw.agents.agent import (
    Agent,
    Endpoint,
    Environment,
    Setting,
    folder_of,
    leaves,
    user_home,
)
from metaclaw.agents.formats import Item, KeyPath, YamlFormat
from metaclaw.agents.jsonc import JsonFormat
from metaclaw.agents.toml import TomlFormat
from metaclaw.errors import MetaClawError
from metaclaw.hooks import AGENTS, PluginError, installed_names, known_names, load_plugin

PROVIDER = "metaclaw"
_CONTEXT_TOKENS = 128_000
_ANSWER_TOKENS = 8_000
_QWEN_KEY = "METACLAW_API_KEY"


def known_agents() -> tuple[list[Agent], list[PluginError]]:
    """The agents of the program and of installed plugins, and what is wrong with plugins."""
    found: list[Agent] = []
    troubles: list[PluginError] = []
    for name in sorted(installed_names(AGENTS)):
        try:
            found.append(load_plugin(AGENTS, name, Agent))
        except PluginError as error:
            troubles.append(error)
    return [*COMMON_AGENTS, *found, ENV], troubles


def find_agent(name: str) -> Agent:
    """The agent with this name. Raises MetaClawError with all names, or with what to install."""
    wanted, own = name.strip().lower().replace("_", "-"), (*COMMON_AGENTS, ENV)
    for agent in own:
        if wanted in (agent.name, agent.program):
            return agent
    if wanted not in (others := known_names(AGENTS)):
        names = ", ".join([*(agent.name for agent in own), *others])
        raise MetaClawError(f"{name} is not a known agent; there are: {names}")
    return load_plugin(AGENTS, wanted, Agent)


def _claude_settings(endpoint: Endpoint) -> list[Setting]:
    values = {"ANTHROPIC_BASE_URL": endpoint.url, "ANTHROPIC_AUTH_TOKEN": endpoint.key}
    if "anthropic" in endpoint.passthrough:
        values = {"ANTHROPIC_BASE_URL": endpoint.keyed_url()}
    if "anthropic" in endpoint.kinds:
        values |= (
            {"ANTHROPIC_MODEL": endpoint.require_model("Claude Code")}
            if endpoint.is_model_chosen
            else {}
        )
    else:
        # Providers of other vendors do not know Claude's model names.
        model = endpoint.require_model("Claude Code")
        values |= {"ANTHROPIC_MODEL": model, "ANTHROPIC_DEFAULT_HAIKU_MODEL": model}
    return leaves(("env",), values)


def _codex_settings(endpoint: Endpoint) -> list[Setting]:
    provider: dict[str, object] = {
        "name": "MetaClaw",
        "base_url": endpoint.openai_url,
        "wire_api": "responses",
    }
    provider |= {"http_headers": {"X-Metaclaw-Key": endpoint.key}}
    if "openai" in endpoint.passthrough:
        provider["requires_openai_auth"] = True
    found = [Setting(("model_provider",), PROVIDER)]
    if "openai" not in endpoint.kinds or endpoint.is_model_chosen:
        found.insert(0, Setting(("model",), endpoint.require_model("Codex")))
    found += [
        Setting(("model_providers", PROVIDER, name), value) for name, value in provider.items()
    ]
    return found + _mcp_settings(endpoint, ("mcp_servers", PROVIDER))


def _mcp_settings(endpoint: Endpoint, path: KeyPath) -> list[Setting]:
    """The command of our MCP server as most agents take it; nothing if it is not wanted."""
    if not endpoint.mcp:
        return []
    program, *arguments = endpoint.mcp
    return leaves(path, {"command": program, "args": arguments})


def _openclaw_settings(endpoint: Endpoint) -> list[Setting]:
    endpoint.refuse_passthrough("OpenClaw")
    model = endpoint.require_model("OpenClaw")
    listed = {
        "id": model,
        "name": model,
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": _CONTEXT_TOKENS,
        "maxTokens": _ANSWER_TOKENS,
    }
    provider = {
        "baseUrl": endpoint.openai_url,
        "apiKey": endpoint.key,
        "api": "openai-completions",
        "models": [listed],
    }
    defaults = ("agents", "defaults")
    return [
        *leaves(("models", "providers", PROVIDER), provider),
        Setting((*defaults, "model", "primary"), f"{PROVIDER}/{model}"),
        # If models are listed there, OpenClaw refuses all others.
        Setting(
            (*defaults, "models", f"{PROVIDER}/{model}", "alias"),
            "MetaClaw",
            within=(*defaults, "models"),
        ),
    ]


def _openclaw_file(env: Environment) -> Path:
    if env.get("OPENCLAW_CONFIG_PATH", "").strip():
        return Path(env["OPENCLAW_CONFIG_PATH"]).expanduser()
    return folder_of(env, "OPENCLAW_STATE_DIR", ".openclaw") / "openclaw.json"


def _opencode_settings(endpoint: Endpoint) -> list[Setting]:
    endpoint.refuse_passthrough("opencode")
    model = endpoint.require_model("opencode")
    options = {"baseURL": endpoint.openai_url, "apiKey": endpoint.key}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "MetaClaw", "options": options}
    server = {"type": "local", "command": list(endpoint.mcp), "enabled": True}
    return [
        Setting(("model",), f"{PROVIDER}/{model}"),
        *leaves(("provider", PROVIDER), provider),
        Setting(("provider", PROVIDER, "models", model, "name"), model),
        *(leaves(("mcp", PROVIDER), server) if endpoint.mcp else ()),
    ]


def _opencode_file(env: Environment) -> Path:
    if env.get("OPENCODE_CONFIG", "").strip():
        return Path(env["OPENCODE_CONFIG"]).expanduser()
    folder = folder_of(env, "XDG_CONFIG_HOME", ".config") / "opencode"
    commented = folder / "opencode.jsonc"
    return (
        commented
        if commented.exists() and not (folder / "opencode.json").exists()
        else folder / "opencode.json"
    )


def _hermes_settings(endpoint: Endpoint) -> list[Setting]:
    endpoint.refuse_passthrough("Hermes")
    values = {"default": endpoint.require_model("Hermes"), "provider": "custom"}
    return leaves(("model",), {**values, "base_url": endpoint.openai_url, "api_key": endpoint.key})


def _qwen_settings(endpoint: Endpoint) -> list[Setting]:
    endpoint.refuse_passthrough("Qwen Code")
    model = endpoint.require_model("Qwen Code")
    # OPENAI_API_KEY in the shell outranks a key in the settings, unless the model names its own
    # variable.
    entry = {"id": model, "name": "MetaClaw", "envKey": _QWEN_KEY, "baseUrl": endpoint.openai_url}
    return [
        Setting(("security", "auth", "selectedType"), "openai"),
        Setting(("model", "name"), model),
        *leaves(("modelProviders", "openai", Item("id", model)), entry),
        Setting(("env", _QWEN_KEY), endpoint.key),
    ]


def _exports(endpoint: Endpoint) -> list[str]:
    """Shell commands for clients that read the vendors' usual variables."""
    lines = []
    if "openai" in endpoint.passthrough:
        lines.append(
            f"export OPENAI_BASE_URL={endpoint.keyed_url('/v1')}   # your own OPENAI_API_KEY is"
            " passed on"
        )
    else:
        lines += [
            f"export OPENAI_BASE_URL={endpoint.openai_url}",
            f"export OPENAI_API_BASE={endpoint.openai_url}",
        ]
        lines.append(f"export OPENAI_API_KEY={endpoint.key}")
    if "anthropic" in endpoint.passthrough:
        lines.append(
            f"export ANTHROPIC_BASE_URL={endpoint.keyed_url()}   # your own key or login is"
            " passed on"
        )
    else:
        lines += [
            f"export ANTHROPIC_BASE_URL={endpoint.url}",
            f"export ANTHROPIC_AUTH_TOKEN={endpoint.key}",
        ]
    return lines


def _claude_state(env: Environment) -> Path:
    """The file in which Claude Code keeps, among other things, its MCP servers."""
    return folder_of(env, "CLAUDE_CONFIG_DIR", "") / ".claude.json"


COMMON_AGENTS: tuple[Agent, ...] = (
    Agent(
        "claude-code",
        "Claude Code",
        "claude",
        "npm install -g @anthropic-ai/claude-code",
        "2.1.325",
        _claude_settings,
        lambda env: folder_of(env, "CLAUDE_CONFIG_DIR", ".claude") / "settings.json",
        JsonFormat(),
        question=lambda text: ("-p", text),
        takes_mcp=True,
        mcp_file=Agent(
            "claude-code-mcp",
            "Claude Code's tools",
            "claude",
            "",
            "2.1.325",
            lambda endpoint: _mcp_settings(endpoint, ("mcpServers", PROVIDER)),
            _claude_state,
            JsonFormat(),
        ),
    ),
    Agent(
        "codex",
        "Codex",
        "codex",
        "npm install -g @openai/codex",
        "0.166.0",
        _codex_settings,
        lambda env: folder_of(env, "CODEX_HOME", ".codex") / "config.toml",
        TomlFormat(),
        question=lambda text: ("exec", "--skip-git-repo-check", "--sandbox", "read-only", text),
        takes_mcp=True,
    ),
    Agent(
        "openclaw",
        "OpenClaw",
        "openclaw",
        "npm install -g openclaw",
        "2026.9.6",
        _openclaw_settings,
        _openclaw_file,
        JsonFormat(),
        question=lambda text: (
            "agent",
            "--local",
            "--session-id",
            "metaclaw-test",
            "--message",
            text,
        ),
        after="openclaw gateway restart",
    ),
    Agent(
        "opencode",
        "opencode",
        "opencode",
        "npm install -g opencode-ai",
        "1.18.18",
        _opencode_settings,
        _opencode_file,
        JsonFormat(),
        question=lambda text: ("run", text),
        takes_mcp=True,
    ),
    Agent(
        "hermes",
        "Hermes",
        "hermes",
        "pip install hermes-agent",
        "0.19.0",
        _hermes_settings,
        lambda env: folder_of(env, "HERMES_HOME", ".hermes") / "config.yaml",
        YamlFormat(),
        question=lambda text: ("-z", text),
        after="hermes gateway restart",
    ),
    Agent(
        "qwen-code",
        "Qwen Code",
        "qwen",
        "npm install -g @qwen-code/qwen-code",
        "0.24.4",
        _qwen_settings,
        lambda env: user_home(env) / ".qwen" / "settings.json",
        JsonFormat(),
        question=lambda text: ("-p", text),
    ),
)
ENV = Agent("env", "anything else", "", "", None, steps=_exports)
