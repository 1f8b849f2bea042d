"""Parts of `metaclaw rules` about checks: the options, what `show` says of them, open questions, and the library of examples."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from metaclaw.cli.output import json_option, plain, print_json, print_table, print_wrapped
from metaclaw.errors import SkillError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

C = TypeVar("C", bound=Callable[..., object])
_ENFORCE = {
    "off": "no: it is only counted when it is broken",
    "remind": "reminded when it is broken",
    "hold": "held: tool calls that break it do not reach the agent",
}
_HOLDS_OR_WARNS = (
    "held: tool calls that break it are refused and the model is asked again, at most twice; if it insists, they reach the agent"
    " with a warning"
)
_LIFTED = {
    "off": "No longer held: tool calls that break it reach the agent. They are only counted.",
    "remind": "No longer held: tool calls that break it reach the agent. They are counted, and the agent is reminded.",
}
_NOT_HELD = "This matters only while the rule is held: metaclaw rules edit {name} --enforce hold"
_HOLDS_NOTHING = "nothing is held: only a check of tool calls can hold them; add one with --check 'not in calls of shell: …'"
_OFF = "nothing is held now: holding is off for all rules; switch it on with: metaclaw enforce on"


def check_options(command: C) -> C:
    """Options of `rules add` and `rules edit`."""
    options = (
        click.option(
            "--on-break",
            type=click.Choice(("text", "call")),
            help="What the agent gets when every attempt breaks a held rule: a text, or the calls with a warning [text].",
        ),
        click.option(
            "--on-error",
            type=click.Choice(("pass", "hold")),
            help="What happens to calls when the check of a held rule fails to run.",
        ),
        click.option("--enforce", type=click.Choice(("off", "remind", "hold")), help="What happens when it is broken [remind]."),
        click.option("--no-check", is_flag=True, help="Drop its check."),
        click.option("--check", help="How to tell that it was followed, such as `not in calls of shell: pip install`."),
    )
    for option in options:
        command = option(command)
    return command


def check_changes(said: Mapping[str, str | bool | None]) -> "dict[str, Json]":
    """The fields that these options change."""
    if said["check"] is not None and said["no_check"]:
        raise click.UsageError("say either --check or --no-check")
    fields: dict[str, Json] = {key: said[key] for key in ("enforce", "on_error", "on_break") if said[key] is not None}
    if said["check"] is not None or said["no_check"]:
        fields["check"] = said["check"] or None
    return fields


def check_facts(view: "Mapping[str, Json]", *, is_on: bool) -> list[tuple[str, object]]:
    """What `rules show` says of a rule's check, and of what happens when it is broken. `is_on` says that rules hold."""
    pairs: list[tuple[str, object]] = []
    if view["check"]:
        state = "; proposed by a model, not yet confirmed by a real turn" if view["check_state"] == "proposed" else ""
        check = "a program, below" if check_program(view) else view["check"]
        pairs.append(("check", f"{check}{state}"))
    if view["check_note"]:
        pairs.append(("no check" if not view["check"] else "about it", view["check_note"]))
    if view["kind"] == "rule":
        is_idle = view["enforce"] == "hold" and not view["can_hold"]
        is_off = view["enforce"] == "hold" and not is_on
        pairs.append(("if broken", _HOLDS_NOTHING if is_idle else _OFF if is_off else _if_broken(view)))
    if view["enforce"] == "hold" and view["can_hold"]:
        held = "held, too" if view["on_error"] == "hold" else "let through, with a notice"
        pairs.append(("on error", f"calls are {held} when the check cannot be run"))
        given = "the calls with a warning" if view["on_break"] == "call" else "a text that names the rule"
        pairs.append(("on break", f"the agent gets {given} when every attempt breaks it"))
    return [*pairs, *([("question", view["question"])] if view["question"] else [])]


def check_program(view: "Mapping[str, Json]") -> str | None:
    """The source of a check that is a program."""
    text = str(view["check"] or "")
    return text.partition("\n")[2] if text.startswith("program:") and "\n" in text else None


def _if_broken(view: "Mapping[str, Json]") -> str:
    enforce = str(view["enforce"])
    return _HOLDS_OR_WARNS if enforce == "hold" and view["on_break"] == "call" else _ENFORCE[enforce]


def tell_enforcement(
    view: "Mapping[str, Json]", changed: "Mapping[str, Json]", *, is_on: "Callable[[], bool]", was_held: bool = False
) -> None:
    """Print what the changed fields mean for holding; nothing for a rule that neither is nor was to hold."""
    if view.get("enforce") == "hold":
        click.echo(_HOLDS_NOTHING if not view.get("can_hold") else _if_broken(view) if is_on() else _OFF)
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
        print_json({"examples": [{"name": one.name, "text": one.text, "when": one.when, "check": one.check} for one in found]})
    else:
        print_table(("NAME", "RULE"), [(one.name, one.text) for one in found])
        click.echo("\nInstall one with: metaclaw rules add --example NAME")


def example_fields(name: str) -> "dict[str, Json]":
    """The fields of an example rule. Raises SkillError where there is none of this name."""
    from metaclaw.skills import rule_example

    try:
        example = rule_example(name)
    except SkillError as error:
        raise click.UsageError(str(error)) from error
    return {"name": name, "text": example.text, "kind": "rule", "when": example.when, "check": example.check}
