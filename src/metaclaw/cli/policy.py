"""`metaclaw policy`: list versions of the weights, train, promote and roll back. `metaclaw
windows`: when weights may be trained."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import (
    ApiClient,
    NotFoundError,
    at,
    connect,
    number,
    objects,
    read,
    request,
    rows,
)
from metaclaw.cli.output import (
    bar,
    counted,
    duration,
    home_and_json,
    json_option,
    limit_option,
    moment,
    plain,
    print_facts,
    print_json,
    print_result,
    print_table,
    short,
    show_progress,
    timeout_option,
)
from metaclaw.domain.status import RUN_STATES
from metaclaw.errors import MetaClawError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_VERSION = click.IntRange(0, 2**31 - 1)
_MOST_WHY = 120
_LOOK_S = 1.0
_JUDGING_S = 20.0
_OPEN_SESSIONS = (
    "The last turn of a session gets its verdict when the session ends: metaclaw sessions end"
    " --all, or after a while of silence."
)
_NOTHING = "Nothing was trained yet; the untrained model serves."


@click.group()
def policy() -> None:
    """List trained versions of the weights, train now, promote a version, or go back."""


@policy.command(name="list")
@limit_option(20, "Most versions to list, newest first.")
@home_and_json
def list_(home: Path, limit: int, as_json: bool) -> None:
    """List the versions, newest first: the state of each, its parent, and why."""
    facts = read(home, "/api/policy", limit=limit)
    found = objects(facts["versions"])
    if as_json:
        serving = {name: facts[name] for name in ("policy_version", "canary")}
        print_json({**serving, "versions": found})
    elif not found:
        click.echo(_NOTHING)
    else:
        columns = ("VERSION", "STATE", "FROM", "STEPS", "GENERATION", "MADE", "WHY")
        print_table(columns, [_row(version) for version in found])


@policy.command()
@click.argument("version", type=_VERSION, required=False)
@home_and_json
def show(home: Path, version: int | None, as_json: bool) -> None:
    """Show one VERSION: its training turns, the gate's result, and its state. Without VERSION, the
    serving one.
    """
    facts = read(home, "/api/policy", limit=1)
    serving = facts["policy_version"]
    if version == 0 or (version is None and serving == 0):
        state = "retired" if serving else "serving"
        sentence = f"version 0, {state}: the untrained model" if facts["versions"] else _NOTHING
        print_result({"version": 0, "state": state, "turns": []}, sentence, as_json=as_json)
        return
    wanted = number(serving) if version is None else version
    try:
        found = read(home, f"/api/policy/{wanted}")
    except NotFoundError:
        raise _unknown(facts, wanted) from None
    if as_json:
        print_json(found)
    else:
        click.echo(f"version {plain(found['version'])}, {plain(found['state'])}")
        print_facts(_words(found))


def _unknown(facts: "dict[str, Json]", version: int) -> MetaClawError:
    listed = f"there is no version {version}; metaclaw policy list shows all"
    return MetaClawError(listed if facts["versions"] else _NOTHING)


@policy.command()
@click.option(
    "--wait", is_flag=True, help="Show progress, and return when the new version has been tested."
)
@home_and_json
def train(home: Path, wait: bool, as_json: bool) -> int:
    """Start training now with the recorded turns, regardless of the schedule. Turns of ended
    sessions are judged first.
    """
    _wait_for_verdicts(connect(home)[1])
    facts = request(home, "POST", "/api/policy/train")
    if as_json:
        print_json(facts)
    elif at(facts, "started"):
        again = at(facts, "given_back")
        tried = f", {again} of them from runs that failed" if again else ""
        turns = f"{counted(at(facts, 'turns'), 'turn')}{tried}"
        begun = "The run that has begun goes on" + (
            f", then a run with {turns} begins" if at(facts, "turns") else ""
        )
        begins = begun if at(facts, "continues") else f"Training begins with {turns}"
        click.echo(f"{begins}; metaclaw status shows its progress.")
        if wait:
            click.echo(_wait(connect(home)[1]))
    else:
        click.echo("No turn may train now." + _reasons(at(facts, "rejections")))
    if not as_json and at(facts, "starving"):
        click.echo(plain(at(facts, "starving")))
    return 0 if at(facts, "started") else 1


@policy.command()
@click.argument("version", type=_VERSION)
@home_and_json
def promote(home: Path, version: int, as_json: bool) -> None:
    """Let VERSION answer all requests from now on, regardless of the gate's result."""
    facts = _change(home, "promote", version)
    print_result(facts, f"Version {plain(facts['policy_version'])} serves.", as_json=as_json)


@policy.command()
@click.argument("version", type=_VERSION, required=False)
@home_and_json
def rollback(home: Path, version: int | None, as_json: bool) -> None:
    """Go back by one step, or to an earlier VERSION; 0 is the untrained model."""
    facts = _change(home, "rollback", version)
    after = facts["policy_version"]
    sentence = f"Version {plain(after)} serves." if after else "The untrained model serves."
    print_result(facts, sentence, as_json=as_json)


def _change(home: Path, verb: str, version: int | None) -> "dict[str, Json]":
    fields: dict[str, Json] = {} if version is None else {"version": version}
    try:
        return request(home, "POST", f"/api/policy/{verb}", fields)
    except NotFoundError:
        raise _unknown(read(home, "/api/policy", limit=1), version or 0) from None


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
    pending = at(api.get("/api/status")[1], "learning", "pending")
    return sum(
        number for kind in ("turns", "sessions") if isinstance(number := at(pending, kind), int)
    )


def _wait(api: ApiClient) -> str:
    """Show progress until the run is over; return a sentence about its result."""
    began, newest = time.monotonic(), _newest(api)
    while True:
        training = at(api.facts("/api/policy"), "training")
        state = str(at(training, "state"))
        step, steps = at(training, "step"), at(training, "steps")
        share = (
            f"  {bar(step / steps)} step {step} of at most {steps}"
            if isinstance(step, int) and isinstance(steps, int) and steps
            else ""
        )
        paused = (
            f"  paused: {plain(at(training, 'paused_reason'))}"
            if at(training, "paused_reason")
            else ""
        )
        show_progress(f"{state}, {duration(time.monotonic() - began)}{share}{paused}")
        found = _newest(api)
        if state not in RUN_STATES or (found not in (None, newest) and found[1] != "candidate"):
            break
        time.sleep(_LOOK_S)
    show_progress("")
    if found is None or found == newest:
        return (
            f"The run made no version: {plain(at(training, 'paused_reason') or state)}. metaclaw"
            " watch --all --since 0 shows more."
        )
    number, standing = found
    return f"Version {number} is {standing}; metaclaw policy show {number} shows the gate's result."


def _newest(api: ApiClient) -> tuple[int, str] | None:
    versions = rows(at(api.facts("/api/policy"), "versions"))
    number, state = (
        (at(versions[0], "version"), at(versions[0], "state")) if versions else (None, None)
    )
    return (number, str(state)) if isinstance(number, int) else None


def _reasons(rejections: "Json") -> str:
    if not isinstance(rejections, dict) or not rejections:
        return " None was recorded yet."
    told = (
        " Set aside: "
        + ", ".join(f"{count} {plain(reason)}" for reason, count in rejections.items())
        + "."
    )
    return f"{told} {_OPEN_SESSIONS}" if "no verdict" in rejections else told


def _reasons_of(version: "dict[str, Json]") -> str:
    return "; ".join(map(str, rows(at(version, "report", "reasons"))))


def _row(version: "dict[str, Json]") -> tuple[object, ...]:
    return (
        version["version"],
        version["state"],
        version["parent"],
        version["steps"],
        version["generation"],
        moment(version["made_at"]),
        short(version["note"] or _reasons_of(version), _MOST_WHY),
    )


def _words(version: "dict[str, Json]") -> list[tuple[str, object]]:
    parent, report, note = version["parent"], version["report"], version["note"]
    weights = f"{version['adapter']} ({version['backend']})"
    taught = counted(len(rows(version["turns"])), "turn")
    pairs: list[tuple[str, object]] = [
        ("trained from", f"version {parent}" if parent else "the untrained model"),
        ("base", version["base"]),
        ("weights", weights if version["is_kept"] else f"{weights}, no longer kept"),
        ("taught by", f"{taught}, with skills of generation {version['generation']}"),
        ("changed by", counted(version["steps"], "step")),
        ("made", moment(version["made_at"])),
    ]
    if version["state"] == "candidate":
        pairs.append(("gate", "not finished yet"))
    if note and (report is None or note != _reasons_of(version)):
        pairs.append(("note", note))
    if absorbed := rows(version["absorbed"]):
        pairs.append(("absorbed", ", ".join(map(str, absorbed))))
    return [*pairs, *_proof(report)] if isinstance(report, dict) else pairs


def _proof(report: "dict[str, Json]") -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [("gate", "passed" if report["passed"] else "not passed")]
    pairs += [("", reason) for reason in rows(report["reasons"])]
    if isinstance(held := report["held_out"], dict):
        words = (
            f"{held['better']} better and {held['worse']} worse of {held['pairs']} pairs, gain"
            f" {held['mean_gain']:+.3f}, evidence against chance {held['e_value']:.3g} : 1"
        )
        pairs.append(("held out", words))
    before, after = at(report, "golden", "serving"), at(report, "golden", "candidate")
    if before is not None and after is not None:
        pairs.append(("golden set", f"{before:.1%} → {after:.1%}"))
    if report["kl"] is not None:
        pairs.append(("distance", f"{report['kl']:.4g} nats a token from the untrained model"))
    return [*pairs, ("judge", report["judge"])] if report["judge"] is not None else pairs


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def windows(context: click.Context, as_json: bool) -> None:
    """Show when weights may be trained: what each signal says now, why, and what is expected."""
    if context.invoked_subcommand is not None:
        return
    _, api = connect(context.obj)
    facts = api.facts("/api/windows")
    if as_json:
        print_json(facts)
    else:
        _tell_windows(facts)


@windows.command(name="connect")
@click.argument("number", type=click.IntRange(1), default=1)
@timeout_option(300.0, "Seconds to wait for you.", 1)
@click.pass_obj
def connect_(home: Path, number: int, timeout_s: float) -> None:
    """Give MetaClaw access to your busy times: consent, in a browser, to calendar NUMBER of
    `schedule.calendars`.
    """
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


def _tell_windows(facts: "dict[str, Json]") -> None:
    """Print the state of the window, its signals and the forecast."""
    if at(facts, "open"):
        since = at(facts, "opened_at")
        by_hand = ", by hand" if at(facts, "by_hand") else ""
        click.echo(
            f"A window is open{by_hand}{f' since {moment(since)}' if since else ''}:"
            f" {plain(at(facts, 'reason'))}."
        )
    else:
        click.echo(f"No window is open: {plain(at(facts, 'reason'))}.")
    signals = [
        (at(one, "name"), at(one, "says"), at(one, "why")) for one in rows(at(facts, "signals"))
    ]
    if signals:
        click.echo()
        print_table(("SIGNAL", "SAYS", "WHY"), signals)
    for line in (*_objections(facts), *_window_forecast(facts), *_next_window(facts)):
        click.echo(line)


def _objections(facts: "dict[str, Json]") -> list[str]:
    found = [plain(one) for one in rows(at(facts, "objections"))]
    return [f"\nNothing trains on this machine now: {', '.join(found)}."] if found else []


def _window_forecast(facts: "dict[str, Json]") -> list[str]:
    away_s, expected_s, room_s = (
        at(facts, "forecast", name) for name in ("away_after_s", "expected_s", "room_s")
    )
    if not isinstance(away_s, int | float):
        return []
    source = (
        "by your habits at this hour"
        if at(facts, "forecast", "from_history")
        else "until your habits are known"
    )
    lines = [f"\nAfter {duration(away_s)} without activity you count as away, {source}."]
    if at(facts, "open") and isinstance(room_s, int | float):
        lines.append(f"It will very likely last for another {duration(room_s)}.")
    if isinstance(expected_s, int | float):
        lines.append(
            f"A silence like this one usually lasts for another {duration(max(0.0, expected_s))}."
        )
    return lines


def _next_window(facts: "dict[str, Json]") -> list[str]:
    when, because = at(facts, "next", "at"), at(facts, "next", "because")
    if at(facts, "open") or at(facts, "next") is None:
        return []
    if when is None:
        return ["It is not known yet when the next window opens."]
    return [f"The next one is expected at {moment(when)} ({plain(because)})."]
