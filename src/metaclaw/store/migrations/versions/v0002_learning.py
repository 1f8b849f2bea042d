"""What is learned: verdicts, roles, draws, candidates, batches; and the indices without which forgetting would be slow."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _alter_skill_texts()
    _create_indices()
    _create_verdicts()
    _create_roles()
    _create_draws()
    _create_candidates()
    _create_batches()
    _create_marks()
    for table in ("verdicts", "roles", "draws", "batch_turns"):
        _bind_to_turns(table)
    _give_roles_once()
    _separate()


def _alter_skill_texts() -> None:
    op.add_column("skill_texts", sa.Column("state", sa.Text(), server_default="live", nullable=False))
    op.add_column("skill_texts", sa.Column("author", sa.Text(), server_default="person", nullable=False))
    op.add_column("skill_texts", sa.Column("pinned", sa.Boolean(), server_default=sa.false(), nullable=False))


def _create_indices() -> None:
    _create_partial_index("ix_sessions_ended", "sessions", ["ended_us", "id"], "ended_us IS NOT NULL")
    _create_partial_index("ix_turns_placements", "turns", ["placements"], "placements IS NOT NULL")
    _create_partial_index("ix_payloads_base", "payloads", ["base"], "base IS NOT NULL")
    _create_partial_index("ix_payloads_splices", "payloads", ["splices"], "splices IS NOT NULL")
    _create_partial_index("ix_translations_base", "translations", ["base"], "base IS NOT NULL")
    for table in ("placements", "splices"):
        for column in ("previous", "snippet"):
            op.create_index(op.f(f"ix_{table}_{column}"), table, [column], unique=False)


def _create_partial_index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, unique=False, sqlite_where=where, postgresql_where=where)


def _create_verdicts() -> None:
    op.create_table(
        "verdicts",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("turn", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("p_fail", sa.Double(), nullable=True),
        sa.Column("signals", sa.Text(), nullable=False),
        sa.Column("votes", sa.Text(), nullable=True),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.CheckConstraint("outcome IN ('pass', 'fail', 'unknown')", name=op.f("ck_verdicts_outcome_is_known")),
        sa.CheckConstraint("p_fail >= 0 AND p_fail <= 1", name=op.f("ck_verdicts_p_fail_is_a_probability")),
        sa.CheckConstraint("(outcome = 'fail') = (fault IS NOT NULL)", name=op.f("ck_verdicts_a_failure_has_somebody_at_fault")),
        sa.ForeignKeyConstraint(["turn"], ["turns.seq"], name=op.f("fk_verdicts_turn"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_verdicts")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_verdicts_turn"), "verdicts", ["turn"], unique=False)
    op.create_table(
        "stands",
        sa.Column("turn", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("verdict", _SERIAL, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["turn"], ["turns.seq"], name=op.f("fk_stands_turn"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["verdict"], ["verdicts.seq"], name=op.f("fk_stands_verdict"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn", name=op.f("pk_stands")),
        sa.UniqueConstraint("verdict", name=op.f("uq_stands_verdict")),
    )
    op.create_index(op.f("ix_stands_outcome"), "stands", ["outcome"], unique=False)
    _create_partial_index(
        "ix_stands_lessons", "stands", ["generation", "turn"], "outcome = 'fail' AND fault = 'agent' AND kind = 'main'"
    )


def _create_roles() -> None:
    op.create_table(
        "attempts",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_attempts")),
        sqlite_autoincrement=True,
    )
    _create_partial_index("ix_attempts_open", "attempts", ["seq"], "ended_us IS NULL")
    op.create_table(
        "roles",
        sa.Column("turn", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("attempt", _SERIAL, nullable=True),
        sa.CheckConstraint("kind IN ('support', 'query')", name=op.f("ck_roles_kind_is_known")),
        sa.CheckConstraint("generation >= 0", name=op.f("ck_roles_generations_count_from_zero")),
        sa.CheckConstraint("attempt IS NULL OR kind = 'support'", name=op.f("ck_roles_a_query_turn_fed_no_attempt")),
        sa.ForeignKeyConstraint(["turn"], ["turns.seq"], name=op.f("fk_roles_turn"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.seq"], name=op.f("fk_roles_attempt")),
        sa.PrimaryKeyConstraint("turn", name=op.f("pk_roles")),
    )
    op.create_index(op.f("ix_roles_kind"), "roles", ["kind"], unique=False)


def _create_draws() -> None:
    op.create_table(
        "draws",
        sa.Column("turn", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("place", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("skill", sa.Text(), nullable=False),
        sa.Column("placed", sa.Boolean(), nullable=False),
        sa.Column("propensity", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["turn"], ["turns.seq"], name=op.f("fk_draws_turn"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn", "place", name=op.f("pk_draws")),
    )
    op.create_index(op.f("ix_draws_skill_turn"), "draws", ["skill", "turn"], unique=False)


def _create_candidates() -> None:
    op.create_table(
        "candidates",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("proposal", sa.Text(), nullable=False),
        sa.Column("standing", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("made_us", sa.BigInteger(), nullable=False),
        sa.Column("certificate", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "standing IN ('draft', 'shadow', 'waiting', 'accepted', 'rejected')", name=op.f("ck_candidates_standing_is_known")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_candidates")),
    )
    op.create_index(op.f("ix_candidates_made_us_id"), "candidates", ["made_us", "id"], unique=False)
    op.create_index(op.f("ix_candidates_standing_made_us_id"), "candidates", ["standing", "made_us", "id"], unique=False)
    op.create_index(op.f("ix_candidates_name_made_us"), "candidates", ["name", "made_us"], unique=False)
    op.create_table(
        "lessons",
        sa.Column("candidate", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["candidate"], ["candidates.id"], name=op.f("fk_lessons_candidate"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("candidate", "turn", name=op.f("pk_lessons")),
    )
    op.create_index(op.f("ix_lessons_turn"), "lessons", ["turn"], unique=False)
    op.create_table(
        "unwritten",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["generation"], ["generations.number"], name=op.f("fk_unwritten_generation")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_unwritten")),
    )


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.CheckConstraint("policy_version >= 0", name=op.f("ck_batches_versions_count_from_zero")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_batches")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "batch_turns",
        sa.Column("turn", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("batch", _SERIAL, nullable=False),
        sa.ForeignKeyConstraint(["turn"], ["turns.seq"], name=op.f("fk_batch_turns_turn"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["batch"], ["batches.seq"], name=op.f("fk_batch_turns_batch")),
        sa.PrimaryKeyConstraint("turn", name=op.f("pk_batch_turns")),
    )
    op.create_index(op.f("ix_batch_turns_batch"), "batch_turns", ["batch"], unique=False)


def _create_marks() -> None:
    op.create_table(
        "cursors",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_cursors")),
    )
    op.create_table(
        "uses",
        sa.Column("skill", sa.Text(), nullable=False),
        sa.Column("last_us", sa.BigInteger(), nullable=False),
        sa.Column("times", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("times >= 0", name=op.f("ck_uses_times_are_counted")),
        sa.PrimaryKeyConstraint("skill", name=op.f("pk_uses")),
    )
    op.create_table(
        "forgotten",
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("batch", _SERIAL, nullable=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("turn", name=op.f("pk_forgotten")),
    )
    op.create_index(op.f("ix_forgotten_session"), "forgotten", ["session"], unique=False)


def _bind_to_turns(table: str) -> None:
    """Never edited, and gone only with its turn, whose row is gone already when the deletion comes down to this one."""
    edited, orphaned = f"a row of {table} is never edited", f"a row of {table} is forgotten only with its turn"
    _refuse(f"{table}_are_final", f"BEFORE UPDATE ON {table}", [("TRUE", edited)])
    _refuse(
        f"{table}_go_with_their_turn",
        f"BEFORE DELETE ON {table}",
        [("EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn)", orphaned)],
    )


def _give_roles_once() -> None:
    """The keys forbid a second row; but SQLite's INSERT OR REPLACE takes the first one away, which the keys do not see."""
    _refuse("roles_are_given_once", "BEFORE INSERT ON roles", [_repeated("roles", "a turn has one role for ever")])
    if _is_sqlite():
        repeated = "EXISTS (SELECT 1 FROM verdicts WHERE seq = NEW.seq)"
        _refuse("verdicts_are_kept", "BEFORE INSERT ON verdicts", [(repeated, "a row of verdicts is never edited")])
        # Not asked when a turn is recorded, which would cost a tenth of that: with recursive triggers a replacement is a deletion.
        is_whole = "EXISTS (SELECT 1 FROM payloads WHERE turn = OLD.seq)"
        _refuse("turns_are_kept", "BEFORE DELETE ON turns", [(is_whole, "a turn is forgotten with its body, never replaced")])


def _repeated(table: str, words: str) -> tuple[str, str]:
    return f"EXISTS (SELECT 1 FROM {table} WHERE turn = NEW.turn)", words


_IS_SUPPORT = ("EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn AND kind = 'support')", "a turn that fed a skill never trains")
_IS_OF_ITS_TIME = "(SELECT generation FROM turns WHERE seq = NEW.turn) = (SELECT max(number) FROM generations)"
_IS_OLD = (f"COALESCE(NOT {_IS_OF_ITS_TIME}, TRUE)", "a turn made with other skills than the newest generation does not train")
_GIVE_ROLE = """
    INSERT INTO roles (turn, kind, generation) SELECT seq, 'query', generation FROM turns
    WHERE seq = NEW.turn AND NOT EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn)"""


def _separate() -> None:
    """A batch takes only turns that may train, and what trains is a query for ever."""
    cases = [_repeated("batch_turns", "a turn teaches once"), _IS_SUPPORT, _IS_OLD]
    if _is_sqlite():
        _refuse("batch_turns_may_train", "BEFORE INSERT ON batch_turns", cases)
        op.execute(f"CREATE TRIGGER batch_turns_are_query AFTER INSERT ON batch_turns BEGIN {_GIVE_ROLE}; END")
        return
    # Against others who write at this moment: a publication waits for us or we for it; and whether a turn has a role is asked once,
    # so that a role which somebody else gives after that is a violation of the key and not overlooked.
    op.execute(f"""CREATE FUNCTION batch_turns_may_train() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE has_role boolean;
        BEGIN
            PERFORM 1 FROM generations WHERE number = 0 FOR SHARE;
            has_role := EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn);
            {"".join(_raising(condition, words) for condition, words in cases)}
            IF NOT has_role THEN
                INSERT INTO roles (turn, kind, generation) SELECT seq, 'query', generation FROM turns WHERE seq = NEW.turn;
            END IF;
            RETURN NEW;
        END $$""")
    op.execute(
        "CREATE TRIGGER batch_turns_may_train BEFORE INSERT ON batch_turns FOR EACH ROW EXECUTE FUNCTION batch_turns_may_train()"
    )


def _is_sqlite() -> bool:
    return op.get_bind().dialect.name == "sqlite"


def _refuse(name: str, when: str, cases: list[tuple[str, str]]) -> None:
    """A trigger that refuses a row if one of the conditions holds, with that condition's words."""
    if _is_sqlite():
        body = "".join(f"SELECT RAISE(ABORT, '{words}') WHERE {condition};" for condition, words in cases)
        op.execute(f"CREATE TRIGGER {name} {when} BEGIN {body} END")
        return
    body = "".join(_raising(condition, words) for condition, words in cases)
    row = "OLD" if "DELETE" in when else "NEW"
    op.execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN {row}; END $$")
    op.execute(f"CREATE TRIGGER {name} {when} FOR EACH ROW EXECUTE FUNCTION {name}()")


def _raising(condition: str, words: str) -> str:
    return f"IF {condition} THEN RAISE EXCEPTION '{words}' USING ERRCODE = 'restrict_violation'; END IF; "
