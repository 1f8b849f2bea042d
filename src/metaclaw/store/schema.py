"""The schema: the tables as queries name them, and the schema version of a database. `schema.sql` defines
the tables, with their keys, constraints, indices, triggers and views.

Instants are whole microseconds since 1970 in UTC (`_us`) and datetimes in queries, text is packed
by its column type, bytes are bytes. `seq` numbers are given by the database, grow, and are never
given again: they are the cursors readers resume from.

Rows about a turn are never updated; what a turn later turns out to be (a verdict, a role, a
batch it is in) comes in tables of their own that point at `turns.seq`, and goes only with the turn.
Triggers see to that, and to the separation of support and query: the database itself refuses a
batch with a turn that fed a skill, that was made with other rules or skills than its speaker has
now, or that is in another open batch, and gives every turn of a batch the role of a query, for
ever. A turn may be in several batches, one after the other: its answers are drawn anew each time. A
batch ends once, and only of one that is done comes a version, one at most; what a version is made
of is never edited."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Dialect,
    Double,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    and_,
    column,
    inspect,
    literal_column,
    table,
)
from sqlalchemy.types import TypeEngine

from metaclaw.domain.candidate import Change, Standing
from metaclaw.domain.chat import Finish, Wire
from metaclaw.domain.compliance import Reminded, RuleResult
from metaclaw.domain.policy import PolicyState
from metaclaw.domain.skill import Authorship, SkillState
from metaclaw.domain.training import BatchState, RoleKind
from metaclaw.domain.turn import HoldEnd, TurnEnd, TurnKind
from metaclaw.domain.verdict import Fault, Outcome, Source
from metaclaw.errors import StoreError
from metaclaw.store.dialects import POSTGRESQL, ddl, drop_triggers, lock_schema
from metaclaw.store.rows import pack_instant, pack_text, unpack_instant, unpack_text

MAX_LINKS = 32
"""A request is rebuilt from at most this many rows."""

_DEFINITION = Path(__file__).with_name("schema.sql").read_text("utf-8")
_VERSION_TABLE: Final = "alembic_version"


class PackedText(TypeDecorator[str]):
    """Text of any characters (see `rows.pack_text`)."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else pack_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else unpack_text(value)


class Instant(TypeDecorator[datetime]):
    """An instant, stored as whole microseconds since 1970; 0 stands for none."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else pack_instant(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return unpack_instant(value) if value else None


class Choice(TypeDecorator[StrEnum]):
    """A member of an enumeration."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: StrEnum | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        return None if value is None else self.kind(value)


_CHOICES: Final = {
    "turns.kind": TurnKind,
    "turns.wire": Wire,
    "turns.provider_wire": Wire,
    "turns.outcome": TurnEnd,
    "turns.finish": Finish,
    "verdicts.outcome": Outcome,
    "verdicts.source": Source,
    "verdicts.fault": Fault,
    "stands.kind": TurnKind,
    "stands.outcome": Outcome,
    "stands.fault": Fault,
    "roles.kind": RoleKind,
    "candidates.change": Change,
    "candidates.standing": Standing,
    "batches.state": BatchState,
    "policies.state": PolicyState,
    "skill_texts.state": SkillState,
    "skill_texts.author": Authorship,
    "rule_counts.result": RuleResult,
    "rule_counts.reminder": Reminded,
    "held_rules.outcome": HoldEnd,
    "true_answers.wire": Wire,
}
_TYPES: Final = {
    "TEXT": PackedText,
    "INTEGER": Integer,
    "BIGINT": BigInteger,
    "BIGSERIAL": BigInteger,
    "SMALLINT": SmallInteger,
    "BYTEA": LargeBinary,
    "BOOLEAN": Boolean,
    "DOUBLE PRECISION": Double,
}


def _type(table: str, column: str, kind: str) -> TypeEngine[Any]:
    if (choices := _CHOICES.get(f"{table}.{column}")) is not None:
        return Choice(choices)
    return Instant() if column.endswith("_us") else _TYPES[kind]()


def _read_tables() -> MetaData:
    """The tables of `schema.sql`. SQLite parses it: it takes PostgreSQL's types for their names, which
    tell more than its own.
    """
    found = MetaData()
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in ddl(_DEFINITION, POSTGRESQL):
            if "CREATE TABLE" in statement:
                connection.execute(statement)
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            if name == _VERSION_TABLE:
                continue
            columns = connection.execute(f"PRAGMA table_info({name})")
            references = connection.execute(f"PRAGMA foreign_key_list({name})")
            Table(
                name,
                found,
                *(
                    Column(
                        key,
                        _type(name, key, kind),
                        primary_key=bool(place),
                        autoincrement=key == "seq",
                    )
                    for _, key, kind, _, _, place in columns
                ),
                *(
                    ForeignKeyConstraint([key], [f"{table}.{their}"])
                    for _, _, table, key, their, *_ in references
                ),
            )
    return found


metadata = _read_tables()
_tables = metadata.tables
sessions = _tables["sessions"]
session_ends = _tables["session_ends"]
episodes = _tables["episodes"]
snippets = _tables["snippets"]
placements = _tables["placements"]
splices = _tables["splices"]
turns = _tables["turns"]
payloads = _tables["payloads"]
translations = _tables["translations"]
tokens = _tables["tokens"]
held_rules = _tables["held_rules"]
turn_attempts = _tables["turn_attempts"]
true_answers = _tables["true_answers"]
generations = _tables["generations"]
skill_texts = _tables["skill_texts"]
memberships = _tables["memberships"]
scope_libraries = _tables["scope_libraries"]
team_members = _tables["team_members"]
events = _tables["events"]
backups = _tables["backups"]
cursors = _tables["cursors"]
verdicts = _tables["verdicts"]
stands = _tables["stands"]
attempts = _tables["attempts"]
roles = _tables["roles"]
candidates = _tables["candidates"]
lessons = _tables["lessons"]
batches = _tables["batches"]
batch_turns = _tables["batch_turns"]
policies = _tables["policies"]
policy_files = _tables["policy_files"]
uses = _tables["uses"]
rule_counts = _tables["rule_counts"]
rule_results = _tables["rule_results"]
spending = _tables["spending"]
forgotten = _tables["forgotten"]
forgotten_batches = _tables["forgotten_batches"]
keys = _tables["keys"]
audit = _tables["audit"]
current_turns = table("current_turns", column("turn", BigInteger))
IS_LESSON = and_(
    stands.c.outcome == literal_column("'fail'"),
    stands.c.fault == literal_column("'agent'"),
    stands.c.kind == literal_column("'main'"),
)
"""Whether a turn may feed a skill (`Verdict.teaches`, of a main turn); written as in the index, so
that the database uses it.
"""

HEAD: Final = "0015"
"""The version of this schema."""
STORED_REVISION: Final = f"SELECT version_num FROM {_VERSION_TABLE}"
_BRING_OVER: Final = {
    "0012": ("ALTER TABLE turns ADD COLUMN channel TEXT",),
    "0013": (),
    "0014": (),
}
"""The versions whose databases are brought over, by these statements; tables that are new are made
beside them.
"""


class NewerSchemaError(StoreError):
    """The database belongs to a newer version of this program."""


def stored_revision(connection: Connection) -> str | None:
    """The schema version of a database that has been set up."""
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
    """The schema version, None for a database that is empty. Raises StoreError if it is not ours, newer,
    or too old to be brought over.
    """
    present, ours = set(inspect(connection).get_table_names()), set(_tables)
    if _VERSION_TABLE in present:
        stored = stored_revision(connection)
        _require_known(stored, doing)
        if stored == HEAD and (missing := sorted(ours - present)):
            raise StoreError(
                f"{doing}: the tables {', '.join(missing)} are missing; run `metaclaw store repair`"
            )
        return stored
    # A PostgreSQL database may be shared with tables of others, a file may not.
    foreign = present & ours if connection.dialect.name == POSTGRESQL else present
    if foreign:
        raise StoreError(
            f"{doing}: it holds tables ({', '.join(sorted(foreign)[:3])}) but no schema version of"
            " this program, so it seems to be another program's database. Give another store.url"
        )
    return None


def is_newer(stored: str | None) -> bool:
    """Whether a newer program wrote this schema version."""
    return stored is None or stored > HEAD


def _require_known(stored: str | None, doing: str) -> None:
    if is_newer(stored):
        raise NewerSchemaError(
            f"{doing}: it was written by a newer version of this program (schema {stored}; this one"
            f" knows up to {HEAD}) and is left untouched. Upgrade the program, or give another"
            " store.url"
        )
    if stored not in (*_BRING_OVER, HEAD):
        raise StoreError(
            f"{doing}: its schema ({stored}) is too old: this program brings over schema"
            f" {' and '.join(_BRING_OVER)}."
            " Run `metaclaw store migrate` of the version before this one first"
        )


def upgrade(connection: Connection, doing: str) -> None:
    """Create the tables, or bring over a database of the schema before, in the caller's transaction. A
    database that is at HEAD already is left as it is.
    """
    lock_schema(connection)
    stored = check_schema(connection, doing)  # again: another program may have been faster
    if stored == HEAD:
        return
    statements = list(ddl(_DEFINITION, connection.dialect.name))
    if stored is not None:
        drop_triggers(connection)
        present = inspect(connection).get_table_names()
        new = tuple(f"CREATE TABLE {name} " for name in _tables if name not in present)
        made = (one for one in statements if " TRIGGER " in one or any(map(one.__contains__, new)))
        statements = [*_BRING_OVER[stored], *made, f"DELETE FROM {_VERSION_TABLE}"]
    _run(connection, [*statements, f"INSERT INTO {_VERSION_TABLE} VALUES ('{HEAD}')"])


def index_for_sharing(connection: Connection) -> None:
    """Have sessions found by their last request, where several programs serve them. A single one
    goes without, because every turn pays for it.
    """
    if "ix_turns_head" not in {one["name"] for one in inspect(connection).get_indexes("turns")}:
        lock_schema(connection)
        connection.exec_driver_sql(
            "CREATE INDEX IF NOT EXISTS ix_turns_head ON turns (head) WHERE kind = 'main'"
        )


def _run(connection: Connection, statements: Iterable[str]) -> None:
    # Below SQLAlchemy, which would take a percent sign for a parameter.
    cursor = connection.connection.cursor()
    for statement in statements:
        cursor.execute(statement)
    cursor.close()
