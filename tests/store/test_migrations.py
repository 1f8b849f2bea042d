"""Migrations: homes of every earlier schema are brought to the newest one, and a landed migration
never changes.
"""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, create_engine, insert, inspect, select, text

from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import PolicyState, Serving
from metaclaw.domain.training import RoleKind, TurnRole
from metaclaw.domain.turn import Turn
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.store import (
    BatchState,
    Database,
    LedgerReader,
    RefusedError,
    SqlBatches,
    SqlCandidates,
    SqlCursors,
    SqlForgetting,
    SqlGenerations,
    SqlPolicies,
    SqlVerdicts,
    open_database,
)
from metaclaw.store.schema import ABSORBED, FOLDER, REVISIONS, metadata, run_script
from tests.support.postgres import PostgresServer

SNAPSHOTS = Path(__file__).with_name("snapshots")
# Schemas that homes may have. Before it was edited 0002 lacked a column, a table and two indices
# ("-first").
EARLIER = ("0001", "0002-first", "0002", "0003-first", "0003", *REVISIONS)
# How the programs of those days made them on PostgreSQL: the statements in snapshots/postgresql.
STEPS = {
    "0001": ("0001",),
    "0002-first": ("0001", "0002-first"),
    "0002": ("0001", "0002"),
    "0003-first": ("0001", "0002-first", "0003"),
    "0003": ("0001", "0002", "0003"),
}
# SHA-256 of each landed file. Add lines; never change one: homes made with the old text would
# differ from new ones.
LANDED = {
    "0004.postgresql.sql": "6b4c2f09e873743c0547454bc0a298cc13e35fe5702dccf45537090d30125802",
    "0004.sqlite.sql": "6431c5c986161db88ec72d462afced63b6c67e4782a927a2c33af11c73fbc313",
    "0005.postgresql.sql": "0f102aa85f0a6ab17ad41d7ad21739dde4cc6e701b0e8f18ce6e8a5a8e546785",
    "0005.sqlite.sql": "eae8d28580576724afa558a6ec316680b4c36e47b175ef7c6edcf8d7aca59e6c",
    "0006.postgresql.sql": "cc9bf8c1ad466ed2ea0505456397de49a27a41d7cbafd5c237536e5444ba1fde",
    "0006.sqlite.sql": "09f556c1309a7b0ba1ad51167a21fe216d6598005a08d0e112746bd2a394bd60",
    "0007.postgresql.sql": "4fc0a82a11a61dd6ad4b98bb56e8dee4aae04695d850e277027774390b6d60c3",
    "0007.sqlite.sql": "39e8a6c8cdaa13499ab87f5608ba8d49a3dc864f786d7ce4c07ba9abb0ae9977",
    "0008.postgresql.sql": "e471cfaf85f816e195291ad29fc24ec479e259995a52e98bc1ac558b2db00450",
    "0008.sqlite.sql": "1477c5a6fc1ae462b5f2670a1a432f2c0cc8649d822765f6457bb2295c28eb5e",
    "0009.postgresql.sql": "f7284cc9f6af7bd12b20f55aa81425dd1ec72e9044b0b7ec4e6a987dc9dc9653",
    "0009.sqlite.sql": "b3e20f878516ff58bf53e101cd7ffaf537f24bf6d4abe8888f3526c317dc9bd2",
    "0010.postgresql.sql": "ad578ad1d5ff08c9f780ec93388396effae63c12e4e7289c8344cc40760bc243",
    "0010.sqlite.sql": "d7e8017e786e568d72f0f02734c03520c266c01d7a9aed51ad8ded7aa35d2cfc",
    "0011.postgresql.sql": "e2d93266c55590103d884cf463ff9c1d3e18a49b004b9610755cb3a88e46c6d9",
    "0011.sqlite.sql": "adead41cba77635b7bf0d5e8528f3ca08403c6321cad681d6914a3936ac9019d",
}


def test_a_landed_migration_is_never_edited() -> None:
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.iterdir()}
    assert set(files) == {
        f"{revision}.{kind}.sql" for revision in REVISIONS for kind in ("sqlite", "postgresql")
    }
    assert files == LANDED, (
        "a landed migration was edited (add a new revision instead), or a new one has no digest"
        " here yet"
    )


def test_there_is_a_snapshot_of_every_schema() -> None:
    assert {path.stem for path in SNAPSHOTS.glob("*.sql")} == {*EARLIER}, (
        "run python tests/store/snapshot.py"
    )
    assert {name.partition("-")[0] for name in EARLIER} == {*ABSORBED, *REVISIONS}


def definitions(sql: str) -> list[str]:
    """What a statement defines, whatever the order and the white space; a column that was added
    later stands behind the others.
    """
    head, _, rest = " ".join(sql.replace(";", "; ").split()).partition("(")
    parts, depth = [""], 0
    for character in rest:
        depth += (character == "(") - (character == ")")
        parts = (
            [*parts, ""]
            if character == "," and depth == 0
            else [*parts[:-1], parts[-1] + character]
        )
    return [
        head,
        *sorted(
            part.removesuffix(")").strip() if part is parts[-1] else part.strip() for part in parts
        ),
    ]


def schema_of(path: Path) -> dict[str, list[str]]:
    """Every table, index and trigger of a file, in words that do not depend on how it came
    about.
    """
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        ).fetchall()
    # Revisions before the baseline wrote a condition that is always true.
    return {
        name: definitions(sql.replace(" WHERE TRUE", "").replace("IF NOT EXISTS ", ""))
        for name, sql in found
    }


def differing_columns(connection: Connection) -> list[object]:
    """Tables and columns, with their types, that the program and the database do not have in
    common.
    """
    found = compare_metadata(MigrationContext.configure(connection), metadata)
    changes = [change for one in found for change in (one if isinstance(one, list) else [one])]
    return [
        change
        for change in changes
        if str(change[0]).removeprefix("add_").removeprefix("remove_") in KINDS
    ]


KINDS = ("table", "column", "modify_type")


def names_of(connection: Connection) -> dict[str, list[str]]:
    """The names of each table's indices and constraints but for keys, which SQLite does not
    name.
    """
    look = inspect(connection)
    return {
        table: sorted(
            one["name"] or ""
            for one in (*look.get_indexes(table), *look.get_check_constraints(table))
            if not (one["name"] or "").startswith("uq_")
        )
        for table in metadata.tables
    }


def test_a_new_file_has_the_columns_that_the_program_uses(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    with database.reading("comparing") as connection:
        assert differing_columns(connection) == []
    database.close()


def test_both_databases_have_the_same_indices_and_constraints(
    sqlite_url: str, postgres: PostgresServer
) -> None:
    found = []
    for url in (sqlite_url, postgres.new_database()):
        database = open_database(url)
        with database.reading("comparing") as connection:
            found.append(names_of(connection))
        database.close()
    assert found[0] == found[1]


def snapshot(revision: str, path: Path) -> str:
    """The URL of a database that was written by the program of that schema."""
    old = sqlite3.connect(path)
    old.executescript((SNAPSHOTS / f"{revision}.sql").read_text())
    old.close()
    return f"sqlite:///{path}"


def in_postgres(revision: str, path: Path, server: PostgresServer) -> str:
    """The same in PostgreSQL, with a schema made by the programs of that time."""
    source, url = create_engine(snapshot(revision, path)), server.new_database()
    if revision in REVISIONS:
        open_database(url).close()
    target = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    tables = MetaData()
    tables.reflect(source)
    with source.connect() as old, target.begin() as connection:
        for step in STEPS.get(revision, ()):
            run_script(connection, SNAPSHOTS / "postgresql" / f"{step}.sql")
        copy_rows(old, connection, tables)
    source.dispose()
    target.dispose()
    return url


def copy_rows(old: Connection, connection: Connection, tables: MetaData) -> None:
    # Without triggers, which would judge each row by those that are not there yet.
    connection.execute(text("SET LOCAL session_replication_role = replica"))
    connection.execute(text("DELETE FROM generations"))
    for table in tables.sorted_tables:
        rows = [
            dict(row) for row in old.execute(select(table).order_by(*table.primary_key)).mappings()
        ]
        if rows and table.name != "alembic_version":
            connection.execute(insert(table), rows)
        if "seq" in table.columns and table.name != "cursors":
            connection.execute(
                text(f"SELECT setval(pg_get_serial_sequence('{table}', 'seq'), 1000)")
            )


@pytest.mark.parametrize("revision", EARLIER)
def test_a_file_of_an_earlier_schema_gets_exactly_the_schema_of_a_new_one(
    revision: str, tmp_path: Path
) -> None:
    open_database(snapshot(revision, tmp_path / "old.db")).close()
    open_database(f"sqlite:///{tmp_path / 'new.db'}").close()
    assert schema_of(tmp_path / "old.db") == schema_of(tmp_path / "new.db")


@pytest.mark.parametrize("revision", ["none", *EARLIER])
def test_a_postgresql_database_of_any_schema_gets_the_one_the_program_uses(
    revision: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    url = (
        postgres.new_database()
        if revision == "none"
        else in_postgres(revision, tmp_path / "old.db", postgres)
    )
    migrated, fresh = open_database(url), open_database(postgres.new_database())
    with migrated.reading("comparing") as connection:
        assert differing_columns(connection) == []
        found = (triggers_of(connection), names_of(connection))
    with fresh.reading("comparing") as connection:
        assert found == (triggers_of(connection), names_of(connection))
    for database in (migrated, fresh):
        database.close()


def triggers_of(connection: Connection) -> dict[str, str]:
    rows = connection.execute(
        text("""SELECT tgname, prosrc FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
        WHERE NOT tgisinternal AND pronamespace = current_schema()::regnamespace""")
    )
    return {row.tgname: row.prosrc for row in rows}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("revision", EARLIER)
def test_a_database_written_by_an_earlier_schema_tells_the_same_story(
    revision: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "ledger.db"
    url = (
        snapshot(revision, path)
        if kind == "sqlite"
        else in_postgres(revision, path, request.getfixturevalue("postgres"))
    )
    database = open_database(url)
    reader = LedgerReader(database)
    story = msgspec.json.decode(
        (SNAPSHOTS / f"{revision.partition('-')[0]}.json").read_bytes(), type=list[Turn]
    )
    told = [reader.turn(turn.id) for turn in story]
    assert [found.turn for found in told if found is not None] == story
    session = reader.session(SessionId("s_translated"))
    assert session is not None
    assert (session.turns, session.end_reason) == (8, "story ended")
    assert [
        skill.name for found in (SqlGenerations(database).at(1),) if found for skill in found.skills
    ] == ["tell-time"]
    assert [
        event.kind for event in reader.events() if event.kind not in ("generation", "policy")
    ] == ["story.told"]
    if revision == "0001":
        learn(database)
    learned_story(database)
    database.close()


def learn(database: Database) -> None:
    """What a program of the next schema does with what it found."""
    SqlVerdicts(database).record_verdict(
        Verdict(TurnId("t_0000"), Outcome.FAIL, Source.USER, 1.0, fault=Fault.AGENT)
    )
    SqlCandidates(database).begin_attempt("kind", 2, [TurnId("t_0000")])
    with pytest.raises(RefusedError, match="other skills"):
        SqlBatches(database).open_batch(0, [TurnId("t_0003")])
    tell_time = SqlGenerations(database).at(1)
    assert tell_time is not None
    generations = SqlGenerations(database)
    generations.publish(tell_time.skills, "back again")
    with database.reading("counting") as connection:
        assert connection.execute(text("SELECT count(*) FROM skill_texts")).scalar() == 1, (
            "a text is stored once for ever"
        )


def learned_story(database: Database) -> None:
    standing = LedgerReader(database).standing_of(TurnId("t_0000"))
    assert standing is not None
    assert standing.verdict is not None
    assert (standing.verdict.teaches, standing.role) == (True, TurnRole(RoleKind.SUPPORT, 2))
    assert SqlVerdicts(database).open_failures(1) == []
    assert [skill.author for skill in SqlGenerations(database).latest().skills] != []
    versions = tuple(version.number for version in SqlPolicies(database).versions())
    forgotten = SqlForgetting(database).forget_session(SessionId("s_growing"))
    assert (forgotten.turns, forgotten.versions) == (8, versions)
    kept = LedgerReader(database).turn(TurnId("t_0015"))
    assert kept is not None
    assert kept.turn.exchange.sent.startswith(b"translated ")


def test_what_was_learned_is_read_from_the_snapshot_of_the_schema_that_has_it(
    tmp_path: Path,
) -> None:
    database = open_database(snapshot("0002", tmp_path / "ledger.db"))
    (candidate,) = SqlCandidates(database).candidates()
    assert candidate.certificate is not None
    assert (candidate.standing, candidate.proposal.support, candidate.certificate.wins) == (
        "accepted",
        ("t_0000",),
        3,
    )
    verdict = SqlVerdicts(database).verdict_of(TurnId("t_0001"))
    assert verdict is not None
    assert verdict.votes is not None
    assert (verdict.outcome, verdict.votes.passed) == (Outcome.PASS, 3)
    assert SqlCursors(database).cursor("sensing") == 16
    assert SqlBatches(database).turns_of(1) == ["t_0003"]
    assert [
        drawn.placed for drawn in LedgerReader(database).drawn_turns(SkillName("tell-time"))
    ] == [True]
    database.close()


def test_a_batch_of_the_schema_before_versions_has_ended(tmp_path: Path) -> None:
    database = open_database(snapshot("0002", tmp_path / "ledger.db"))
    batches = SqlBatches(database)
    assert batches.open_batch_now() is None
    batch = batches.batch(1)
    assert batch is not None
    assert (batch.state, batch.generation, batch.size, batch.turns) == (
        BatchState.DROPPED,
        2,
        1,
        ("t_0003",),
    )
    database.close()


def test_versions_are_read_from_the_snapshot_of_the_schema_that_has_them(tmp_path: Path) -> None:
    database = open_database(snapshot("0003", tmp_path / "ledger.db"))
    policies = SqlPolicies(database)
    (version,) = policies.versions()
    assert version.report is not None
    assert version.report.held_out is not None
    assert (version.state, version.batch, version.steps, version.report.held_out.better) == (
        PolicyState.SERVING,
        1,
        4,
        12,
    )
    assert version.weights.training == "{home}/policies/1/training"
    assert policies.serving() == Serving(1, absorbed={1: frozenset({SkillName("ask-first")})})
    batch = SqlBatches(database).batch(1)
    assert batch is not None
    assert (batch.state, batch.seed, batch.generation) == (BatchState.DONE, 7, 2)
    database.close()


def test_after_the_upgrade_turns_of_the_newest_generation_train_and_older_ones_do_not(
    tmp_path: Path,
) -> None:
    database = open_database(snapshot("0006", tmp_path / "ledger.db"))
    generations = SqlGenerations(database)
    newest = generations.latest().number
    assert SqlBatches(database).ready(newest, 0, 0, 10) == ()
    standing = LedgerReader(database).standing_of(TurnId("t_0001"))
    assert standing is not None
    assert standing.is_aged
    with database.writing("a turn of now") as connection:
        connection.execute(text("DROP TRIGGER turns_are_final"))
        connection.execute(
            text("UPDATE turns SET generation = :newest WHERE id = 't_0001'"), {"newest": newest}
        )
    assert SqlBatches(database).open_batch(0, [TurnId("t_0001")]) == 2
    database.close()
