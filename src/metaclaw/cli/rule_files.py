"""`metaclaw rules import|export`: read rules from files of other programs, and write them."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from metaclaw.cli.client import at, carry_out, rows
from metaclaw.cli.home import read_in_force, reading
from metaclaw.cli.output import ask as confirm
from metaclaw.cli.output import counted, home_and_json, plain, print_json, short
from metaclaw.errors import SkillError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json
    from metaclaw.domain.skill import Skill
    from metaclaw.skills import Rulebook, RuleFields

_KNOWN_FILES = ("CLAUDE.md", "AGENTS.md", ".cursorrules")
_MOST_BYTES = 1 << 20
_MOST_SHOWN = 100


@click.command(name="import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--project",
    help="A folder: the rules apply there only [the folder of a file in a Git repository].",
)
@click.option("--everywhere", is_flag=True, help="The rules apply in all projects.")
@click.option("--for", "user", metavar="USER", help="Only for this user [everyone].")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_and_json
def import_(
    home: Path,
    path: Path,
    project: str | None,
    everywhere: bool,
    user: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Import the rules of a CLAUDE.md, AGENTS.md or .cursorrules, of a folder with one of them, or
    of a JSON export.

    Each list item and each short paragraph becomes a rule; the heading above it says when it
    applies. A folder of skills (OpenClaw's, or any in the Agent Skills format) is imported as
    skills. Rules that are in force already are not added again."""
    if path.is_dir() and next(path.glob("**/SKILL.md"), None) is not None:
        from metaclaw.cli.skills import import_ as import_skills

        click.get_current_context().invoke(import_skills, path=path, replace=yes, as_json=as_json)
        return
    found: list[RuleFields] = []
    left_out: list[tuple[str, str]] = []
    for file in _files(path):
        fields, faults = _read(file, project, everywhere=everywhere, user=user)
        found += fields
        left_out += faults
    if not found:
        raise SkillError(
            f"there is no rule in {plain(path)}: write each as a list item or a short paragraph"
        )
    if not as_json:
        _preview(found, left_out)
    if not yes:
        confirm(f"Add {counted(len(found), 'rule')}?")

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        from metaclaw.api import rule_view

        return {
            "rules": [
                {**rule_view(rule, None), "added": is_new} for rule, is_new in rulebook.add(found)
            ]
        }

    listed = rows(
        carry_out(home, "POST", "/api/rules", do, {"rules": cast("list[Json]", found)}).get("rules")
    )
    new = [rule for rule in listed if at(rule, "added")]
    if as_json:
        skipped = [{"text": text, "reason": reason} for text, reason in left_out]
        print_json({"rules": listed, "added": len(new), "left_out": skipped})
    else:
        known = (
            f"; {counted(len(listed) - len(new), 'rule')} in force already"
            if len(listed) > len(new)
            else ""
        )
        click.echo(
            f"Added {counted(len(new), 'rule')}{known}."
            + (" Take them back with: metaclaw undo" if new else "")
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
@click.pass_obj
def export(
    home: Path, form: str, target: Path | None, project: str | None, user: str | None, yes: bool
) -> None:
    """Write your rules as a section for AGENTS.md or CLAUDE.md, or as JSON.

    If the file has such a section already, the section is replaced; the rest of the file does not
    change."""
    from metaclaw.skills import render_section, with_section

    found = _chosen(home, project, user)
    if (
        target is not None
        and user is None
        and (others := sorted({str(rule.scope) for rule in found if _is_personal(rule)}))
    ):
        click.echo(
            f"The file contains rules of {', '.join(map(plain, others))}; --for USER writes only"
            " one person's.",
            err=True,
        )
    if form == "json":
        from metaclaw.api import rule_view

        views: dict[str, object] = {"rules": [rule_view(rule, None) for rule in found]}
        if target is None:
            print_json(views)
            return
        import json

        _write(target, json.dumps(views, indent=2, ensure_ascii=False) + "\n", yes=yes)
    elif target is None:
        click.echo(render_section(found), nl=False)
        return
    else:
        _write(
            target,
            with_section(_text(target) if target.exists() else "", render_section(found)),
            yes=yes,
        )
    click.echo(f"Wrote {counted(len(found), 'rule')} to {plain(target)}.", err=True)


def project_id(folder: str) -> str:
    """A project as agents name it: the absolute path of its folder; if it is not a folder, the name
    itself.
    """
    path = Path(folder).expanduser()
    return str(path.resolve()) if path.is_dir() else folder


def known_project(home: Path, folder: str) -> str:
    """As `project_id`; raises SkillError, which lists the known projects, if it is neither a folder
    nor one of them.
    """

    project = project_id(folder)
    if Path(project).is_absolute():
        return project
    with reading(home) as reader:
        seen = [] if reader is None else reader.workspaces()
    known = sorted(
        {
            *seen,
            *(str(place) for rule in read_in_force(home)[0] if (place := rule.workspace)),
        }
    )
    if project in known:
        return project
    listed = f"Known projects: {plain(', '.join(known))}." if known else "No project is known yet."
    raise SkillError(
        f"there is no folder and no project {plain(folder)}. {listed} Write the path of the"
        " project's folder"
    )


def _is_personal(rule: "Skill") -> bool:
    return rule.scope is not None and rule.scope.startswith("user:")


def _chosen(home: Path, project: str | None, user: str | None) -> "list[Skill]":

    found, _ = read_in_force(home)
    mine = [
        rule
        for rule in found
        if not rule.is_skill and (project is None or rule.is_for_workspace(project_id(project)))
    ]
    if user is not None:
        mine = [rule for rule in mine if rule.scope in (None, f"user:{user}")]
    if not mine:
        raise SkillError("there is no rule to export; metaclaw rules list shows all")
    return mine


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [path / name for name in _KNOWN_FILES if (path / name).is_file()]
    if not found:
        raise SkillError(
            f"{plain(path)} has no {', '.join(_KNOWN_FILES)} and no SKILL.md: name the file"
        )
    return found


def _read(
    path: Path, project: str | None, *, everywhere: bool, user: str | None
) -> "tuple[list[RuleFields], list[tuple[str, str]]]":
    from metaclaw.skills import read_rules

    read = read_rules(_text(path))
    place = project_id(project) if project is not None else None
    if project is None and not everywhere and (path.resolve().parent / ".git").exists():
        place = str(path.resolve().parent)
    given: dict[str, Json] = {} if place is None else {"workspace": place}
    given |= {} if user is None else {"scope": f"user:{user}"}
    return [cast("RuleFields", {**given, **fields}) for fields in read.rules], list(read.left_out)


def _preview(rules: "list[RuleFields]", left_out: list[tuple[str, str]]) -> None:
    for fields in rules:
        where = [
            str(value)
            for value in (fields.get("when"), fields.get("workspace"), fields.get("scope"))
            if value
        ]
        click.echo(f"  + {plain(short(fields['text'], _MOST_SHOWN))}  [{plain(', '.join(where))}]")
    for text, reason in left_out:
        click.echo(f"  left out {plain(text)}: {plain(reason)}", err=True)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SkillError(
            f"{plain(path)} cannot be read ({error}): give a text file in UTF-8"
        ) from error
    if len(raw) > _MOST_BYTES or "\0" in text:
        raise SkillError(
            f"{plain(path)} is larger than {_MOST_BYTES} bytes or not text: give a Markdown or text"
            " file"
        )
    return text


def _write(path: Path, text: str, *, yes: bool) -> None:
    if path.exists() and not yes:
        confirm(f"Change {path}?")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SkillError(f"{plain(path)} cannot be written: {error.strerror or error}") from error
