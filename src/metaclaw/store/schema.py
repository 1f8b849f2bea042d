"""The tables, as SQLAlchemy Core sees them; the database itself is made and changed only by `migration`.

Instants are whole microseconds since 1970 in UTC (`_us`), names and free text are packed by `column_values.pack_text`, bytes are
bytes. `seq` numbers are given by the database, grow, and are never given again: they are the cursors readers resume from.
Rows about a turn are never updated (triggers see to it); what a turn later turns out to be (a verdict, a role) comes as a
table of its own that points at `turns.seq`: those are in `learning_schema`.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    column,
    false,
    table,
)

MAX_LINKS = 32
"""A request is rebuilt from at most this many rows."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Serial = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only in a column spelled INTEGER."""

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("key", Text),
    Column("agent", Text, nullable=False),
    Column("user_id", Text),
    Column("workspace_id", Text),
    # No foreign key: a sub-agent's first turn may end before its parent's does.
    Column("parent", Text),
    Column("began_us", BigInteger, nullable=False),
    Column("last_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger),
    Column("end_reason", Text),
    Column("turns", Integer, nullable=False),
    Column("main_turns", Integer, nullable=False),
    CheckConstraint("last_us >= began_us", name="time_runs_forward"),
    CheckConstraint("(ended_us IS NULL) = (end_reason IS NULL)", name="an_end_has_a_reason"),
    CheckConstraint("turns >= 1 AND main_turns >= 0 AND main_turns <= turns", name="turns_are_counted"),
)

# One row each time a session ends; one that is opened again may end again.
session_ends = Table(
    "session_ends",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("session", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Index(None, "session"),
    sqlite_autoincrement=True,
)

snippets = Table(
    "snippets",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    CheckConstraint("length(hash) = 16", name="hash_is_16_bytes"),
)

# A tuple of placements is the row of its last one: each row names the row before it, and tuples that begin alike share rows.
# What is called `hash` begins with the time here (see `addresses`).
placements = Table(
    "placements",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("previous", LargeBinary, ForeignKey("placements.hash")),
    Column("anchor", LargeBinary, nullable=False),
    Column("skills", Text, nullable=False),
    Column("snippet", LargeBinary, ForeignKey("snippets.hash"), nullable=False),
    CheckConstraint("length(hash) = 16", name="hash_is_16_bytes"),
    Index(None, "previous"),
    Index(None, "snippet"),
)

splices = Table(
    "splices",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("previous", LargeBinary, ForeignKey("splices.hash")),
    Column("at_byte", BigInteger, nullable=False),
    Column("snippet", LargeBinary, ForeignKey("snippets.hash"), nullable=False),
    CheckConstraint("length(hash) = 16", name="hash_is_16_bytes"),
    CheckConstraint("at_byte >= 0", name="at_byte_is_inside"),
    Index(None, "previous"),
    Index(None, "snippet"),
)

turns = Table(
    "turns",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False),
    Column("session", Text, ForeignKey("sessions.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("kind_reason", Text, nullable=False),
    Column("user_id", Text),
    Column("workspace_id", Text),
    # No foreign key to generations: a turn served while a publication failed must still be kept.
    Column("generation", Integer, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("library_hash", Text, nullable=False),
    Column("skills", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("wire", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("model", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("provider_wire", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("error", Text),
    Column("finish", Text),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("received_us", BigInteger, nullable=False),
    Column("first_byte_s", Double),
    Column("duration_s", Double, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("retry_of", Text),
    Column("parent", Text),
    Column("key", Text),
    Column("head", LargeBinary, nullable=False),
    Column("placements", LargeBinary, ForeignKey("placements.hash")),
    UniqueConstraint("id"),
    CheckConstraint("kind IN ('main', 'side')", name="kind_is_known"),
    CheckConstraint("outcome IN ('completed', 'failed', 'cancelled')", name="outcome_is_known"),
    CheckConstraint("generation >= 0 AND policy_version >= 0 AND segment >= 0", name="clocks_count_from_zero"),
    CheckConstraint(
        "(input_tokens IS NULL) = (output_tokens IS NULL) AND (input_tokens IS NULL) = (cached_tokens IS NULL)"
        " AND (input_tokens IS NULL) = (cache_write_tokens IS NULL) AND (input_tokens IS NULL) = (reasoning_tokens IS NULL)",
        name="usage_is_whole_or_absent",
    ),
    Index(None, "session", "seq"),
    sqlite_autoincrement=True,
)
# PostgreSQL's indices have the same conditions, from `migrations/`; to say so here would import its dialect at every start.
# Who else uses this? Asked when something is forgotten; without an index every answer would be a walk through the whole table.
Index("ix_turns_placements", turns.c.placements, sqlite_where=turns.c.placements.is_not(None))


def _body_columns(table: str) -> list[Column[int] | Column[bytes] | CheckConstraint]:
    """A body, whole (base absent) or as what differs from the body of an earlier turn, `link` steps from a whole one."""
    return [
        Column("turn", Serial, ForeignKey("turns.seq"), primary_key=True, autoincrement=False),
        Column("base", Serial, ForeignKey(f"{table}.turn")),
        Column("link", SmallInteger, nullable=False),
        Column("prefix", BigInteger, nullable=False),
        Column("suffix", BigInteger, nullable=False),
        Column("middle", LargeBinary, nullable=False),
        CheckConstraint("(base IS NULL) = (link = 0) AND (base IS NULL OR base < turn)", name="a_patch_has_an_earlier_base"),
        CheckConstraint(f"link >= 0 AND link < {MAX_LINKS}", name="rebuilding_is_bounded"),
        CheckConstraint(
            "prefix >= 0 AND suffix >= 0 AND (base IS NOT NULL OR prefix + suffix = 0)", name="a_whole_body_borrows_nothing"
        ),
    ]


payloads = Table(
    "payloads",
    metadata,
    *_body_columns("payloads"),
    Column("splices", LargeBinary, ForeignKey("splices.hash")),
    Column("said", LargeBinary, nullable=False),
    Column("seen", LargeBinary),
)

translations = Table("translations", metadata, *_body_columns("translations"))

Index("ix_payloads_base", payloads.c.base, sqlite_where=payloads.c.base.is_not(None))
Index("ix_payloads_splices", payloads.c.splices, sqlite_where=payloads.c.splices.is_not(None))
Index("ix_translations_base", translations.c.base, sqlite_where=translations.c.base.is_not(None))

tokens = Table(
    "tokens",
    metadata,
    Column("turn", Serial, ForeignKey("turns.seq"), primary_key=True, autoincrement=False),
    Column("prompt_ids", LargeBinary, nullable=False),
    Column("sampled_ids", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary, nullable=False),
    CheckConstraint("length(prompt_ids) % 4 = 0 AND length(sampled_ids) % 4 = 0", name="ids_are_int32"),
    CheckConstraint("length(logprobs) = 2 * length(sampled_ids)", name="each_token_has_a_logprob"),
)


def _turn_column(name: str = "turn", *, is_key: bool = True) -> Column[int]:
    reference = ForeignKey("turns.seq", ondelete="CASCADE")
    return Column(name, Serial, reference, primary_key=is_key, autoincrement=False, nullable=False)


# The rules that held calls of a turn's answer back, the turns that are attempts at it, and what the provider really said.
held_rules = Table(
    "held_rules",
    metadata,
    _turn_column(),
    Column("place", SmallInteger, primary_key=True, autoincrement=False),
    Column("rule", Text, nullable=False),
    Column("attempts", SmallInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("reason", Text, nullable=False),
    CheckConstraint("outcome IN ('complied', 'stopped', 'warned')", name="outcome_is_known"),
    Index(None, "rule"),
)

turn_attempts = Table(
    "turn_attempts",
    metadata,
    _turn_column(),
    _turn_column("parent", is_key=False),
    Column("place", SmallInteger, nullable=False),
    Index(None, "parent"),
)

true_answers = Table(
    "true_answers",
    metadata,
    _turn_column(),
    Column("wire", Text, nullable=False),
    Column("calls", Text, nullable=False),
    Column("mark", Text, nullable=False),
    Column("answer_id", Text, nullable=False),
    Column("last_id", Text, nullable=False),
    Column("messages", LargeBinary, nullable=False),
    Column("rest", LargeBinary, nullable=False),
)

generations = Table(
    "generations",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("hash", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("published_us", BigInteger, nullable=False),
    # Set where the program published by itself: the newest generation of its evidence, and the candidate it put in force.
    Column("learned_in", Integer),
    Column("candidate", Text),
    # Set where a person reverted to an earlier generation.
    Column("reverted_to", Integer),
    CheckConstraint("number >= 0", name="numbers_count_from_zero"),
)
Index("ix_generations_reverts", generations.c.number, sqlite_where=generations.c.reverted_to.is_not(None))

skill_texts = Table(
    "skill_texts",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("name", Text, nullable=False),
    Column("trigger", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("category", Text),
    Column("scope", Text),
    Column("extra", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="live"),
    Column("author", Text, nullable=False, server_default="person"),
    Column("pinned", Boolean, nullable=False, server_default=false()),
    CheckConstraint("length(hash) = 16", name="hash_is_16_bytes"),
)

# A skill is live in generations `since` ≤ n < `until`, so that a publication writes only what changed.
memberships = Table(
    "memberships",
    metadata,
    Column("name", Text, primary_key=True),
    Column("since", Integer, ForeignKey("generations.number"), primary_key=True, autoincrement=False),
    Column("until", Integer, ForeignKey("generations.number")),
    Column("skill", LargeBinary, ForeignKey("skill_texts.hash"), nullable=False),
    CheckConstraint("until IS NULL OR until > since", name="time_runs_forward"),
)
Index(
    "uq_memberships_live_name",
    memberships.c.name,
    unique=True,
    sqlite_where=memberships.c.until.is_(None),
)

# The rules and skills for one audience (see `domain.audience`) as a hash, in generations `since` ≤ n < `until`. The view
# `current_turns` compares the hashes of a turn's generation with the newest: those of its speaker are equal for a current turn.
scope_libraries = Table(
    "scope_libraries",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("workspace", Text, primary_key=True),
    Column("since", Integer, ForeignKey("generations.number"), primary_key=True, autoincrement=False),
    Column("until", Integer, ForeignKey("generations.number")),
    Column("hash", Text, nullable=False),
    CheckConstraint("until IS NULL OR until > since", name="time_runs_forward"),
)

# The configured teams, for `current_turns`.
team_members = Table(
    "team_members",
    metadata,
    Column("member", Text, primary_key=True),
    Column("team", Text, primary_key=True),
)

current_turns = table("current_turns", column("turn", BigInteger))
"""A view: the turns whose speaker has today the rules and skills they had when the turn was made."""

events = Table(
    "events",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("at_us", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", Text, nullable=False),
    sqlite_autoincrement=True,
)

# Backups that were made of this database, so that forgetting can name those that may still hold what was forgotten.
backups = Table(
    "backups",
    metadata,
    Column("path", Text, primary_key=True),
    Column("made_us", BigInteger, nullable=False),
)
