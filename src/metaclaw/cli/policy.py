"""`metaclaw policy`: list versions of the weights, train, promote and roll back. `metaclaw
windows`: when weights may be trained."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import ApiClient, Facts, NotFoundError, connect, read, request
from metaclaw.cli.output import (
    Columns,
    CommandOutput,
    answers,
    bar,
    counted,
    dated,
    duration,
    echo_lines,
    fact_lines,
    json_option,
    limit_option,
    listing,
    moment,
    print_json,
    short,
    show_progress,
    timeout_option,
)
from metaclaw.domain.status import RUN_STATES
from metaclaw.errors import MetaClawError

if TYPE_CHECKING:
    from metaclaw.config import SleepRange

_VERSION = click.IntRange(0, 2**31 - 1)
_MOST_WHY = 120
_LOOK_S = 1.0
_JUDGING_S = 20.0
_OPEN_SESSIONS = (
    "The last turn of a session gets its verdict when the session ends: metaclaw sessions end"
    " --all, or after a while of silence."
)
_NOTHING = "Nothing was trained yet; the untrained model serves."
_COLUMNS: Columns = {
    "VERSION": "version",
    "STATE": "state",
    "FROM": "parent",
    "STEPS": "steps",
    "GENERATION": "generation",
    "MADE": dated("made_at"),
    "WHY": lambda one: short(one["note"] or _reasons_of(one), _MOST_WHY),
}


@click.group()
def policy() -> None:
    """List trained versions of the weights, train now, promote a version, or go back."""


@policy.command(name="list")
@limit_option(20, "Most versions to list.")
@answers
def list_(home: Path, limit: int) -> CommandOutput:
    """List the versions, newest first: the state of each, its parent, and why."""
    facts = read(home, "/api/policy", limit=limit)
    found = {name: facts[name] for name in ("policy_version", "versions")}
    listed = facts["versions"]
    return CommandOutput(found, listing(listed, _COLUMNS) if listed else _NOTHING)


@policy.command()
@answers
def plan(home: Path) -> CommandOutput:
    """Measure on this machine, before anything is trained: memory, tokens per second, seconds
    per step, steps per night."""
    import asyncio

    from metaclaw.config import PolicyConfig, load
    from metaclaw.engine import EmbeddedTrainer, locate_model

    config = load(home)
    settings = config.policy or PolicyConfig()
    if settings.backend != "embedded":
        raise MetaClawError(f"the model is trained by {settings.backend}, not on this machine")
    threads, slots = config.engine.threads or None, config.engine.max_batch
    place = locate_model(home / "models", settings.base_model)

    async def measure() -> Facts:
        trainer = EmbeddedTrainer(
            place.folder,
            home / "policies",
            convert=place.convert,
            threads=threads,
            device=settings.device,
        )
        try:
            found = await trainer.plan(settings.device, settings.lora_rank, slots)
        finally:
            await trainer.aclose()
        return asdict(found)

    found = asyncio.run(measure())
    has_own_processor = found["device"] != "cpu"
    prompts = settings.prompts_of_a_step(has_own_processor)
    answers_each = settings.answers_to_a_prompt(has_own_processor)
    tokens = prompts * answers_each * settings.max_new_tokens
    # An answer that ends early makes the step shorter.
    step_s = (
        tokens / found["drawn_per_s"] + tokens / found["learned_per_s"]
        if found["drawn_per_s"]
        else None
    )
    night_h = max(map(_hours, config.schedule.sleep_ranges), default=8.0)
    facts = {
        "model": place.folder.name,
        **found,
        "step_s": step_s,
        "step_tokens": tokens,
        "night_hours": night_h,
        "steps_a_night": None if step_s is None else int(3600 * night_h / step_s),
    }
    size = f"{prompts} prompts × {answers_each} answers × up to {settings.max_new_tokens} tokens"
    return CommandOutput(facts, _plan_lines(facts, size))


def _hours(sleep: "SleepRange") -> float:
    begins, ends = (60 * moment.hour + moment.minute for moment in (sleep.begins, sleep.ends))
    return ((ends - begins) % 1440 or 1440) / 60


def _plan_lines(facts: Facts, size: str) -> Iterator[str]:
    def memory(name: str) -> str:
        return f"{facts[name] / 1e9:.1f} GB"

    rows = [
        ("model", f"{facts['model']}, {facts['parameters'] / 1e9:.2f} billion parameters"),
        ("device", f"{facts['device']}, {memory('free_bytes')} of memory free"),
        ("memory to serve", memory("serving_bytes")),
        ("memory to train", f"at least {memory('training_bytes')}"),
    ]
    if facts["step_s"] is None:
        yield from fact_lines(rows)
        yield "The memory is too small to train this model here: choose a smaller one."
        return
    rows += [
        ("draws", f"{facts['drawn_per_s']:,.0f} tokens/s"),
        ("learns", f"{facts['learned_per_s']:,.0f} tokens/s"),
        ("a step", f"at most {facts['step_s']:.1f} s ({size})"),
        ("a night", f"{facts['steps_a_night']:,} steps in {facts['night_hours']:g} hours"),
    ]
    yield from fact_lines(rows)


@policy.command()
@click.argument("version", type=_VERSION, required=False)
@answers
def show(home: Path, version: int | None) -> CommandOutput:
    """Show one VERSION: its training turns, the gate's result, and its state. Without VERSION, the
    serving one.
    """
    facts = read(home, "/api/policy", limit=1)
    serving = facts["policy_version"]
    wanted = serving if version is None else version
    if wanted == 0:
        state = "retired" if serving else "serving"
        told = f"version 0, {state}: the untrained model" if facts["versions"] else _NOTHING
        return CommandOutput({"version": 0, "state": state, "turns": []}, told)
    try:
        found = read(home, f"/api/policy/{wanted}")
    except NotFoundError:
        raise _unknown(facts, wanted) from None
    return CommandOutput(found, _shown(found))


def _unknown(facts: Facts, version: int) -> MetaClawError:
    listed = f"there is no version {version}; metaclaw policy list shows all"
    return MetaClawError(listed if facts["versions"] else _NOTHING)


def _shown(version: Facts) -> Iterator[str]:
    yield f"version {version['version']}, {version['state']}"
    yield from fact_lines(_words(version))


def _words(version: Facts) -> Iterator[tuple[str, object]]:
    parent, report, note = version["parent"], version["report"], version["note"]
    weights = f"{version['adapter']} ({version['backend']})"
    taught = counted(len(version["turns"]), "turn")
    yield "trained from", f"version {parent}" if parent else "the untrained model"
    yield "base", version["base"]
    yield "weights", weights if version["is_kept"] else f"{weights}, no longer kept"
    yield "taught by", f"{taught}, with skills of generation {version['generation']}"
    yield "changed by", counted(version["steps"], "step")
    yield "made", moment(version["made_at"])
    if version["state"] == "candidate":
        yield "gate", "not finished yet"
    if note and (report is None or note != _reasons_of(version)):
        yield "note", note
    if version["absorbed"]:
        yield "absorbed", ", ".join(version["absorbed"])
    if report is not None:
        yield from _proof(report)


def _proof(report: Facts) -> Iterator[tuple[str, object]]:
    yield "gate", "passed" if report["passed"] else "not passed"
    for reason in report["reasons"]:
        yield "", reason
    if held := report["held_out"]:
        yield (
            "held out",
            f"{held['better']} better and {held['worse']} worse of {held['pairs']} pairs, gain"
            f" {held['mean_gain']:+.3f}, evidence against chance {held['e_value']:.3g} : 1",
        )
    before, after = report["golden"]["untrained"], report["golden"]["candidate"]
    if before is not None and after is not None:
        yield "golden set", f"{before:.1%} → {after:.1%}"
    for habit in report["habits"]:
        yield (
            "habit",
            f"without it in the prompt, {habit['rule']} is broken by {habit['after']:.0f} of 100 answers, before by"
            f" {habit['before']:.0f}",
        )
    if report["left_recording"] is not None:
        yield "tasks", f"{report['left_recording']:.0%} of answers left the recorded tool calls"
    if report["kl"] is not None:
        yield "distance", f"{report['kl']:.4g} nats a token from the untrained model"
    if report["judge"] is not None:
        yield "judge", report["judge"]
    if report["drawn_by"] is not None:
        yield "drawn by", report["drawn_by"]


def _reasons_of(version: Facts) -> str:
    return "; ".join(version["report"]["reasons"]) if version["report"] else ""


@policy.command()
@click.option(
    "--wait", is_flag=True, help="Show progress, and return when the new version has been tested."
)
@answers
def train(home: Path, wait: bool) -> CommandOutput:
    """Start training now with the recorded turns, regardless of the schedule. Turns of ended
    sessions are judged first.
    """
    _, api = connect(home)
    _wait_for_verdicts(api)
    facts = request(home, "POST", "/api/policy/train")
    return CommandOutput(facts, _begun(api, facts, wait=wait), 0 if facts["started"] else 1)


def _begun(api: ApiClient, facts: Facts, *, wait: bool) -> Iterator[str]:
    if not facts["started"]:
        yield "No turn may train now." + _reasons(facts["rejections"])
    else:
        again = facts["given_back"]
        tried = f", {again} of them from runs that failed" if again else ""
        turns = f"{counted(facts['turns'], 'turn')}{tried}"
        begins = f"Training begins with {turns}"
        if facts.get("continues"):
            follows = f", then a run with {turns} begins" if facts["turns"] else ""
            begins = f"The run that has begun goes on{follows}"
        yield f"{begins}; metaclaw status shows its progress."
        if wait:
            yield _wait(api)
    if facts.get("starving"):
        yield facts["starving"]


@policy.command()
@click.argument("version", type=_VERSION)
@answers
def promote(home: Path, version: int) -> CommandOutput:
    """Let VERSION answer all requests from now on, regardless of the gate's result."""
    return _change(home, "promote", version)


@policy.command()
@click.argument("version", type=_VERSION, required=False)
@answers
def rollback(home: Path, version: int | None) -> CommandOutput:
    """Go back by one step, or to an earlier VERSION; 0 is the untrained model."""
    return _change(home, "rollback", version)


def _change(home: Path, verb: str, version: int | None) -> CommandOutput:
    fields = {} if version is None else {"version": version}
    try:
        facts = request(home, "POST", f"/api/policy/{verb}", fields)
    except NotFoundError:
        raise _unknown(read(home, "/api/policy", limit=1), version or 0) from None
    after = facts["policy_version"]
    return CommandOutput(
        facts, f"Version {after} serves." if after else "The untrained model serves."
    )


def _wait_for_verdicts(api: ApiClient) -> None:
    """Wait until the turns of ended sessions are judged, as long as their number falls."""
    fewest, since = None, time.monotonic()
    while (left := _unjudged(api)) and time.monotonic() - since < _JUDGING_S:
        if fewest is None or left < fewest:
            fewest, since = left, time.monotonic()
        show_progress(f"judging {counted(left, 'turn or session', 'turns and sessions')} first")
        time.sleep(_LOOK_S)
    show_progress("")


def _unjudged(api: ApiClient) -> int:
    pending = api.call("GET", "/api/status")["learning"]["pending"] or {}
    return sum(pending.get(kind, 0) for kind in ("turns", "sessions"))


def _wait(api: ApiClient) -> str:
    """Show progress until the run is over; return a sentence about its result."""
    began, newest = time.monotonic(), _newest(api.call("GET", "/api/policy"))
    while True:
        facts = api.call("GET", "/api/policy")
        training, found = facts["training"], _newest(facts)
        show_progress(f"{training['state']}, {_progress(training, time.monotonic() - began)}")
        is_tested = found is not None and found != newest and found["state"] != "candidate"
        if training["state"] not in RUN_STATES or is_tested:
            break
        time.sleep(_LOOK_S)
    show_progress("")
    if found is None or found == newest:
        why = training["paused_reason"] or training["state"]
        return f"The run made no version: {why}. metaclaw watch --all --since 0 shows more."
    number, state = found["version"], found["state"]
    return f"Version {number} is {state}; metaclaw policy show {number} shows the gate's result."


def _progress(training: Facts, elapsed_s: float) -> str:
    words, step, steps = duration(elapsed_s), training.get("step"), training.get("steps")
    if step is not None and steps:
        words += f"  {bar(step / steps)} step {step} of at most {steps}"
    if training["paused_reason"]:
        words += f"  paused: {training['paused_reason']}"
    return words


def _newest(facts: Facts) -> Facts | None:
    return next(iter(facts["versions"]), None)


def _reasons(rejections: dict[str, int]) -> str:
    if not rejections:
        return " None was recorded yet."
    listed = ", ".join(f"{count} {reason}" for reason, count in rejections.items())
    told = f" Set aside: {listed}."
    return f"{told} {_OPEN_SESSIONS}" if "no verdict" in rejections else told


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def windows(context: click.Context, as_json: bool) -> None:
    """Show when weights may be trained: what each signal says now, why, and what is expected."""
    if context.invoked_subcommand is not None:
        return
    facts = connect(context.obj)[1].call("GET", "/api/windows")
    if as_json:
        print_json(facts)
    else:
        echo_lines(_window_lines(facts))


@windows.command(name="connect")
@click.argument("number", type=click.IntRange(1), default=1)
@timeout_option(300.0, "Seconds to wait for you.", 1)
@click.pass_obj
def connect_(home: Path, number: int, timeout_s: float) -> None:
    """Consent, in a browser, to reading your busy times from calendar NUMBER of
    `schedule.calendars`."""
    from metaclaw.config import load
    from metaclaw.schedule import connect_calendar

    connect_calendar(
        load(home),
        home,
        number,
        lambda address: click.echo(f"Open this page and consent:\n\n  {address}\n"),
        timeout_s,
    )
    click.echo("MetaClaw can see when you are busy. A running proxy reads it within a minute.")


def _window_lines(facts: Facts) -> Iterator[str]:
    """The state of the window, its signals and the forecast."""
    is_open = facts["open"]
    if not is_open:
        yield f"No window is open: {facts['reason']}."
    else:
        by_hand = ", by hand" if facts.get("by_hand") else ""
        opened_at = facts.get("opened_at")
        since = f" since {moment(opened_at)}" if opened_at else ""
        yield f"A window is open{by_hand}{since}: {facts['reason']}."
    if signals := facts["signals"]:
        yield ""
        yield from listing(signals, {"SIGNAL": "name", "SAYS": "says", "WHY": "why"})
    if objections := facts.get("objections"):
        yield ""
        yield f"Nothing trains on this machine now: {', '.join(objections)}."
    if forecast := facts.get("forecast"):
        yield from _forecast_lines(forecast, is_open=is_open)
    if (coming := facts.get("next")) and not is_open:
        if coming["at"] is None:
            yield "It is not known yet when the next window opens."
        else:
            yield f"The next one is expected at {moment(coming['at'])} ({coming['because']})."


def _forecast_lines(forecast: Facts, *, is_open: bool) -> Iterator[str]:
    by_habit = "by your habits at this hour"
    source = by_habit if forecast["from_history"] else "until your habits are known"
    yield ""
    yield f"After {duration(forecast['away_after_s'])} without activity you count as away, {source}."
    if is_open and forecast["room_s"] is not None:
        yield f"It will very likely last for another {duration(forecast['room_s'])}."
    if forecast["expected_s"] is not None:
        expected = duration(max(0.0, forecast["expected_s"]))
        yield f"A silence like this one usually lasts for another {expected}."
