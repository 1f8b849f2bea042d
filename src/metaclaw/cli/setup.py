"""`metaclaw setup`: configure a provider and connect agents, with at most four questions.

The providers are probed for the wires that they serve.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.agents import endpoint_of, print_change, trial_lines, try_agent
from metaclaw.cli.client import ApiClient, at, connect, message_in, parsed
from metaclaw.cli.lifecycle import launch, prepared, refuse_own_key, sign_in_link, stop_proxy
from metaclaw.cli.output import own_command, plain, plain_block, timeout_option
from metaclaw.errors import ConfigError, MetaClawError

if TYPE_CHECKING:
    from metaclaw.agents import Agent
    from metaclaw.config import Config, ProviderConfig
    from metaclaw.domain.chat import Json
    from metaclaw.upstream import WireProbe


KEEP = "keep"
EMBEDDED = "embedded"
SUBSCRIPTION = "claude-subscription"
LOCAL = "local"
_MOST_MODELS = 20


@dataclass(frozen=True, slots=True)
class _Vendor:
    """A known provider and the variable of its key. A server on this machine has no key."""

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


_START_S = 600.0
_STOP_S = 60.0


@click.command()
@click.option(
    "--provider",
    help=f"{', '.join(NAMES)}, or {KEEP}. {SUBSCRIPTION} passes your login on; {LOCAL} is any OpenAI-compatible server,"
    " by --base-url [keep what is there, else the first key found, else embedded].",
)
@click.option("--base-url", help="The address of this provider, if it is not the usual one.")
@click.option("--model", help="The model that agents request [each agent's, else the first that is listed].")
@click.option("--agents", "named", help="Agents to connect, with commas between them; all, or none [all that are installed].")
@click.option("--daily-tokens", type=click.IntRange(min=0), help="Most tokens a day for learning [as it is].")
@click.option("--train/--no-train", "trains", default=None, help="Train weights while you are away [as it is].")
@timeout_option(180.0, "Seconds for each answer.", 1)
@click.option("--yes", is_flag=True, help="Ask nothing: use defaults for everything that no option sets.")
@click.pass_obj
def setup(
    home: Path,
    provider: str | None,
    base_url: str | None,
    model: str | None,
    named: str | None,
    daily_tokens: int | None,
    trains: bool | None,
    timeout_s: float,
    yes: bool,
) -> int:
    """Choose a provider, connect your agents, start the proxy, and send one real request through each.

    Asks at most four questions. Keys are taken from the environment and stored as references (env:NAME), never as values.
    Running it again keeps what it does not ask about.
    """
    from metaclaw.config import load

    config = load(home)
    if base_url is not None and provider is None:
        raise ConfigError(f"--base-url needs --provider NAME; for a server of your own: --provider {LOCAL} --base-url {base_url}")
    try:
        if provider is None:
            provider, base_url = (default_provider(config), None) if yes else ask_provider(config)
        settings = provider_settings(config, provider, base_url, model)
        chosen = _chosen_agents(named, yes=yes)
        if daily_tokens is None and not yes:
            daily_tokens = _ask_budget()
        can_train = provider == EMBEDDED or (provider == KEEP and config.untrainable is None)
        if trains is None and can_train and not yes:
            trains = click.confirm("Train the embedded model's weights while you are away?", default=config.policy is not None)
    except click.Abort:
        raise MetaClawError("nothing was changed; setup asks questions: answer them, or use --yes") from None
    if trains and not can_train:
        raise ConfigError(
            "--train needs weights that can be trained here: the embedded model, or [policy] in config.toml (docs/training.md)"
        )
    settings += [] if daily_tokens is None else [f"learning.daily_tokens={daily_tokens}"]
    settings += _training_settings(config, trains)
    _write(home, settings)
    refuse_own_key(prepared(home, []))
    checked = check_providers(home)
    _write(home, checked.settings)
    say_troubles(checked)
    _serve(home, is_changed=bool(settings or checked.settings))
    return _connect_and_ask(home, chosen, model, timeout_s, checked)


def _chosen_agents(named: str | None, *, yes: bool) -> "list[Agent]":
    from metaclaw.agents import AGENTS, find_agent, find_program

    installed = [agent for agent in AGENTS if agent.is_automatic and find_program(agent) is not None]
    if named is None and not yes:
        if not installed:
            click.echo("No agent program was found on your PATH; metaclaw agents list says which are known.")
            return []
        default = ",".join(agent.name for agent in installed)
        named = str(click.prompt("Which agents (names with commas, or none)", default=default))
    if named is None or named.strip() == "all":
        return installed
    if named.strip() in ("", "none"):
        return []
    return [find_agent(name) for name in named.split(",") if name.strip()]


def _ask_budget() -> int | None:
    def number(typed: str) -> str:
        text = typed.replace(",", "").replace("_", "").strip()
        if text != KEEP and not text.isdecimal():
            raise click.BadParameter(f"{typed} is not a number of tokens; write, for example, 300000, or keep")
        return text

    said = str(click.prompt("Most tokens a day for learning (a number, or keep)", default=KEEP, value_proc=number))
    return None if said == KEEP else int(said)


def _training_settings(config: "Config", trains: bool | None) -> list[str]:
    if trains is None or (not trains and config.policy is None):
        return []
    return ["policy.mode=auto" if trains else "policy.mode=skills_only"]


def _write(home: Path, settings: Sequence[str]) -> None:
    from metaclaw.config import set_values

    prepared(home, [])
    if settings:
        path = set_values(home, settings)
        click.echo(f"Wrote {path}: {', '.join(plain(setting) for setting in settings)}")


def _serve(home: Path, *, is_changed: bool) -> None:
    """Start the proxy, or restart it if the configuration has changed."""
    from metaclaw.instance import find

    if find(home) is not None:
        if not is_changed:
            return
        stop_proxy(home, _STOP_S)
    api, _ = launch(home, prepared(home, []), [], _START_S)
    click.echo(f"MetaClaw serves at {plain(api.url)}, in the background; metaclaw stop ends it.")
    link = plain(sign_in_link(api)) if sys.stdout.isatty() else f"{own_command()} page prints a link"
    click.echo(f"Watch it learn, in a browser: {link}")


def _connect_and_ask(home: Path, chosen: "list[Agent]", model: str | None, timeout_s: float, checked: "CheckedProviders") -> int:
    failed: list[str] = []
    for agent in chosen:
        try:
            is_good = _connected_and_asked(home, agent, model, timeout_s)
        except MetaClawError as error:
            click.echo(f"{agent.title}: {plain_block(str(error))}", err=True)
            is_good = False
        failed += [] if is_good else [agent.name]
    if not chosen:
        failed += [] if _asked_directly(connect(home)[1], model, checked) else ["the proxy"]
    if failed:
        click.echo(
            f"\nNo answer through: {', '.join(failed)}. Everything else is done; correct the problems above and run setup again.",
            err=True,
        )
        return 1
    click.echo("\nDone. metaclaw status shows its state; metaclaw agents disconnect NAME undoes a connection.")
    return 0


def _connected_and_asked(home: Path, agent: "Agent", model: str | None, timeout_s: float) -> bool:
    from metaclaw.agents import Connections, find_program

    connections = Connections(home)
    model = model or connections.chosen_model(agent)
    endpoint = replace(endpoint_of(home, agent, model), is_model_chosen=model is not None)
    plan = connections.plan_connect(agent, endpoint)
    print_change(plan.change, endpoint.key)
    connections.connect(agent, plan)
    if find_program(agent) is None:
        click.echo(f"{agent.title} is connected, but not installed here, so it was not asked: {agent.install}")
        return True
    trial, turns = try_agent(home, agent, timeout_s)
    for line in trial_lines(agent, trial, turns):
        click.echo(line)
    return trial.code == 0 and bool(trial.answer) and turns > 0


def _asked_directly(api: ApiClient, model: str | None, checked: "CheckedProviders") -> bool:
    """Send one chat request to the proxy, if there is no agent to send it."""
    status, body = api.get("/v1/models")
    models = at(body, "data")
    first = models[0] if status == 200 and isinstance(models, list) and models else None
    name = model or (first.get("id") if isinstance(first, Mapping) else None)
    if not isinstance(name, str):
        reason = "; ".join(checked.troubles)
        advice = f"No model answers: {plain(reason)}." if reason else "No model is known; name one with --model NAME."
        click.echo(f"No agent was connected. {advice}", err=True)
        return False
    said: dict[str, Json] = {"model": name, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 30}
    with api.stream("POST", "/v1/chat/completions", said, headers={"X-Turn-Type": "side"}, timeout_s=180.0) as reply:
        status, body = reply.status, parsed(reply.read())
    choices = at(body, "choices")
    text = at(choices[0], "message", "content") if status == 200 and isinstance(choices, list) and choices else None
    if not isinstance(text, str):
        click.echo(f"{plain(name)} gave no answer ({status}): {plain(message_in(body))}", err=True)
        return False
    click.echo(f"{plain(name)} answered through the proxy:\n  {plain(text.strip())}")
    return True


def default_provider(config: "Config") -> str:
    """The configured provider, else the first whose key is found, else the embedded model."""
    if config.providers:
        return KEEP
    return next(iter(_found_keys(config)), EMBEDDED)


def _found_keys(config: "Config") -> list[str]:
    """The vendors whose key is in the environment. The proxy's own key, which may be exported for clients, does not count."""
    own = config.proxy.api_key
    ours = own.resolve() if own is not None and own.is_literal else None
    return [
        name
        for name, vendor in _VENDORS.items()
        if vendor.variable is not None and os.environ.get(vendor.variable, "").strip() not in ("", ours)
    ]


def ask_provider(config: "Config") -> tuple[str, str | None]:
    """Ask for the provider; return its name, and its address if the person typed that instead."""
    found = _found_keys(config)
    if found:
        click.echo("Keys in your environment: " + ", ".join(f"{name} ({_VENDORS[name].variable})" for name in found))
    if config.providers:
        click.echo("Configured now: " + ", ".join(provider.name for provider in config.providers))
    choices = [*([KEEP] if config.providers else []), *(name for name in NAMES if name != LOCAL)]
    click.echo("A server of your own (vLLM, LM Studio, llama.cpp, …): type its address, such as http://127.0.0.1:8000/v1")

    def known(typed: str) -> str:
        text = typed.strip()
        if text.lower() in choices or text.startswith(("http://", "https://")):
            return text if "://" in text else text.lower()
        raise click.BadParameter(f"{text} is none of them; write a name from the list, or an address that begins with http://")

    said = str(click.prompt(f"Which provider ({', '.join(choices)})", default=default_provider(config), value_proc=known))
    return (LOCAL, said) if "://" in said else (said, None)


def provider_settings(config: "Config", provider: str, base_url: str | None, model: str | None) -> list[str]:
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
    """The results of probing the providers: `settings` to write, and `troubles`, the reasons why providers do not answer."""

    settings: tuple[str, ...]
    troubles: tuple[str, ...]


def check_providers(home: Path) -> CheckedProviders:
    """Probe every provider that needs no credentials of the caller for the wires it serves, without running a model."""
    from metaclaw.config import load

    probed = [one for one in load(home).providers if one.kind != "embedded" and not (one.api_key and one.api_key.is_passthrough)]
    found = asyncio.run(_probe_all(probed)) if probed else []
    settings: list[str] = []
    for one, (probe, models) in zip(probed, found, strict=True):
        if "wires" not in one.model_fields_set and probe.missing and not probe.trouble:
            served = [wire.value for wire in one.wires if wire not in probe.missing]
            settings.append(f"providers.{one.name}.wires={json.dumps(served)}")
        if models and not one.models:
            settings.append(f"providers.{one.name}.models={json.dumps(models)}")
    return CheckedProviders(tuple(settings), tuple(probe.trouble for probe, _ in found if probe.trouble))


async def _probe_all(providers: "list[ProviderConfig]") -> "list[tuple[WireProbe, list[str]]]":
    return list(await asyncio.gather(*(_probe(one) for one in providers)))


async def _probe(provider: "ProviderConfig") -> "tuple[WireProbe, list[str]]":
    """Probe the wires of a provider; for a server without a key also list its models, unless there are many."""
    from metaclaw.app import build_endpoint
    from metaclaw.upstream import list_models, probe_wires

    endpoint = build_endpoint(provider)
    try:
        probe = await probe_wires(endpoint)
        is_own_server = provider.api_key is None and probe.trouble is None
        models = await list_models(endpoint) if is_own_server else []
    finally:
        await endpoint.aclose()
    talking = [name for name in models if "embed" not in name.lower()]
    return probe, talking if len(talking) <= _MOST_MODELS else []


def say_troubles(checked: "CheckedProviders") -> None:
    """Print why providers do not answer."""
    for trouble in checked.troubles:
        click.echo(f"metaclaw: {plain(trouble)}", err=True)
