"""`metaclaw enforce`: switch the holding of tool calls on or off. Also the parts of `metaclaw
rules` about checks, enforcement and compliance."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from metaclaw.cli.client import objects, read, request
from metaclaw.cli.output import (
    agent_name,
    counted,
    home_and_json,
    moment,
    plain,
    print_json,
    print_table,
    print_wrapped,
)
from metaclaw.domain.status import held_words

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json


@click.command()
@click.argument("state", type=click.Choice(("on", "off")), required=False)
@home_and_json
def enforce(home: Path, state: str | None, as_json: bool) -> None:
    """Hold tool calls that break rules with `enforce: hold` (on), or let all calls pass (off), from
    the next request on.

    Without an argument, show the current state.
    """
    said: dict[str, Json] | None = None if state is None else {"on": state == "on"}
    facts = request(home, "POST" if said else "GET", "/api/enforce", said)
    if as_json:
        print_json(facts)
    elif state is None:
        _tell(facts)
    elif state == "on":
        click.echo("Held rules hold again: calls that break them are refused.")
    else:
        click.echo(
            "Held rules no longer hold: calls that break them pass and are counted. Switch back"
            " with: metaclaw enforce on"
        )


def _tell(facts: "Mapping[str, Json]") -> None:
    held = facts["held_rules"]
    if not facts["on"]:
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
    if isinstance(held, list) and held:
        click.echo(f"Held rules: {', '.join(map(plain, held))}")


def is_holding(home: Path) -> bool:
    """Whether holding is on."""
    return bool(read(home, "/api/enforce")["on"])


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
        pairs.append(("if broken", _if_broken(view, is_on=is_on)))
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


def _if_broken(view: "Mapping[str, Json]", *, is_on: bool) -> str:
    """What happens when the rule is broken. `is_on`: holding is on."""
    if view["enforce"] != "hold":
        return _ENFORCE[str(view["enforce"])]
    if not view["can_hold"]:
        return _HOLDS_NOTHING
    if not is_on:
        return _OFF
    return _HOLDS_OR_WARNS if view["on_break"] == "call" else _ENFORCE["hold"]


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
        click.echo(_if_broken(view, is_on=not view["can_hold"] or is_on()))
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
@home_and_json
def examples(home: Path, as_json: bool) -> None:
    """List the library of example rules; install one with: metaclaw rules add --example NAME."""
    facts = read(home, "/api/rule-examples")
    if as_json:
        print_json(facts)
    else:
        print_table(
            ("NAME", "RULE"), [(one["name"], one["text"]) for one in objects(facts["examples"])]
        )
        click.echo("\nInstall one with: metaclaw rules add --example NAME")


def example_fields(home: Path, name: str) -> "dict[str, Json]":
    """The fields of an example rule. Raises UsageError if there is none of this name."""
    for example in objects(read(home, "/api/rule-examples")["examples"]):
        if example["name"] == name:
            return {**example, "kind": "rule"}
    raise click.UsageError(
        f"there is no example {name}; metaclaw rules examples lists those there are"
    )


_VIOLATIONS_SHOWN = 5
_NOT_YET = "no answer to check yet"
_REMINDERS = {
    "stopped": "they did not help, so there are none for now",
    "helping": "they help",
    "comparing": "not yet enough to tell whether they help",
}
_OF_A_FACT = "not checked: it is a fact"


class Followed:
    """How often a rule was followed and held, by the API's counts."""

    def __init__(self, counts: "Json") -> None:
        known = counts if isinstance(counts, dict) else {}
        self.applied, self.followed, self.broken, self.held, self.unknown = (
            int(str(known[name])) for name in ("applied", "followed", "broken", "held", "unknown")
        )

    @property
    def not_held(self) -> int:
        """Checked answers of which no call was held: those in which it was up to the agent."""
        return self.followed + self.broken - self.held

    @property
    def share(self) -> str:
        """`11 of 14`: in how many of the checked answers of which no call was held."""
        return f"{self.followed} of {self.not_held}"


def _groups(view: "Mapping[str, Json]", name: str) -> dict[str, Followed]:
    found = view[name]
    return {key: Followed(one) for key, one in found.items()} if isinstance(found, dict) else {}


def in_words(view: "Mapping[str, Json]") -> str:
    """`followed in 41 of 44; codex 11 of 14; 2 held back (codex)`: in how many of the checked
    answers of which no call was held, the agent that follows it least, and the held ones."""
    total, by_agent = Followed(view["compliance"]), _groups(view, "by_agent")
    if view["kind"] == "fact":
        return _OF_A_FACT
    if not total.applied:
        return _NOT_YET
    if total.applied == total.unknown:
        return _unchecked(view, total)
    words = [f"followed in {total.share}"] if total.not_held else []
    known = {agent: one for agent, one in by_agent.items() if one.not_held}
    worst = min(known, key=lambda agent: known[agent].followed / known[agent].not_held, default="")
    if len(known) > 1 and known[worst].followed < known[worst].not_held:
        words.append(f"{agent_name(worst)} {known[worst].share}")
    return "; ".join([*words, *_held(by_agent)])


def _unchecked(view: "Mapping[str, Json]", total: Followed) -> str:
    """Why no answer could be checked."""
    why = (
        "its check decided none of them"
        if view["check"]
        else "it has no check that says whether it was followed"
    )
    return f"applied to {counted(total.unknown, 'answer')}; {why}"


def _held(by_agent: Mapping[str, Followed]) -> list[str]:
    held = {agent: one.held for agent, one in by_agent.items()}
    return [plain(held_words(sum(held.values()), held))] if any(held.values()) else []


def record_facts(view: "Mapping[str, Json]") -> list[tuple[str, object]]:
    """Lines about a rule's compliance: total, by agent, model and day, and the last turns that
    broke it.
    """
    total = Followed(view["compliance"])
    if view["kind"] == "fact":
        return [("compliance", _OF_A_FACT)]
    if not total.applied:
        return [("compliance", _NOT_YET)]
    facts: list[tuple[str, object]] = [("compliance", _record_words(view, total))]
    for label, name in (("by agent", "by_agent"), ("by model", "by_model"), ("by day", "by_day")):
        known = [
            f"{agent_name(key)} {one.share}"
            for key, one in _groups(view, name).items()
            if one.not_held
        ]
        facts += [(label, "; ".join(known))] if known else []
    facts += _reminder_facts(view)
    for one in objects(view["violations"])[:_VIOLATIONS_SHOWN]:
        why = f": {one['reason']}" if one["reason"] else ""
        who = f"{agent_name(one['agent'])} ({one['model']})"
        what = "held" if one["held"] else "broken"
        facts.append((what, f"{moment(one['at'])} by {who} in {one['turn']}{why}"))
    return facts


def _record_words(view: "Mapping[str, Json]", total: Followed) -> str:
    if total.applied == total.unknown:
        advice = "" if view["check"] else f" (add one: metaclaw rules edit {view['name']} --check)"
        return f"{_unchecked(view, total)}{advice}"
    followed = [f"followed in {total.share} answers"] if total.not_held else []
    unknown = counted(total.unknown, "answer")
    unchecked = [f"{unknown} more could not be checked"] if total.unknown else []
    return "; ".join([*followed, *_held(_groups(view, "by_agent")), *unchecked])


def _reminder_facts(view: "Mapping[str, Json]") -> list[tuple[str, object]]:
    if view["enforce"] == "off":
        return [("reminders", "off")]
    reminders = view["reminders"]
    assert isinstance(reminders, dict)
    placed, withheld = Followed(reminders["placed"]), Followed(reminders["withheld"])
    if not placed.not_held and not withheld.not_held:
        return []
    words = f"followed in {placed.share} answers with a reminder, in {withheld.share} without"
    return [("reminders", f"{words}; {_REMINDERS[str(reminders['state'])]}")]
