"""`metaclaw enforce`: switch the holding of tool calls on or off. Also the parts of `metaclaw
rules` about checks, enforcement and compliance."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from metaclaw.cli.client import connect, expect
from metaclaw.cli.home import opened, read_in_force
from metaclaw.cli.output import (
    agent_name,
    counted,
    home_and_json,
    json_option,
    moment,
    plain,
    print_json,
    print_table,
    print_wrapped,
)
from metaclaw.domain.skill import SkillKind
from metaclaw.domain.status import held_words
from metaclaw.errors import SkillError
from metaclaw.instance import find

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json
    from metaclaw.domain.compliance import Compliance, ReminderEffect, RuleRecord
    from metaclaw.domain.ids import SkillName
    from metaclaw.domain.skill import Skill


@click.command()
@click.argument("state", type=click.Choice(("on", "off")), required=False)
@home_and_json
def enforce(home: Path, state: str | None, as_json: bool) -> None:
    """Hold tool calls that break rules with `enforce: hold` (on), or let all calls pass (off), from
    the next request on.

    Without an argument, show the current state.
    """
    if state is None:
        _tell(home, as_json=as_json)
        return
    is_on = state == "on"
    if find(home) is not None:
        _, api = connect(home)
        facts = expect(*api.post("/api/enforce", {"on": is_on}))
    else:
        _keep(home, is_on)
        facts = {"on": is_on}
    if as_json:
        print_json(facts)
    elif is_on:
        click.echo("Held rules hold again: calls that break them are refused.")
    else:
        click.echo(
            "Held rules no longer hold: calls that break them pass and are counted. Switch back"
            " with: metaclaw enforce on"
        )


def _tell(home: Path, *, as_json: bool) -> None:
    from metaclaw.skills import can_hold

    is_on = is_holding(home)
    held: list[Json] = [
        rule.name
        for rule in read_in_force(home)[0]
        if rule.enforcement == "hold" and can_hold(rule)
    ]
    if as_json:
        print_json({"on": is_on, "held_rules": held})
        return
    names = ", ".join(plain(name) for name in held)
    if not is_on:
        click.echo(
            "Holding is off: calls that break held rules pass and are counted. Switch it on with:"
            " metaclaw enforce on"
        )
    elif held:
        click.echo("Holding is on: calls that break held rules are refused.")
    else:
        click.echo(
            "Holding is on, but no rule is held. Hold one with: metaclaw rules edit NAME --enforce"
            " hold"
        )
    if names:
        click.echo(f"Held rules: {names}")


def is_holding(home: Path) -> bool:
    """Whether holding is on, from the running proxy or else from the store."""
    if find(home) is None:
        return _kept(home)
    _, api = connect(home)
    return bool(expect(*api.get("/api/enforce"))["on"])


def _kept(home: Path) -> bool:
    """Whether holding is on, from the store."""
    from metaclaw.store import ENFORCEMENT_OFF, SqlCursors

    with opened(home) as database:
        return database is None or not SqlCursors(database).cursor(ENFORCEMENT_OFF)


def _keep(home: Path, is_on: bool) -> None:
    """Write the state to the store, for the next proxy."""
    from metaclaw.config import load
    from metaclaw.store import ENFORCEMENT_OFF, SqlCursors, open_database

    database = open_database(load(home).store.url.resolve())
    try:
        SqlCursors(database).move_cursor(ENFORCEMENT_OFF, 0 if is_on else 1)
    finally:
        database.close()


C = TypeVar("C", bound=Callable[..., object])
_ENFORCE = {
    "off": "no: it is only counted when it is broken",
    "remind": "reminded when it is broken",
    "hold": "held: tool calls that break it do not reach the agent",
}
_HOLDS_OR_WARNS = (
    "held: tool calls that break it are refused and the model is asked again, at most twice; if it"
    " insists, they reach the agent with a warning"
)
_LIFTED = {
    "off": "No longer held: tool calls that break it reach the agent. They are only counted.",
    "remind": (
        "No longer held: tool calls that break it reach the agent. They are counted, and the agent"
        " is reminded."
    ),
}
_NOT_HELD = "This matters only while the rule is held: metaclaw rules edit {name} --enforce hold"
_HOLDS_NOTHING = (
    "nothing is held: only a check of tool calls can hold them; add one with --check 'not in calls"
    " of shell: …'"
)
_OFF = "nothing is held now: holding is off for all rules; switch it on with: metaclaw enforce on"


def check_options(command: C) -> C:
    """Options of `rules add` and `rules edit`."""
    options = (
        click.option(
            "--on-break",
            type=click.Choice(("text", "call")),
            help=(
                "What the agent gets when every attempt breaks a held rule: a text, or the calls"
                " with a warning [text]."
            ),
        ),
        click.option(
            "--on-error",
            type=click.Choice(("pass", "hold")),
            help="What happens to calls when the check of a held rule fails to run [hold].",
        ),
        click.option(
            "--enforce",
            type=click.Choice(("off", "remind", "hold")),
            help="What happens when it is broken [remind].",
        ),
        click.option("--no-check", is_flag=True, help="Drop its check."),
        click.option(
            "--check",
            help="How to check that it was followed, such as `not in calls of shell: pip install`.",
        ),
    )
    for option in options:
        command = option(command)
    return command


def check_changes(options: Mapping[str, str | bool | None]) -> "dict[str, Json]":
    """The fields that these options change."""
    if options["check"] is not None and options["no_check"]:
        raise click.UsageError("use either --check or --no-check")
    fields: dict[str, Json] = {
        key: options[key] for key in ("enforce", "on_error", "on_break") if options[key] is not None
    }
    if options["check"] is not None or options["no_check"]:
        fields["check"] = options["check"] or None
    return fields


def check_facts(view: "Mapping[str, Json]", *, is_on: bool) -> list[tuple[str, object]]:
    """The lines of `rules show` about a rule's check, and about what happens when it is broken.
    `is_on`: holding is on.
    """
    pairs: list[tuple[str, object]] = []
    if view["check"]:
        state = (
            "; proposed by a model, not yet confirmed by a real turn"
            if view["check_state"] == "proposed"
            else ""
        )
        check = "a program, below" if check_program(view) else view["check"]
        pairs.append(("check", f"{check}{state}"))
    if view["check_note"]:
        pairs.append(("no check" if not view["check"] else "about it", view["check_note"]))
    if view["kind"] == "rule":
        is_idle = view["enforce"] == "hold" and not view["can_hold"]
        is_off = view["enforce"] == "hold" and not is_on
        pairs.append(
            ("if broken", _HOLDS_NOTHING if is_idle else _OFF if is_off else _if_broken(view))
        )
    if view["enforce"] == "hold" and view["can_hold"]:
        held = "held, too" if view["on_error"] == "hold" else "let through, with a notice"
        pairs.append(("on error", f"calls are {held} when the check cannot be run"))
        result = (
            "the calls with a warning"
            if view["on_break"] == "call"
            else "a text that names the rule"
        )
        pairs.append(("on break", f"the agent gets {result} when every attempt breaks it"))
    return [*pairs, *([("question", view["question"])] if view["question"] else [])]


def check_program(view: "Mapping[str, Json]") -> str | None:
    """The source of a check that is a program."""
    text = str(view["check"] or "")
    return text.partition("\n")[2] if text.startswith("program:") and "\n" in text else None


def _if_broken(view: "Mapping[str, Json]") -> str:
    enforce = str(view["enforce"])
    return (
        _HOLDS_OR_WARNS if enforce == "hold" and view["on_break"] == "call" else _ENFORCE[enforce]
    )


def tell_enforcement(
    view: "Mapping[str, Json]",
    changed: "Mapping[str, Json]",
    *,
    is_on: "Callable[[], bool]",
    was_held: bool = False,
) -> None:
    """Print what the changed fields mean for holding; nothing for a rule that is not and was not
    held.
    """
    if view.get("enforce") == "hold":
        click.echo(
            _HOLDS_NOTHING if not view.get("can_hold") else _if_broken(view) if is_on() else _OFF
        )
    elif was_held:
        click.echo(_LIFTED[str(view["enforce"])])
    elif "on_break" in changed or "on_error" in changed:
        click.echo(_NOT_HELD.format(name=plain(view["name"])))


def tell_questions(views: "Iterable[Mapping[str, Json]]") -> None:
    """Print the questions that wait for the person."""
    for view in views:
        if view.get("question"):
            print_wrapped(f"{plain(view['name'])}: {plain(view['question'])}")


@click.command()
@json_option
def examples(as_json: bool) -> None:
    """List the library of example rules; install one with: metaclaw rules add --example NAME."""
    from metaclaw.skills import rule_examples

    found = list(rule_examples().values())
    if as_json:
        print_json(
            {
                "examples": [
                    {"name": one.name, "text": one.text, "when": one.when, "check": one.check}
                    for one in found
                ]
            }
        )
    else:
        print_table(("NAME", "RULE"), [(one.name, one.text) for one in found])
        click.echo("\nInstall one with: metaclaw rules add --example NAME")


def example_fields(name: str) -> "dict[str, Json]":
    """The fields of an example rule. Raises UsageError if there is none of this name."""
    from metaclaw.skills import rule_example

    try:
        example = rule_example(name)
    except SkillError as error:
        raise click.UsageError(str(error)) from error
    return {
        "name": name,
        "text": example.text,
        "kind": "rule",
        "when": example.when,
        "check": example.check,
    }


_VIOLATIONS_SHOWN = 5
_OF_A_FACT = "not checked: it is a fact"


def followed_by_agent(
    home: Path, rules: "Sequence[Skill]"
) -> "dict[SkillName, dict[str, Compliance]]":
    """The compliance of each of these rules, by agent."""
    from metaclaw.domain.compliance import measured_hash
    from metaclaw.store import SqlCompliance

    hashes = {rule.name: measured_hash(rule) for rule in rules}
    with opened(home) as database:
        return (
            {name: {} for name in hashes}
            if database is None
            else SqlCompliance(database).totals(hashes)
        )


def record_of(home: Path, rule: "Skill") -> "RuleRecord":
    """The compliance record of a rule."""
    from metaclaw.domain.compliance import Compliance, ReminderEffect, RuleRecord, measured_hash
    from metaclaw.store import SqlCompliance

    with opened(home) as database:
        if database is not None:
            return SqlCompliance(database).of_rule(rule.name, measured_hash(rule))
    return RuleRecord(Compliance(), {}, {}, {}, ReminderEffect(), ())


def compliance_of(by_agent: "Mapping[str, Compliance]") -> "dict[str, Json]":
    """The total compliance, as in the API."""
    from metaclaw.api import compliance_view
    from metaclaw.domain.compliance import Compliance

    return {"compliance": compliance_view(sum(by_agent.values(), Compliance()))}


def in_words(rule: "Skill", by_agent: "Mapping[str, Compliance]") -> str:
    """`followed in 41 of 44; codex 11 of 14; 2 held back (codex)`: in how many of the checked
    answers of which no call was held, the agent that follows it least, and the held ones."""
    from metaclaw.domain.compliance import Compliance

    if rule.kind is SkillKind.FACT:
        return _OF_A_FACT
    total = sum(by_agent.values(), Compliance())
    if not total.applied:
        return "no answer to check yet"
    if not total.checked:
        return f"applied to {counted(total.unknown, 'answer')}; {_unchecked(rule)}"
    words = [f"followed in {share(total)}"] if total.not_held else []
    known = {agent: compliance for agent, compliance in by_agent.items() if compliance.not_held}
    worst = min(known, key=lambda agent: known[agent].followed / known[agent].not_held, default="")
    if len(known) > 1 and known[worst].followed < known[worst].not_held:
        words.append(f"{agent_name(worst)} {share(known[worst])}")
    return "; ".join([*words, *_held(by_agent)])


def _unchecked(rule: "Skill") -> str:
    """Why no answer could be checked."""
    return (
        "its check decided none of them"
        if rule.check is not None
        else "it has no check that says whether it was followed"
    )


def share(compliance: "Compliance") -> str:
    """`11 of 14`: in how many of the checked answers of which no call was held."""
    return f"{compliance.followed} of {compliance.not_held}"


def _held(by_agent: "Mapping[str, Compliance]") -> list[str]:
    held = {agent: one.held for agent, one in by_agent.items()}
    return [plain(held_words(sum(held.values()), held))] if any(held.values()) else []


def record_facts(rule: "Skill", record: "RuleRecord") -> list[tuple[str, object]]:
    """Lines about a rule's compliance: total, by agent, model and day, and the last turns that
    broke it.
    """
    if rule.kind is SkillKind.FACT:
        return [("compliance", _OF_A_FACT)]
    total = record.total
    if not total.applied:
        return [("compliance", "no answer to check yet")]
    unknown = counted(total.unknown, "answer")
    words = f"applied to {unknown}; {_unchecked(rule)}"
    if total.checked:
        followed = [f"followed in {share(total)} answers"] if total.not_held else []
        unchecked = [f"{unknown} more could not be checked"] if total.unknown else []
        words = "; ".join([*followed, *_held(record.by_agent), *unchecked])
    if not total.checked and rule.check is None:
        words += f" (add one: metaclaw rules edit {rule.name} --check)"
    facts: list[tuple[str, object]] = [("compliance", words)]
    for label, group in (
        ("by agent", record.by_agent),
        ("by model", record.by_model),
        ("by day", record.by_day),
    ):
        known = [f"{agent_name(name)} {share(one)}" for name, one in group.items() if one.not_held]
        facts += [(label, "; ".join(known))] if known else []
    facts += _reminder_facts(rule, record.reminders)
    for one in record.violations[:_VIOLATIONS_SHOWN]:
        what = "held" if one.is_held else "broken"
        why = f": {one.reason}" if one.reason else ""
        facts.append(
            (what, f"{moment(one.at)} by {agent_name(one.agent)} ({one.model}) in {one.turn}{why}")
        )
    return facts


def _reminder_facts(rule: "Skill", effect: "ReminderEffect") -> list[tuple[str, object]]:
    from metaclaw.domain.compliance import ReminderState

    if rule.enforcement == "off":
        return [("reminders", "off")]
    if not effect.placed.not_held and not effect.withheld.not_held:
        return []
    words = (
        f"followed in {share(effect.placed)} answers with a reminder, in {share(effect.withheld)}"
        " without"
    )
    match effect.state:
        case ReminderState.STOPPED:
            words += "; they did not help, so there are none for now"
        case ReminderState.HELPING:
            words += "; they help"
        case ReminderState.COMPARING:
            words += "; not yet enough to tell whether they help"
    return [("reminders", words)]
