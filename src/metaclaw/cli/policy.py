"""`metaclaw policy`: list versions of the weights from the store; change them through the running
proxy, or in the store if none runs."""

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import ApiClient, NotRunningError, ask_proxy, at, connect, rows
from metaclaw.cli.home import opened
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
    show_progress,
    timeout_option,
)
from metaclaw.domain.status import RUN_STATES
from metaclaw.errors import MetaClawError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json
    from metaclaw.domain.policy import GateReport, PolicyVersion
    from metaclaw.store import SqlPolicies

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
    from metaclaw.api import version_view
    from metaclaw.domain.policy import Serving
    from metaclaw.store import SqlPolicies

    with opened(home) as database:
        found = [] if database is None else SqlPolicies(database).versions(limit)
        serving = Serving() if database is None else SqlPolicies(database).serving()
    if as_json:
        facts = {"policy_version": serving.version, "canary": serving.canary}
        print_json({**facts, "versions": [version_view(version) for version in found]})
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
    from metaclaw.api import version_view
    from metaclaw.domain.policy import BASE_POLICY
    from metaclaw.store import SqlBatches, SqlPolicies

    with opened(home) as database:
        policies = None if database is None else SqlPolicies(database)
        serving = BASE_POLICY if policies is None else policies.serving().version
        is_trained = policies is not None and bool(policies.versions(1))
        number = serving if version is None else version
        found = None if policies is None else policies.version(number)
        turns = (
            []
            if database is None or found is None or found.batch is None
            else SqlBatches(database).turns_of(found.batch)
        )
    if number == BASE_POLICY:
        state = "serving" if serving == BASE_POLICY else "retired"
        sentence = (
            f"version {BASE_POLICY}, {state}: the untrained model" if is_trained else _NOTHING
        )
        print_result(
            {"version": BASE_POLICY, "state": state, "turns": []}, sentence, as_json=as_json
        )
        return
    if found is None:
        raise MetaClawError(
            f"there is no version {number}; metaclaw policy list shows all"
            if is_trained
            else _NOTHING
        )
    if as_json:
        print_json({**version_view(found), "turns": turns})
    else:
        click.echo(f"version {found.number}, {found.state.value}")
        print_facts(_words(found, len(turns)))


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
    facts = ask_proxy(home, "POST", "/api/policy/train")
    if facts is None:
        raise NotRunningError(home)
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

    def do(policies: "SqlPolicies") -> "dict[str, Json]":
        policies.promote(version, "a person promoted it")
        return {"promoted": version, "policy_version": version, "canary": None}

    facts = _carry_out(home, "promote", {"version": version}, do)
    print_result(facts, f"Version {plain(at(facts, 'policy_version'))} serves.", as_json=as_json)


@policy.command()
@click.argument("version", type=_VERSION, required=False)
@home_and_json
def rollback(home: Path, version: int | None, as_json: bool) -> None:
    """Go back by one step, or to an earlier VERSION; 0 is the untrained model."""

    def do(policies: "SqlPolicies") -> "dict[str, Json]":
        before = policies.serving()
        policies.rollback(version, "a person rolled back")
        after = policies.serving().version
        given_up = [
            number for number in (before.canary, before.version) if number not in (None, after)
        ]
        return {"policy_version": after, "rolled_back": list(given_up)}

    facts = _carry_out(home, "rollback", {} if version is None else {"version": version}, do)
    if as_json:
        print_json(facts)
    else:
        after = at(facts, "policy_version")
        click.echo(f"Version {plain(after)} serves." if after else "The untrained model serves.")


def _carry_out(
    home: Path, verb: str, fields: "dict[str, Json]", do: "Callable[[SqlPolicies], dict[str, Json]]"
) -> "dict[str, Json]":
    """Send the command to the running proxy; if none runs, change the store, from which the next
    proxy serves.
    """
    facts = ask_proxy(home, "POST", f"/api/policy/{verb}", fields)
    return _in_store(home, do) if facts is None else facts


def _in_store(home: Path, do: "Callable[[SqlPolicies], dict[str, Json]]") -> "dict[str, Json]":
    from metaclaw.instance import acquire
    from metaclaw.store import RefusedError, SqlPolicies

    with opened(home) as database:
        if database is None:
            raise MetaClawError(_NOTHING)
        with acquire(home):
            try:
                return do(SqlPolicies(database))
            except RefusedError as error:
                raise MetaClawError(str(error)) from error


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


def _row(version: "PolicyVersion") -> tuple[object, ...]:
    why = version.note or ("" if version.report is None else "; ".join(version.report.reasons))
    shown = why if len(why) <= _MOST_WHY else f"{why[: _MOST_WHY - 1]}…"
    return (
        version.number,
        version.state.value,
        version.parent,
        version.steps,
        version.generation,
        moment(version.made),
        shown,
    )


def _words(version: "PolicyVersion", turns: int) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [
        ("trained from", f"version {version.parent}" if version.parent else "the untrained model"),
        ("base", version.base),
        (
            "weights",
            f"{version.weights.adapter} ({version.weights.backend})"
            + ("" if version.is_kept else ", no longer kept"),
        ),
        ("taught by", f"{counted(turns, 'turn')}, with skills of generation {version.generation}"),
        ("changed by", counted(version.steps, "step")),
        ("made", moment(version.made)),
    ]
    if version.state.value == "candidate":
        pairs.append(("gate", "not finished yet"))
    if version.note and (
        version.report is None or version.note != "; ".join(version.report.reasons)
    ):
        pairs.append(("note", version.note))
    if version.absorbed:
        pairs.append(("absorbed", ", ".join(sorted(version.absorbed))))
    return pairs if version.report is None else [*pairs, *_proof(version.report)]


def _proof(report: "GateReport") -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [("gate", "passed" if report.is_passed else "not passed")]
    pairs += [("", reason) for reason in report.reasons]
    if report.held_out is not None:
        held = report.held_out
        words = (
            f"{held.better} better and {held.worse} worse of {held.pairs} pairs, gain"
            f" {held.mean_gain:+.3f}, "
        )
        words += f"evidence against chance {held.e_value:.3g} : 1"
        pairs.append(("held out", words))
    if report.golden_serving is not None and report.golden_candidate is not None:
        pairs.append(("golden set", f"{report.golden_serving:.1%} → {report.golden_candidate:.1%}"))
    if report.kl is not None:
        pairs.append(("distance", f"{report.kl:.4g} nats a token from the untrained model"))
    return pairs if report.judge is None else [*pairs, ("judge", report.judge)]


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
            f"A window is open{by_hand}{f' since {_time(since)}' if since else ''}:"
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
    return [f"The next one is expected at {_time(when)} ({plain(because)})."]


def _time(value: "Json") -> str:
    try:
        return moment(datetime.fromisoformat(str(value)))
    except ValueError:
        raise MetaClawError(
            "the proxy's answer is not what this version of the program expects; restart the proxy"
        ) from None
