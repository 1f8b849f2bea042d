"""Opening databases: made privately, migrated once, refused when unknown."""

import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, insert, select, text

from metaclaw.domain.eligibility import Role, RoleKind
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import PolicyState, Serving
from metaclaw.domain.turn import Turn
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.errors import StoreError
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
    connect,
    open_database,
)
from metaclaw.store.database import migrate_by_steps
from metaclaw.store.migrations.upgrade import configuration
from metaclaw.store.revisions import HEAD, REVISIONS
from metaclaw.store.schema import metadata
from tests.support.postgres import PostgresServer

SNAPSHOTS = Path(__file__).with_name("snapshots")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_file_and_its_folder_are_the_owners_alone(sqlite_url: str, tmp_path: Path) -> None:
    database = open_database(sqlite_url)
    folder = tmp_path / "folder"
    with database.writing("writing something") as connection:
        connection.execute(text("UPDATE generations SET reason = 'x'"))
    assert mode(folder) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["ledger.db", "ledger.db-shm", "ledger.db-wal"]
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    database.close()


def test_a_file_that_others_could_read_is_closed_to_them(sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url).close()
    (tmp_path / "folder" / "ledger.db").chmod(0o644)
    open_database(sqlite_url).close()
    assert mode(tmp_path / "folder" / "ledger.db") == 0o600


def test_sqlite_keeps_a_log_ahead_and_checks_references(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    with database.reading("looking") as connection:
        pragmas = [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous", "foreign_keys")]
    assert pragmas == ["wal", 1, 1]
    database.close()


def test_the_migrated_schema_is_the_one_the_program_uses(database: Database) -> None:
    with database.reading("comparing") as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def definitions(sql: str) -> list[str]:
    """What a statement defines, whatever the order and the white space; a column that was added later stands behind the others."""
    head, _, rest = " ".join(sql.split()).partition("(")
    parts, depth = [""], 0
    for character in rest:
        depth += (character == "(") - (character == ")")
        parts = [*parts, ""] if character == "," and depth == 0 else [*parts[:-1], parts[-1] + character]
    return [head, *sorted(part.removesuffix(")").strip() if part is parts[-1] else part.strip() for part in parts)]


def test_the_migrated_tables_have_every_constraint(sqlite_url: str, tmp_path: Path) -> None:
    def tables(path: Path) -> dict[str, list[str]]:
        connection = sqlite3.connect(path)
        found = dict(
            connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type <> 'trigger' AND sql IS NOT NULL AND name <> 'alembic_version'"
            )
        )
        connection.close()
        return {name: definitions(sql) for name, sql in found.items()}

    open_database(sqlite_url).close()
    engine = create_engine(f"sqlite:///{tmp_path / 'made.db'}")
    metadata.create_all(engine)
    engine.dispose()
    assert tables(tmp_path / "folder" / "ledger.db") == tables(tmp_path / "made.db")


def test_the_known_revisions_are_those_that_have_scripts() -> None:
    scripts = ScriptDirectory.from_config(configuration())
    assert tuple(reversed([script.revision for script in scripts.walk_revisions()])) == REVISIONS
    assert scripts.get_current_head() == HEAD


def test_neither_the_first_nor_a_usual_start_imports_alembic(sqlite_url: str) -> None:
    program = (
        f"import sys; from metaclaw.store import open_database; open_database({sqlite_url!r}); print('alembic' in sys.modules)"
    )
    answers = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(2)]
    assert [answer.stdout.strip() for answer in answers] == ["False", "False"]


def test_programs_that_start_at_once_migrate_once(url: str) -> None:
    failures: list[StoreError] = []

    def start() -> None:
        try:
            open_database(url).close()
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    database = open_database(url)
    assert SqlGenerations(database).latest().number == 0
    database.close()


def test_a_database_of_a_newer_program_is_refused_and_left_alone(url: str) -> None:
    database = open_database(url)
    with database.writing("pretending") as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(StoreError, match="newer version"):
        open_database(url)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("not a url", "not a URL"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("mysql://host/name", "only sqlite and postgresql"),
    ],
)
def test_a_url_that_cannot_be_used_is_explained(bad: str, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        open_database(bad)


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    pytest.importorskip("psycopg", reason="needs a PostgreSQL driver: pip install 'metaclaw[postgres]'")
    with pytest.raises(StoreError) as caught:
        open_database("postgresql://ada:hunter2@127.0.0.1:1/ledger")
    assert "127.0.0.1" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_no_database_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.db"
    path.parent.mkdir()
    path.write_bytes(b"these are my notes, please keep them" * 100)
    with pytest.raises(StoreError, match="damaged or not a database"):
        open_database(sqlite_url)
    assert path.read_bytes() == b"these are my notes, please keep them" * 100


def test_there_is_a_snapshot_of_every_schema() -> None:
    assert tuple(sorted(path.stem for path in SNAPSHOTS.glob("*.sql"))) == REVISIONS, "run python tests/store/snapshot.py"


def snapshot(revision: str, path: Path) -> str:
    """The URL of a database that was written by the program of that schema."""
    old = sqlite3.connect(path)
    old.executescript((SNAPSHOTS / f"{revision}.sql").read_text())
    old.close()
    return f"sqlite:///{path}"


def in_postgres(revision: str, path: Path, server: PostgresServer) -> str:
    """The same in a PostgreSQL database that was migrated up to that schema and no further."""
    source, url = create_engine(snapshot(revision, path)), server.new_database()
    target = connect(url)
    with target.writing("an older program migrates") as connection:
        command.upgrade(configuration(connection), revision)
    tables = MetaData()
    tables.reflect(source)
    with source.connect() as old, target.writing("an older program writes") as connection:
        # A copy is no change: what the triggers would say to each row in turn is not asked.
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text("DELETE FROM generations"))
        for table in tables.sorted_tables:
            rows = [dict(row) for row in old.execute(select(table).order_by(*table.primary_key)).mappings()]
            if rows and table.name != "alembic_version":
                connection.execute(insert(table), rows)
            if "seq" in table.columns and table.name != "cursors":
                connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'seq'), 1000)"))
    source.dispose()
    target.close()
    return url


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_database_written_by_an_earlier_schema_tells_the_same_story(
    revision: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "ledger.db"
    url = snapshot(revision, path) if kind == "sqlite" else in_postgres(revision, path, request.getfixturevalue("postgres"))
    database = open_database(url)
    reader = LedgerReader(database)
    story = msgspec.json.decode((SNAPSHOTS / f"{revision}.json").read_bytes(), type=list[Turn])
    told = [reader.turn(turn.id) for turn in story]
    assert [found.turn for found in told if found is not None] == story
    session = reader.session(SessionId("s_translated"))
    assert session is not None
    assert (session.turns, session.end_reason) == (8, "story ended")
    assert [skill.name for found in (SqlGenerations(database).at(1),) if found for skill in found.skills] == ["tell-time"]
    assert [event.kind for event in reader.events() if event.kind not in ("generation", "policy")] == ["story.told"]
    if revision == "0001":
        learn(database)
    learned_story(database)
    database.close()


def learn(database: Database) -> None:
    """What a program of the next schema does with what it found."""
    SqlVerdicts(database).record_verdict(Verdict(TurnId("t_0000"), Outcome.FAIL, Source.USER, 1.0, fault=Fault.AGENT))
    SqlCandidates(database).begin_attempt("kind", 2, [TurnId("t_0000")])
    with pytest.raises(RefusedError, match="other skills"):
        SqlBatches(database).open_batch(0, [TurnId("t_0003")])
    tell_time = SqlGenerations(database).at(1)
    assert tell_time is not None
    generations = SqlGenerations(database)
    generations.publish(tell_time.skills, "back again")
    with database.reading("counting") as connection:
        assert connection.execute(text("SELECT count(*) FROM skill_texts")).scalar() == 1, "a text is stored once for ever"


def learned_story(database: Database) -> None:
    standing = LedgerReader(database).standing_of(TurnId("t_0000"))
    assert standing is not None
    assert standing.verdict is not None
    assert (standing.verdict.teaches, standing.role) == (True, Role(RoleKind.SUPPORT, 2))
    assert SqlVerdicts(database).open_failures(1) == []
    assert [skill.author for skill in SqlGenerations(database).latest().skills] != []
    versions = tuple(version.number for version in SqlPolicies(database).versions())
    forgotten = SqlForgetting(database).forget_session(SessionId("s_growing"))
    assert (forgotten.turns, forgotten.versions) == (8, versions)
    kept = LedgerReader(database).turn(TurnId("t_0015"))
    assert kept is not None
    assert kept.turn.exchange.sent.startswith(b"translated ")


def test_what_was_learned_is_read_from_the_snapshot_of_the_schema_that_has_it(tmp_path: Path) -> None:
    database = open_database(snapshot("0002", tmp_path / "ledger.db"))
    (candidate,) = SqlCandidates(database).candidates()
    assert candidate.certificate is not None
    assert (candidate.standing, candidate.proposal.support, candidate.certificate.e_value) == ("accepted", ("t_0000",), 12.5)
    verdict = SqlVerdicts(database).verdict_of(TurnId("t_0001"))
    assert verdict is not None
    assert verdict.votes is not None
    assert (verdict.outcome, verdict.votes.passed) == (Outcome.PASS, 3)
    skill = candidate.proposal.skill
    assert SqlGenerations(database).unwritten() == {skill.name: skill}
    assert SqlCursors(database).cursor("sensing") == 16
    assert SqlBatches(database).turns_of(1) == ["t_0003"]
    assert [drawn.placed for drawn in LedgerReader(database).drawn_turns(SkillName("tell-time"))] == [True]
    database.close()


def test_a_batch_of_the_schema_before_versions_has_ended(tmp_path: Path) -> None:
    database = open_database(snapshot("0002", tmp_path / "ledger.db"))
    batches = SqlBatches(database)
    assert batches.open_batch_now() is None
    batch = batches.batch(1)
    assert batch is not None
    assert (batch.state, batch.generation, batch.size, batch.turns) == (BatchState.DROPPED, 2, 1, ("t_0003",))
    database.close()


def test_versions_are_read_from_the_snapshot_of_the_schema_that_has_them(tmp_path: Path) -> None:
    database = open_database(snapshot("0003", tmp_path / "ledger.db"))
    policies = SqlPolicies(database)
    (version,) = policies.versions()
    assert version.report is not None
    assert version.report.held_out is not None
    assert (version.state, version.batch, version.steps, version.report.held_out.better) == (PolicyState.SERVING, 1, 4, 12)
    assert version.weights.training == "{home}/policies/1/training"
    assert policies.serving() == Serving(1, absorbed={1: frozenset({SkillName("ask-first")})})
    batch = SqlBatches(database).batch(1)
    assert batch is not None
    assert (batch.state, batch.seed, batch.generation) == (BatchState.DONE, 7, 2)
    database.close()


def test_a_new_file_is_set_up_exactly_as_the_migrations_would(tmp_path: Path) -> None:
    at_once, by_steps = connect(f"sqlite:///{tmp_path / 'once.db'}"), connect(f"sqlite:///{tmp_path / 'steps.db'}")
    at_once.prepare()
    migrate_by_steps(by_steps)
    for database in (at_once, by_steps):
        database.close()
    dumps = []
    for name in ("once.db", "steps.db"):
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            dumps.append([line for line in connection.iterdump() if "sqlite_sequence" not in line])
    assert dumps[0] == dumps[1]
