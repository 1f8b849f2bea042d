"""`metaclaw enforce`: switch the holding of tool calls on or off. Also the parts of `metaclaw
rules` about checks, enforcement and compliance."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import click

from metaclaw.cli.client import Facts, read, request
from metaclaw.cli.output import CommandOutput, answers, counted, moment, sentence
from metaclaw.domain.status import agent_word


@click.command()
@click.argument("state", type=click.Choice(("on", "off")), required=False)
@answers
def enforce(home: Path, state: str | None) -> CommandOutput:
    """Hold tool calls that break rules with `enforce: hold` (on), or let all calls pass (off), from
    the next request on.

    Without an argument, show the current state.
    """
    if state is None:
        facts = read(home, "/api/enforce")
        return CommandOutput(facts, _state_lines(facts))
    facts = request(home, "POST", "/api/enforce", {"on": state == "on"})
    if state == "on":
        return CommandOutput(facts, "Held rules hold again: calls that break them are refused.")
    return CommandOutput(
        facts,
        "Held rules no longer hold: calls that break them pass and are counted. Switch back with:"
        " metaclaw enforce on",
    )


def _state_lines(facts: Facts) -> Iterator[str]:
    held = facts["held_rules"]
    if not facts["on"]:
        yield (
            "Holding is off: calls that break held rules pass and are counted. Switch it on with:"
            " metaclaw enforce on"
        )
    elif held:
        yield "Holding is on: calls that break held rules are refused."
    else:
        yield (
            "Holding is on, but no rule is held. Hold one with: metaclaw rules edit NAME --enforce"
            " hold"
        )
    if held:
        yield f"Held rules: {', '.join(held)}"


def is_holding(home: Path) -> bool:
    """Whether holding is on."""
    return bool(read(home, "/api/enforce")["on"])


def is_held(view: Facts) -> bool:
    """Whether calls that break this rule are held, while holding is on."""
    return view["enforce"] == "hold" and bool(view["can_hold"])


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
_LIFTED = "No longer held: tool calls that break it reach the agent. They are "
_LIFTED_TO = {
    "off": f"{_LIFTED}only counted.",
    "remind": f"{_LIFTED}counted, and the agent is reminded.",
}
_HOLDS_NOTHING = (
    "nothing is held: only a check of tool calls can hold them; add one with --check 'not in calls"
    " of shell: …'"
)
_OFF = "nothing is held now: holding is off for all rules; switch it on with: metaclaw enforce on"
_OPTIONS = (
    click.option(
        "--on-break",
        type=click.Choice(("text", "call")),
        help=(
            "What the agent gets when every attempt breaks a held rule: a text, or the calls with a"
            " warning [text]."
        ),
    ),
    click.option(
        "--on-error",
        type=click.Choice(("pass", "hold")),
        help="What happens to calls that a held rule's check cannot read [hold].",
    ),
    click.option(
        "--enforce",
        type=click.Choice(tuple(_ENFORCE)),
        help="What happens when it is broken [remind].",
    ),
    click.option("--no-check", is_flag=True, help="Drop its check."),
    click.option(
        "--check",
        help="How to check that it was followed, such as `not in calls of shell: pip install`.",
    ),
)


def check_options(command: C) -> C:
    """Options of `rules add` and `rules edit`."""
    for option in _OPTIONS:
        command = option(command)
    return command


def check_changes(options: Mapping[str, str | bool | None]) -> Facts:
    """The fields that these options change."""
    if options["check"] is not None and options["no_check"]:
        raise click.UsageError("use either --check or --no-check")
    fields: Facts = {
        key: options[key] for key in ("enforce", "on_error", "on_break") if options[key] is not None
    }
    if options["check"] is not None or options["no_check"]:
        fields["check"] = options["check"] or None
    return fields


def check_facts(home: Path, view: Facts) -> Iterator[tuple[str, object]]:
    """The lines of `rules show` about a rule's check, and about what happens when it is broken."""
    if view["check"]:
        is_proposed = view["check_state"] == "proposed"
        state = "; proposed by a model, not yet confirmed by a real turn" if is_proposed else ""
        yield "check", f"{'a program, below' if check_program(view) else view['check']}{state}"
    if view["check_note"]:
        yield "about it" if view["check"] else "no check", view["check_note"]
    if view["kind"] == "rule":
        yield "if broken", _if_broken(home, view)
    if is_held(view):
        held = "held, too" if view["on_error"] == "hold" else "let through, with a notice"
        yield "on error", f"calls are {held} when the check cannot be run"
        with_calls = view["on_break"] == "call"
        result = "the calls with a warning" if with_calls else "a text that names the rule"
        yield "on break", f"the agent gets {result} when every attempt breaks it"
    if view["question"]:
        yield "question", view["question"]


def check_program(view: Facts) -> str | None:
    """The source of a check that is a program."""
    text = str(view["check"] or "")
    return text.partition("\n")[2] if text.startswith("program:") and "\n" in text else None


def _if_broken(home: Path, view: Facts) -> str:
    """What happens when the rule is broken."""
    if view["enforce"] != "hold":
        return _ENFORCE[view["enforce"]]
    if not view["can_hold"]:
        return _HOLDS_NOTHING
    if not is_holding(home):
        return _OFF
    return _HOLDS_OR_WARNS if view["on_break"] == "call" else _ENFORCE["hold"]


def enforcement_lines(
    home: Path, view: Facts, changed: Facts, *, was_held: bool = False
) -> Iterator[str]:
    """What the changed fields mean for holding; nothing for a rule that is not and was not held."""
    if view["enforce"] == "hold":
        yield _if_broken(home, view)
    elif was_held:
        yield _LIFTED_TO[view["enforce"]]
    elif "on_break" in changed or "on_error" in changed:
        yield (
            "This matters only while the rule is held: metaclaw rules edit"
            f" {view['name']} --enforce hold"
        )


def question_lines(views: Iterable[Facts]) -> Iterator[str]:
    """The questions that wait for the person."""
    for view in views:
        if view["question"]:
            yield from sentence(f"{view['name']}: {view['question']}")


_VIOLATIONS_SHOWN = 5
_REMINDERS = {
    "stopped": "they did not help, so there are none for now",
    "helping": "they help",
    "comparing": "not yet enough to tell whether they help",
}
_GROUPS = (("by agent", "by_agent"), ("by model", "by_model"), ("by day", "by_day"))


def record_facts(view: Facts) -> Iterator[tuple[str, object]]:
    """Lines about a rule's compliance: total, by agent, model and day, and the last turns that
    broke it.
    """
    total, words = view["compliance"], view["in_words"]
    if view["kind"] == "fact" or not total["applied"]:
        yield "compliance", words
        return
    if total["applied"] > total["unknown"] > 0:
        words += f"; {counted(total['unknown'], 'answer')} more could not be checked"
    elif total["unknown"] and not view["check"]:
        words += f" (add one: metaclaw rules edit {view['name']} --check)"
    yield "compliance", words
    for label, name in _GROUPS:
        known = [
            f"{agent_word(key)} {one['followed']} of {one['not_held']}"
            for key, one in view[name].items()
            if one["not_held"]
        ]
        if known:
            yield label, "; ".join(known)
    yield from _reminder_facts(view)
    for one in view["violations"][:_VIOLATIONS_SHOWN]:
        why = f": {one['reason']}" if one["reason"] else ""
        who = f"{agent_word(one['agent'])} ({one['model']})"
        what = "held" if one["held"] else "broken"
        yield what, f"{moment(one['at'])} by {who} in {one['turn']}{why}"


def _reminder_facts(view: Facts) -> Iterator[tuple[str, object]]:
    if view["enforce"] == "off":
        yield "reminders", "off"
        return
    reminders = view["reminders"]
    placed, withheld = reminders["placed"], reminders["withheld"]
    if placed["not_held"] or withheld["not_held"]:
        yield (
            "reminders",
            f"followed in {placed['followed']} of {placed['not_held']} answers with a reminder, in"
            f" {withheld['followed']} of {withheld['not_held']} without;"
            f" {_REMINDERS[reminders['state']]}",
        )
