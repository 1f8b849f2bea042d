"""Agents that few people use: entry points of `metaclaw.agents`."""

import shlex
from pathlib import Path

from metaclaw.agents import (
    Agent,
    Endpoint,
    Environment,
    Item,
    JsonFormat,
    Setting,
    TomlFormat,
    YamlFormat,
    folder_of,
    leaves,
    user_home,
)
from metaclaw_more_agents.dotenv import DotenvFormat

__version__ = "0.1.0"

PROVIDER = "metaclaw"


def _aider_settings(endpoint: Endpoint) -> list[Setting]:
    endpoint.refuse_passthrough("aider")
    model = f"openai/{endpoint.require_model('aider')}"
    return leaves(
        (), {"model": model, "openai-api-base": endpoint.openai_url, "openai-api-key": endpoint.key}
    )


def _ironclaw_settings(endpoint: Endpoint) -> list[Setting]:
    endpoint.refuse_passthrough("IronClaw")
    address = {
        "LLM_BACKEND": "openai_compatible",
        "LLM_BASE_URL": endpoint.openai_url,
        "LLM_API_KEY": endpoint.key,
    }
    return leaves((), {**address, "LLM_MODEL": endpoint.require_model("IronClaw")})


def _picoclaw_settings(endpoint: Endpoint) -> list[Setting]:
    endpoint.refuse_passthrough("PicoClaw")
    model = f"openai/{endpoint.require_model('PicoClaw')}"
    entry = {
        "model_name": PROVIDER,
        "model": model,
        "api_base": endpoint.openai_url,
        "api_key": endpoint.key,
    }
    return [
        *leaves(("model_list", Item("model_name", PROVIDER)), entry),
        Setting(("agents", "defaults", "model_name"), PROVIDER),
    ]


def _picoclaw_file(env: Environment) -> Path:
    if env.get("PICOCLAW_CONFIG", "").strip():
        return Path(env["PICOCLAW_CONFIG"]).expanduser()
    return folder_of(env, "PICOCLAW_HOME", ".picoclaw") / "config.json"


def _zeroclaw_settings(endpoint: Endpoint) -> list[Setting]:
    endpoint.refuse_passthrough("ZeroClaw")
    model = endpoint.require_model("ZeroClaw")
    return leaves(
        (),
        {
            "default_provider": f"custom:{endpoint.openai_url}",
            "api_key": endpoint.key,
            "default_model": model,
        },
    )


def _gemini_settings(endpoint: Endpoint) -> list[Setting]:
    found = [Setting(("security", "auth", "selectedType"), "gemini-api-key")]
    if "gemini" not in endpoint.kinds or endpoint.is_model_chosen:
        found.append(Setting(("model", "name"), endpoint.require_model("Gemini CLI")))
    return found


def _gemini_variables(endpoint: Endpoint) -> list[Setting]:
    if "gemini" in endpoint.passthrough:
        return [Setting(("GOOGLE_GEMINI_BASE_URL",), endpoint.keyed_url())]
    return leaves((), {"GOOGLE_GEMINI_BASE_URL": endpoint.url, "GEMINI_API_KEY": endpoint.key})


def _gemini_folder(env: Environment) -> Path:
    return folder_of(env, "GEMINI_CLI_HOME", "") / ".gemini"


def _nanoclaw_settings(endpoint: Endpoint) -> list[Setting]:
    if "anthropic" in endpoint.passthrough:
        return [Setting(("ANTHROPIC_BASE_URL",), endpoint.keyed_url())]
    return leaves((), {"ANTHROPIC_BASE_URL": endpoint.url, "ANTHROPIC_API_KEY": endpoint.key})


def _nanoclaw_file(env: Environment) -> Path:
    """The `.env` file in NanoClaw's checkout."""
    home = user_home(env)
    places = [home / "nanoclaw", home / "code" / "nanoclaw", home / ".nanoclaw"]
    chosen = env.get("NANOCLAW_DIR", "").strip()
    if chosen:
        return Path(chosen).expanduser() / ".env"
    return next((place for place in places if place.is_dir()), places[0]) / ".env"


def _copaw_steps(endpoint: Endpoint) -> list[str]:
    model = shlex.quote(endpoint.require_model("CoPaw"))
    return [
        f"copaw models add-provider {PROVIDER} -n MetaClaw -u {endpoint.openai_url}",
        f"copaw models add-model {PROVIDER} -m {model} -n {model}",
        (
            f"copaw models config-key {PROVIDER}   # it asks; answer with the key that `metaclaw"
            " key` prints"
        ),
    ]


def _nemoclaw_steps(endpoint: Endpoint) -> list[str]:
    model = shlex.quote(endpoint.require_model("NemoClaw"))
    credential = '--credential OPENAI_API_KEY="$(metaclaw key)"'
    return [
        (
            f"openshell provider create --name {PROVIDER} --type openai {credential} --config"
            f" OPENAI_BASE_URL={endpoint.openai_url}"
        ),
        f"openshell inference set --provider {PROVIDER} --model {model}",
    ]


AIDER = Agent(
    "aider",
    "aider",
    "aider",
    "pip install aider-chat",
    "0.86.2",
    _aider_settings,
    lambda env: user_home(env) / ".aider.conf.yml",
    YamlFormat(),
    question=lambda text: (
        "--no-git",
        "--dry-run",
        "--no-check-update",
        "--no-show-model-warnings",
        "--message",
        text,
    ),
)

COPAW = Agent("copaw", "CoPaw", "copaw", "pip install copaw", None, steps=_copaw_steps)

GEMINI = Agent(
    "gemini",
    "Gemini CLI",
    "gemini",
    "npm install -g @google/gemini-cli",
    "0.61.0",
    _gemini_settings,
    lambda env: _gemini_folder(env) / "settings.json",
    JsonFormat(),
    question=lambda text: ("--skip-trust", "-p", text),
    second_file=Agent(
        "gemini-variables",
        "Gemini CLI's variables",
        "gemini",
        "",
        "0.61.0",
        _gemini_variables,
        lambda env: _gemini_folder(env) / ".env",
        DotenvFormat(),
    ),
)

IRONCLAW = Agent(
    "ironclaw",
    "IronClaw",
    "ironclaw",
    "see github.com/nearai/ironclaw",
    None,
    _ironclaw_settings,
    lambda env: user_home(env) / ".ironclaw" / ".env",
    DotenvFormat(),
    after="ironclaw service restart",
)

NANOCLAW = Agent(
    "nanoclaw",
    "NanoClaw",
    "nanoclaw",
    "see github.com/nanocoai/nanoclaw",
    None,
    _nanoclaw_settings,
    _nanoclaw_file,
    DotenvFormat(),
    after=(
        "restart its service; its agents run in containers, from which 127.0.0.1 is not this"
        " machine"
    ),
)

NEMOCLAW = Agent(
    "nemoclaw",
    "NemoClaw",
    "nemoclaw",
    "see github.com/NVIDIA/NemoClaw",
    None,
    steps=_nemoclaw_steps,
)

PICOCLAW = Agent(
    "picoclaw",
    "PicoClaw",
    "picoclaw",
    "see github.com/sipeed/picoclaw",
    None,
    _picoclaw_settings,
    _picoclaw_file,
    JsonFormat(),
    after="picoclaw gateway restart",
)

ZEROCLAW = Agent(
    "zeroclaw",
    "ZeroClaw",
    "zeroclaw",
    "see github.com/zeroclaw-labs/zeroclaw",
    None,
    _zeroclaw_settings,
    lambda env: folder_of(env, "ZEROCLAW_CONFIG_DIR", ".zeroclaw") / "config.toml",
    TomlFormat(),
    after="zeroclaw service restart",
)
