"""Read the home folder without a proxy: the store, the skill files, and sessions and turns by a
prefix of their id.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from metaclaw.cli.output import one_line, plain
from metaclaw.errors import MetaClawError, SkillError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metaclaw.config import Config
    from metaclaw.domain.ids import SessionId, TurnId
    from metaclaw.domain.skill import RetiredSkill, Skill
    from metaclaw.store import Database, LedgerReader, TurnRow


@contextmanager
def reading(place: "Path | Config") -> "Iterator[LedgerReader | None]":
    """A reader of the store of a home, or of its configuration; None if nothing was ever
    recorded.
    """
    from metaclaw.store import LedgerReader

    with opened(place) as database:
        yield None if database is None else LedgerReader(database)


def database_file(config: "Config") -> Path | None:
    """The file of an SQLite database; None for a server."""
    url = config.store.url.resolve()
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


@contextmanager
def opened(place: "Path | Config") -> "Iterator[Database | None]":
    """The store of a home, or of its configuration; None if nothing was ever recorded: reading
    creates no database.
    """
    from metaclaw.config import load
    from metaclaw.store import open_database

    config = load(place) if isinstance(place, Path) else place
    path = database_file(config)
    if path is not None and (not path.exists() or path.stat().st_size == 0):
        yield None
        return
    database = open_database(config.store.url.resolve())
    try:
        yield database
    finally:
        database.close()


_FILE: Final = "SKILL.md"


def read_in_force(home: Path) -> "tuple[list[Skill], list[tuple[Path, str]]]":
    """Every skill of this home by name, with the author that the store has, and the unusable files
    with the reason.
    """
    from metaclaw.config import load

    found, skipped = read_all(load(home).skills.dir)
    return with_authors(home, found), skipped


def with_authors(home: Path, skills: "list[Skill]") -> "list[Skill]":
    """Set the authors that the store has: a learned skill that a person changed is theirs."""
    from metaclaw.domain.skill import Authorship
    from metaclaw.skills import owned

    if all(skill.author is Authorship.PERSON for skill in skills):
        return skills
    from metaclaw.store import SqlGenerations

    with opened(home) as database:
        known = (
            {}
            if database is None
            else {skill.name: skill for skill in SqlGenerations(database).latest().skills}
        )
    return [owned(skill, known.get(skill.name)) for skill in skills]


def read_all(folder: Path) -> "tuple[list[Skill], list[tuple[Path, str]]]":
    """Every skill of a folder by name, and the unusable files with the reason."""
    from metaclaw.skills import read_skill

    found: list[Skill] = []
    skipped: list[tuple[Path, str]] = []
    for path in sorted(folder.glob(f"[!.]*/{_FILE}")):
        try:
            found.append(read_skill(path))
        except SkillError as error:
            skipped.append((path, str(error).removeprefix(f"{path}: ")))
    return found, skipped


def retired(home: Path) -> "list[RetiredSkill]":
    """Retired rules and skills of this home, newest first."""
    from metaclaw.store import SqlGenerations

    with opened(home) as database:
        return [] if database is None else SqlGenerations(database).retired()


_Id = TypeVar("_Id", bound=str)
LEAST_PREFIX = 10
"""The least length of a shown prefix: ids begin with the time, so that recent ids share their
beginning.
"""
WHERE_TURNS = (
    "metaclaw sessions show --last lists turns, and answers carry theirs as X-Metaclaw-Turn"
)
WHERE_SESSIONS = "metaclaw sessions list shows all"
_MOST_NAMED = 5


def check_choice(named: str | None, last: bool, what: str) -> None:
    """Raise a usage error unless exactly one of a name and `--last` is given."""
    if (named is None) is not last:
        raise click.UsageError(f"name a {what} (the beginning of its id is enough), or use --last")


def find_session(reader: "LedgerReader | None", named: str | None) -> "SessionId":
    """The session whose id is or begins with `named`; for None, that of the last main turn. Raises
    MetaClawError.
    """
    if named is None:
        return _last_main_turn(reader).session
    found = [] if reader is None else reader.find_sessions(named, _MOST_NAMED)
    return _only(found, named, "session", WHERE_SESSIONS)


def find_turn(reader: "LedgerReader | None", named: str | None) -> "TurnId":
    """The turn whose id is or begins with `named`; for None, the last main turn. Raises
    MetaClawError.
    """
    if named is None:
        return _last_main_turn(reader).id
    found = [] if reader is None else reader.find_turns(named, _MOST_NAMED)
    return _only(found, named, "turn", WHERE_TURNS)


def _last_main_turn(reader: "LedgerReader | None") -> "TurnRow":
    """The newest main turn of all sessions."""
    last = None if reader is None else reader.newest_main_turn()
    if last is None:
        raise MetaClawError(
            "no main turn is recorded yet; metaclaw sessions list --all lists all sessions"
        )
    return last


def short_session(reader: "LedgerReader", session: "SessionId") -> str:
    """The shortest unique prefix of a session's id."""
    return _shortest(session, reader.find_sessions)


def short_turn(reader: "LedgerReader", turn: "TurnId") -> str:
    """The shortest unique prefix of a turn's id."""
    return _shortest(turn, reader.find_turns)


def _shortest(whole: str, find: "Callable[[str], Sequence[str]]") -> str:
    if not whole.startswith(("s_", "t_")):
        return whole  # named by a client
    low, high = LEAST_PREFIX, len(whole)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(find(whole[:middle])) == 1 else (middle + 1, high)
    return whole[:low]


def _only(ids: "Sequence[_Id]", named: str, what: str, where: str) -> _Id:
    for candidate in ids:
        if candidate == named:
            return candidate
    if not ids:
        raise MetaClawError(f"there is no {what} {plain(named)}; {where}")
    if len(ids) > 1:
        more = ", …" if len(ids) == _MOST_NAMED else ""
        raise MetaClawError(
            f"{one_line(named, 40)} is the beginning of several {what}s:"
            f" {', '.join(map(plain, ids))}{more}; write more of it"
        )
    return ids[0]
