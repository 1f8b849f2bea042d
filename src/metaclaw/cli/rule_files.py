"""`metaclaw rules import|export`: read rules from files of other programs, and write them."""

import json
from pathlib import Path

import click

from metaclaw.cli.client import Facts, read, request
from metaclaw.cli.output import (
    CommandOutput,
    answers,
    confirm,
    counted,
    echo,
    short,
    wants_json,
    yes_option,
)
from metaclaw.cli.text_file import read_text, with_section, write_whole
from metaclaw.errors import SkillError

_KNOWN_FILES = ("CLAUDE.md", "AGENTS.md", ".cursorrules")
_MOST_SHOWN = 100


@click.command(name="import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--project",
    help="A folder: the rules apply there only [the folder of a file in a Git repository].",
)
@click.option("--everywhere", is_flag=True, help="The rules apply in all projects.")
@click.option("--for", "user", metavar="USER", help="Only for this user [everyone].")
@yes_option
@answers
def import_(
    home: Path, path: Path, project: str | None, everywhere: bool, user: str | None, yes: bool
) -> CommandOutput:
    """Import the rules of a CLAUDE.md, AGENTS.md or .cursorrules, of a folder with one of them,
    or of a JSON export."""
    found: list[Facts] = []
    left_out: list[Facts] = []
    for file in _files(path):
        facts = request(home, "POST", "/api/rule-file", {"text": read_text(file)})
        given = _given(file, project, everywhere=everywhere, user=user)
        found += [{**given, **fields} for fields in facts["rules"]]
        left_out += facts["left_out"]
    if not found:
        raise SkillError(
            f"there is no rule in {path}: write each as a list item or a short paragraph"
        )
    if not wants_json():
        _preview(found, left_out)
    confirm(f"Add {counted(len(found), 'rule')}?", yes=yes)
    listed = request(home, "POST", "/api/rules", {"rules": found})["rules"]
    new = sum(rule["added"] for rule in listed)
    known = len(listed) - new
    return CommandOutput(
        {"rules": listed, "added": new, "left_out": left_out},
        f"Added {counted(new, 'rule')}"
        + (f"; {counted(known, 'rule')} in force already." if known else ".")
        + (" Take them back with: metaclaw undo" if new else ""),
    )


@click.command()
@click.option(
    "--format", "form", type=click.Choice(("agents", "json")), default="agents", show_default=True
)
@click.option(
    "--to", "target", type=click.Path(path_type=Path, dir_okay=False), help="A file [print it]."
)
@click.option("--project", help="A folder: only what applies there.")
@click.option("--for", "user", metavar="USER", help="Only what applies to this person.")
@click.option("--yes", is_flag=True, help="Change an existing file without asking.")
@click.option(
    "--watch",
    is_flag=True,
    help=(
        "Keep the section of the file in step until Ctrl-C. What others write into it is proposed"
        " to you."
    ),
)
@click.pass_obj
def export(
    home: Path,
    form: str,
    target: Path | None,
    project: str | None,
    user: str | None,
    yes: bool,
    watch: bool,
) -> None:
    """Write your rules as a section for AGENTS.md or CLAUDE.md, which replaces an earlier one, or
    as JSON.
    """
    if watch:
        if target is None or form == "json":
            raise click.UsageError("--watch needs --to FILE, and no --format json")
        confirm(f"Keep a section of {target} in step?", yes=yes or not target.exists())
        from metaclaw.cli.rule_sync import RuleSync

        folder = str(target.resolve().parent) if project is None else project_id(project)
        RuleSync(home, target, folder, user).follow()
    place = None if project is None else project_id(project)
    facts = read(home, "/api/rule-section", workspace=place, user=user)
    found, section = facts["rules"], facts["section"]
    if not found:
        raise SkillError("there is no rule to export; metaclaw rules list shows all")
    as_json = json.dumps({"rules": found}, indent=2, ensure_ascii=target is None) + "\n"
    if target is None:
        click.echo(as_json if form == "json" else section, nl=False)
        return
    scopes = sorted({one["scope"] for one in found if (one["scope"] or "").startswith("user:")})
    if user is None and scopes:
        echo(
            f"The file contains rules of {', '.join(scopes)}; --for USER writes only one person's.",
            err=True,
        )
    text = as_json
    if form == "agents":
        text = with_section(read_text(target) if target.exists() else "", section)
    _write(target, text, yes=yes)
    echo(f"Wrote {counted(len(found), 'rule')} to {target}.", err=True)


def project_id(folder: str) -> str:
    """A project as agents name it: the absolute path of its folder; if it is not a folder, the name
    itself.
    """
    path = Path(folder).expanduser()
    return str(path.resolve()) if path.is_dir() else folder


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [path / name for name in _KNOWN_FILES if (path / name).is_file()]
    if not found:
        raise SkillError(
            f"{path} has no {', '.join(_KNOWN_FILES)}: name the file. Skills are taken by metaclaw skills import"
        )
    return found


def _given(path: Path, project: str | None, *, everywhere: bool, user: str | None) -> Facts:
    """The project and the person of the rules in a file."""
    place = None if project is None else project_id(project)
    folder = path.resolve().parent
    if project is None and not everywhere and (folder / ".git").exists():
        place = str(folder)
    given: Facts = {} if place is None else {"workspace": place}
    return given | ({} if user is None else {"scope": f"user:{user}"})


def _preview(rules: list[Facts], left_out: list[Facts]) -> None:
    for fields in rules:
        where = filter(None, map(fields.get, ("when", "workspace", "channel", "scope")))
        echo(f"  + {short(fields['text'], _MOST_SHOWN)}  [{', '.join(where)}]")
    for one in left_out:
        echo(f"  left out {one['text']}: {one['reason']}", err=True)


def _write(path: Path, text: str, *, yes: bool) -> None:
    confirm(f"Change {path}?", yes=yes or not path.exists())
    write_whole(path, text)
