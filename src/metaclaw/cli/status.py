"""`metaclaw status`: how the running proxy is, in words or as JSON."""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.client import at, connect, rows
from metaclaw.cli.output import counted, duration, json_option, plain, print_facts, print_json
from metaclaw.domain.chat import Json
from metaclaw.instance import find


@click.command()
@json_option
@click.pass_obj
def status(home: Path, as_json: bool) -> int:
    """Say how the running proxy is."""
    if as_json and find(home) is None:
        print_json({"running": False, "home": str(home), "start_with": "metaclaw start --detach"})
        return 1
    running, api = connect(home)
    facts = api.facts("/api/status")
    if as_json:
        print_json({"running": True, "pid": running.pid, "url": running.url, "home": str(home), **facts})
        return 0
    state = "serves, degraded," if at(facts, "degraded") else "serves"
    click.echo(f"MetaClaw {plain(at(facts, 'version'))} {state} at {running.url} (pid {running.pid})")
    print_facts(_words(facts))
    return 0


def _words(facts: Json) -> Iterator[tuple[str, object]]:
    uptime = at(facts, "uptime_s")
    since = f", for {duration(uptime)}" if isinstance(uptime, int | float) else ""
    yield "mode", f"{at(facts, 'mode')}{since}"
    yield "recorded", _recorded(at(facts, "counts"))
    live = at(facts, "counts", "skills", "live")
    yield (
        "skills",
        f"{counted(live if live is not None else at(facts, 'skills', 'count'), 'skill')}, generation {at(facts, 'generation')}",
    )
    if at(facts, "skills", "trouble"):
        yield "", at(facts, "skills", "trouble")
    for skipped in rows(at(facts, "skills", "skipped")):
        yield "", f"skipped {at(skipped, 'path')}: {at(skipped, 'reason')}"
    yield "policy", f"version {at(facts, 'policy_version')}"
    yield "store", _store(at(facts, "store"))
    for provider in rows(at(facts, "providers")):
        yield "provider", _provider(provider)
    if at(facts, "engine") is not None:
        yield "embedded", f"model {at(facts, 'engine', 'state')}"
    loops = at(facts, "loops")
    for name, state in loops.items() if isinstance(loops, dict) else ():
        yield "loop", f"{name}: {state}"


def _recorded(counts: Json) -> str:
    turns, sessions, active = at(counts, "turns"), at(counts, "sessions"), at(counts, "active_sessions")
    if turns is None:
        return "cannot be counted now"
    going_on = f", {active} going on" if active else ""
    return f"{counted(turns, 'turn')} in {counted(sessions, 'session')}{going_on}"


def _store(store: Json) -> str:
    words = f"{at(store, 'kind')}, {at(store, 'health')}"
    if at(store, "reason"):
        words += f" ({at(store, 'reason')})"
    if at(store, "waiting_turns"):
        words += f"; {counted(at(store, 'waiting_turns'), 'turn')} waiting in memory"
    if at(store, "lost_turns"):
        words += f"; {counted(at(store, 'lost_turns'), 'turn')} lost"
    return words


def _provider(provider: Json) -> str:
    wires = ", ".join(str(wire) for wire in rows(at(provider, "wires")))
    models = ", ".join(str(model) for model in rows(at(provider, "models")))
    kind = f"{at(provider, 'kind')}: {wires}" if wires else str(at(provider, "kind"))
    return f"{at(provider, 'name')} ({kind}), {at(provider, 'state')}" + (f"; serves {models}" if models else "")
