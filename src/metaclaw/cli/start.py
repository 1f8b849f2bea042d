"""`metaclaw start`: the proxy in this terminal, or detached in a session of its own."""

import gc
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.output import counted, json_option, plain, print_json
from metaclaw.errors import ConfigError

if TYPE_CHECKING:
    from metaclaw.config import Config, ProviderConfig

_MODES = ("skills_only", "rl", "auto")


@click.command()
@click.option(
    "--mode",
    help="When it trains weights: skills_only never, rl whenever enough turns are there, auto while you are away"
    " [policy.mode; without [policy]: skills_only].",
)
@click.option("--host", help="Address to listen on [proxy.host].")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes any free one [proxy.port].")
@click.option("--set", "sets", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a setting for this run; may be repeated.")
@click.option("--detach", is_flag=True, help="Run in the background; return once it can serve.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), default=600.0, show_default=True, help="With --detach: seconds to wait."
)
@click.option("--detached", is_flag=True, hidden=True, help="This is the background process itself: print nothing.")
@json_option
@click.pass_obj
def start(
    home: Path,
    mode: str | None,
    host: str | None,
    port: int | None,
    sets: tuple[str, ...],
    detach: bool,
    timeout_s: float,
    detached: bool,
    as_json: bool,
) -> int:
    """Start the proxy and say how to point an agent at it."""
    overrides = [
        *sets,
        *([f"proxy.host={host}"] if host is not None else []),
        *([f"proxy.port={port}"] if port is not None else []),
    ]
    if detach or detached:
        from metaclaw.cli.background import launch, overrides_from_parent
        from metaclaw.cli.page import sign_in_link

    overrides = overrides_from_parent() if detached else [*overrides, *settings_of_mode(home, mode, overrides)]
    config = prepared(home, overrides)
    if detach:
        api, facts = launch(home, config, overrides, timeout_s)
        announce(config, api.url, api.key, facts.model, facts.skills, sign_in_link(api), as_json=as_json)
        return 0
    # What is made from here until the proxy serves stays: to look for garbage in it takes a tenth of the time. `run` ends this.
    gc.disable()
    from metaclaw.app import StartedProxy, run

    def ready(serving: StartedProxy) -> None:
        if not detached:
            announce(config, serving.url, serving.api_key, serving.model, serving.skills, serving.page, as_json=as_json)

    return run(config, home=home, ready=ready)


def prepared(home: Path, overrides: list[str]) -> "Config":
    """The configuration to start with; at the first start the home folder is made and a key is generated and stored."""
    from metaclaw.config import ensure_api_key, load, prepare_home

    config = load(home, sets=overrides)
    prepare_home(home)
    if config.proxy.api_key is None:
        ensure_api_key(home)
        config = load(home, sets=overrides)
    return config


def announce(config: "Config", url: str, key: str, embedded: str | None, skills: int, page: str, *, as_json: bool) -> None:
    """Print where the proxy is, its key, and how to point an agent at it. `embedded` is the embedded model where it serves."""
    model = embedded or next((name for provider in config.fallback_order for name in provider.models), None)
    if as_json:
        print_json(
            {
                "url": url,
                "api_key": key,
                "openai_base_url": f"{url}/v1",
                "anthropic_base_url": url,
                "model": model,
                "skills": skills,
                "page": page,
            }
        )
        return
    lines = [
        f"MetaClaw serves {', '.join(provider.name for provider in config.fallback_order) or plain(model)}"
        f" with {counted(skills, 'skill')}.",
        f"  URL  {url}",
        f"  key  {key}",
        "Point an agent at it:",
        f"  OpenAI clients     {_setting(config, 'openai', url, key)}",
        f"  Anthropic clients  {_setting(config, 'anthropic', url, key)}",
        f"  by hand            {_curl(config, url, key, model, is_embedded=embedded is not None)}",
        f"Watch it learn, in a browser: {page}",
    ]
    click.echo("\n".join(lines))


def _curl(config: "Config", url: str, key: str, model: str | None, *, is_embedded: bool) -> str:
    """A request to try. A provider that passes credentials on needs the caller's own beside our key, in its own wire."""
    body: dict[str, object] = {"model": model or "<a model of your provider>", "messages": [{"role": "user", "content": "Hello"}]}
    path, headers = "/v1/chat/completions", [shlex.quote(f"Authorization: Bearer {key}")]
    asked = None if is_embedded else _asked_by_chat(config, model)
    if asked is not None and asked.api_key is not None and asked.api_key.is_passthrough:
        path, headers = f"/k/{key}{path}", ['"Authorization: Bearer $OPENAI_API_KEY"']
        if asked.kind == "anthropic":
            path, headers = f"/k/{key}/v1/messages", ['"x-api-key: $ANTHROPIC_API_KEY"', "'anthropic-version: 2023-06-01'"]
            body["max_tokens"] = 100
    fields = " ".join(f"-H {header}" for header in (*headers, "'Content-Type: application/json'"))
    return f"curl {url}{path} {fields} -d {shlex.quote(json.dumps(body))}"


def _asked_by_chat(config: "Config", model: str | None) -> "ProviderConfig | None":
    """The provider that a chat request for this model goes to."""
    providers = config.fallback_order
    listing = (one for one in providers if model in one.models)
    speaking = (one for one in providers if "chat" in one.wires)
    return next(listing, None) or next(speaking, None) or next(iter(providers), None)


def _setting(config: "Config", vendor: str, url: str, key: str) -> str:
    """What a client of this vendor must be told; its own credentials are needed where its provider passes them on."""
    name, version = vendor.upper(), "/v1" if vendor == "openai" else ""
    first = next((one for one in config.fallback_order if one.kind == vendor), None)
    if first is not None and first.api_key is not None and first.api_key.is_passthrough:
        return f"export {name}_BASE_URL={url}/k/{key}{version}   # your own {name}_API_KEY or login is passed on"
    variable = "OPENAI_API_KEY" if vendor == "openai" else "ANTHROPIC_AUTH_TOKEN"
    return f"export {name}_BASE_URL={url}{version} {variable}={key}"


def settings_of_mode(home: Path, mode: str | None, overrides: list[str]) -> list[str]:
    """A mode as the settings it stands for. Where no weights are to be trained, none being trained already needs no setting."""
    from metaclaw.config import load

    if mode is None:
        return []
    if mode not in _MODES:
        raise ConfigError(f"--mode {mode} is not a mode; write --mode {', '.join(_MODES[:-1])} or {_MODES[-1]}")
    config = load(home, sets=overrides)
    if mode == "skills_only" and config.policy is None:
        return []
    if config.untrainable is not None:
        hosted = ", ".join(plain(provider.name) for provider in config.providers)
        raise ConfigError(
            f"--mode {mode} trains weights, and the weights behind {hosted} are not ours to train.\n"
            f"  What works with {hosted}: rules, facts and skills. Leave out --mode: metaclaw start\n"
            "  What can be trained: the embedded model, beside your provider:"
            " metaclaw config set providers.embedded.kind=embedded\n"
            "  or a model of a training service: [policy] with backend and base_model in config.toml (docs/training.md)"
        )
    return [f"policy.mode={mode}"]
