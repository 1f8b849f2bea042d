"""`metaclaw skills` and `metaclaw undo`: list and change the skills of this home, retire and
restore them, and undo lessons. A running proxy reads changed SKILL.md files within a second."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from metaclaw.cli.client import at, carry_out, rows
from metaclaw.cli.home import opened, read_in_force, retired, with_authors
from metaclaw.cli.output import (
    ask,
    counted,
    home_and_json,
    limit_option,
    moment,
    plain,
    plain_block,
    print_facts,
    print_json,
    print_result,
    print_table,
    short,
)
from metaclaw.domain.status import audience, reason_words
from metaclaw.errors import SkillError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json
    from metaclaw.domain.skill import Skill
    from metaclaw.skills import Rulebook


_FILE = "SKILL.md"


@click.group()
def skills() -> None:
    """List, show, test, add, edit, keep, pin, retire, restore, import and export skills; go back to
    earlier ones.
    """


@skills.command(name="list")
@click.option(
    "--retired", "is_retired", is_flag=True, help="List retired skills, rules and facts instead."
)
@home_and_json
def list_(home: Path, is_retired: bool, as_json: bool) -> None:
    """List the skills, and the files that cannot be read. Your rules are listed by: metaclaw
    rules
    """
    if is_retired:
        _list_retired(home, as_json=as_json)
        return
    folder = _folder(home)
    found, skipped = read_in_force(home)
    if as_json:
        print_json(
            {
                "skills": [_facts(folder, skill, whole=False) for skill in found],
                "skipped": [{"path": str(path), "reason": reason} for path, reason in skipped],
            }
        )
        return
    procedures = [skill for skill in found if skill.kind == "skill"]
    if procedures:
        headers = ("NAME", "STATE", "AUTHOR", "FOR", "CATEGORY", "USE WHEN")
        print_table(
            headers,
            [_row(skill) for skill in procedures],
            optional=("CATEGORY", "AUTHOR", "FOR", "STATE"),
        )
    else:
        click.echo(f"No skills in {folder}; add one with: metaclaw skills add PATH")
    if len(found) > len(procedures):
        click.echo(
            f"And {counted(len(found) - len(procedures), 'rule or fact', 'rules and facts')}:"
            " metaclaw rules"
        )
    for path, reason in skipped:
        click.echo(f"skipped {plain(path)}: {plain(reason)}", err=True)


@skills.command()
@click.argument("name")
@home_and_json
def show(home: Path, name: str, as_json: bool) -> None:
    """Print one skill."""
    from metaclaw.skills import check_trouble, form_note, read_skill, trial_trouble

    folder = _folder(home)
    (skill,) = with_authors(home, [read_skill(_existing(folder, name))])
    trouble = check_trouble(skill)
    if as_json:
        print_json({**_facts(folder, skill, whole=True), "check_trouble": trouble})
        return
    click.echo(skill.name)
    pairs = [
        ("use when", skill.trigger),
        ("category", skill.category),
        ("for", audience(skill.scope)),
    ]
    pairs += [
        ("state", _state(skill)),
        ("author", str(skill.author)),
        ("file", str(folder / name / _FILE)),
    ]
    pairs += [
        ("check", f"is not run: {trouble}" if trouble else trial_trouble(skill) or form_note(skill))
    ]
    print_facts((label, value) for label, value in pairs if value is not None)
    click.echo(f"\n{plain_block(skill.body)}")
    if check := skill.check:
        click.echo(f"\nIts check:\n{plain_block(str(check))}")


@skills.command()
@click.argument("name")
@click.argument("task")
@click.argument("answer")
@home_and_json
def test(home: Path, name: str, task: str, answer: str, as_json: bool) -> None:
    """Run the check of a skill on an answer: what it would earn in training.

    NAME is a skill of this home, or the path of a SKILL.md; TASK is what the person asked. Exits
    with 1 if the check itself breaks or takes too long."""
    from metaclaw.domain.chat import Message, Role, Text
    from metaclaw.domain.check import Conversation, Finding
    from metaclaw.domain.verdict import Outcome
    from metaclaw.skills import check_of, examine, read_skill
    from metaclaw.train import is_degenerate

    path = Path(name)
    check = check_of(
        _read_anywhere(path) if path.name == _FILE else read_skill(_existing(_folder(home), name))
    )
    if check is None:
        raise SkillError(
            f"{plain(name)} has no check: write one into its SKILL.md (docs/training.md shows all"
            " kinds)"
        )
    asked = Conversation((Message(Role.USER, (Text(task),)),), task)
    finding = examine(check, [Text(answer)], conversation=asked)
    if finding.has_failed:
        raise SkillError(f"the check of {plain(name)} itself fails: {plain(finding.reason)}")
    if is_degenerate(answer):
        finding = Finding(
            Outcome.FAIL,
            "an empty answer, or one that repeats itself, earns nothing whatever the check says",
            0.0,
        )
    if as_json:
        print_json({"outcome": finding.outcome, "score": finding.score, "reason": finding.reason})
        return
    score = "no score" if finding.score is None else f"score {finding.score:.4g}"
    click.echo(
        f"{finding.outcome}, {score}" + (f": {plain(finding.reason)}" if finding.reason else "")
    )


@skills.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--replace",
    "--yes",
    "replace",
    is_flag=True,
    help="Replace a skill of the same name without asking.",
)
@home_and_json
def add(home: Path, path: Path, replace: bool, as_json: bool) -> None:
    """Add the skill in PATH, a SKILL.md file or a folder with one. From then on it is yours."""
    from metaclaw.config import prepare_home
    from metaclaw.skills import check_trouble, trial_trouble, vouched, write_skill

    prepare_home(home)
    folder = _folder(home)
    skill = vouched(_read_anywhere(path / _FILE if path.is_dir() else path))
    is_there = (folder / skill.name).exists()
    if is_there and not replace:
        ask(f"There is a skill named {skill.name}. Replace it?")
    write_skill(folder, skill)
    print_result(
        {**_facts(folder, skill, whole=False), "replaced": is_there},
        f"{'Replaced' if is_there else 'Added'} {skill.name} ({folder / skill.name / _FILE}).",
        as_json=as_json,
    )
    if trouble := check_trouble(skill):
        click.echo(f"Its check is not run: {plain(trouble)}", err=True)
    elif trouble := trial_trouble(skill):
        click.echo(f"Its check {plain(trouble)}", err=True)
    if path.is_dir() and any(entry.name != _FILE for entry in path.iterdir()):
        click.echo(f"Only {_FILE} was taken; the other files in {plain(path)} were not.", err=True)


@skills.command()
@click.argument("name")
@click.option(
    "--when", help="When to use it. Without any option an editor opens on the whole file."
)
@click.option("--body", help="What to do, in Markdown.")
@home_and_json
def edit(home: Path, name: str, when: str | None, body: str | None, as_json: bool) -> None:
    """Change a skill. From then on it is yours: the program does not change, withhold or retire
    it.
    """
    from dataclasses import replace

    from metaclaw.skills import parse_skill, read_skill, render_skill, vouched, write_skill

    folder = _folder(home)
    skill = read_skill(_existing(folder, name))
    if skill.kind != "skill":
        raise SkillError(
            f"{plain(name)} is a {skill.kind}: change it with: metaclaw rules edit {plain(name)}"
        )
    if when is None and body is None:
        edited = parse_skill(_from_editor(render_skill(skill)), "the edited text")
        if edited.name != skill.name:
            raise SkillError(
                f"the name was changed to {edited.name}: leave `name: {skill.name}`, or add it as a"
                " skill of its own"
            )
    else:
        edited = replace(skill, trigger=when or skill.trigger, body=body or skill.body)
    write_skill(folder, vouched(edited))
    print_result(
        _facts(folder, vouched(edited), whole=True),
        f"Changed {plain(name)}; it is yours now.",
        as_json=as_json,
    )


def _from_editor(text: str) -> str:
    try:
        edited = click.edit(text, extension=".md")
    except click.ClickException as error:
        raise SkillError(
            f"no editor could be opened ({error.message}); use --when or --body, or set EDITOR"
        ) from error
    if edited is None or edited == text:
        raise SkillError("nothing was changed")
    return edited


@skills.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_and_json
def remove(home: Path, name: str, yes: bool, as_json: bool) -> None:
    """Delete one skill and its folder."""
    from metaclaw.skills import remove_skill

    folder = _folder(home)
    _existing(folder, name)
    if not yes:
        ask(f"Delete the skill {name} and everything in {folder / name}?")
    remove_skill(folder, name)
    print_result({"removed": name}, f"Removed {name}.", as_json=as_json)


def _list_retired(home: Path, *, as_json: bool) -> None:
    from metaclaw.api import retired_skill_view

    found = retired(home)
    if as_json:
        print_json({"skills": [retired_skill_view(one) for one in found]})
    elif not found:
        click.echo("Nothing has been retired.")
    else:
        lines = [
            (
                one.skill.name,
                one.skill.kind,
                moment(one.retired_at),
                one.reason,
                short(one.skill.trigger, 80),
            )
            for one in found
        ]
        print_table(("NAME", "KIND", "RETIRED", "WHY", "USE WHEN"), lines)
        click.echo("Restore one with: metaclaw skills restore NAME")


def _read_anywhere(path: Path) -> "Skill":
    """Read a skill from a file in any folder. (In the skills folder, a skill's folder must have its
    name.)
    """
    from metaclaw.skills import MAX_FILE_BYTES, parse_skill

    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SkillError(
            f"{path} cannot be read ({error}): give a SKILL.md file, or a folder that holds one"
        ) from error
    if len(raw) > MAX_FILE_BYTES or "\0" in text:
        raise SkillError(
            f"{path} is larger than {MAX_FILE_BYTES} bytes or has a NUL in it: give a short text"
            " file"
        )
    return parse_skill(text, str(path))


def _folder(home: Path) -> Path:
    from metaclaw.config import load

    return load(home).skills.dir


def _existing(folder: Path, name: str) -> Path:
    path = folder / name / _FILE
    if Path(name).name != name or not path.is_file():
        raise SkillError(
            f"there is no skill named {plain(name)} in {folder}; metaclaw skills list shows all"
        )
    return path


def _facts(folder: Path, skill: "Skill", *, whole: bool) -> dict[str, object]:
    facts: dict[str, object] = {
        "name": skill.name,
        "kind": skill.kind.value,
        "description": skill.trigger,
    }
    facts |= {"category": skill.category, "scope": skill.scope}
    facts |= {
        "state": skill.state.value,
        "author": skill.author.value,
        "pinned": skill.pinned,
    }
    facts |= {"hash": skill.content_hash, "path": str(folder / skill.name / _FILE)}
    return {**facts, "body": skill.body} if whole else facts


def _row(skill: "Skill") -> tuple[object, ...]:
    return (
        skill.name,
        _state(skill),
        skill.author,
        audience(skill.scope),
        skill.category,
        short(skill.trigger, 80),
    )


def _state(skill: "Skill") -> str:
    return f"{skill.state}, pinned" if skill.pinned else str(skill.state)


_NAMES_SHOWN = 5


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    help="A file that ends in .zip, or a folder.",
)
@click.option("--yes", is_flag=True, help="Replace existing files without asking.")
@home_and_json
def export(home: Path, names: tuple[str, ...], target: Path, yes: bool, as_json: bool) -> None:
    """Write the skills of these NAMES, or all of them, to a .zip or a folder."""
    from metaclaw.skills import write_pack

    found, skipped = read_in_force(home)
    chosen = [skill for skill in found if not names or skill.name in names]
    missing = sorted(set(names) - {skill.name for skill in chosen})
    if missing or not chosen:
        which = f"no skill named {plain(missing[0])}" if missing else "no skill to export"
        raise SkillError(f"there is {which}; metaclaw skills list shows all")
    write_pack(target, chosen, replace_file=yes)
    print_result(
        {"exported": [skill.name for skill in chosen], "to": str(target)},
        f"Exported {counted(len(chosen), 'skill')} to {plain(target)}.",
        as_json=as_json,
    )
    for path, reason in () if names else skipped:
        click.echo(f"left out {plain(path)}: {plain(reason)}", err=True)


@click.command(name="import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--replace",
    "--yes",
    "replace",
    is_flag=True,
    help="Replace skills of the same name without asking.",
)
@home_and_json
def import_(home: Path, path: Path, replace: bool, as_json: bool) -> None:
    """Import the skills in PATH: a .zip, a folder of skills, or one SKILL.md. From then on they are
    yours.
    """
    from metaclaw.config import load
    from metaclaw.skills import read_pack, write_skill

    folder, pack = load(home).skills.dir, read_pack(path)
    taken = [skill.name for skill in pack.skills if (folder / skill.name).exists()]
    if taken and not replace:
        more = f" and {len(taken) - _NAMES_SHOWN} more" if len(taken) > _NAMES_SHOWN else ""
        ask(
            f"There {'are skills' if len(taken) > 1 else 'is a skill'} named"
            f" {', '.join(taken[:_NAMES_SHOWN])}{more}. Replace?"
        )
    for where, reason in pack.faults:
        click.echo(f"skipped {plain(where)}: {plain(reason)}", err=True)
    if not pack.skills:
        raise SkillError(f"{plain(path)} contains no usable skill")
    for skill in pack.skills:
        write_skill(folder, skill)
    if as_json:
        skipped = [{"path": where, "reason": reason} for where, reason in pack.faults]
        print_json(
            {
                "imported": [skill.name for skill in pack.skills],
                "replaced": taken,
                "skipped": skipped,
            }
        )
    else:
        replaced = f", {len(taken)} of them in place of others" if taken else ""
        click.echo(f"Imported {counted(len(pack.skills), 'skill')}{replaced}.")


@click.command()
@limit_option(20, "Most generations to list, newest first.")
@home_and_json
def history(home: Path, limit: int, as_json: bool) -> None:
    """List the generations of skills, newest first: when, why, and how many skills were added and
    removed.
    """
    from metaclaw.api import generation_view
    from metaclaw.store import SqlGenerations

    with opened(home) as database:
        found = [] if database is None else SqlGenerations(database).history(limit)
    if as_json:
        print_json({"generations": [generation_view(row) for row in found]})
    elif not found:
        click.echo("No generation of skills is recorded yet.")
    else:
        print_table(
            ("GENERATION", "WHEN", "ADDED", "REMOVED", "WHY"),
            [
                (
                    row.number,
                    moment(row.published_at),
                    row.added,
                    row.removed,
                    reason_words(row.reason),
                )
                for row in found
            ],
        )


@click.command()
@click.argument("generation", type=click.IntRange(0, 2**31 - 1))
@home_and_json
def revert(home: Path, generation: int, as_json: bool) -> None:
    """Put an earlier GENERATION in force again, as a new generation. To undo it, revert to the last
    generation.

    To take back only the last lesson: metaclaw undo. To bring back one retired skill: metaclaw
    skills restore NAME."""

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        return {
            "reverted_to": generation,
            "generation": rulebook.library.revert(generation).generation,
        }

    facts = carry_out(home, "POST", "/api/generations/revert", do, {"generation": generation})
    now = plain(facts.get("generation"))
    print_result(
        facts,
        f"The skills of generation {generation} are in force again, as generation {now}.",
        as_json=as_json,
    )


@click.command()
@click.argument("name")
@home_and_json
def retire(home: Path, name: str, as_json: bool) -> None:
    """Retire one skill. Its text is kept: restore brings it back."""
    from metaclaw.domain.ids import SkillName

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        return {
            "skill": name,
            "retired": True,
            "generation": rulebook.library.retire(SkillName(name)).generation,
        }

    facts = _change(home, name, "retire", do)
    said = f"Retired {plain(name)}; generation {plain(facts.get('generation'))} is in force."
    print_result(
        facts, f"{said}\nRestore it with: metaclaw skills restore {plain(name)}", as_json=as_json
    )


@click.command()
@click.argument("name")
@home_and_json
def restore(home: Path, name: str, as_json: bool) -> None:
    """Put one retired skill, rule or fact in force again."""
    facts = _change(
        home, name, "restore", lambda rulebook: {**_view(rulebook.restore(name)), "restored": True}
    )
    print_result(facts, f"Restored {plain(name)}: it is in force again.", as_json=as_json)


@click.command()
@click.argument("name")
@home_and_json
def keep(home: Path, name: str, as_json: bool) -> None:
    """End a skill's trial: it is live from now on, and the program does not withhold, change or
    retire it.
    """
    facts = _change(home, name, "keep", lambda rulebook: _view(rulebook.keep(name)))
    print_result(facts, f"{plain(name)} is kept: live and pinned.", as_json=as_json)


@click.command()
@click.argument("name")
@click.option("--off", is_flag=True, help="Unpin it: the program may change and retire it again.")
@home_and_json
def pin(home: Path, name: str, off: bool, as_json: bool) -> None:
    """Pin a live skill: the program does not withhold, change or retire it."""
    facts = _change(
        home,
        name,
        "pin",
        lambda rulebook: _view(rulebook.pin(name, pinned=not off)),
        {"pinned": not off},
    )
    print_result(facts, f"{'Unpinned' if off else 'Pinned'} {plain(name)}.", as_json=as_json)


def _change(
    home: Path,
    name: str,
    verb: str,
    do: "Callable[[Rulebook], dict[str, Json]]",
    fields: "Mapping[str, Json] | None" = None,
) -> "dict[str, Json]":
    return carry_out(home, "POST", f"/api/skills/{quote(name, safe='')}/{verb}", do, fields)


def _view(skill: "Skill") -> "dict[str, Json]":
    from metaclaw.api import skill_view

    return skill_view(skill)


@click.command()
@home_and_json
def undo(home: Path, as_json: bool) -> None:
    """Take back the last lesson: a rule or fact that was noted, changed or removed, or a skill that
    was learned, edited or retired.

    Each call takes back one more. A lesson that was taken back is not learned again from the same
    turns."""

    def do(rulebook: "Rulebook") -> "dict[str, Json]":
        from metaclaw.api import undone_view

        return undone_view(rulebook.undo())

    facts = carry_out(home, "POST", "/api/undo", do)
    if as_json:
        print_json(facts)
        return
    click.echo(f"Undone: {plain(reason_words(at(facts, 'undone', 'reason')))}.")
    for field, mark, word in (
        ("removed", "-", "no longer in force"),
        ("restored", "+", "in force again"),
    ):
        for item in rows(facts.get(field)):
            click.echo(
                f"  {mark} {plain(at(item, 'name'))} ({plain(at(item, 'kind'))}, {word}):"
                f" {plain(at(item, 'text'))}"
            )


for command in (history, revert, retire, restore, keep, pin, export, import_):
    skills.add_command(command)
