"""Policy versions, and batches that end: once, as what taught a version or as dropped."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_STATES = "'candidate', 'rejected', 'canary', 'serving', 'retired', 'rolled back'"
_FIXED = "number, parent, backend, adapter, training, base, generation, batch, steps, made_us"


def upgrade() -> None:
    _alter_batches()
    _end_batches_of_old()
    _create_policies()
    _keep_batches()
    _keep_policies()


def _alter_batches() -> None:
    """Spelled out, because SQLite takes a constraint for a table that exists only together with a new column."""
    for column in (
        "state TEXT DEFAULT 'open' NOT NULL CONSTRAINT ck_batches_state_is_known CHECK (state IN ('open', 'done', 'dropped'))",
        "generation INTEGER DEFAULT 0 NOT NULL",
        "seed BIGINT DEFAULT 0 NOT NULL",
        "size INTEGER DEFAULT 0 NOT NULL",
        "note TEXT DEFAULT '' NOT NULL",
        "ended_us BIGINT CONSTRAINT ck_batches_what_ended_says_when CHECK ((state = 'open') = (ended_us IS NULL))",
    ):
        op.execute(f"ALTER TABLE batches ADD COLUMN {column}")
    _create_partial_index("ix_batches_open", "batches", ["seq"], "ended_us IS NULL")


def _end_batches_of_old() -> None:
    """No version ever came of a batch before there were versions, and none can: how its run was begun is not known."""
    op.execute("""UPDATE batches SET state = 'dropped', ended_us = at_us, note = 'opened before versions were kept',
        size = (SELECT count(*) FROM batch_turns WHERE batch = batches.seq),
        generation = COALESCE((SELECT max(generation) FROM turns JOIN batch_turns ON turn = seq WHERE batch = batches.seq), 0)""")


def _create_policies() -> None:
    op.create_table(
        "policies",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("parent", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("adapter", sa.Text(), nullable=False),
        sa.Column("training", sa.Text(), nullable=True),
        sa.Column("base", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("batch", _SERIAL, nullable=True),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("report", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("absorbed", sa.Text(), nullable=False),
        sa.Column("made_us", sa.BigInteger(), nullable=False),
        sa.Column("state_us", sa.BigInteger(), nullable=False),
        sa.Column("state_turn", sa.BigInteger(), nullable=False),
        sa.Column("served_us", sa.BigInteger(), nullable=True),
        sa.Column("gone_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "number > 0 AND parent >= 0 AND parent < number", name=op.f("ck_policies_a_version_has_an_earlier_parent")
        ),
        sa.CheckConstraint("generation >= 0 AND steps >= 0", name=op.f("ck_policies_clocks_count_from_zero")),
        sa.CheckConstraint(f"state IN ({_STATES})", name=op.f("ck_policies_state_is_known")),
        sa.CheckConstraint("state <> 'serving' OR served_us IS NOT NULL", name=op.f("ck_policies_what_serves_has_served")),
        sa.CheckConstraint(
            "gone_us IS NULL OR state NOT IN ('candidate', 'canary', 'serving')", name=op.f("ck_policies_what_is_needed_is_kept")
        ),
        sa.ForeignKeyConstraint(["batch"], ["batches.seq"], name=op.f("fk_policies_batch")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_policies")),
        sa.UniqueConstraint("batch", name=op.f("uq_policies_batch")),
    )
    for state in ("serving", "canary"):
        _create_partial_index(f"uq_policies_{state}", "policies", ["state"], f"state = '{state}'", unique=True)


def _keep_batches() -> None:
    is_over = "COALESCE((SELECT state FROM batches WHERE seq = NEW.batch) <> 'open', FALSE)"
    _refuse(
        "batch_turns_join_what_is_open",
        "BEFORE INSERT ON batch_turns",
        [(is_over, "a batch that has ended takes no more turns")],
    )
    _refuse("batches_end_once", "BEFORE UPDATE ON batches", [("OLD.state <> 'open'", "a batch ends once")])
    _refuse(
        "batches_are_final",
        "BEFORE UPDATE OF seq, at_us, policy_version, generation, seed, size ON batches",
        [("TRUE", "a row of batches is never edited, it only ends")],
    )
    _refuse("batches_are_kept", "BEFORE DELETE ON batches", [("TRUE", "a batch is kept for ever")])


def _keep_policies() -> None:
    is_unfinished = "NEW.batch IS NOT NULL AND COALESCE((SELECT state FROM batches WHERE seq = NEW.batch) <> 'done', FALSE)"
    _refuse(
        "policies_come_of_whole_batches",
        "BEFORE INSERT ON policies",
        [(is_unfinished, "a version comes only of a batch that is done")],
    )
    _refuse(
        "policies_are_final",
        f"BEFORE UPDATE OF {_FIXED} ON policies",
        [("TRUE", "what a version is made of is never edited")],
    )
    _refuse("policies_are_kept", "BEFORE DELETE ON policies", [("TRUE", "a version is kept for ever")])


def _create_partial_index(name: str, table: str, columns: list[str], condition: str, *, unique: bool = False) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, unique=unique, sqlite_where=where, postgresql_where=where)


def _refuse(name: str, when: str, cases: list[tuple[str, str]]) -> None:
    """A trigger that refuses a row if one of the conditions holds, with that condition's words."""
    if op.get_bind().dialect.name == "sqlite":
        body = "".join(f"SELECT RAISE(ABORT, '{words}') WHERE {condition};" for condition, words in cases)
        op.execute(f"CREATE TRIGGER {name} {when} BEGIN {body} END")
        return
    body = "".join(
        f"IF {condition} THEN RAISE EXCEPTION '{words}' USING ERRCODE = 'restrict_violation'; END IF; "
        for condition, words in cases
    )
    row = "OLD" if "DELETE" in when else "NEW"
    op.execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN {row}; END $$")
    op.execute(f"CREATE TRIGGER {name} {when} FOR EACH ROW EXECUTE FUNCTION {name}()")
