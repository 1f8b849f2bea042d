"""The provider that `metaclaw setup` writes, and what it finds out about it: which wires it serves, and why it does not answer."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.output import plain
from metaclaw.errors import ConfigError

if TYPE_CHECKING:
    from metaclaw.config import Config, ProviderConfig
    from metaclaw.upstream import WireProbe

KEEP = "keep"
EMBEDDED = "embedded"
SUBSCRIPTION = "claude-subscription"
LOCAL = "local"
_MOST_MODELS = 20


@dataclass(frozen=True, slots=True)
class _Vendor:
    """A provider that is known by the variable of its key. A server on this machine has none."""

    kind: str
    variable: str | None
    base_url: str | None = None


_VENDORS = {
    "openai": _Vendor("openai", "OPENAI_API_KEY"),
    "anthropic": _Vendor("anthropic", "ANTHROPIC_API_KEY"),
    "openrouter": _Vendor("openai", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    "deepseek": _Vendor("openai", "DEEPSEEK_API_KEY", "https://api.deepseek.com/v1"),
    "groq": _Vendor("openai", "GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    "mistral": _Vendor("openai", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
    "dashscope": _Vendor("openai", "DASHSCOPE_API_KEY", "https://dashscope.aliyuncs.com/compatible-mode/v1"),
    "ollama": _Vendor("openai", None, "http://127.0.0.1:11434/v1"),
    "vllm": _Vendor("openai", None, "http://127.0.0.1:8000/v1"),
    "lmstudio": _Vendor("openai", None, "http://127.0.0.1:1234/v1"),
    LOCAL: _Vendor("openai", None),
}
NAMES = (*_VENDORS, SUBSCRIPTION, EMBEDDED)


def default_provider(config: "Config") -> str:
    """What is there, else the first whose key is found, else the embedded model."""
    if config.providers:
        return KEEP
    return next(iter(_found_keys(config)), EMBEDDED)


def _found_keys(config: "Config") -> list[str]:
    """The vendors whose key is in the environment. Our own key, exported for clients, is none of them."""
    own = config.proxy.api_key
    ours = own.resolve() if own is not None and own.is_literal else None
    return [
        name
        for name, vendor in _VENDORS.items()
        if vendor.variable is not None and os.environ.get(vendor.variable, "").strip() not in ("", ours)
    ]


def ask_provider(config: "Config") -> tuple[str, str | None]:
    """The provider that the person names, and its address if they gave that instead of a name."""
    found = _found_keys(config)
    if found:
        click.echo("Keys in your environment: " + ", ".join(f"{name} ({_VENDORS[name].variable})" for name in found))
    if config.providers:
        click.echo("Configured now: " + ", ".join(provider.name for provider in config.providers))
    choices = [*([KEEP] if config.providers else []), *(name for name in NAMES if name != LOCAL)]
    click.echo("A server of your own (vLLM, LM Studio, llama.cpp, …): type its address, such as http://127.0.0.1:8000/v1")

    def known(said: str) -> str:
        text = said.strip()
        if text.lower() in choices or text.startswith(("http://", "https://")):
            return text if "://" in text else text.lower()
        raise click.BadParameter(f"{text} is none of them; write a name from the list, or an address that begins with http://")

    said = str(click.prompt(f"Which provider ({', '.join(choices)})", default=default_provider(config), value_proc=known))
    return (LOCAL, said) if "://" in said else (said, None)


def provider_settings(config: "Config", provider: str, base_url: str | None, model: str | None) -> list[str]:
    """The settings that make this provider the one in the file, with a reference to its key."""
    if provider == KEEP:
        if base_url is not None:
            raise ConfigError("--base-url needs --provider NAME")
        return []
    if provider == EMBEDDED:
        hosted = [one.name for one in config.providers if one.kind != "embedded"]
        if hosted and not any(one.kind == "embedded" for one in config.providers):
            return ["providers.embedded.kind=embedded"]
        return []
    if provider == SUBSCRIPTION:
        return ["providers.anthropic.kind=anthropic", "providers.anthropic.api_key=passthrough"]
    vendor = _VENDORS.get(provider)
    if vendor is None:
        raise ConfigError(
            f"{provider} is not a provider that setup knows; there are: {', '.join((*NAMES, KEEP))}. "
            f"For any other OpenAI-compatible server: --provider {LOCAL} --base-url http://…/v1"
        )
    if vendor.variable is not None and not os.environ.get(vendor.variable, "").strip():
        raise ConfigError(
            f"{vendor.variable} is not set: export your key under this name, then run setup again. Nothing was changed"
        )
    address = base_url or vendor.base_url
    if provider == LOCAL and address is None:
        raise ConfigError(f"--provider {LOCAL} needs the server's address: --base-url http://127.0.0.1:8000/v1")
    section = f"providers.{provider}"
    return [
        f"{section}.kind={vendor.kind}",
        *([f"{section}.api_key=env:{vendor.variable}"] if vendor.variable else []),
        *([f"{section}.base_url={address}"] if address else []),
        *([f'{section}.wires=["chat"]'] if vendor.variable and vendor.base_url else []),
        *([f"{section}.models={json.dumps([model])}"] if model else []),
    ]


@dataclass(frozen=True, slots=True)
class CheckedProviders:
    """What the configured providers said. `settings` are to be written; `troubles` say why providers would not answer."""

    settings: tuple[str, ...]
    troubles: tuple[str, ...]


def check_providers(home: Path) -> CheckedProviders:
    """Ask every provider that has a key of its own, or none, for the wires it serves. No model works on what is sent."""
    from metaclaw.config import load

    asked = [one for one in load(home).providers if one.kind != "embedded" and not (one.api_key and one.api_key.is_passthrough)]
    found = asyncio.run(_probed(asked)) if asked else []
    settings: list[str] = []
    for one, (probe, models) in zip(asked, found, strict=True):
        if "wires" not in one.model_fields_set and probe.missing and not probe.trouble:
            served = [wire.value for wire in one.wires if wire not in probe.missing]
            settings.append(f"providers.{one.name}.wires={json.dumps(served)}")
        if models and not one.models:
            settings.append(f"providers.{one.name}.models={json.dumps(models)}")
    return CheckedProviders(tuple(settings), tuple(probe.trouble for probe, _ in found if probe.trouble))


async def _probed(providers: "list[ProviderConfig]") -> "list[tuple[WireProbe, list[str]]]":
    return list(await asyncio.gather(*(_probe(one) for one in providers)))


async def _probe(one: "ProviderConfig") -> "tuple[WireProbe, list[str]]":
    """What it serves; of a server of the person's own, which lists few models, also these."""
    from metaclaw.app import build_endpoint
    from metaclaw.upstream import list_models, probe_wires

    endpoint = build_endpoint(one)
    try:
        probe = await probe_wires(endpoint)
        is_own_server = one.api_key is None and probe.trouble is None
        models = await list_models(endpoint) if is_own_server else []
    finally:
        await endpoint.aclose()
    talking = [name for name in models if "embed" not in name.lower()]
    return probe, talking if len(talking) <= _MOST_MODELS else []


def say_troubles(checked: CheckedProviders) -> None:
    """Say at once why a provider will not answer."""
    for trouble in checked.troubles:
        click.echo(f"metaclaw: {plain(trouble)}", err=True)
