"""`metaclaw skills export|import`: skills as a folder or a .zip, to take them from one home to another."""

from pathlib import Path

import click

from metaclaw.cli.inforce import read_in_force
from metaclaw.cli.output import ask, counted, json_option, plain, print_json
from metaclaw.errors import SkillError

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
@click.option("--yes", is_flag=True, help="Replace what is there without asking.")
@json_option
@click.pass_obj
def export(home: Path, names: tuple[str, ...], target: Path, yes: bool, as_json: bool) -> None:
    """Write the skills of these NAMES, or all of them, to a .zip or a folder."""
    from metaclaw.skills import write_pack

    found, skipped = read_in_force(home)
    chosen = [skill for skill in found if not names or skill.name in names]
    missing = sorted(set(names) - {skill.name for skill in chosen})
    if missing or not chosen:
        which = f"no skill named {plain(missing[0])}" if missing else "no skill to export"
        raise SkillError(f"there is {which}; metaclaw skills list shows those there are")
    write_pack(target, chosen, replace_file=yes)
    if as_json:
        print_json({"exported": [skill.name for skill in chosen], "to": str(target)})
    else:
        click.echo(f"Exported {counted(len(chosen), 'skill')} to {plain(target)}.")
    for path, reason in () if names else skipped:
        click.echo(f"left out {plain(path)}: {plain(reason)}", err=True)


@click.command(name="import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--replace", "--yes", "replace", is_flag=True, help="Replace skills of the same name without asking.")
@json_option
@click.pass_obj
def import_(home: Path, path: Path, replace: bool, as_json: bool) -> None:
    """Take in the skills in PATH: a .zip, a folder of skills, or one SKILL.md. From then on they are yours."""
    from metaclaw.config import load
    from metaclaw.skills import read_pack, write_skill

    folder, pack = load(home).skills.dir, read_pack(path)
    taken = [skill.name for skill in pack.skills if (folder / skill.name).exists()]
    if taken and not replace:
        more = f" and {len(taken) - _NAMES_SHOWN} more" if len(taken) > _NAMES_SHOWN else ""
        ask(f"There {'are skills' if len(taken) > 1 else 'is a skill'} named {', '.join(taken[:_NAMES_SHOWN])}{more}. Replace?")
    for where, reason in pack.faults:
        click.echo(f"skipped {plain(where)}: {plain(reason)}", err=True)
    if not pack.skills:
        raise SkillError(f"nothing in {plain(path)} is a skill that can be used")
    for skill in pack.skills:
        write_skill(folder, skill)
    if as_json:
        skipped = [{"path": where, "reason": reason} for where, reason in pack.faults]
        print_json({"imported": [skill.name for skill in pack.skills], "replaced": taken, "skipped": skipped})
    else:
        replaced = f", {len(taken)} of them in place of others" if taken else ""
        click.echo(f"Imported {counted(len(pack.skills), 'skill')}{replaced}.")
