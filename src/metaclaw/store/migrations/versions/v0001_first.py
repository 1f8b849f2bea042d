"""The first schema: sessions, turns and their bytes and tokens, skill generations, events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_EMPTY_LIBRARY = "cae66941d9efbd404e4d88758ea67670"


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "generations",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("published_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("number >= 0", name=op.f("ck_generations_numbers_count_from_zero")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_generations")),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("workspace_id", sa.Text(), nullable=True),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("began_us", sa.BigInteger(), nullable=False),
        sa.Column("last_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("main_turns", sa.Integer(), nullable=False),
        sa.CheckConstraint("(ended_us IS NULL) = (end_reason IS NULL)", name=op.f("ck_sessions_an_end_has_a_reason")),
        sa.CheckConstraint("last_us >= began_us", name=op.f("ck_sessions_time_runs_forward")),
        sa.CheckConstraint("turns >= 1 AND main_turns >= 0 AND main_turns <= turns", name=op.f("ck_sessions_turns_are_counted")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_table(
        "skill_texts",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=True),
        sa.Column("scope", sa.Text(), nullable=True),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.CheckConstraint("length(hash) = 16", name=op.f("ck_skill_texts_hash_is_16_bytes")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_skill_texts")),
    )
    op.create_table(
        "snippets",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("length(hash) = 16", name=op.f("ck_snippets_hash_is_16_bytes")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_snippets")),
    )
    op.create_table(
        "memberships",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("since", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("until", sa.Integer(), nullable=True),
        sa.Column("skill", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("until IS NULL OR until > since", name=op.f("ck_memberships_time_runs_forward")),
        sa.ForeignKeyConstraint(["since"], ["generations.number"], name=op.f("fk_memberships_since")),
        sa.ForeignKeyConstraint(["skill"], ["skill_texts.hash"], name=op.f("fk_memberships_skill")),
        sa.ForeignKeyConstraint(["until"], ["generations.number"], name=op.f("fk_memberships_until")),
        sa.PrimaryKeyConstraint("name", "since", name=op.f("pk_memberships")),
    )
    op.create_index(
        "uq_memberships_live_name",
        "memberships",
        ["name"],
        unique=True,
        sqlite_where=sa.text("until IS NULL"),
        postgresql_where=sa.text("until IS NULL"),
    )
    op.create_table(
        "placements",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("previous", sa.LargeBinary(), nullable=True),
        sa.Column("anchor", sa.LargeBinary(), nullable=False),
        sa.Column("skills", sa.Text(), nullable=False),
        sa.Column("snippet", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("length(hash) = 16", name=op.f("ck_placements_hash_is_16_bytes")),
        sa.ForeignKeyConstraint(["previous"], ["placements.hash"], name=op.f("fk_placements_previous")),
        sa.ForeignKeyConstraint(["snippet"], ["snippets.hash"], name=op.f("fk_placements_snippet")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_placements")),
    )
    op.create_table(
        "splices",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("previous", sa.LargeBinary(), nullable=True),
        sa.Column("at_byte", sa.BigInteger(), nullable=False),
        sa.Column("snippet", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("at_byte >= 0", name=op.f("ck_splices_at_byte_is_inside")),
        sa.CheckConstraint("length(hash) = 16", name=op.f("ck_splices_hash_is_16_bytes")),
        sa.ForeignKeyConstraint(["previous"], ["splices.hash"], name=op.f("fk_splices_previous")),
        sa.ForeignKeyConstraint(["snippet"], ["snippets.hash"], name=op.f("fk_splices_snippet")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_splices")),
    )
    op.create_table(
        "turns",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("kind_reason", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("workspace_id", sa.Text(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("library_hash", sa.Text(), nullable=False),
        sa.Column("skills", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("wire", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("provider_wire", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("finish", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_write_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.Column("received_us", sa.BigInteger(), nullable=False),
        sa.Column("first_byte_s", sa.Double(), nullable=True),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("retry_of", sa.Text(), nullable=True),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        sa.Column("placements", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint("kind IN ('main', 'side')", name=op.f("ck_turns_kind_is_known")),
        sa.CheckConstraint("outcome IN ('completed', 'failed', 'cancelled')", name=op.f("ck_turns_outcome_is_known")),
        sa.CheckConstraint(
            "(input_tokens IS NULL) = (output_tokens IS NULL) AND (input_tokens IS NULL) = (cached_tokens IS NULL)"
            " AND (input_tokens IS NULL) = (cache_write_tokens IS NULL) AND (input_tokens IS NULL) = (reasoning_tokens IS NULL)",
            name=op.f("ck_turns_usage_is_whole_or_absent"),
        ),
        sa.CheckConstraint(
            "generation >= 0 AND policy_version >= 0 AND segment >= 0", name=op.f("ck_turns_clocks_count_from_zero")
        ),
        sa.ForeignKeyConstraint(["placements"], ["placements.hash"], name=op.f("fk_turns_placements")),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name=op.f("fk_turns_session")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_turns")),
        sa.UniqueConstraint("id", name=op.f("uq_turns_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_turns_session_seq"), "turns", ["session", "seq"], unique=False)
    op.create_table(
        "payloads",
        sa.Column("turn", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("base", _SERIAL, nullable=True),
        sa.Column("link", sa.SmallInteger(), nullable=False),
        sa.Column("prefix", sa.BigInteger(), nullable=False),
        sa.Column("suffix", sa.BigInteger(), nullable=False),
        sa.Column("middle", sa.LargeBinary(), nullable=False),
        sa.Column("splices", sa.LargeBinary(), nullable=True),
        sa.Column("said", sa.LargeBinary(), nullable=False),
        sa.Column("seen", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint(
            "(base IS NULL) = (link = 0) AND (base IS NULL OR base < turn)", name=op.f("ck_payloads_a_patch_has_an_earlier_base")
        ),
        sa.CheckConstraint("link >= 0 AND link < 32", name=op.f("ck_payloads_rebuilding_is_bounded")),
        sa.CheckConstraint(
            "prefix >= 0 AND suffix >= 0 AND (base IS NOT NULL OR prefix + suffix = 0)",
            name=op.f("ck_payloads_a_whole_body_borrows_nothing"),
        ),
        sa.ForeignKeyConstraint(["base"], ["payloads.turn"], name=op.f("fk_payloads_base")),
        sa.ForeignKeyConstraint(["splices"], ["splices.hash"], name=op.f("fk_payloads_splices")),
        sa.ForeignKeyConstraint(["turn"], ["turns.seq"], name=op.f("fk_payloads_turn")),
        sa.PrimaryKeyConstraint("turn", name=op.f("pk_payloads")),
    )
    op.create_table(
        "tokens",
        sa.Column("turn", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("sampled_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("length(logprobs) = 2 * length(sampled_ids)", name=op.f("ck_tokens_each_token_has_a_logprob")),
        sa.CheckConstraint("length(prompt_ids) % 4 = 0 AND length(sampled_ids) % 4 = 0", name=op.f("ck_tokens_ids_are_int32")),
        sa.ForeignKeyConstraint(["turn"], ["turns.seq"], name=op.f("fk_tokens_turn")),
        sa.PrimaryKeyConstraint("turn", name=op.f("pk_tokens")),
    )
    op.create_table(
        "translations",
        sa.Column("turn", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("base", _SERIAL, nullable=True),
        sa.Column("link", sa.SmallInteger(), nullable=False),
        sa.Column("prefix", sa.BigInteger(), nullable=False),
        sa.Column("suffix", sa.BigInteger(), nullable=False),
        sa.Column("middle", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint(
            "(base IS NULL) = (link = 0) AND (base IS NULL OR base < turn)",
            name=op.f("ck_translations_a_patch_has_an_earlier_base"),
        ),
        sa.CheckConstraint("link >= 0 AND link < 32", name=op.f("ck_translations_rebuilding_is_bounded")),
        sa.CheckConstraint(
            "prefix >= 0 AND suffix >= 0 AND (base IS NOT NULL OR prefix + suffix = 0)",
            name=op.f("ck_translations_a_whole_body_borrows_nothing"),
        ),
        sa.ForeignKeyConstraint(["base"], ["translations.turn"], name=op.f("fk_translations_base")),
        sa.ForeignKeyConstraint(["turn"], ["turns.seq"], name=op.f("fk_translations_turn")),
        sa.PrimaryKeyConstraint("turn", name=op.f("pk_translations")),
    )
    generations = sa.table("generations", sa.column("number"), sa.column("hash"), sa.column("reason"), sa.column("published_us"))
    op.bulk_insert(generations, [{"number": 0, "hash": _EMPTY_LIBRARY, "reason": "nothing learned yet", "published_us": 0}])
    for table in ("turns", "payloads", "translations", "tokens"):
        _forbid_changes(table)


def _forbid_changes(table: str) -> None:
    """What is recorded of a turn may be forgotten as a whole, never edited."""
    words = f"a row of {table} is never edited"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER {table}_are_final BEFORE UPDATE ON {table} BEGIN SELECT RAISE(ABORT, '{words}'); END")
        return
    raising = f"BEGIN RAISE EXCEPTION '{words}' USING ERRCODE = 'restrict_violation'; END"
    op.execute(f"CREATE FUNCTION {table}_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ {raising} $$")
    op.execute(f"CREATE TRIGGER {table}_are_final BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_are_final()")
