"""`metaclaw store`: check, back up, restore, repair and migrate the database."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.home import opened, reading
from metaclaw.cli.output import (
    ask,
    counted,
    home_and_json,
    plain,
    print_facts,
    print_json,
    print_result,
    print_table,
    shown_while,
)
from metaclaw.errors import MetaClawError, SkillError

if TYPE_CHECKING:
    from metaclaw.store import IntegrityReport

_INSTEAD = {
    "back up": "pg_dump --format=custom --file=metaclaw.dump",
    "restore": "pg_restore --clean --dbname",
    "repair": "pg_amcheck, and pg_restore with a backup,",
}


@click.group()
def store() -> None:
    """Check, back up, restore and repair the database of recorded turns."""


@store.command()
@home_and_json
def check(home: Path, as_json: bool) -> int:
    """Read the whole database and check it for damage. Exits with 1 if it is damaged. The proxy may
    run.
    """
    url, path = _place(home)
    with shown_while("reading the database"):
        found = _check_server(home) if path is None else _check_file(path)
    if as_json:
        print_json({"database": url, **found})
    else:
        names = {
            "turns": "turns",
            "sessions": "sessions",
            "size_bytes": "bytes",
            "free_bytes": "of them free",
        }
        print_facts(
            [
                ("database", url),
                ("schema", found["schema"]),
                *((words, found[name]) for name, words in names.items()),
            ]
        )
        problems = found["problems"]
        assert isinstance(problems, list)
        for problem in problems:
            click.echo(f"! {plain(problem)}")
        if problems:
            click.echo(found["remedy"])
        else:
            click.echo("The database is sound.")
    return 0 if found["sound"] else 1


def _check_file(path: Path) -> dict[str, object]:
    from metaclaw.store import IntegrityReport, check_file

    if not path.exists():
        return _facts(IntegrityReport(None, 0, 0, 0, 0, ()))
    return _facts(check_file(path))


def _check_server(home: Path) -> dict[str, object]:
    """Check only that the database can be read and has this schema: a server checks its own
    files.
    """
    from metaclaw.store import SCHEMA_REVISION, IntegrityReport

    with reading(home) as reader:
        assert reader is not None
        counts = reader.counts()
    return _facts(IntegrityReport(SCHEMA_REVISION, counts.turns, counts.sessions, 0, 0, ()))


def _facts(report: "IntegrityReport") -> dict[str, object]:
    return {
        "sound": not report.problems,
        "schema": report.revision,
        "turns": report.turns,
        "sessions": report.sessions,
        "size_bytes": report.size_bytes,
        "free_bytes": report.free_bytes,
        "problems": list(report.problems),
        "remedy": report.remedy,
    }


@store.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask before a file is overwritten.")
@home_and_json
def backup(home: Path, path: Path, yes: bool, as_json: bool) -> None:
    """Write a copy of the database to PATH, a file or a folder. The proxy may run."""
    from metaclaw.store import back_up, check_file

    _file(home, "back up")
    target = path.expanduser().absolute()
    if target.is_dir():
        target /= f"ledger-{datetime.now():%Y%m%d-%H%M%S}.db"
    if target.exists() and not yes:
        ask(f"Overwrite {plain(target)}?")
    with opened(home) as database:
        if database is None:
            raise MetaClawError("nothing is recorded yet, so there is nothing to back up")
        if database.path is not None and target.exists() and target.samefile(database.path):
            raise MetaClawError(f"{target} is the database itself; choose another path")
        with shown_while("copying the database"):
            made = back_up(database, target)
    found = check_file(target)
    print_result(
        {
            "backup": made.path,
            "made_at": made.made_at,
            "turns": found.turns,
            "size_bytes": found.size_bytes,
        },
        f"Wrote {counted(found.turns, 'turn')} to {plain(target)} ({found.size_bytes} bytes).",
        as_json=as_json,
    )


@store.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_and_json
def restore(home: Path, path: Path, yes: bool, as_json: bool) -> None:
    """Replace the database by the backup at PATH; the former database is kept beside it. The proxy
    must not run.
    """
    from metaclaw.instance import acquire
    from metaclaw.store import check_file
    from metaclaw.store import restore as put_back

    database = _file(home, "restore")
    if not yes:
        ask(f"Replace {plain(database)} by {plain(path)}? The present database is kept beside it.")
    with acquire(home):
        done = put_back(database, path.expanduser().absolute())
        is_purged = _finish_forgetting(home)
    turns = check_file(database).turns
    if as_json:
        again = {"forgotten_again": list(done.forgotten_again), "purged": is_purged}
        print_json({"restored": str(path), "turns": turns, "former": done.former, **again})
        return
    click.echo(f"Restored {counted(turns, 'turn')} from {plain(path)}.")
    if done.forgotten_again:
        click.echo(
            f"Forgot again what was forgotten since: {', '.join(map(plain, done.forgotten_again))}."
        )
    if not is_purged:
        click.echo(
            "The database still contains text of forgotten sessions. The next metaclaw start"
            " deletes it."
        )
    if done.former is not None:
        click.echo(
            f"The former database is {plain(done.former)}; delete it when you do not need it."
        )


@store.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_and_json
def repair(home: Path, yes: bool, as_json: bool) -> None:
    """Copy the readable part of a damaged database into a new one; the damaged file is kept. The
    proxy must not run.
    """
    from metaclaw.instance import acquire
    from metaclaw.store import check_file
    from metaclaw.store import repair as salvage

    database = _file(home, "repair")
    found = check_file(database) if database.exists() else None
    if found is None or not found.problems:
        print_result(
            {"repaired": False, "former": None, "tables": []},
            "The database is sound; there is nothing to repair.",
            as_json=as_json,
        )
        return
    if not yes and not found.is_newer:
        ask(f"Replace {plain(database)} by its readable part? The damaged file is kept beside it.")
    with acquire(home), shown_while("copying the readable part"):
        former, tables = salvage(database)
    if as_json:
        rows = [
            {"name": t.table, "saved": t.saved, "unreadable": t.unreadable, "dropped": t.dropped}
            for t in tables
        ]
        print_json({"repaired": True, "former": former, "tables": rows})
        return
    print_table(
        ("TABLE", "SAVED", "UNREADABLE", "DROPPED"),
        [(t.table, t.saved, t.unreadable, t.dropped) for t in tables],
    )
    click.echo("Dropped rows are useless without unreadable ones, such as a turn without its body.")
    click.echo(f"The damaged database is {plain(former)}; delete it when you do not need it.")


@store.command()
@home_and_json
def migrate(home: Path, as_json: bool) -> None:
    """Update the database to this version's schema, as a start does, and rewrite files of older
    versions so that they can shrink.

    The proxy must not run.
    """
    from metaclaw.config import load
    from metaclaw.instance import acquire
    from metaclaw.store import SCHEMA_REVISION, compact, open_database

    with acquire(home), shown_while("bringing the database up to date"):
        database = open_database(load(home).store.url.resolve())
        if database.path is not None:
            compact(database)
        database.close()
    print_result(
        {"schema": SCHEMA_REVISION},
        f"The database is at schema {SCHEMA_REVISION}.",
        as_json=as_json,
    )


def _finish_forgetting(home: Path) -> bool:
    """Delete forgotten sessions from a restored database; return whether its file contains nothing
    of them any more.
    """
    from metaclaw.config import load
    from metaclaw.learn import SessionErasure
    from metaclaw.skills import SkillLibrary
    from metaclaw.store import SqlForgetting, SqlGenerations

    config = load(home)
    with opened(config) as database:
        assert database is not None
        if not SqlForgetting(database).is_unfinished():
            return True
        library = SkillLibrary(config.skills.dir, SqlGenerations(database))
        library.sync()
        if library.trouble is not None:
            return False
        erasure = SessionErasure(database, library, home / "policies", is_alone=True)
        try:
            erasure.finish()
        except SkillError:
            return False
        erasure.remove_weights()
        return not SqlForgetting(database).is_unfinished()


def _place(home: Path) -> tuple[str, Path | None]:
    """The database as text, and its file if it is one."""
    from metaclaw.config import load
    from metaclaw.store import connect

    database = connect(load(home).store.url.resolve())
    return str(database.path or database), database.path


def _file(home: Path, doing: str) -> Path:
    _, path = _place(home)
    if path is None:
        raise MetaClawError(
            f"the store is a PostgreSQL database; {doing} it with its own tools:"
            f" {_INSTEAD[doing]} …"
        )
    return path
