"""The learner's connections: whatever would write by them is refused by the database itself."""

import pytest

from metaclaw.app.learner import only_read
from metaclaw.errors import StoreError
from metaclaw.store import Database, LedgerReader, SqlCursors, connect


def test_the_database_itself_refuses_what_a_learner_would_write(
    database: Database, url: str
) -> None:
    SqlCursors(database).move_cursor("somebody's", 1)
    learners = connect(url)
    only_read(learners)
    for _ in range(2):  # a refusal does not wear off
        with pytest.raises(StoreError):
            SqlCursors(learners).move_cursor("somebody's", 2)
        assert SqlCursors(learners).cursor("somebody's") == 1
    assert LedgerReader(learners).turns_after(0) == []
    learners.close()
