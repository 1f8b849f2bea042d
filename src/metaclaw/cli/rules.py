"""`metaclaw rules`: list, add, change and remove rules and facts."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import at, connect, objects, read, request, rows, segment
from metaclaw.cli.enforcement import (
    check_changes,
    check_facts,
    check_options,
    check_program,
    example_fields,
    examples,
    in_words,
    is_holding,
    record_facts,
    tell_enforcement,
    tell_questions,
)
from metaclaw.cli.output import ask as confirm
from metaclaw.cli.output import (
    counted,
    edited_text,
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
    tell_skipped,
)
from metaclaw.cli.rule_files import export, import_, project_id
from metaclaw.domain.status import EVERYONE, YOU, audience, reason_words
from metaclaw.errors import MetaClawError, SkillError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_MOST_TEXT = 100
_WHERE = "metaclaw rules list shows all"


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
    if is_retired:
        _list_retired(home, as_json=as_json)
        return
    facts = read(home, "/api/rules")
    found = objects(facts["rules"])
    tell_skipped(facts["skipped"])
    if as_json:
        print_json({"rules": found})
        return
    if found:
        headers = ("NAME", "TEXT", "WHEN", "FOR", "PROJECT", "UNTIL", "COMPLIANCE")
        print_table(
            headers,
            [(*_row(view), in_words(view)) for view in found],
            optional=("UNTIL", "FOR", "WHEN", "PROJECT", "COMPLIANCE"),
        )
        tell_questions(found)
    else:
        click.echo(
            'No rules yet. Say one to your agent, or: metaclaw rules add "Use uv instead of pip."'
        )
    _tell_reading(home)


def _list_retired(home: Path, *, as_json: bool) -> None:
    gone = objects(read(home, "/api/rules", state="retired")["rules"])
    if as_json:
        print_json({"rules": gone})
    elif not gone:
        click.echo("No rule has been removed.")
    else:
        columns = [
            (one["name"], one["kind"], short(one["text"], _MOST_TEXT), reason_words(one["reason"]))
            for one in gone
        ]
        print_table(("NAME", "KIND", "TEXT", "WHY IT WENT"), columns, optional=("KIND",))


@rules.command()
@click.argument("name")
@home_and_json
def show(home: Path, name: str, as_json: bool) -> None:
    """Show one rule: its text, when and for whom it applies, and where it comes from."""
    view = _rule(home, name)
    if as_json:
        print_json(view)
        return
    click.echo(plain(name))
    where = "all; you named an unknown project" if view["project"] == "unknown" else "all"
    print_facts(
        [
            ("kind", view["kind"]),
            ("when", view["when"]),
            ("for", audience(view["scope"])),
            ("project", view["workspace"] or where),
            ("until", view["expires"] or "for good"),
            ("said in", view["source"] or "not in a conversation"),
            ("since", moment(view["created"])),
            ("changed", moment(view["changed"])),
            *check_facts(view, is_on=view["enforce"] != "hold" or is_holding(home)),
            *(("example", example) for example in rows(view["examples"])),
            *record_facts(view),
        ]
    )
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
        else example_fields(home, example)
    )
    fields |= _changes(home, when, project, expires, user) | check_changes(checking)
    facts = request(home, "POST", "/api/rules", fields)
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
        fields = {"text": edited_text(str(_rule(home, name)["text"]), "--text")}

    is_about_holding = not fields.keys().isdisjoint(("enforce", "check", "on_error", "on_break"))
    was_held = is_about_holding and _is_held(_rule(home, name))
    facts = request(home, "PATCH", f"/api/rules/{segment(name)}", fields)
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
    rule = _rule(home, name)
    if not yes:
        confirm(f"Remove the {rule['kind']} {name} ({short(rule['text'], _MOST_TEXT)})?")
    facts = request(home, "DELETE", f"/api/rules/{segment(name)}")
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


def _rule(home: Path, name: str) -> "dict[str, Json]":
    if not name or "/" in name:
        raise SkillError(f"there is no rule named {plain(name)}; {_WHERE}")
    return read(home, f"/api/rules/{segment(name)}")


def _is_held(view: "dict[str, Json]") -> bool:
    """Whether calls that break this rule are held, while holding is on."""
    return view["enforce"] == "hold" and bool(view["can_hold"])


def _changes(
    home: Path, when: str | None, project: str | None, expires: str | None, user: str | None
) -> "dict[str, Json]":
    fields: dict[str, Json] = {} if when is None else {"when": when}
    fields |= {} if project is None else {"workspace": _known_project(home, project)}
    fields |= {} if expires is None else {"expires": None if expires == "never" else expires}
    return fields | ({} if user is None else {"scope": None if user == EVERYONE else _scope(user)})


def _scope(user: str) -> str:
    if user == YOU:
        return "owner"
    return user if user == "owner" or user.startswith(("user:", "team:")) else f"user:{user}"


def _known_project(home: Path, folder: str) -> str:
    """The project of a folder; raises SkillError, which lists the known projects, if it is neither
    a folder nor one of them.
    """
    project = project_id(folder)
    if Path(project).is_absolute():
        return project
    known = [str(one) for one in rows(read(home, "/api/projects")["projects"])]
    if project in known:
        return project
    listed = f"Known projects: {plain(', '.join(known))}." if known else "No project is known yet."
    raise SkillError(
        f"there is no folder and no project {plain(folder)}. {listed} Write the path of the"
        " project's folder"
    )


def _row(view: "dict[str, Json]") -> tuple[object, ...]:
    text = short(view["text"], _MOST_TEXT)
    if view["kind"] == "fact":
        text = f"(fact) {text}"
    elif _is_held(view):
        text = f"(held) {text}"
    return (
        view["name"],
        text,
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
