"""`metaclaw rules`: list rules from the files; change them through the running proxy, or here if
none runs.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

import click

from metaclaw.cli.client import at, carry_out, connect
from metaclaw.cli.enforcement import (
    check_changes,
    check_facts,
    check_options,
    check_program,
    compliance_of,
    example_fields,
    examples,
    followed_by_agent,
    in_words,
    is_holding,
    record_facts,
    record_of,
    tell_enforcement,
    tell_questions,
)
from metaclaw.cli.home import opened, read_in_force, retired
from metaclaw.cli.output import ask as confirm
from metaclaw.cli.output import (
    counted,
    home_and_json,
    json_option,
    moment,
    plain,
    plain_block,
    print_facts,
    print_json,
    print_result,
    print_table,
    short,
)
from metaclaw.cli.rule_files import export, import_
from metaclaw.domain.status import EVERYONE, YOU, audience, reason_words
from metaclaw.errors import MetaClawError, SkillError

if TYPE_CHECKING:
    from datetime import datetime

    from metaclaw.domain.chat import Json
    from metaclaw.domain.ids import SkillName
    from metaclaw.domain.skill import RetiredSkill, Skill
    from metaclaw.skills import Rulebook, RuleFields

_MOST_TEXT = 100


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def rules(context: click.Context, as_json: bool) -> None:
    """List, add, change and remove your rules: instructions in your own words that stay in force.
    Without a command: list.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_, as_json=as_json)


@rules.command(name="list")
@click.option("--retired", "is_retired", is_flag=True, help="List retired rules instead.")
@home_and_json
def list_(home: Path, as_json: bool, is_retired: bool = False) -> None:
    """List your rules and facts."""
    from metaclaw.api import retired_rule_view, rule_view

    if is_retired:
        gone = [retired_rule_view(rule) for rule in retired_rules(home)]
        if as_json:
            print_json({"rules": gone})
        elif not gone:
            click.echo("No rule has been removed.")
        else:
            columns = [
                (
                    rule["name"],
                    rule["kind"],
                    short(rule["text"], _MOST_TEXT),
                    reason_words(rule["reason"]),
                )
                for rule in gone
            ]
            print_table(("NAME", "KIND", "TEXT", "WHY IT WENT"), columns, optional=("KIND",))
        return
    found, dates = _in_force(home)
    followed = followed_by_agent(home, found)
    views = [
        {**rule_view(rule, dates.get(rule.name)), **compliance_of(followed[rule.name])}
        for rule in found
    ]
    if as_json:
        print_json({"rules": views})
    elif not views:
        click.echo(
            'No rules yet. Say one to your agent, or: metaclaw rules add "Use uv instead of pip."'
        )
    else:
        listed = [
            (*_row(view), in_words(rule, followed[rule.name]))
            for rule, view in zip(found, views, strict=True)
        ]
        headers = ("NAME", "TEXT", "WHEN", "FOR", "PROJECT", "UNTIL", "COMPLIANCE")
        print_table(headers, listed, optional=("UNTIL", "FOR", "WHEN", "PROJECT", "COMPLIANCE"))
        tell_questions(views)
    if not as_json:
        _tell_reading(home)


@rules.command()
@click.argument("name")
@home_and_json
def show(home: Path, name: str, as_json: bool) -> None:
    """Show one rule: its text, when and for whom it applies, and where it comes from."""
    from metaclaw.api import rule_record_view, rule_view

    rule, since = _rule(home, name)
    view, record = rule_view(rule, since), record_of(home, rule)
    if as_json:
        print_json({**view, **rule_record_view(record)})
        return
    click.echo(plain(name))
    pairs: list[tuple[str, object]] = [
        ("kind", view["kind"]),
        ("when", view["when"]),
        ("for", audience(view["scope"])),
    ]
    where = "all; you named an unknown project" if rule.is_project_unknown else "all"
    pairs += [("project", view["workspace"] or where), ("until", view["expires"] or "for good")]
    pairs += [
        ("said in", view["source"] or "not in a conversation"),
        ("since", moment(since[0])),
        ("changed", moment(since[1])),
    ]
    pairs += check_facts(view, is_on=view["enforce"] != "hold" or is_holding(home))
    pairs += [("example", example) for example in rule.examples]
    print_facts([*pairs, *record_facts(rule, record)])
    click.echo(f"\n{plain_block(str(view['text']))}")
    if program := check_program(view):
        click.echo(f"\nIts check:\n{plain_block(program)}")


@rules.command()
@click.argument("text", required=False)
@click.option(
    "--example",
    metavar="NAME",
    is_flag=False,
    flag_value="",
    help="A rule of the library; without a name, list them.",
)
@click.option("--when", help="The situation it applies to [always].")
@click.option("--project", help="A folder: it applies there only [everywhere].")
@click.option(
    "--expires",
    metavar="DATE",
    help="The last day on which it is in force, as 2027-01-31 [for good].",
)
@click.option(
    "--fact", is_flag=True, help="It is a fact to be remembered, not a rule to be followed."
)
@click.option(
    "--for",
    "user",
    metavar="USER",
    help="Only for this user, as named by X-User-Id, or you [everyone].",
)
@check_options
@json_option
@click.pass_context
def add(
    context: click.Context,
    /,
    text: str | None,
    example: str | None,
    when: str | None,
    project: str | None,
    expires: str | None,
    fact: bool,
    user: str | None,
    as_json: bool,
    **checking: str | bool | None,
) -> None:
    """Add a rule, in your own words or from the library of examples. It applies from the next
    request of every agent.
    """
    home: Path = context.obj
    if example == "":
        context.invoke(examples, as_json=as_json)
        return
    if (text is None) is (example is None):
        raise click.UsageError(
            "write the rule in your own words, or name one of the library with --example"
        )
    fields: dict[str, Json] = (
        {"text": text, "kind": "fact" if fact else "rule"}
        if example is None
        else example_fields(example)
    )
    fields |= _changes(home, when, project, expires, user) | check_changes(checking)

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        from metaclaw.api import rule_view

        ((rule, is_new),) = rulebook.add([cast("RuleFields", fields)])
        return {**rule_view(rule, rulebook.dates().get(rule.name)), "added": is_new}

    facts = carry_out(home, "POST", "/api/rules", do, fields)
    if as_json:
        print_json(facts)
    elif not facts.get("added"):
        click.echo(f"This rule is in force already: {plain(facts.get('name'))}.")
        if fields.get("enforce") not in (None, facts.get("enforce")):
            change = f"metaclaw rules edit {plain(facts.get('name'))} --enforce {fields['enforce']}"
            click.echo(
                f"It stays on enforce: {plain(facts.get('enforce'))}. To change that: {change}"
            )
    else:
        click.echo(
            f"Noted: {plain(facts.get('name'))} ({_where(facts)}). Take it back with: metaclaw undo"
        )
        tell_enforcement(facts, fields, is_on=partial(is_holding, home))
        tell_questions([facts])


@rules.command()
@click.argument("name")
@click.option("--text", help="The new text. Without any option an editor opens on the present one.")
@click.option("--when", help="The situation it applies to, or always.")
@click.option("--project", help="A folder: narrow it to this project.")
@click.option("--everywhere", is_flag=True, help="Widen it to all projects.")
@click.option("--expires", metavar="DATE", help="The last day on which it is in force, or never.")
@click.option("--for", "user", metavar="USER", help="Only for this user, or you, or everyone.")
@check_options
@home_and_json
def edit(
    home: Path,
    /,
    name: str,
    text: str | None,
    when: str | None,
    project: str | None,
    everywhere: bool,
    expires: str | None,
    user: str | None,
    as_json: bool,
    **checking: str | bool | None,
) -> None:
    """Change a rule: its text, when and for whom it applies, in which project, until when, how it
    is checked and enforced.
    """
    if project is not None and everywhere:
        raise click.UsageError("use either --project or --everywhere")
    fields = _changes(home, when, project, expires, user)
    fields |= {} if text is None else {"text": text}
    fields |= {"workspace": None} if everywhere else {}
    fields |= check_changes(checking)
    if not fields:
        fields = {"text": _edited(home, name)}

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        from metaclaw.api import rule_view

        rule = rulebook.change(name, cast("RuleFields", fields))
        return rule_view(rule, rulebook.dates().get(rule.name))

    if fields.get("enforce") == "hold":
        _refuse_to_hold_nothing(home, name, fields)
    is_about_holding = not fields.keys().isdisjoint(("enforce", "check", "on_error", "on_break"))
    was_held = is_about_holding and _is_held(home, name)
    facts = carry_out(home, "PATCH", f"/api/rules/{quote(name, safe='')}", do, fields)
    if as_json:
        print_json(facts)
    else:
        click.echo(f"Changed {plain(name)} ({_where(facts)}): {plain(facts.get('text'))}")
        if is_about_holding:
            tell_enforcement(facts, fields, is_on=partial(is_holding, home), was_held=was_held)


@rules.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_and_json
def remove(home: Path, name: str, yes: bool, as_json: bool) -> None:
    """Retire a rule. Its text is kept: undo, or skills restore, brings it back."""
    rule, _ = _rule(home, name)
    if not yes:
        confirm(f"Remove the {rule.kind} {name} ({short(rule.body, _MOST_TEXT)})?")

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        from metaclaw.api import rule_view

        return {"removed": name, "rule": rule_view(rulebook.remove(name), None)}

    facts = carry_out(home, "DELETE", f"/api/rules/{quote(name, safe='')}", do)
    print_result(facts, f"Removed {plain(name)}. Take it back with: metaclaw undo", as_json=as_json)


def _tell_reading(home: Path) -> None:
    """Print the number of messages that are still being read: their rules are not in the list
    yet.
    """
    try:
        _, api = connect(home)
        count = at(api.facts("/api/status"), "learning", "pending", "listening")
    except MetaClawError:
        return
    if isinstance(count, int) and count:
        click.echo(
            f"{counted(count, 'message')} of yours {'is' if count == 1 else 'are'} being read; look"
            " again in a moment."
        )


def retired_rules(home: Path) -> "list[RetiredSkill]":
    """Retired rules and facts."""

    return [skill for skill in retired(home) if not skill.skill.is_skill]


def _in_force(
    home: Path,
) -> "tuple[list[Skill], dict[SkillName, tuple[datetime | None, datetime | None]]]":
    """The rules and facts of this home with their dates. Prints the files that cannot be read."""
    from metaclaw.store import SqlGenerations

    found, skipped = read_in_force(home)
    for path, reason in skipped:
        click.echo(f"skipped {plain(path)}: {plain(reason)}", err=True)
    with opened(home) as database:
        dates = {} if database is None else SqlGenerations(database).dates()
    return [skill for skill in found if not skill.is_skill], dates


def _rule(home: Path, name: str) -> "tuple[Skill, tuple[datetime | None, datetime | None]]":
    """The rule of this name, and when it came into force and was last changed."""
    found, dates = _in_force(home)
    rule = next((rule for rule in found if rule.name == name), None)
    if rule is None:
        raise SkillError(f"there is no rule named {plain(name)}; metaclaw rules list shows all")
    return rule, dates.get(rule.name, (None, None))


def _is_held(home: Path, name: str) -> bool:
    """Whether calls that break this rule are held, while holding is on."""
    from metaclaw.skills import can_hold

    return any(
        rule.name == name and rule.enforcement == "hold" and can_hold(rule)
        for rule in read_in_force(home)[0]
    )


def _refuse_to_hold_nothing(home: Path, name: str, fields: "dict[str, Json]") -> None:
    """Raise SkillError if the rule, with these changes, has no check of tool calls and so cannot
    hold them.
    """
    from metaclaw.skills import can_hold

    rule = next((rule for rule in read_in_force(home)[0] if rule.name == name), None)
    if rule is None:
        return  # the change itself refuses it
    if not can_hold(replace(rule, check=str(fields.get("check", rule.check or "")))):
        raise SkillError(
            f"{plain(name)} cannot be held, and nothing was changed: only a rule with a check of"
            f" tool calls can hold them. Give it one: metaclaw rules edit {plain(name)} --check"
            " 'not in calls of shell: …' --enforce hold"
        )


def _changes(
    home: Path, when: str | None, project: str | None, expires: str | None, user: str | None
) -> "dict[str, Json]":
    from metaclaw.cli.rule_files import known_project

    fields: dict[str, Json] = {} if when is None else {"when": when}
    fields |= {} if project is None else {"workspace": known_project(home, project)}
    fields |= {} if expires is None else {"expires": None if expires == "never" else expires}
    return fields | ({} if user is None else {"scope": None if user == EVERYONE else _scope(user)})


def _scope(user: str) -> str:
    if user == YOU:
        return "owner"
    return user if user == "owner" or user.startswith(("user:", "team:")) else f"user:{user}"


def _edited(home: Path, name: str) -> str:

    rule, _ = _rule(home, name)
    try:
        text = click.edit(rule.body, extension=".md")
    except click.ClickException as error:
        raise MetaClawError(
            f"no editor could be opened ({error.message}); use --text, or set EDITOR"
        ) from error
    if text is None or text.strip() == rule.body.strip():
        raise MetaClawError("nothing was changed")
    return text


def _row(view: "dict[str, Json]") -> tuple[object, ...]:
    text = short(view["text"], _MOST_TEXT)
    is_held = view["enforce"] == "hold" and view["can_hold"]
    shown = f"(fact) {text}" if view["kind"] == "fact" else f"(held) {text}" if is_held else text
    return (
        view["name"],
        shown,
        short(view["when"], 40),
        audience(view["scope"]),
        view["workspace"] or "all",
        view["expires"],
    )


def _where(facts: "dict[str, Json]") -> str:
    whom = f"for {audience(facts.get('scope'))}"
    place = f"in {facts['workspace']}" if facts.get("workspace") else "everywhere"
    until = f", until {facts['expires']}" if facts.get("expires") else ""
    return plain(f"{facts.get('when')}, {whom}, {place}{until}")


for command in (examples, import_, export):
    rules.add_command(command)
