"""`metaclaw rules`: list, add, change and remove rules and facts."""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.client import Facts, connect, read, request, segment
from metaclaw.cli.enforcement import (
    check_changes,
    check_facts,
    check_options,
    check_program,
    enforcement_lines,
    is_held,
    question_lines,
    record_facts,
)
from metaclaw.cli.output import (
    Columns,
    CommandOutput,
    ListingGroup,
    answers,
    brief,
    confirm,
    counted,
    dated,
    described,
    edited_text,
    fact_lines,
    listing,
    short,
    tell_skipped,
    yes_option,
)
from metaclaw.cli.rule_files import export, import_, project_id
from metaclaw.cli.what_if import quick_trial
from metaclaw.domain.status import EVERYONE, YOU, audience, reason_words, replaced_words
from metaclaw.errors import MetaClawError, SkillError

_MOST_TEXT = 100
_ALL = "all"


def _marked_text(view: Facts) -> str:
    text = short(view["text"], _MOST_TEXT)
    if view["kind"] == "fact":
        return f"(fact) {text}"
    return f"(held) {text}" if is_held(view) else text


def _audience(view: Facts) -> str:
    return audience(view["scope"])


def _channel(view: Facts) -> str:
    return view["channel"] or _ALL


def _project(view: Facts) -> str:
    where = "all; you named an unknown project" if view["project"] == "unknown" else _ALL
    return view["workspace"] or where


_COLUMNS: Columns = {
    "NAME": "name",
    "TEXT": _marked_text,
    "WHEN": brief("when", 40),
    "FOR": _audience,
    "PROJECT": lambda view: view["workspace"] or _ALL,
    "CHANNEL": _channel,
    "UNTIL": "expires",
    "COMPLIANCE": "in_words",
    "NOTES": lambda view: "; ".join(view["notes"]),
}
_OPTIONAL = ("UNTIL", "CHANNEL", "FOR", "WHEN", "PROJECT", "COMPLIANCE", "NOTES")
_RETIRED: Columns = {
    "NAME": "name",
    "KIND": "kind",
    "TEXT": brief("text", _MOST_TEXT),
    "WHY IT WENT": lambda view: reason_words(view["reason"]),
}
_EXAMPLES: Columns = {"NAME": "name", "RULE": "text"}
_FACTS: Columns = {
    "kind": "kind",
    "when": "when",
    "for": _audience,
    "project": _project,
    "channel": _channel,
    "until": lambda view: view["expires"] or "for good",
    "said in": lambda view: view["source"] or "not in a conversation",
    "since": dated("created"),
    "changed": dated("changed"),
}


@click.group(cls=ListingGroup)
def rules() -> None:
    """List, add, change and remove your rules: instructions in your own words that stay in force.
    Without a command: list.
    """


@rules.command(name="list")
@click.option("--retired", "is_retired", is_flag=True, help="List retired rules instead.")
@answers
def list_(home: Path, is_retired: bool) -> CommandOutput:
    """List your rules and facts."""
    if is_retired:
        gone = read(home, "/api/rules", state="retired")["rules"]
        return CommandOutput({"rules": gone}, _retired(gone))
    facts = read(home, "/api/rules")
    tell_skipped(facts["skipped"])
    return CommandOutput({"rules": facts["rules"]}, _listed(home, facts["rules"]))


def _listed(home: Path, found: list[Facts]) -> Iterator[str]:
    if found:
        yield from listing(found, _COLUMNS, _OPTIONAL)
        yield from question_lines(found)
    else:
        yield 'No rules yet. Say one to your agent, or: metaclaw rules add "Use uv instead of pip."'
    learning = _learning(home)
    in_force = {view["name"] for view in found}
    for change in learning.get("noted") or ():
        is_gone = in_force.isdisjoint(one["name"] for one in change["gone"])
        if is_gone and (replaced := replaced_words(change)):
            yield f"Your newer words {replaced}."
    if count := (learning.get("pending") or {}).get("listening", 0):
        verb = "is" if count == 1 else "are"
        yield f"{counted(count, 'message')} of yours {verb} being read; look again in a moment."


def _learning(home: Path) -> Facts:
    """The learning part of the running proxy's status; empty without one."""
    try:
        _, api = connect(home)
        return dict(api.call("GET", "/api/status")["learning"])
    except MetaClawError:
        return {}


def _retired(gone: list[Facts]) -> Iterator[str]:
    if not gone:
        yield "No rule has been removed."
        return
    yield from listing(gone, _RETIRED, optional=("KIND",))


@rules.command()
@click.argument("name")
@answers
def show(home: Path, name: str) -> CommandOutput:
    """Show one rule: its text, when and for whom it applies, and where it comes from."""
    view = _rule(home, name)
    return CommandOutput(view, _shown(home, view))


def _shown(home: Path, view: Facts) -> Iterator[str]:
    yield view["name"]
    notes = (("note", note) for note in view["notes"])
    examples = (("example", example) for example in view["examples"])
    yield from fact_lines(
        [*described(view, _FACTS), *notes, *check_facts(home, view), *examples, *record_facts(view)]
    )
    yield from ("", *view["text"].splitlines())
    if program := check_program(view):
        yield from ("", "Its check:", *program.splitlines())


@rules.command()
@click.argument("text", required=False)
@click.option("--example", metavar="NAME", help="A rule of the library.")
@click.option("--when", help="The situation it applies to [always].")
@click.option("--project", help="A folder: it applies there only [everywhere].")
@click.option(
    "--channel",
    metavar="NAME",
    help="Only on this channel of an assistant, such as slack or telegram [all].",
)
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
@answers
def add(
    home: Path,
    /,
    text: str | None,
    example: str | None,
    when: str | None,
    project: str | None,
    channel: str | None,
    expires: str | None,
    fact: bool,
    user: str | None,
    **checking: str | bool | None,
) -> CommandOutput:
    """Add a rule, in your own words or from the library, in force for the next request of every
    agent."""
    if (text is None) is (example is None):
        raise click.UsageError(
            "write the rule in your own words, or name one of the library with --example"
        )
    fields: Facts = (
        {"text": text, "kind": "fact" if fact else "rule"}
        if example is None
        else _example_fields(home, example)
    )
    fields |= _changes(home, when, project, channel, expires, user) | check_changes(checking)
    facts = request(home, "POST", "/api/rules", fields)
    return CommandOutput(facts, _added(home, facts, fields))


def _added(home: Path, facts: Facts, fields: Facts) -> Iterator[str]:
    name, enforce = facts["name"], facts["enforce"]
    if facts["added"]:
        yield f"Noted: {name} ({_where(facts)}). Take it back with: metaclaw undo"
        yield from enforcement_lines(home, facts, fields)
        yield from question_lines([facts])
        if fields.get("check"):
            yield quick_trial(home, name)
        return
    yield f"This rule is in force already: {name}."
    if fields.get("enforce") not in (None, enforce):
        change = f"metaclaw rules edit {name} --enforce {fields['enforce']}"
        yield f"It stays on enforce: {enforce}. To change that: {change}"


@rules.command()
@click.argument("name")
@click.option("--text", help="The new text.")
@click.option("--when", help="The situation it applies to, or always.")
@click.option("--project", help="A folder: narrow it to this project.")
@click.option("--everywhere", is_flag=True, help="Widen it to all projects.")
@click.option("--channel", metavar="NAME", help="Only on this channel of an assistant, or all.")
@click.option("--expires", metavar="DATE", help="The last day on which it is in force, or never.")
@click.option("--for", "user", metavar="USER", help="Only for this user, or you, or everyone.")
@check_options
@answers
def edit(
    home: Path,
    /,
    name: str,
    text: str | None,
    when: str | None,
    project: str | None,
    everywhere: bool,
    channel: str | None,
    expires: str | None,
    user: str | None,
    **checking: str | bool | None,
) -> CommandOutput:
    """Change a rule; without an option, its text in an editor."""
    if project is not None and everywhere:
        raise click.UsageError("use either --project or --everywhere")
    fields = _changes(home, when, project, channel, expires, user)
    fields |= {} if text is None else {"text": text}
    fields |= {"workspace": None} if everywhere else {}
    fields |= check_changes(checking)
    if not fields:
        fields = {"text": edited_text(_rule(home, name)["text"], "--text")}
    is_about_holding = not fields.keys().isdisjoint(("enforce", "check", "on_error", "on_break"))
    was_held = is_about_holding and is_held(_rule(home, name))
    facts = request(home, "PATCH", f"/api/rules/{segment(name)}", fields)
    told = enforcement_lines(home, facts, fields, was_held=was_held) if is_about_holding else ()
    return CommandOutput(
        facts, [f"Changed {name} ({_where(facts)}): {short(facts['text'], 1000)}", *told]
    )


@rules.command()
@click.argument("name")
@yes_option
@answers
def remove(home: Path, name: str, yes: bool) -> CommandOutput:
    """Retire a rule. Its text is kept: undo, or skills restore, brings it back."""
    rule = _rule(home, name)
    confirm(f"Remove the {rule['kind']} {name} ({short(rule['text'], _MOST_TEXT)})?", yes=yes)
    facts = request(home, "DELETE", f"/api/rules/{segment(name)}")
    return CommandOutput(facts, f"Removed {name}. Take it back with: metaclaw undo")


def _rule(home: Path, name: str) -> Facts:
    if not name or "/" in name:
        raise SkillError(f"there is no rule named {name}; metaclaw rules list shows all")
    return read(home, f"/api/rules/{segment(name)}")


def _changes(
    home: Path,
    when: str | None,
    project: str | None,
    channel: str | None,
    expires: str | None,
    user: str | None,
) -> Facts:
    fields: Facts = {} if when is None else {"when": when}
    fields |= {} if project is None else {"workspace": _known_project(home, project)}
    fields |= {} if channel is None else {"channel": None if channel == _ALL else channel}
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
    known = read(home, "/api/projects")["projects"]
    if project in known:
        return project
    listed = f"Known projects: {', '.join(known)}." if known else "No project is known yet."
    raise SkillError(
        f"there is no folder and no project {folder}. {listed} Write the path of the project's"
        " folder"
    )


def _where(facts: Facts) -> str:
    place = f"in {facts['workspace']}" if facts["workspace"] else "everywhere"
    place += f" on {facts['channel']}" if facts["channel"] else ""
    until = f", until {facts['expires']}" if facts["expires"] else ""
    return f"{facts['when']}, for {audience(facts['scope'])}, {place}{until}"


@rules.command()
@answers
def examples(home: Path) -> CommandOutput:
    """List the library of example rules."""
    facts = read(home, "/api/rule-examples")
    advice = "Install one with: metaclaw rules add --example NAME"
    return CommandOutput(facts, [*listing(facts["examples"], _EXAMPLES), "", advice])


def _example_fields(home: Path, name: str) -> Facts:
    """The fields of an example rule. Raises UsageError if there is none of this name."""
    for example in read(home, "/api/rule-examples")["examples"]:
        if example["name"] == name:
            return {**example, "kind": "rule"}
    raise click.UsageError(
        f"there is no example {name}; metaclaw rules examples lists those there are"
    )


for command in (import_, export):
    rules.add_command(command)
