"""The list of known backups."""

from datetime import timedelta
from pathlib import Path

from metaclaw.store import Backup, Database, SqlBackups
from tests.store.conftest import MOMENT


def test_backups_are_listed_newest_first_and_one_path_once(database: Database) -> None:
    known = SqlBackups(database)
    assert known.known() == []
    old, other = (
        Backup(Path("/backups/a.db"), MOMENT),
        Backup(Path("/backups/b.db"), MOMENT + timedelta(hours=1)),
    )
    again = Backup(old.path, MOMENT + timedelta(days=1))
    for backup in (old, other, again):
        known.add(backup)
    assert known.known() == [again, other]
