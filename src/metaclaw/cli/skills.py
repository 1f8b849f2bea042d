"""`metaclaw skills` and `metaclaw undo`: list and change skills, retire and restore them, and undo
lessons.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.client import at, objects, read, request, rows, segment
from metaclaw.cli.output import (
    ask,
    counted,
    edited_text,
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
    tell_skipped,
)
from metaclaw.cli.skill_files import SKILL_FILE, read_pack, read_text, write_pack
from metaclaw.domain.status import audience, reason_words
from metaclaw.errors import SkillError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json

_WHERE = "metaclaw skills list shows all"
_NAMES_SHOWN = 5


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
    facts = read(home, "/api/skills", state="retired" if is_retired else None)
    found = objects(facts["skills"])
    if is_retired:
        _tell_retired(found, as_json=as_json)
        return
    if as_json:
        print_json({"skills": found, "skipped": facts["skipped"]})
        return
    procedures = [skill for skill in found if skill["kind"] == "skill"]
    if procedures:
        headers = ("NAME", "STATE", "AUTHOR", "FOR", "CATEGORY", "USE WHEN")
        print_table(headers, map(_row, procedures), optional=("CATEGORY", "AUTHOR", "FOR", "STATE"))
    else:
        click.echo(f"No skills in {plain(facts['folder'])}; add one with: metaclaw skills add PATH")
    if len(found) > len(procedures):
        click.echo(
            f"And {counted(len(found) - len(procedures), 'rule or fact', 'rules and facts')}:"
            " metaclaw rules"
        )
    tell_skipped(facts["skipped"])


def _tell_retired(found: "list[dict[str, Json]]", *, as_json: bool) -> None:
    if as_json:
        print_json({"skills": found})
    elif not found:
        click.echo("Nothing has been retired.")
    else:
        lines = [
            (
                one["name"],
                one["kind"],
                moment(one["retired_at"]),
                one["reason"],
                short(one["description"], 80),
            )
            for one in found
        ]
        print_table(("NAME", "KIND", "RETIRED", "WHY", "USE WHEN"), lines)
        click.echo("Restore one with: metaclaw skills restore NAME")


@skills.command()
@click.argument("name")
@home_and_json
def show(home: Path, name: str, as_json: bool) -> None:
    """Print one skill."""
    skill = read(home, _path(name), advice=_WHERE)
    if as_json:
        print_json(skill)
        return
    click.echo(plain(name))
    trouble = skill["check_trouble"]
    pairs = [
        ("use when", skill["description"]),
        ("category", skill["category"]),
        ("for", audience(skill["scope"])),
        ("state", _state(skill)),
        ("author", skill["author"]),
        ("file", skill["path"]),
        ("check", f"is not run: {trouble}" if trouble else skill["check_note"]),
    ]
    print_facts((label, value) for label, value in pairs if value is not None)
    click.echo(f"\n{plain_block(str(skill['body']))}")
    if skill["check"]:
        click.echo(f"\nIts check:\n{plain_block(str(skill['check']))}")


@skills.command()
@click.argument("name")
@click.argument("task")
@click.argument("answer")
@home_and_json
def test(home: Path, name: str, task: str, answer: str, as_json: bool) -> None:
    """Run the check of a skill on an answer: what it would earn in training.

    NAME is a skill of this home, or the path of a SKILL.md; TASK is what the person asked. Exits
    with 1 if the check itself breaks or takes too long."""
    fields: dict[str, Json] = {"name": name, "task": task, "answer": answer}
    if Path(name).name == SKILL_FILE:
        fields["text"] = read_text(Path(name))
    facts = request(home, "POST", "/api/skill-test", fields, advice=_WHERE)
    score = facts["score"]
    words = f"score {score:.4g}" if isinstance(score, int | float) else "no score"
    reason = f": {plain(facts['reason'])}" if facts["reason"] else ""
    print_result(facts, f"{plain(facts['outcome'])}, {words}{reason}", as_json=as_json)


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
    file = path / SKILL_FILE if path.is_dir() else path
    facts = _put(home, [(str(file), read_text(file))], replace=replace)
    for fault in objects(facts["faults"]):
        raise SkillError(f"{plain(fault['path'])}: {plain(fault['reason'])}")
    (skill,) = objects(facts["skills"])
    is_there = bool(facts["taken"])
    print_result(
        {**skill, "replaced": is_there},
        f"{'Replaced' if is_there else 'Added'} {plain(skill['name'])} ({plain(skill['path'])}).",
        as_json=as_json,
    )
    if skill["check_trouble"]:
        click.echo(f"Its check is not run: {plain(skill['check_trouble'])}", err=True)
    elif skill["check_trial"]:
        click.echo(f"Its check {plain(skill['check_trial'])}", err=True)
    if path.is_dir() and any(entry.name != SKILL_FILE for entry in path.iterdir()):
        click.echo(
            f"Only {SKILL_FILE} was taken; the other files in {plain(path)} were not.", err=True
        )


def _put(home: Path, files: list[tuple[str, str]], *, replace: bool) -> "dict[str, Json]":
    """Put skills in force; ask first if some of their names are taken."""
    listed: list[Json] = [{"path": path, "text": text} for path, text in files]
    facts = request(home, "POST", "/api/skills", {"files": listed, "replace": replace})
    taken = [str(name) for name in rows(facts["taken"])]
    if taken and not facts["written"]:
        more = f" and {len(taken) - _NAMES_SHOWN} more" if len(taken) > _NAMES_SHOWN else ""
        ask(
            f"There {'are skills' if len(taken) > 1 else 'is a skill'} named"
            f" {', '.join(taken[:_NAMES_SHOWN])}{more}. Replace?"
        )
        facts = request(home, "POST", "/api/skills", {"files": listed, "replace": True})
    return facts


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
    fields: dict[str, Json] = {"description": when, "body": body}
    if when is None and body is None:
        skill = read(home, _path(name), advice=_WHERE)
        fields = {"text": edited_text(str(skill["text"]), "--when or --body")}
    facts = request(home, "PATCH", _path(name), fields, advice=_WHERE)
    print_result(facts, f"Changed {plain(name)}; it is yours now.", as_json=as_json)


@skills.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_and_json
def remove(home: Path, name: str, yes: bool, as_json: bool) -> None:
    """Delete one skill and its folder."""
    path = _path(name)
    if not yes:
        folder = Path(str(read(home, "/api/skills")["folder"])) / name
        ask(f"Delete the skill {name} and everything in {folder}?")
    facts = request(home, "DELETE", path, advice=_WHERE)
    print_result(facts, f"Removed {plain(name)}.", as_json=as_json)


@skills.command()
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
    facts = read(home, "/api/skills", text="true")
    found = {str(skill["name"]): str(skill["text"]) for skill in objects(facts["skills"])}
    missing = sorted(set(names) - set(found))
    if missing or not found:
        which = f"no skill named {plain(missing[0])}" if missing else "no skill to export"
        raise SkillError(f"there is {which}; {_WHERE}")
    chosen = {name: text for name, text in found.items() if not names or name in names}
    write_pack(target, chosen, replaces=yes)
    print_result(
        {"exported": list(chosen), "to": str(target)},
        f"Exported {counted(len(chosen), 'skill')} to {plain(target)}.",
        as_json=as_json,
    )
    if not names:
        tell_skipped(facts["skipped"], "left out")


@skills.command(name="import")
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
    files, unread = read_pack(path)
    facts = _put(home, files, replace=replace)
    names, taken = [one["name"] for one in objects(facts["skills"])], rows(facts["taken"])
    skipped = [*unread, *objects(facts["faults"])]
    tell_skipped(skipped)
    if not names:
        raise SkillError(f"{plain(path)} contains no usable skill")
    replaced = f", {len(taken)} of them in place of others" if taken else ""
    print_result(
        {"imported": names, "replaced": taken, "skipped": skipped},
        f"Imported {counted(len(names), 'skill')}{replaced}.",
        as_json=as_json,
    )


@skills.command()
@limit_option(20, "Most generations to list, newest first.")
@home_and_json
def history(home: Path, limit: int, as_json: bool) -> None:
    """List the generations of skills, newest first: when, why, and how many skills were added and
    removed.
    """
    found = objects(read(home, "/api/generations", limit=limit)["generations"])
    if [row["number"] for row in found] == [0]:
        found = []
    if as_json:
        print_json({"generations": found})
    elif not found:
        click.echo("No generation of skills is recorded yet.")
    else:
        print_table(
            ("GENERATION", "WHEN", "ADDED", "REMOVED", "WHY"),
            [
                (
                    row["number"],
                    moment(row["published_at"]),
                    row["added"],
                    row["removed"],
                    reason_words(row["reason"]),
                )
                for row in found
            ],
        )


@skills.command()
@click.argument("generation", type=click.IntRange(0, 2**31 - 1))
@home_and_json
def revert(home: Path, generation: int, as_json: bool) -> None:
    """Put an earlier GENERATION in force again, as a new generation. To undo it, revert to the last
    generation.

    To take back only the last lesson: metaclaw undo. To bring back one retired skill: metaclaw
    skills restore NAME."""
    facts = request(home, "POST", "/api/generations/revert", {"generation": generation})
    now = plain(facts["generation"])
    print_result(
        facts,
        f"The skills of generation {generation} are in force again, as generation {now}.",
        as_json=as_json,
    )


@skills.command()
@click.argument("name")
@home_and_json
def retire(home: Path, name: str, as_json: bool) -> None:
    """Retire one skill. Its text is kept: restore brings it back."""
    facts = request(home, "POST", f"{_path(name)}/retire")
    said = f"Retired {plain(name)}; generation {plain(facts['generation'])} is in force."
    print_result(
        facts, f"{said}\nRestore it with: metaclaw skills restore {plain(name)}", as_json=as_json
    )


@skills.command()
@click.argument("name")
@home_and_json
def restore(home: Path, name: str, as_json: bool) -> None:
    """Put one retired skill, rule or fact in force again."""
    facts = request(home, "POST", f"{_path(name)}/restore")
    print_result(facts, f"Restored {plain(name)}: it is in force again.", as_json=as_json)


@skills.command()
@click.argument("name")
@home_and_json
def keep(home: Path, name: str, as_json: bool) -> None:
    """End a skill's trial: it is live from now on, and the program does not withhold, change or
    retire it.
    """
    facts = request(home, "POST", f"{_path(name)}/keep")
    print_result(facts, f"{plain(name)} is kept: live and pinned.", as_json=as_json)


@skills.command()
@click.argument("name")
@click.option("--off", is_flag=True, help="Unpin it: the program may change and retire it again.")
@home_and_json
def pin(home: Path, name: str, off: bool, as_json: bool) -> None:
    """Pin a live skill: the program does not withhold, change or retire it."""
    facts = request(home, "POST", f"{_path(name)}/pin", {"pinned": not off})
    print_result(facts, f"{'Unpinned' if off else 'Pinned'} {plain(name)}.", as_json=as_json)


@click.command()
@home_and_json
def undo(home: Path, as_json: bool) -> None:
    """Take back the last lesson: a rule or fact that was noted, changed or removed, or a skill that
    was learned, edited or retired.

    Each call takes back one more. A lesson that was taken back is not learned again from the same
    turns."""
    facts = request(home, "POST", "/api/undo")
    if as_json:
        print_json(facts)
        return
    click.echo(f"Undone: {plain(reason_words(at(facts, 'undone', 'reason')))}.")
    for field, mark, word in (
        ("removed", "-", "no longer in force"),
        ("restored", "+", "in force again"),
    ):
        for item in objects(facts[field]):
            click.echo(
                f"  {mark} {plain(item['name'])} ({plain(item['kind'])}, {word}):"
                f" {plain(item['text'])}"
            )


def _path(name: str) -> str:
    """The route of a skill. Raises SkillError for what cannot be a name."""
    if not name or Path(name).name != name:
        raise SkillError(f"there is no skill named {plain(name)}; {_WHERE}")
    return f"/api/skills/{segment(name)}"


def _row(skill: "dict[str, Json]") -> tuple[object, ...]:
    return (
        skill["name"],
        _state(skill),
        skill["author"],
        audience(skill["scope"]),
        skill["category"],
        short(skill["description"], 80),
    )


def _state(skill: "dict[str, Json]") -> str:
    return f"{skill['state']}, pinned" if skill["pinned"] else str(skill["state"])
