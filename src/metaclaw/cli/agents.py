"""`metaclaw agents`: point agent programs at the proxy, undo that exactly, and test that they get
an answer.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from metaclaw.cli.client import NotRunningError, at, connect
from metaclaw.cli.home import prepared
from metaclaw.cli.output import (
    ask,
    home_and_json,
    plain,
    plain_block,
    print_json,
    print_table,
    timeout_option,
)
from metaclaw.errors import ConfigError, MetaClawError

if TYPE_CHECKING:
    from metaclaw.agents import Agent, Endpoint, FileChange, Trial
    from metaclaw.config import Config

_UNTRIED = "untried"
_TOO_LONG = (
    "Its first request is longer than the model can read. The embedded model is too small for this"
    " agent: put your provider in front of it with metaclaw setup --provider NAME."
)


@click.group(invoke_without_command=True)
@click.pass_context
def agents(context: click.Context) -> None:
    """Connect agent programs to the proxy, disconnect them, and test them. Without a command:
    list.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_, as_json=False)


@agents.command(name="list")
@home_and_json
def list_(home: Path, as_json: bool) -> None:
    """List the known agents, whether they are installed here, and whether they are connected."""
    from metaclaw.agents import Connections, find_program, known_agents

    connections = Connections(home)
    known, troubles = known_agents()
    for trouble in troubles:
        click.echo(f"metaclaw: {trouble}", err=True)
    found = [
        {
            "name": agent.name,
            "title": agent.title,
            "installed": find_program(agent),
            "state": connections.state(agent).value if agent.is_automatic else "by hand",
            "file": connections.file(agent),
            "tried_with": agent.tried,
        }
        for agent in known
    ]
    if as_json:
        print_json({"agents": found})
        return
    print_table(
        ("agent", "installed", "state", "tried with", "its configuration"),
        [
            (
                row["name"],
                _installed(agent, row["installed"]),
                row["state"],
                row["tried_with"] or _UNTRIED,
                row["file"],
            )
            for agent, row in zip(known, found, strict=True)
        ],
    )


def _installed(agent: "Agent", program: object) -> str | None:
    """Whether the agent is installed; None if it is not a program."""
    if not agent.program:
        return None
    return "yes" if program else "no"


@agents.command(name="connect")
@click.argument("name")
@click.option(
    "--model", help="The model that the agent requests [the first that a provider lists]."
)
@click.option(
    "--subscription",
    is_flag=True,
    help="Claude Code and Codex: your own login is passed on to the provider.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_and_json
def connect_(
    home: Path, name: str, model: str | None, subscription: bool, yes: bool, as_json: bool
) -> None:
    """Point the agent NAME at the proxy. Shows the difference first and keeps a backup; `env`
    prints what to export.
    """
    from metaclaw.agents import Connections, find_agent

    agent = find_agent(name)
    endpoint = replace(
        endpoint_of(home, agent, model, subscription=subscription),
        is_model_chosen=model is not None,
    )
    if not agent.is_automatic:
        _print_steps(agent, endpoint, as_json=as_json)
        return
    connections = Connections(home)
    plan = connections.plan_connect(agent, endpoint)
    if plan.change.is_needed and not as_json:
        print_change(plan.change, endpoint.key)
    if plan.change.is_needed and not yes:
        ask(f"Write this to {plan.change.file}?")
    connections.connect(agent, plan)
    if as_json:
        backup = connections.backup(agent)
        facts = {"agent": agent.name, "file": plan.change.file, "changed": plan.change.is_needed}
        print_json({**facts, "backup": backup if backup.exists() else None})
        return
    if not plan.change.is_needed:
        click.echo(f"{agent.title} is connected already; nothing was changed.")
        return
    click.echo(
        f"{agent.title} is connected."
        + (f" The file as it was: {connections.backup(agent)}" if plan.original is not None else "")
    )
    if agent.after:
        click.echo(f"If it is running: {agent.after}")
    is_testable = agent.question is not None
    attempt = (
        f"metaclaw agents test {agent.name}"
        if is_testable
        else "ask it something, then: metaclaw sessions list"
    )
    click.echo(f"Try it: {attempt}      Undo it: metaclaw agents disconnect {agent.name}")


@agents.command(name="disconnect")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_and_json
def disconnect_(home: Path, name: str, yes: bool, as_json: bool) -> None:
    """Undo `connect`: byte for byte if the file has not changed since, else by removing only the
    added lines.
    """
    from metaclaw.agents import Connections, find_agent

    agent = find_agent(name)
    connections = Connections(home)
    change = connections.plan_disconnect(agent)
    if not as_json:
        print_change(change, _key_or_nothing(home))
    if change.is_needed and not yes:
        ask(f"Write this to {change.file}?")
    connections.disconnect(agent, change)
    if as_json:
        print_json(
            {
                "agent": agent.name,
                "file": change.file,
                "changed": change.is_needed,
                "left": list(change.notes),
            }
        )
        return
    for note in change.notes:
        click.echo(f"  {plain(note)}")
    click.echo(f"{agent.title} is disconnected.")


@agents.command(name="test")
@click.argument("name")
@timeout_option(180.0, "Seconds for the answer.", 1)
@home_and_json
def test_(home: Path, name: str, timeout_s: float, as_json: bool) -> int:
    """Run the agent NAME once through the proxy, unattended, and show its answer. Exits with 1 if
    none came.
    """
    from metaclaw.agents import find_agent

    agent = find_agent(name)
    trial, turns = try_agent(home, agent, timeout_s)
    is_good = trial.code == 0 and bool(trial.answer) and turns > 0
    if as_json:
        facts = {
            "agent": agent.name,
            "ok": is_good,
            "exit_code": trial.code,
            "answer": trial.answer,
            "turns_recorded": turns,
        }
        print_json({**facts, "errors": trial.errors if not is_good else ""})
        return 0 if is_good else 1
    for line in trial_lines(agent, trial, turns):
        click.echo(line)
    return 0 if is_good else 1


def trial_lines(agent: "Agent", trial: "Trial", turns: int) -> list[str]:
    """Describe the result of a trial."""
    if trial.code != 0 or not trial.answer:
        tail = "\n".join(plain_block(trial.errors or trial.answer).splitlines()[-12:])
        advice = _TOO_LONG if "context_length_exceeded" in tail else "See metaclaw doctor."
        return [
            f"{agent.title} gave no answer (exit code {trial.code}). The end of what it printed:",
            tail,
            advice,
        ]
    answer = "\n".join(f"  {line}" for line in plain_block(trial.answer).splitlines()[-8:])
    if turns == 0:
        return [
            f"{agent.title} answered, but not through the proxy:",
            answer,
            (
                f"Connect it (metaclaw agents connect {agent.name}); if it is, a variable of your"
                " shell outranks its configuration."
            ),
        ]
    return [
        f"{agent.title} answered through the proxy ({turns} turn{'s' * (turns != 1)} recorded):",
        answer,
    ]


def try_agent(home: Path, agent: "Agent", timeout_s: float) -> "tuple[Trial, int]":
    """Run the agent once; return its output, and the number of turns that the proxy recorded
    meanwhile.
    """
    from metaclaw.agents import require_program, run_trial

    require_program(agent)
    _, api = connect(home)
    before = _turns(api.facts("/api/status"))
    trial = run_trial(agent, timeout_s)
    return trial, _turns(api.facts("/api/status")) - before


def endpoint_of(
    home: Path, agent: "Agent", model: str | None, *, subscription: bool = False
) -> "Endpoint":
    """The address and key of the proxy for the agent: where it runs, else where it will run by the
    configuration.
    """
    from metaclaw.agents import Endpoint

    config = prepared(home, [])
    key = config.proxy.api_key
    assert key is not None
    kinds, passthrough = provider_kinds(config)
    if subscription:
        _require_passthrough(agent, passthrough)
    return Endpoint(
        _url(home, config), key.resolve(), model or _model(home, config), kinds, passthrough
    )


def provider_kinds(config: "Config") -> tuple[frozenset[str], frozenset[str]]:
    """The kinds of the vendors' providers, and those that get the caller's own credentials. A
    server on this machine that needs no key and lists its models does not know the vendor's."""
    from metaclaw.config import is_loopback

    passthrough = (
        provider.kind
        for provider in config.providers
        if provider.api_key and provider.api_key.is_passthrough
    )
    hosts = [(one, urlsplit(one.base_url or "").hostname or "") for one in config.providers]
    vendors = (
        one.kind for one, host in hosts if one.api_key or not one.models or not is_loopback(host)
    )
    return frozenset(vendors), frozenset(passthrough)


def print_change(change: "FileChange", key: str) -> None:
    """Print a change as a difference."""
    from metaclaw.agents import difference

    if change.is_needed:
        click.echo(plain_block(difference(change, key)))


def _require_passthrough(agent: "Agent", passthrough: frozenset[str]) -> None:
    kind = {"claude-code": "anthropic", "codex": "openai"}.get(agent.name)
    if kind is None:
        raise ConfigError(
            f"--subscription is for Claude Code and Codex; {agent.title} has no login that could be"
            " passed on"
        )
    if kind not in passthrough:
        settings = f"providers.{kind}.kind={kind} providers.{kind}.api_key=passthrough"
        raise ConfigError(
            "a login can only be passed on by a provider with api_key = passthrough, and"
            f" config.toml has none of kind {kind}; add it with: metaclaw config set {settings}"
        )


def _url(home: Path, config: "Config") -> str:
    """The URL of the running proxy, else the configured one."""
    from metaclaw.cli.client import reachable_url
    from metaclaw.instance import find

    running = find(home)
    if running is not None and running.url is not None:
        address, _, port = running.url.removeprefix("http://").rpartition(":")
    elif config.proxy.port == 0:
        raise NotRunningError(home)
    else:
        address, port = config.proxy.host, str(config.proxy.port)
    return reachable_url(address, port)


def _model(home: Path, config: "Config") -> str | None:
    """The first model that a provider lists; without providers, the embedded model of the running
    proxy.
    """
    listed = next((name for provider in config.fallback_order for name in provider.models), None)
    if listed is not None or any(provider.kind != "embedded" for provider in config.providers):
        return listed
    try:
        _, api = connect(home)
        status, body = api.get("/v1/models")
    except MetaClawError:
        return None
    models = at(body, "data") if status == 200 else None
    first = models[0] if isinstance(models, list) and models else None
    name = first.get("id") if isinstance(first, Mapping) else None
    return name if isinstance(name, str) else None


def _print_steps(agent: "Agent", endpoint: "Endpoint", *, as_json: bool) -> None:
    steps = agent.steps(endpoint)
    if as_json:
        print_json({"agent": agent.name, "steps": steps})
        return
    if agent.name != "env":
        click.echo(
            f"# The format of {agent.title}'s own files is not known here; set this yourself"
            " (untried with the program):"
        )
    click.echo("\n".join(steps))


def _turns(status: "Mapping[str, object]") -> int:
    counts = status.get("counts")
    turns = counts.get("turns") if isinstance(counts, Mapping) else None
    return turns if isinstance(turns, int) else 0


def _key_or_nothing(home: Path) -> str:
    from metaclaw.cli.client import own_key

    try:
        return own_key(home)
    except MetaClawError:
        return ""
