"""`metaclaw store`: check, back up, restore, repair and migrate the database."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metaclaw.cli.home import opened, reading
from metaclaw.cli.output import (
    CommandOutput,
    answers,
    confirm,
    counted,
    fact_lines,
    listing,
    shown_while,
    yes_option,
)
from metaclaw.clock import local_now
from metaclaw.errors import MetaClawError, SkillError

if TYPE_CHECKING:
    from metaclaw.store import Database, IntegrityReport

_INSTEAD = {
    "back up": "pg_dump --format=custom --file=metaclaw.dump",
    "restore": "pg_restore --clean --dbname",
    "repair": "pg_amcheck, and pg_restore with a backup,",
}


_TABLES = {"TABLE": "name", "SAVED": "saved", "UNREADABLE": "unreadable", "DROPPED": "dropped"}


@click.group()
def store() -> None:
    """Check, back up, restore and repair the database of recorded turns."""


@store.command()
@answers
def check(home: Path) -> CommandOutput:
    """Read the whole database and check it for damage. Exits with 1 if it is damaged. The proxy may
    run.
    """
    url, path = _place(home)
    with shown_while("reading the database"):
        report = _check_server(home) if path is None else _check_file(path)
    sizes = (
        ("turns", report.turns),
        ("sessions", report.sessions),
        ("size_bytes", report.size_bytes),
        ("free_bytes", report.free_bytes),
    )
    facts = {
        "database": url,
        "sound": not report.problems,
        "schema": report.revision,
        **dict(sizes),
        "problems": list(report.problems),
        "remedy": report.remedy,
    }
    words = {"size_bytes": "bytes", "free_bytes": "of them free"}
    shown: list[tuple[str, object]] = [("database", url), ("schema", report.revision)]
    shown += [(words.get(name, name), size) for name, size in sizes]
    problems = [*(f"! {problem}" for problem in report.problems), report.remedy]
    lines = [*fact_lines(shown), *(problems if report.problems else ["The database is sound."])]
    return CommandOutput(facts, lines, 1 if report.problems else 0)


def _check_file(path: Path) -> "IntegrityReport":
    from metaclaw.store import IntegrityReport, check_file

    return check_file(path) if path.exists() else IntegrityReport(None, 0, 0, 0, 0, ())


def _check_server(home: Path) -> "IntegrityReport":
    """Check only that the database can be read and has this schema: a server checks its own
    files.
    """
    from metaclaw.store import SCHEMA_REVISION, IntegrityReport

    with reading(home) as reader:
        assert reader is not None
        counts = reader.counts()
    return IntegrityReport(SCHEMA_REVISION, counts.turns, counts.sessions, 0, 0, ())


@store.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask before a file is overwritten.")
@answers
def backup(home: Path, path: Path, yes: bool) -> CommandOutput:
    """Write a copy of the database to PATH, a file or a folder. The proxy may run."""
    from metaclaw.store import back_up, check_file

    _file(home, "back up")
    target = path.expanduser().absolute()
    if target.is_dir():
        target /= f"ledger-{local_now():%Y%m%d-%H%M%S}.db"
    confirm(f"Overwrite {target}?", yes=yes or not target.exists())
    with opened(home) as database:
        if database is None:
            raise MetaClawError("nothing is recorded yet, so there is nothing to back up")
        if database.path is not None and target.exists() and target.samefile(database.path):
            raise MetaClawError(f"{target} is the database itself; choose another path")
        with shown_while("copying the database"):
            made = back_up(database, target)
    found = check_file(target)
    sizes = {"turns": found.turns, "size_bytes": found.size_bytes}
    return CommandOutput(
        {"backup": made.path, "made_at": made.made_at, **sizes},
        f"Wrote {counted(found.turns, 'turn')} to {target} ({found.size_bytes} bytes).",
    )


@store.command()
@click.argument("path", type=click.Path(path_type=Path))
@yes_option
@answers
def restore(home: Path, path: Path, yes: bool) -> CommandOutput:
    """Replace the database by the backup at PATH; the former database is kept beside it. The proxy
    must not run.
    """
    from metaclaw.instance import acquire
    from metaclaw.store import check_file
    from metaclaw.store import restore as put_back

    database = _file(home, "restore")
    confirm(f"Replace {database} by {path}? The present database is kept beside it.", yes=yes)
    with acquire(home):
        done = put_back(database, path.expanduser().absolute())
        is_purged = _finish_forgetting(home)
    turns = check_file(database).turns
    lines = [f"Restored {counted(turns, 'turn')} from {path}."]
    if done.forgotten_again:
        again = ", ".join(done.forgotten_again)
        lines.append(f"Forgot again what was forgotten since: {again}.")
    if not is_purged:
        lines.append(
            "The database still contains text of forgotten sessions. The next metaclaw start"
            " deletes it."
        )
    if done.former is not None:
        lines.append(_former(f"The former database is {done.former}"))
    facts = {"restored": str(path), "turns": turns, "former": done.former}
    again_facts = {"forgotten_again": list(done.forgotten_again), "purged": is_purged}
    return CommandOutput(facts | again_facts, lines)


@store.command()
@yes_option
@answers
def repair(home: Path, yes: bool) -> CommandOutput:
    """Copy the readable part of a damaged database into a new one; the damaged file is kept. The
    proxy must not run.
    """
    from metaclaw.instance import acquire
    from metaclaw.store import check_file
    from metaclaw.store import repair as salvage

    database = _file(home, "repair")
    found = check_file(database) if database.exists() else None
    if found is None or not found.problems:
        nothing = "The database is sound; there is nothing to repair."
        return CommandOutput({"repaired": False, "former": None, "tables": []}, nothing)
    question = f"Replace {database} by its readable part? The damaged file is kept beside it."
    confirm(question, yes=yes or found.is_newer)
    with acquire(home), shown_while("copying the readable part"):
        former, tables = salvage(database)
    told = [
        {"name": t.table, "saved": t.saved, "unreadable": t.unreadable, "dropped": t.dropped}
        for t in tables
    ]
    return CommandOutput(
        {"repaired": True, "former": former, "tables": told},
        [
            *listing(told, _TABLES),
            "Dropped rows are useless without unreadable ones, such as a turn without its body.",
            _former(f"The damaged database is {former}"),
        ],
    )


def _former(where: str) -> str:
    return f"{where}; delete it when you do not need it."


@store.command()
@click.option(
    "--to",
    metavar="URL",
    help="Copy everything to this new database, sqlite:///… or postgresql://…; env:NAME holds one.",
)
@answers
def migrate(home: Path, to: str | None) -> CommandOutput:
    """Update the database to this version's schema, as a start does, and compact it; with --to,
    copy it to another place instead. No proxy may use it meanwhile.
    """
    from metaclaw.config import load
    from metaclaw.instance import acquire
    from metaclaw.store import SCHEMA_REVISION, compact, open_database

    with acquire(home), shown_while("bringing the database up to date"):
        with closing(open_database(load(home).store.url.resolve())) as database:
            if to is not None:
                return _moved(database, to)
            if database.path is not None:
                compact(database)
    told = f"The database is at schema {SCHEMA_REVISION}."
    return CommandOutput({"schema": SCHEMA_REVISION}, told)


def _moved(database: "Database", to: str) -> CommandOutput:
    from metaclaw.config import Secret
    from metaclaw.store import open_database, transfer

    with closing(open_database(Secret(to).resolve())) as target:
        copied = transfer(database, target)
        place = str(target)
    turns, rows = copied["turns"], sum(copied.values())
    return CommandOutput(
        {"copied_to": place, "turns": turns, "rows": rows, "tables": copied},
        [
            f"Copied {counted(turns, 'turn')} and all that was learned ({rows} rows) to {place}.",
            f"Nothing was changed in {database}. To use the copy: metaclaw config set store.url URL",
        ],
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
