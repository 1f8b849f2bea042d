"""`metaclaw skills` and `metaclaw undo`: list and change skills, retire and restore them, and undo
lessons.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from metaclaw.cli.client import Facts, read, request, segment
from metaclaw.cli.output import (
    Columns,
    CommandOutput,
    answers,
    brief,
    confirm,
    counted,
    dated,
    described,
    echo,
    edited_text,
    fact_lines,
    limit_option,
    listing,
    tell_skipped,
    yes_option,
)
from metaclaw.cli.skill_files import SKILL_FILE, read_pack, read_text, write_pack
from metaclaw.domain.status import audience, reason_words
from metaclaw.errors import SkillError

_WHERE = "metaclaw skills list shows all"
_NAMES_SHOWN = 5


def _state(skill: Facts) -> str:
    return f"{skill['state']}, pinned" if skill["pinned"] else str(skill["state"])


def _audience(skill: Facts) -> str:
    return audience(skill["scope"])


def _reason(one: Facts) -> str:
    return reason_words(one["reason"])


_COLUMNS: Columns = {
    "NAME": "name",
    "STATE": _state,
    "AUTHOR": "author",
    "FOR": _audience,
    "CATEGORY": "category",
    "USE WHEN": brief("description", 80),
}
_RETIRED: Columns = {
    "NAME": "name",
    "KIND": "kind",
    "RETIRED": dated("retired_at"),
    "WHY": "reason",
    "TEXT": brief("text", 80),
}
_GENERATIONS: Columns = {
    "GENERATION": "number",
    "WHEN": dated("published_at"),
    "ADDED": "added",
    "REMOVED": "removed",
    "WHY": _reason,
}
_FACTS: Columns = {
    "use when": "description",
    "category": "category",
    "for": _audience,
    "state": _state,
    "author": "author",
    "file": "path",
    "check": lambda one: (
        f"is not run: {one['check_trouble']}" if one["check_trouble"] else one["check_note"]
    ),
}
_replace_option = click.option(
    "--replace", "--yes", "replace", is_flag=True, help="Replace skills of the same name."
)


@click.group()
def skills() -> None:
    """List, show, test and change skills; go back to earlier ones."""


@skills.command(name="list")
@click.option(
    "--retired", "is_retired", is_flag=True, help="List retired skills, rules and facts instead."
)
@answers
def list_(home: Path, is_retired: bool) -> CommandOutput:
    """List the skills, and the files that cannot be read."""
    facts = read(home, "/api/skills", state="retired" if is_retired else None)
    found = facts["skills"]
    if is_retired:
        return CommandOutput({"skills": found}, _retired(found))
    return CommandOutput({"skills": found, "skipped": facts["skipped"]}, _listed(facts))


def _listed(facts: Facts) -> Iterator[str]:
    procedures = [one for one in facts["skills"] if one["kind"] == "skill"]
    others = len(facts["skills"]) - len(procedures)
    if not procedures:
        yield f"No skills in {facts['folder']}; add one with: metaclaw skills add PATH"
    else:
        yield from listing(procedures, _COLUMNS, optional=("CATEGORY", "AUTHOR", "FOR", "STATE"))
    if others:
        yield f"And {counted(others, 'rule or fact', 'rules and facts')}: metaclaw rules"
    tell_skipped(facts["skipped"])


def _retired(found: list[Facts]) -> Iterator[str]:
    if not found:
        yield "Nothing has been retired."
        return
    yield from listing(found, _RETIRED)
    yield "Restore one with: metaclaw skills restore NAME"


@skills.command()
@click.argument("name")
@answers
def show(home: Path, name: str) -> CommandOutput:
    """Print one skill."""
    skill = read(home, _path(name), advice=_WHERE)
    return CommandOutput(skill, _shown(skill))


def _shown(skill: Facts) -> Iterator[str]:
    yield skill["name"]
    yield from fact_lines(pair for pair in described(skill, _FACTS) if pair[1] is not None)
    yield from ("", *skill["body"].splitlines())
    if skill["check"]:
        yield from ("", "Its check:", *skill["check"].splitlines())


@skills.command()
@click.argument("name")
@click.argument("task")
@click.argument("answer")
@answers
def test(home: Path, name: str, task: str, answer: str) -> CommandOutput:
    """Run the check of a skill on an answer: what it would earn in training.

    NAME is a skill of this home, or the path of a SKILL.md; TASK is what the person asked. Exits
    with 1 if the check itself breaks or takes too long."""
    fields = {"name": name, "task": task, "answer": answer}
    if Path(name).name == SKILL_FILE:
        fields["text"] = read_text(Path(name))
    facts = request(home, "POST", "/api/skill-test", fields, advice=_WHERE)
    words = "no score" if facts["score"] is None else f"score {facts['score']:.4g}"
    reason = f": {facts['reason']}" if facts["reason"] else ""
    return CommandOutput(facts, f"{facts['outcome']}, {words}{reason}")


@skills.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@_replace_option
@answers
def add(home: Path, path: Path, replace: bool) -> CommandOutput:
    """Add the skill in PATH, a SKILL.md file or a folder with one. From then on it is yours."""
    file = path / SKILL_FILE if path.is_dir() else path
    facts = _put(home, [(str(file), read_text(file))], replace=replace)
    for fault in facts["faults"]:
        raise SkillError(f"{fault['path']}: {fault['reason']}")
    (skill,) = facts["skills"]
    is_there = bool(facts["taken"])
    if skill["check_trouble"]:
        echo(f"Its check is not run: {skill['check_trouble']}", err=True)
    elif skill["check_trial"]:
        echo(f"Its check {skill['check_trial']}", err=True)
    if path.is_dir() and any(entry.name != SKILL_FILE for entry in path.iterdir()):
        echo(f"Only {SKILL_FILE} was taken; the other files in {path} were not.", err=True)
    done = "Replaced" if is_there else "Added"
    return CommandOutput(
        {**skill, "replaced": is_there}, f"{done} {skill['name']} ({skill['path']})."
    )


def _put(home: Path, files: list[tuple[str, str]], *, replace: bool) -> Facts:
    """Put skills in force; ask first if some of their names are taken."""
    fields = {"files": [{"path": path, "text": text} for path, text in files], "replace": replace}
    facts = request(home, "POST", "/api/skills", fields)
    if taken := [] if facts["written"] else facts["taken"]:
        more = f" and {len(taken) - _NAMES_SHOWN} more" if len(taken) > _NAMES_SHOWN else ""
        are = "are skills" if len(taken) > 1 else "is a skill"
        confirm(f"There {are} named {', '.join(taken[:_NAMES_SHOWN])}{more}. Replace?", yes=False)
        facts = request(home, "POST", "/api/skills", {**fields, "replace": True})
    return facts


@skills.command()
@click.argument("name")
@click.option("--when", help="When to use it.")
@click.option("--body", help="What to do, in Markdown.")
@answers
def edit(home: Path, name: str, when: str | None, body: str | None) -> CommandOutput:
    """Change a skill; without an option, its file in an editor. From then on it is yours: the
    program does not change or retire it."""
    fields = {"description": when, "body": body}
    if when is None and body is None:
        skill = read(home, _path(name), advice=_WHERE)
        fields = {"text": edited_text(skill["text"], "--when or --body")}
    facts = request(home, "PATCH", _path(name), fields, advice=_WHERE)
    return CommandOutput(facts, f"Changed {name}; it is yours now.")


@skills.command()
@click.argument("name")
@yes_option
@answers
def remove(home: Path, name: str, yes: bool) -> CommandOutput:
    """Delete one skill and its folder."""
    path = _path(name)
    if not yes:
        folder = Path(read(home, "/api/skills")["folder"]) / name
        confirm(f"Delete the skill {name} and everything in {folder}?", yes=False)
    return CommandOutput(request(home, "DELETE", path, advice=_WHERE), f"Removed {name}.")


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
@answers
def export(home: Path, names: tuple[str, ...], target: Path, yes: bool) -> CommandOutput:
    """Write the skills of these NAMES, or all of them, to a .zip or a folder."""
    facts = read(home, "/api/skills", text="true")
    found = {skill["name"]: skill["text"] for skill in facts["skills"]}
    missing = sorted(set(names) - set(found))
    if missing or not found:
        which = f"no skill named {missing[0]}" if missing else "no skill to export"
        raise SkillError(f"there is {which}; {_WHERE}")
    chosen = {name: text for name, text in found.items() if not names or name in names}
    write_pack(target, chosen, replaces=yes)
    if not names:
        tell_skipped(facts["skipped"], "left out")
    written = {"exported": list(chosen), "to": str(target)}
    return CommandOutput(written, f"Exported {counted(len(chosen), 'skill')} to {target}.")


@skills.command(name="import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@_replace_option
@answers
def import_(home: Path, path: Path, replace: bool) -> CommandOutput:
    """Import the skills in PATH: a .zip, a folder of skills, or one SKILL.md. From then on they are
    yours.
    """
    files, unread = read_pack(path)
    facts = _put(home, files, replace=replace)
    names, taken = [one["name"] for one in facts["skills"]], facts["taken"]
    skipped = [*unread, *facts["faults"]]
    tell_skipped(skipped)
    if not names:
        raise SkillError(f"{path} contains no usable skill")
    replaced = f", {len(taken)} of them in place of others" if taken else ""
    return CommandOutput(
        {"imported": names, "replaced": taken, "skipped": skipped},
        f"Imported {counted(len(names), 'skill')}{replaced}.",
    )


@skills.command()
@limit_option(20, "Most generations to list.")
@answers
def history(home: Path, limit: int) -> CommandOutput:
    """List the generations of skills, newest first."""
    found = read(home, "/api/generations", limit=limit)["generations"]
    if [one["number"] for one in found] in ([], [0]):
        return CommandOutput({"generations": []}, "No generation of skills is recorded yet.")
    return CommandOutput({"generations": found}, listing(found, _GENERATIONS))


@skills.command()
@click.argument("generation", type=click.IntRange(0, 2**31 - 1))
@answers
def revert(home: Path, generation: int) -> CommandOutput:
    """Put an earlier GENERATION in force again, as a new generation."""
    facts = request(home, "POST", "/api/generations/revert", {"generation": generation})
    now = facts["generation"]
    return CommandOutput(
        facts, f"The skills of generation {generation} are in force again, as generation {now}."
    )


@skills.command()
@click.argument("name")
@answers
def retire(home: Path, name: str) -> CommandOutput:
    """Retire one skill. Its text is kept: restore brings it back."""
    facts = request(home, "POST", f"{_path(name)}/retire")
    done = f"Retired {name}; generation {facts['generation']} is in force."
    return CommandOutput(facts, [done, f"Restore it with: metaclaw skills restore {name}"])


@skills.command()
@click.argument("name")
@answers
def restore(home: Path, name: str) -> CommandOutput:
    """Put one retired skill, rule or fact in force again."""
    facts = request(home, "POST", f"{_path(name)}/restore")
    return CommandOutput(facts, f"Restored {name}: it is in force again.")


@skills.command()
@click.argument("name")
@click.option("--off", is_flag=True, help="Unpin it: the program may change and retire it again.")
@answers
def pin(home: Path, name: str, off: bool) -> CommandOutput:
    """Pin a live skill: the program does not change or retire it."""
    facts = request(home, "POST", f"{_path(name)}/pin", {"pinned": not off})
    return CommandOutput(facts, f"{'Unpinned' if off else 'Pinned'} {name}.")


@click.command()
@answers
def undo(home: Path) -> CommandOutput:
    """Take back the last change of rules, facts or skills. Each call takes back one more."""
    facts = request(home, "POST", "/api/undo")
    changes = (("removed", "-", "no longer in force"), ("restored", "+", "in force again"))
    return CommandOutput(
        facts,
        [
            f"Undone: {_reason(facts['undone'])}.",
            *(
                f"  {mark} {one['name']} ({one['kind']}, {word}): {one['text']}"
                for field, mark, word in changes
                for one in facts[field]
            ),
        ],
    )


def _path(name: str) -> str:
    """The route of a skill. Raises SkillError for what cannot be a name."""
    if not name or Path(name).name != name:
        raise SkillError(f"there is no skill named {name}; {_WHERE}")
    return f"/api/skills/{segment(name)}"
