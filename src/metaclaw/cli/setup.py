"""`metaclaw setup`: configure a provider and connect agents, with at most four questions.

The providers are probed for the wires that they serve.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from metaclaw.cli.agents import (
    endpoint_of,
    first_model,
    print_change,
    provider_kinds,
    trial_lines,
    try_agent,
)
from metaclaw.cli.client import ApiClient, connect, message_in, parsed
from metaclaw.cli.home import prepared
from metaclaw.cli.lifecycle import launch, refuse_own_key, restart_proxy, sign_in_link
from metaclaw.cli.output import echo, echo_lines, own_command, timeout_option
from metaclaw.errors import ConfigError, MetaClawError

if TYPE_CHECKING:
    from metaclaw.agents import Agent, Connections
    from metaclaw.config import Config, ProviderConfig
    from metaclaw.upstream import WireProbe


KEEP = "keep"
EMBEDDED = "embedded"
SUBSCRIPTION = "claude-subscription"
LOCAL = "local"
_MOST_STORED = 100
_MOST_SHOWN = 20
_NOT_CHAT = ("embed", "rerank", "whisper", "tts", "moderation", "dall-e")


@dataclass(frozen=True, slots=True)
class _Vendor:
    """A known provider and the variable of its key. A server on this machine has no key."""

    kind: str
    variable: str | None
    base_url: str | None = None


_VENDORS = {
    "openai": _Vendor("openai", "OPENAI_API_KEY"),
    "anthropic": _Vendor("anthropic", "ANTHROPIC_API_KEY"),
    "gemini": _Vendor("gemini", "GEMINI_API_KEY"),
    "openrouter": _Vendor("openai", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    "deepseek": _Vendor("openai", "DEEPSEEK_API_KEY", "https://api.deepseek.com/v1"),
    "groq": _Vendor("openai", "GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    "mistral": _Vendor("openai", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
    "dashscope": _Vendor(
        "openai", "DASHSCOPE_API_KEY", "https://dashscope.aliyuncs.com/compatible-mode/v1"
    ),
    "ollama": _Vendor("openai", None, "http://127.0.0.1:11434/v1"),
    "vllm": _Vendor("openai", None, "http://127.0.0.1:8000/v1"),
    "lmstudio": _Vendor("openai", None, "http://127.0.0.1:1234/v1"),
    LOCAL: _Vendor("openai", None),
}
NAMES = (*_VENDORS, SUBSCRIPTION, EMBEDDED)


_START_S = 600.0
_STOP_S = 60.0


@click.command()
@click.option(
    "--provider",
    help=(
        f"{', '.join(NAMES)}, or {KEEP}. {SUBSCRIPTION} passes your login on; {LOCAL} is any"
        " OpenAI-compatible server, by --base-url [keep what is there, else the first key found,"
        " else embedded]."
    ),
)
@click.option("--base-url", help="The address of this provider, if it is not the usual one.")
@click.option(
    "--model",
    help=(
        "The model that agents request [each agent's own, else the first that the provider lists]."
    ),
)
@click.option(
    "--agents",
    "named",
    help="Agents to connect, with commas between them; all, or none [all that are installed].",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of the proxy; written to config.toml [as it is].",
)
@click.option(
    "--train/--no-train",
    "trains",
    default=None,
    help="Train weights while you are away [as it is].",
)
@timeout_option(180.0, "Seconds for each answer.", 1)
@click.option(
    "--yes", is_flag=True, help="Ask nothing: use defaults for everything that no option sets."
)
@click.pass_obj
def setup(
    home: Path,
    provider: str | None,
    base_url: str | None,
    model: str | None,
    named: str | None,
    port: int | None,
    trains: bool | None,
    timeout_s: float,
    yes: bool,
) -> int:
    """Choose a provider, connect your agents, start the proxy, and send one real request
    through each. Asks at most four questions, stores keys as env:NAME, and keeps what it does
    not ask about."""
    from metaclaw.agents import Connections
    from metaclaw.config import load, set_values

    config = load(home)
    if base_url is not None and provider is None:
        raise ConfigError(
            f"--base-url needs --provider NAME; for a server of your own: --provider {LOCAL}"
            f" --base-url {base_url}"
        )
    try:
        if provider is None:
            provider, base_url = (default_provider(config), None) if yes else ask_provider(config)
        settings = provider_settings(config, provider, base_url, model)
        chosen = _chosen_agents(named, yes=yes)
        can_train = provider == EMBEDDED or (provider == KEEP and config.untrainable is None)
        if trains is None and can_train and not yes:
            trains = click.confirm(
                "Train the embedded model's weights while you are away?",
                default=config.policy is not None,
            )
        if trains and not can_train:
            raise ConfigError(
                "--train needs weights that can be trained here: the embedded model, or [policy] in"
                " config.toml (docs/training.md)"
            )
        planned = load(home, sets=settings)
        refuse_own_key(planned)
        checked = check_providers(planned, asks=not yes)
        models = AgentModels(model, _models_of(planned, checked, provider))
        if not yes:
            models = ask_model(models, planned, Connections(home), chosen)
    except click.Abort:
        raise MetaClawError(
            "nothing was changed; setup asks questions: answer them, or use --yes"
        ) from None
    settings += [] if port is None or port == config.proxy.port else [f"proxy.port={port}"]
    if trains is not None and (trains or config.policy is not None):
        settings.append(f"policy.mode={'auto' if trains else 'skills_only'}")
    settings += [setting for one in checked for setting in one.settings(models.answered)]
    prepared(home, [])
    if settings:
        path = set_values(home, settings)
        echo(f"Wrote {path}: {', '.join(settings)}")
    troubles = [one.probe.trouble for one in checked if one.probe.trouble]
    for trouble in troubles:
        echo(f"metaclaw: {trouble}", err=True)
    _serve(home, is_changed=bool(settings))
    return _connect_and_ask(home, chosen, models, timeout_s, troubles)


def _chosen_agents(named: str | None, *, yes: bool) -> "list[Agent]":
    from metaclaw.agents import find_agent, find_program, known_agents

    installed = [
        agent
        for agent in known_agents()[0]
        if agent.is_automatic and find_program(agent) is not None
    ]
    if named is None and not yes:
        if not installed:
            click.echo(
                "No agent program was found on your PATH; metaclaw agents list says which are"
                " known."
            )
            return []
        default = ",".join(agent.name for agent in installed)
        named = str(click.prompt("Which agents (names with commas, or none)", default=default))
    if named is None or named.strip() == "all":
        return installed
    if named.strip() in ("", "none"):
        return []
    return [find_agent(name) for name in named.split(",") if name.strip()]


def _serve(home: Path, *, is_changed: bool) -> None:
    """Start the proxy, or restart it if the configuration has changed."""
    from metaclaw.instance import find

    is_running = find(home) is not None
    if is_running and not is_changed:
        return
    # A service that does not run is not started: it would not have the keys of this shell.
    if is_running:
        api, unit = restart_proxy(home, [], _STOP_S, _START_S)
    else:
        api, unit = launch(home, prepared(home, []), [], _START_S)[0], None
    how = f"by {unit}" if unit else "in the background; metaclaw stop ends it"
    click.echo(f"MetaClaw serves at {api.url}, {how}.")
    link = sign_in_link(api) if sys.stdout.isatty() else f"{own_command()} page prints a link"
    click.echo(f"Watch it learn, in a browser: {link}")


def _connect_and_ask(
    home: Path,
    chosen: "list[Agent]",
    models: "AgentModels",
    timeout_s: float,
    troubles: Sequence[str],
) -> int:
    failed: list[str] = []
    for agent in chosen:
        try:
            if not _connected_and_asked(home, agent, models, timeout_s):
                failed.append(agent.name)
        except MetaClawError as error:
            for line in f"{agent.title}: {error}".splitlines():
                echo(line, err=True)
            failed.append(agent.name)
    if not chosen and not _asked_directly(connect(home)[1], models.first, troubles):
        failed.append("the proxy")
    if failed:
        click.echo(
            f"\nNo answer through: {', '.join(failed)}. Everything else is done; correct the"
            " problems above and run setup again.",
            err=True,
        )
        return 1
    click.echo(
        "\nDone. metaclaw status shows its state; metaclaw agents disconnect NAME undoes a"
        " connection."
    )
    return 0


def _connected_and_asked(
    home: Path, agent: "Agent", models: "AgentModels", timeout_s: float
) -> bool:
    from metaclaw.agents import Connections, find_program

    connections = Connections(home)
    endpoint = endpoint_of(home, agent, None)
    needs = agent.needs_model(endpoint)
    model = models.named or (models.answered if needs else None) or connections.chosen_model(agent)
    wanted = model or (models.first if needs else None) or endpoint.model
    endpoint = replace(endpoint, model=wanted, is_model_chosen=model is not None)
    plan = connections.plan_connect(agent, endpoint)
    print_change(plan.change, endpoint.key)
    connections.connect(agent, plan)
    if find_program(agent) is None:
        click.echo(
            f"{agent.title} is connected, but not installed here, so it was not asked:"
            f" {agent.install}"
        )
        return True
    trial, turns = try_agent(home, agent, timeout_s)
    echo_lines(trial_lines(agent, trial, turns))
    return trial.has_answer and turns > 0


def _asked_directly(api: ApiClient, model: str | None, troubles: Sequence[str]) -> bool:
    """Send one chat request to the proxy, if there is no agent to send it."""
    name = model or first_model(api)
    if name is None:
        advice = "No model is known; name one with --model NAME."
        if troubles:
            advice = f"No model answers: {'; '.join(troubles)}."
        echo(f"No agent was connected. {advice}", err=True)
        return False
    said = {
        "model": name,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 30,
    }
    headers = {"X-Turn-Type": "side"}
    path = "/v1/chat/completions"
    with api.stream("POST", path, said, headers=headers, timeout_s=180.0) as reply:
        status, body = reply.status, parsed(reply.read())
    if status != 200:
        echo(f"{name} gave no answer ({status}): {message_in(body)}", err=True)
        return False
    text = body["choices"][0]["message"]["content"] or ""
    echo_lines([f"{name} answered through the proxy:", f"  {text.strip()}"])
    return True


def default_provider(config: "Config") -> str:
    """The configured provider, else the first whose key is found, else the embedded model."""
    if config.providers:
        return KEEP
    return next(iter(_found_keys(config)), EMBEDDED)


def _found_keys(config: "Config") -> list[str]:
    """The vendors whose key is in the environment. The proxy's own key, which may be exported for
    clients, does not count.
    """
    own = config.proxy.api_key
    ours = own.resolve() if own is not None and own.is_literal else None
    return [
        name
        for name, vendor in _VENDORS.items()
        if vendor.variable is not None
        and os.environ.get(vendor.variable, "").strip() not in ("", ours)
    ]


def ask_provider(config: "Config") -> tuple[str, str | None]:
    """Ask for the provider; return its name, and its address if the person typed that instead."""
    found = _found_keys(config)
    if found:
        click.echo(
            "Keys in your environment: "
            + ", ".join(f"{name} ({_VENDORS[name].variable})" for name in found)
        )
    if config.providers:
        click.echo("Configured now: " + ", ".join(provider.name for provider in config.providers))
    choices = [*([KEEP] if config.providers else []), *(name for name in NAMES if name != LOCAL)]
    click.echo(
        "A server of your own (vLLM, LM Studio, llama.cpp, …): type its address, such as"
        " http://127.0.0.1:8000/v1"
    )

    def known(typed: str) -> str:
        text = typed.strip()
        if text.lower() in choices or text.startswith(("http://", "https://")):
            return text if "://" in text else text.lower()
        raise click.BadParameter(
            f"{text} is none of them; write a name from the list, or an address that begins with"
            " http://"
        )

    said = str(
        click.prompt(
            f"Which provider ({', '.join(choices)})",
            default=default_provider(config),
            value_proc=known,
        )
    )
    return (LOCAL, said) if "://" in said else (said, None)


def provider_settings(
    config: "Config", provider: str, base_url: str | None, model: str | None
) -> list[str]:
    """The settings that configure this provider, with a reference to its key."""
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
            f"{provider} is not a provider that setup knows; there are:"
            f" {', '.join((*NAMES, KEEP))}. For any other OpenAI-compatible server: --provider"
            f" {LOCAL} --base-url http://…/v1"
        )
    if vendor.variable is not None and not os.environ.get(vendor.variable, "").strip():
        raise ConfigError(
            f"{vendor.variable} is not set: export your key under this name, then run setup again."
            " Nothing was changed"
        )
    address = base_url or vendor.base_url
    if provider == LOCAL and address is None:
        raise ConfigError(
            f"--provider {LOCAL} needs the server's address: --base-url http://127.0.0.1:8000/v1"
        )
    section = f"providers.{provider}"
    return [
        f"{section}.kind={vendor.kind}",
        *([f"{section}.api_key=env:{vendor.variable}"] if vendor.variable else []),
        *([f"{section}.base_url={address}"] if address else []),
        *([f'{section}.wires=["chat"]'] if vendor.variable and vendor.base_url else []),
        *([f"{section}.models={json.dumps([model])}"] if model else []),
    ]


@dataclass(frozen=True, slots=True)
class CheckedProvider:
    """The result of probing a provider. `listed` are the models that it lists, unless config.toml
    does.
    """

    config: "ProviderConfig"
    probe: "WireProbe"
    listed: tuple[str, ...]

    def settings(self, first: str | None) -> list[str]:
        """What to write: the wires that it serves, and the models of a server of one's own, with
        the chosen one first.
        """
        section, found = f"providers.{self.config.name}", list[str]()
        is_asked = "wires" not in self.config.model_fields_set and not self.probe.trouble
        if is_asked and self.probe.missing:
            served = [wire.value for wire in self.config.wires if wire not in self.probe.missing]
            found.append(f"{section}.wires={json.dumps(served)}")
        if self.listed and _is_own_server(self.config) and len(self.listed) <= _MOST_STORED:
            models = sorted(self.listed, key=lambda model: model != first)
            found.append(f"{section}.models={json.dumps(models)}")
        return found


def check_providers(config: "Config", *, asks: bool) -> list[CheckedProvider]:
    """Probe every provider that needs no credentials of the caller for the wires it serves, without
    running a model. Models of hosted providers are listed only if the person can choose from them:
    the first of a hundred is no sensible default."""

    async def probe_all() -> list[CheckedProvider]:
        return await asyncio.gather(
            *(
                _probe(one, is_listed=asks or _is_own_server(one))
                for one in config.providers
                if one.kind != "embedded" and not (one.api_key and one.api_key.is_passthrough)
            )
        )

    return asyncio.run(probe_all())


async def _probe(provider: "ProviderConfig", *, is_listed: bool) -> CheckedProvider:
    from metaclaw.app import build_endpoint
    from metaclaw.upstream import list_models, probe_wires

    endpoint = build_endpoint(provider)
    try:
        probe = await probe_wires(endpoint)
        is_listed = is_listed and not provider.models and probe.trouble is None
        models = await list_models(endpoint) if is_listed else []
    finally:
        await endpoint.aclose()
    chats = (name for name in models if not any(word in name.lower() for word in _NOT_CHAT))
    return CheckedProvider(provider, probe, tuple(chats))


def _models_of(
    config: "Config", checked: Sequence[CheckedProvider], provider: str
) -> tuple[str, ...]:
    """The models of the provider that was chosen, or of all."""
    listed = {one.config.name: one.listed for one in checked}
    wanted = [one for one in config.fallback_order if provider in (KEEP, one.name)]
    found = (model for one in wanted for model in one.models or listed.get(one.name, ()))
    return tuple(dict.fromkeys(found))


def _is_own_server(provider: "ProviderConfig") -> bool:
    """Whether a provider is a server of the person's own: it has no key, or runs on this
    machine.
    """
    from metaclaw.config import is_loopback

    return provider.api_key is None or is_loopback(urlsplit(provider.base_url or "").hostname or "")


@dataclass(frozen=True, slots=True)
class AgentModels:
    """The model that agents should use: named with --model, answered to the question, else the
    first that is known.
    """

    named: str | None
    known: tuple[str, ...]
    answered: str | None = None

    @property
    def first(self) -> str | None:
        return self.named or self.answered or next(iter(self.known), None)


def ask_model(
    models: AgentModels, config: "Config", connections: "Connections", chosen: "list[Agent]"
) -> AgentModels:
    """Ask which of several models agents should use, unless every agent has its own."""
    from metaclaw.agents import Endpoint

    kinds, passthrough = provider_kinds(config)
    endpoint = Endpoint("", "", None, kinds, passthrough)
    needing = [agent for agent in chosen if agent.needs_model(endpoint)]
    if models.named or len(models.known) < 2 or (chosen and not needing):
        return models
    known, shown = models.known, models.known[:_MOST_SHOWN]
    click.echo("Models:")
    for number, name in enumerate(shown, 1):
        echo(f"  {number:2}  {name}")
    if len(known) > len(shown):
        click.echo(f"  and {len(known) - len(shown)} more")

    def model(typed: str) -> str:
        text = typed.strip()
        if text in known:
            return text
        if text.isdecimal() and 1 <= int(text) <= len(shown):
            return shown[int(text) - 1]
        raise click.BadParameter(f"{text} is not in the list; write a number or a name from it")

    before = next((one for one in map(connections.chosen_model, needing) if one in known), known[0])
    question = "Which model should agents use (number or name)"
    return replace(models, answered=str(click.prompt(question, default=before, value_proc=model)))
