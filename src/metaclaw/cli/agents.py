"""`metaclaw agents`: point agent programs at the proxy, undo that exactly, and test that they get
an answer.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from metaclaw.cli.client import (
    ApiClient,
    Facts,
    NotRunningError,
    connect,
    own_key,
    read,
)
from metaclaw.cli.home import prepared
from metaclaw.cli.output import (
    Columns,
    CommandOutput,
    ListingGroup,
    answers,
    confirm,
    counted,
    echo,
    echo_lines,
    listing,
    short,
    timeout_option,
    wants_json,
    yes_option,
)
from metaclaw.errors import ConfigError, MetaClawError
from metaclaw.instance import find, reachable, url_of

if TYPE_CHECKING:
    from metaclaw.agents import Agent, Endpoint, FileChange, Trial
    from metaclaw.config import Config

_MOST_TEXT = 100
_AGENTS: Columns = {
    "agent": "name",
    "installed": lambda one: "yes" if one["installed"] else None,
    "state": "state",
    "tried with": lambda one: one["tried_with"] or "untried",
    "its configuration": "file",
}
_FILES: Columns = {
    "AGENT": "agent",
    "KIND": "kind",
    "RELATED": lambda one: len(one["relations"]),
    "FILE": "path",
}
_TOO_LONG = (
    "Its first request is longer than the model can read. The embedded model is too small for this"
    " agent: put your provider in front of it with metaclaw setup --provider NAME."
)


@click.group(cls=ListingGroup)
def agents() -> None:
    """Connect agent programs to the proxy, disconnect them, and test them. Without a command:
    list.
    """


@agents.command(name="list")
@answers
def list_(home: Path) -> CommandOutput:
    """List the known agents, whether they are installed here, and whether they are connected."""
    from metaclaw.agents import Connections, find_program, known_agents

    connections = Connections(home)
    known, troubles = known_agents()
    for trouble in troubles:
        echo(f"metaclaw: {trouble}", err=True)
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
    return CommandOutput({"agents": found}, listing(found, _AGENTS))


@agents.command()
@answers
def files(home: Path) -> CommandOutput:
    """List the skills and memory files of Claude Code, OpenClaw and Hermes, with what in them
    repeats or contradicts your rules. They are only read.
    """
    facts = read(home, "/api/agent-files")
    return CommandOutput(facts, _file_lines(facts["files"]))


def _file_lines(found: list[Facts]) -> Iterator[str]:
    if not found:
        yield "No skills or memory files of Claude Code, OpenClaw or Hermes were found."
        return
    yield from listing(found, _FILES)
    for one in found:
        if one["trouble"]:
            yield f"{one['path']} cannot be read: {one['trouble']}"
        for related in one["relations"]:
            text = short(related["text"], _MOST_TEXT)
            yield f"{one['path']} {related['kind']} the rule {related['rule']}: {text}"
            if related["kind"] == "contradicts":
                yield f"    {related['why']}"


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
@click.option(
    "--mcp",
    is_flag=True,
    help="Claude Code, Codex and opencode: also register metaclaw mcp, until you disconnect.",
)
@yes_option
@answers
def connect_(
    home: Path, name: str, model: str | None, subscription: bool, mcp: bool, yes: bool
) -> CommandOutput:
    """Point the agent NAME at the proxy. Shows the difference first and keeps a backup; `env`
    prints what to export.
    """
    from metaclaw.agents import Connections, find_agent

    agent = find_agent(name)
    if mcp and not agent.takes_mcp:
        command = " ".join(_mcp_command(home))
        raise ConfigError(
            f"--mcp is for Claude Code, Codex and opencode; register this command in {agent.title}"
            f" by hand: {command}"
        )
    endpoint = replace(
        endpoint_of(home, agent, model, subscription=subscription),
        is_model_chosen=model is not None,
    )
    if mcp:
        endpoint = replace(endpoint, mcp=_mcp_command(home))
    if not agent.is_automatic:
        return _steps(agent, endpoint)
    connections = Connections(home)
    parts = [agent, *filter(None, (agent.second_file, agent.mcp_file if endpoint.mcp else None))]
    plans = [connections.plan_connect(part, endpoint) for part in parts]
    changes = [plan.change for plan in plans]
    plan, change = plans[0], changes[0]
    if not wants_json():
        for one in changes:
            print_change(one, endpoint.key)
    is_needed = any(one.is_needed for one in changes)
    written = " and ".join(str(one.file) for one in changes)
    confirm(f"Write this to {written}?", yes=yes or not is_needed)
    for part, part_plan in zip(parts, plans, strict=True):
        connections.connect(part, part_plan)
    backup = connections.backup(agent)
    facts = {
        "agent": agent.name,
        "file": change.file,
        "changed": is_needed,
        "backup": backup if backup.exists() else None,
        "mcp": changes[-1].file if endpoint.mcp else None,
    }
    if not is_needed:
        return CommandOutput(facts, f"{agent.title} is connected already; nothing was changed.")
    kept = "" if plan.original is None else f" The file as it was: {backup}"
    attempt = (
        f"metaclaw agents test {agent.name}"
        if agent.question is not None
        else "ask it something, then: metaclaw sessions list"
    )
    return CommandOutput(
        facts,
        [
            f"{agent.title} is connected.{kept}",
            *([f"If it is running: {agent.after}"] if agent.after else []),
            f"Try it: {attempt}      Undo it: metaclaw agents disconnect {agent.name}",
        ],
    )


def _steps(agent: "Agent", endpoint: "Endpoint") -> CommandOutput:
    """How to connect an agent by hand."""
    steps = agent.steps(endpoint)
    unknown = (
        f"# The format of {agent.title}'s own files is not known here; set this yourself (untried"
        " with the program):"
    )
    lines = steps if agent.name == "env" else [unknown, *steps]
    return CommandOutput({"agent": agent.name, "steps": steps}, lines)


@agents.command(name="disconnect")
@click.argument("name")
@yes_option
@answers
def disconnect_(home: Path, name: str, yes: bool) -> CommandOutput:
    """Undo `connect`: byte for byte if the file has not changed since, else by removing only the
    added lines.
    """
    from metaclaw.agents import Connections, find_agent

    agent = find_agent(name)
    connections = Connections(home)
    mcp_file = agent.mcp_file if connections.has_mcp(agent) else None
    parts = [agent, *filter(None, (agent.second_file, mcp_file))]
    changes = [connections.plan_disconnect(part) for part in parts]
    if not wants_json():
        for change in changes:
            print_change(change, _key_or_nothing(home))
    is_needed = any(change.is_needed for change in changes)
    written = " and ".join(str(change.file) for change in changes)
    confirm(f"Write this to {written}?", yes=yes or not is_needed)
    for part, change in zip(parts, changes, strict=True):
        connections.disconnect(part, change)
    notes = [note for change in changes for note in change.notes]
    return CommandOutput(
        {"agent": agent.name, "file": changes[0].file, "changed": is_needed, "left": notes},
        [*(f"  {note}" for note in notes), f"{agent.title} is disconnected."],
    )


def _mcp_command(home: Path) -> tuple[str, ...]:
    """The command of our MCP server, wherever the agent starts it."""
    return (sys.executable, "-P", "-m", "metaclaw.cli", "--home", str(home), "mcp")


@agents.command(name="test")
@click.argument("name")
@timeout_option(180.0, "Seconds for the answer.", 1)
@answers
def test_(home: Path, name: str, timeout_s: float) -> CommandOutput:
    """Run the agent NAME once through the proxy, unattended, and show its answer. Exits with 1 if
    none came.
    """
    from metaclaw.agents import find_agent

    agent = find_agent(name)
    trial, turns = try_agent(home, agent, timeout_s)
    is_good = trial.has_answer and turns > 0
    facts = {
        "agent": agent.name,
        "ok": is_good,
        "exit_code": trial.code,
        "answer": trial.answer,
        "turns_recorded": turns,
        "errors": "" if is_good else trial.errors,
    }
    return CommandOutput(facts, trial_lines(agent, trial, turns), 0 if is_good else 1)


def trial_lines(agent: "Agent", trial: "Trial", turns: int) -> list[str]:
    """Describe the result of a trial."""
    if not trial.has_answer:
        tail = (trial.errors or trial.answer).splitlines()[-12:]
        is_too_long = any("context_length_exceeded" in line for line in tail)
        code = f"exit code {trial.code}"
        return [
            f"{agent.title} gave no answer ({code}). The end of what it printed:",
            *tail,
            _TOO_LONG if is_too_long else "See metaclaw doctor.",
        ]
    answer = [f"  {line}" for line in trial.answer.splitlines()[-8:]]
    if turns:
        recorded = counted(turns, "turn")
        return [f"{agent.title} answered through the proxy ({recorded} recorded):", *answer]
    return [
        f"{agent.title} answered, but not through the proxy:",
        *answer,
        f"Connect it (metaclaw agents connect {agent.name}); if it is, a variable of your shell"
        " outranks its configuration.",
    ]


def try_agent(home: Path, agent: "Agent", timeout_s: float) -> "tuple[Trial, int]":
    """Run the agent once; return its output, and the number of turns that the proxy recorded
    meanwhile.
    """
    from metaclaw.agents import require_program, run_trial

    def turns() -> int:
        return api.call("GET", "/api/status")["counts"]["turns"] or 0

    program = require_program(agent)
    _, api = connect(home)
    before = turns()
    trial = run_trial(agent, program, timeout_s)
    return trial, turns() - before


def endpoint_of(
    home: Path, agent: "Agent", model: str | None, *, subscription: bool = False
) -> "Endpoint":
    """The address and key of the proxy for the agent: where it runs, else where it will run by the
    configuration.
    """
    from metaclaw.agents import Connections, Endpoint

    config = prepared(home, [])
    key = config.proxy.api_key
    assert key is not None
    kinds, passthrough = provider_kinds(config)
    if subscription:
        _require_passthrough(agent, passthrough)
    endpoint = Endpoint(
        _url(home, config), key.resolve(), model or _model(home, config), kinds, passthrough
    )
    is_with_mcp = agent.takes_mcp and Connections(home).has_mcp(agent)
    return replace(endpoint, mcp=_mcp_command(home)) if is_with_mcp else endpoint


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
        echo_lines(difference(change, key).splitlines())


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
    running = find(home)
    if running is not None and running.url is not None:
        return running.url
    if config.proxy.port == 0:
        raise NotRunningError(home)
    return reachable(url_of(config.proxy.host, config.proxy.port, config.proxy.scheme))


def _model(home: Path, config: "Config") -> str | None:
    """The first model that a provider lists; without providers, the embedded model of the running
    proxy.
    """
    listed = next((name for provider in config.fallback_order for name in provider.models), None)
    if listed is not None or any(provider.kind != "embedded" for provider in config.providers):
        return listed
    try:
        return first_model(connect(home)[1])
    except MetaClawError:
        return None


def first_model(api: ApiClient) -> str | None:
    """The first model that the proxy lists."""
    return next((one["id"] for one in api.call("GET", "/v1/models")["data"]), None)


def _key_or_nothing(home: Path) -> str:
    try:
        return own_key(home)
    except MetaClawError:
        return ""
