"""The tables as queries name them: columns and their types. Keys, constraints, indices, triggers
and views are in `migrations/`.

Instants are whole microseconds since 1970 in UTC (`_us`), names and free text are packed by
`rows.pack_text`, bytes are bytes. `seq` numbers are given by the database, grow, and are never
given again: they are the cursors readers resume from.

Rows about a turn are never updated; what a turn later turns out to be (a verdict, a role, a draw, a
batch it is in) comes in tables of their own that point at `turns.seq`, and goes only with the turn.
Triggers see to that, and to the separation of support and query: the database itself refuses a
batch with a turn that fed a skill, that was made with other rules or skills than its speaker has
now, or that is in another open batch, and gives every turn of a batch the role of a query, for
ever. A turn may be in several batches, one after the other: its answers are drawn anew each time. A
batch ends once, and only of one that is done comes a version, one at most; what a version is made
of is never edited.

A revision of the schema is `migrations/<revision>.sqlite.sql` and
`migrations/<revision>.postgresql.sql`. A landed one is never edited. To change the schema: add the
two files and the revision to `REVISIONS`, change the tables here to match, run `python
tests/store/snapshot.py`, and add the digests to `tests/store/test_migrations.py`."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    and_,
    column,
    inspect,
    literal_column,
    table,
    text,
)
from sqlalchemy.types import TypeEngine

from metaclaw.errors import StoreError

MAX_LINKS = 32
"""A request is rebuilt from at most this many rows."""

metadata = MetaData()
Serial = BigInteger().with_variant(Integer, "sqlite")
_KINDS: Final[dict[str, type[TypeEngine[Any]] | TypeEngine[Any]]] = {
    "": Text,
    "int": Integer,
    "big": BigInteger,
    "small": SmallInteger,
    "serial": Serial,
    "bytes": LargeBinary,
    "bool": Boolean,
    "float": Double,
}


def _table(name: str, /, *columns: str) -> Table:
    """A table with columns such as `turns:int`; those without a type are text. The database numbers
    a first column `seq`; any other first column is part of the key."""
    parts = [word.partition(":") for word in " ".join(columns).split()]
    kinds = enumerate((key, _KINDS[kind]) for key, _, kind in parts)
    return Table(
        name,
        metadata,
        *(
            Column(key, kind, primary_key=not at, autoincrement=key == "seq")
            for at, (key, kind) in kinds
        ),
    )


# `parent` may name a session that is not there yet: a sub-agent's first turn may end before its
# parent's does.
sessions = _table(
    "sessions",
    "id key agent user_id workspace_id parent began_us:big last_us:big ended_us:big end_reason"
    " turns:int main_turns:int",
)
# One row each time a session ends; one that is opened again may end again.
session_ends = _table("session_ends", "seq:serial session")

# A tuple of placements is the row of its last one: each row names the row before it, and tuples
# that begin alike share rows. What is called `hash` begins with the time in `placements` and
# `splices` (see `deduplication`).
snippets = _table("snippets", "hash:bytes body:bytes")
placements = _table("placements", "hash:bytes previous:bytes anchor:bytes skills snippet:bytes")
splices = _table("splices", "hash:bytes previous:bytes at_byte:big snippet:bytes")

# `generation` may be one that is not there: a turn served while a publication failed must still be
# kept.
turns = _table(
    "turns",
    "seq:serial id session kind kind_reason user_id workspace_id generation:int policy_version:int"
    " library_hash skills agent wire",
    "path stream:bool model provider provider_wire status:int outcome error finish input_tokens:big"
    " output_tokens:big",
    "cached_tokens:big cache_write_tokens:big reasoning_tokens:big received_us:big"
    " first_byte_s:float duration_s:float",
    "segment:int retry_of parent key head:bytes placements:bytes",
)

# A body, whole (`base` is absent) or as what differs from the body of an earlier turn, `link` steps
# from a whole one.
_BODY: Final = "turn:serial base:serial link:small prefix:big suffix:big middle:bytes"
payloads = _table("payloads", _BODY, "splices:bytes said:bytes seen:bytes")
translations = _table("translations", _BODY)
tokens = _table("tokens", "turn:serial prompt_ids:bytes sampled_ids:bytes logprobs:bytes")

# The rules that held calls of a turn's answer back, the turns that are attempts at it, and what the
# provider really said.
held_rules = _table("held_rules", "turn:serial place:small rule attempts:small outcome reason")
turn_attempts = _table("turn_attempts", "turn:serial parent:serial place:small")
true_answers = _table(
    "true_answers", "turn:serial wire calls mark answer_id last_id messages:bytes rest:bytes"
)

# `learned_in` and `candidate` are set where the program published by itself: the newest generation
# of its evidence, and what it put in force. `reverted_to` is set where a person reverted to an
# earlier generation.
generations = _table(
    "generations",
    "number:int hash reason published_us:big learned_in:int candidate reverted_to:int",
)
skill_texts = _table(
    "skill_texts", "hash:bytes name trigger body category scope extra state author pinned:bool"
)
# A skill is live in generations `since` ≤ n < `until`, so that a publication writes only what
# changed.
memberships = _table("memberships", "name since:int until:int skill:bytes")
# The rules and skills for one audience (see `domain.skill.Audience`) as a hash, in generations
# `since` ≤ n < `until`. The view `current_turns` compares the hashes of a turn's generation with
# the newest: those of its speaker are equal for a current turn.
scope_libraries = _table("scope_libraries", "scope workspace since:int until:int hash")
# The configured teams, for `current_turns`.
team_members = _table("team_members", "member team")
current_turns = table("current_turns", column("turn", BigInteger))
"""A view: the turns whose speaker has today the rules and skills they had when the turn was
made.
"""
# Skills whose files are still to be written.
unwritten = _table("unwritten", "name generation:int")

events = _table("events", "seq:serial at_us:big kind data")
# Backups that were made of this database, so that forgetting can name those that may still hold
# what was forgotten.
backups = _table("backups", "path made_us:big")
cursors = _table("cursors", "name seq:big")

verdicts = _table(
    "verdicts",
    "seq:serial turn:serial at_us:big outcome source p_fail:float signals votes fault comment",
)
# Which of a turn's verdicts stands, with what is asked of many turns at once.
stands = _table("stands", "turn:serial verdict:serial generation:int kind outcome fault")
IS_LESSON = and_(
    stands.c.outcome == literal_column("'fail'"),
    stands.c.fault == literal_column("'agent'"),
    stands.c.kind == literal_column("'main'"),
)
"""Whether a turn may feed a skill (`Verdict.teaches`, of a main turn); written as in the index, so
that the database uses it.
"""

# `ended_us` is when nothing more will come of it; an attempt without this was interrupted.
attempts = _table("attempts", "seq:serial at_us:big kind generation:int ended_us:big")
roles = _table("roles", "turn:serial kind generation:int attempt:serial")
draws = _table("draws", "turn:serial place:small skill placed:bool propensity:float")
candidates = _table(
    "candidates", "id name change proposal standing reason generation:int made_us:big certificate"
)
# By the turn's id, not its number: what a candidate was taught by is known after the turn itself is
# forgotten.
lessons = _table("lessons", "candidate turn")

# `size` is how many turns it had when it was opened: some may be forgotten since.
batches = _table(
    "batches",
    "seq:serial at_us:big policy_version:int state generation:int seed:big size:int note"
    " ended_us:big",
)
batch_turns = _table("batch_turns", "turn:serial batch:serial")
# Version 0 is the untrained model, which has no row. `state_us` and `state_turn` are when its state
# last changed and after which turn: what it did since is read from there on. `served_us` is when it
# first served (a version without this is never rolled back to), `gone_us` when its weights were
# thrown away.
policies = _table(
    "policies",
    "number:int parent:int state backend adapter training base generation:int batch:serial"
    " steps:int report note absorbed",
    "made_us:big state_us:big state_turn:big served_us:big gone_us:big",
)

# When a skill last matched a task (placed, or withheld by chance), and in how many turns; to notice
# unused ones.
uses = _table("uses", "skill last_us:big times:big")
# How often a rule, or a skill with a check, was followed: `times` counts the rows of
# `rule_results`, which triggers see to. `hash` is that of its text and check; `reminder` says
# whether the prompt ended with a reminder of it, or would have.
rule_counts = _table(
    "rule_counts", "seq:serial rule hash agent model day result reminder times:big"
)
# The result of each turn for each rule that applied to it. `reason` says why a rule was broken, or
# why its check failed.
rule_results = _table("rule_results", "turn:serial count:serial reason")

# What calls to models cost, in sums. `item` is the name of a skill or rule, empty where the calls
# were made for none.
spending = _table(
    "spending",
    "day purpose model item turns:big calls:big failures:big estimated:big input_tokens:big"
    " output_tokens:big cached_tokens:big",
    "unpriced_tokens:big cost:float",
)

# Turns a person wanted forgotten: their names only, so that nothing is learned from them
# afterwards; and the batches they were in.
forgotten = _table("forgotten", "turn session at_us:big")
forgotten_batches = _table("forgotten_batches", "turn batch:serial")


FOLDER = Path(__file__).with_name("migrations")
REVISIONS = ("0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011")
"""Revisions that have files, oldest first. The first is the baseline, from which a new database
begins.
"""
ABSORBED = ("0001", "0002", "0003")
"""Revisions from before the baseline. Their homes differ by age, since 0002 was edited after it had
landed.
"""
HEAD = REVISIONS[-1]
STORED_REVISION = "SELECT version_num FROM alembic_version"

# of the migrations before the baseline, so that their programs refuse newer homes
_VERSION_TABLE = "alembic_version"

_DROP_OLD_BATCHES = """
    UPDATE batches SET state = 'dropped', ended_us = at_us, note = 'opened before versions were kept',
    size = (SELECT count(*) FROM batch_turns WHERE batch = batches.seq),
    generation = COALESCE((SELECT max(generation) FROM turns JOIN batch_turns ON turn = seq WHERE batch = batches.seq), 0)"""
_LOCK = 0x6D65_7461  # any number, the same in every program that migrates


class NewerSchemaError(StoreError):
    """The database belongs to a newer version of this program."""


def stored_revision(connection: Connection) -> str | None:
    """The revision of a database that has been set up."""
    found: str | None = connection.exec_driver_sql(STORED_REVISION).scalar()
    return found


def require_head(stored: str | None, doing: str) -> None:
    """Raise StoreError for a database that is not at this program's schema."""
    if stored == HEAD:
        return
    _require_known(stored, doing)
    raise StoreError(
        f"{doing}: its schema ({stored}) is older than this program's ({HEAD}); run `metaclaw store"
        " migrate`"
    )


def check_schema(connection: Connection, doing: str) -> str | None:
    """The revision, None for a database that is empty. Raises StoreError if it is not ours, or not
    of this version or an older.
    """
    present, ours = set(inspect(connection).get_table_names()), set(metadata.tables)
    if _VERSION_TABLE in present:
        stored = stored_revision(connection)
        _require_known(stored, doing)
        if stored == HEAD and (missing := sorted(ours - present)):
            raise StoreError(
                f"{doing}: the tables {', '.join(missing)} are missing; run `metaclaw store repair`"
            )
        return stored
    # A PostgreSQL database may be shared with tables of others, a file may not.
    foreign = present & ours if connection.dialect.name == "postgresql" else present
    if foreign:
        raise StoreError(
            f"{doing}: it holds tables ({', '.join(sorted(foreign)[:3])}) but no schema version of"
            " this program, so it seems to be another program's database. Give another store.url"
        )
    return None


def is_newer(stored: str | None) -> bool:
    """Whether a revision is unknown to this program, so that a newer one wrote it."""
    return stored not in (*ABSORBED, *REVISIONS)


def _require_known(stored: str | None, doing: str) -> None:
    if is_newer(stored):
        raise NewerSchemaError(
            f"{doing}: it was written by a newer version of this program (schema {stored}; this one"
            f" knows up to {HEAD}) and is left untouched. Upgrade the program, or give another"
            " store.url"
        )


def upgrade(connection: Connection, doing: str) -> None:
    """Apply the missing revisions in the caller's transaction. A database that is at HEAD already
    is left as it is.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    stored = check_schema(connection, doing)  # again: another program may have migrated it since
    if stored == HEAD:
        return
    if stored in ABSORBED:
        _add_missing_columns(connection)
    begin = REVISIONS.index(stored) + 1 if stored in REVISIONS else 0
    for revision in REVISIONS[begin:]:
        run_script(connection, FOLDER / f"{revision}.{connection.dialect.name}.sql")
    connection.execute(text("DELETE FROM alembic_version"))
    connection.execute(
        text("INSERT INTO alembic_version (version_num) VALUES (:head)"), {"head": HEAD}
    )


def run_script(connection: Connection, script: Path) -> None:
    """Execute a file of SQL statements."""
    # Below SQLAlchemy, which would take a percent sign for a parameter.
    cursor = connection.connection.cursor()
    for statement in (
        _statements(script) if connection.dialect.name == "sqlite" else [script.read_text("utf-8")]
    ):
        cursor.execute(statement)
    cursor.close()


def _statements(script: Path) -> Iterator[str]:
    # `executescript` would commit the caller's transaction.
    statement = ""
    for line in script.read_text("utf-8").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _add_missing_columns(connection: Connection) -> None:
    """Add what the baseline has and tables of revisions before it may lack; the baseline itself
    adds whole tables and the rest.
    """
    tables = set(inspect(connection).get_table_names())
    for name, columns in _added_columns(
        "0" if connection.dialect.name == "sqlite" else "false"
    ).items():
        if name not in tables:
            continue
        present = {one["name"] for one in inspect(connection).get_columns(name)}
        for added in columns:
            if added.split()[0] not in present:
                connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {added}")
        if name == "batches" and "state" not in present:
            # A batch that was opened before versions were kept cannot be finished: how its run
            # began is not known.
            connection.exec_driver_sql(_DROP_OLD_BATCHES)


def _added_columns(false: str) -> dict[str, tuple[str, ...]]:
    return {
        "skill_texts": (
            "state TEXT DEFAULT 'live' NOT NULL",
            "author TEXT DEFAULT 'person' NOT NULL",
            f"pinned BOOLEAN DEFAULT {false} NOT NULL",
        ),
        "attempts": ("ended_us BIGINT",),
        "batches": (
            (
                "state TEXT DEFAULT 'open' NOT NULL CONSTRAINT ck_batches_state_is_known CHECK"
                " (state IN ('open', 'done', 'dropped'))"
            ),
            "generation INTEGER DEFAULT 0 NOT NULL",
            "seed BIGINT DEFAULT 0 NOT NULL",
            "size INTEGER DEFAULT 0 NOT NULL",
            "note TEXT DEFAULT '' NOT NULL",
            (
                "ended_us BIGINT CONSTRAINT ck_batches_what_ended_says_when CHECK ((state = 'open')"
                " = (ended_us IS NULL))"
            ),
        ),
    }
