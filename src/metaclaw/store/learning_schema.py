"""The tables of what is learned: verdicts and roles that point at turns, draws, candidates, batches, policies, uses,
spending, the forgotten.

Verdicts, roles, draws and the turns of a batch are never edited and go only with their turn: triggers of `migrations/` see to it.
So do they to the separation of support and query: the database itself refuses a batch with a turn that fed a skill, that was made
with other rules or skills than its speaker has now, or that is in another open batch, and gives every turn of a batch the role of a
query, for ever. A turn may be in several batches, one after the other: its answers are drawn anew each time.
A batch ends once, and only of one that is done comes a version, one at most; what a version is made of is never edited.
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
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    and_,
    literal_column,
    text,
)

from metaclaw.store.schema import Serial, metadata


def _turn(*, is_key: bool = False) -> Column[int]:
    return Column(
        "turn", Serial, ForeignKey("turns.seq", ondelete="CASCADE"), primary_key=is_key, autoincrement=False, nullable=False
    )


verdicts = Table(
    "verdicts",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    _turn(),
    Column("at_us", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("p_fail", Double),
    Column("signals", Text, nullable=False),
    Column("votes", Text),
    Column("fault", Text),
    Column("comment", Text, nullable=False),
    CheckConstraint("outcome IN ('pass', 'fail', 'unknown')", name="outcome_is_known"),
    CheckConstraint("p_fail >= 0 AND p_fail <= 1", name="p_fail_is_a_probability"),
    CheckConstraint("(outcome = 'fail') = (fault IS NOT NULL)", name="a_failure_has_somebody_at_fault"),
    Index(None, "turn"),
    sqlite_autoincrement=True,
)

# Which of a turn's verdicts stands, with what is asked of many turns at once.
stands = Table(
    "stands",
    metadata,
    _turn(is_key=True),
    Column("verdict", Serial, ForeignKey("verdicts.seq", ondelete="CASCADE"), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("fault", Text),
    UniqueConstraint("verdict"),
    Index(None, "outcome"),
)
IS_LESSON = and_(
    stands.c.outcome == literal_column("'fail'"),
    stands.c.fault == literal_column("'agent'"),
    stands.c.kind == literal_column("'main'"),
)
"""Whether a turn may feed a skill (`Verdict.teaches`, of a main turn); in these very words the index below is found."""
Index("ix_stands_lessons", stands.c.generation, stands.c.turn, sqlite_where=IS_LESSON)

attempts = Table(
    "attempts",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("at_us", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    # When nothing more will come of it; an attempt without this was interrupted.
    Column("ended_us", BigInteger),
    sqlite_autoincrement=True,
)
Index("ix_attempts_open", attempts.c.seq, sqlite_where=attempts.c.ended_us.is_(None))

roles = Table(
    "roles",
    metadata,
    _turn(is_key=True),
    Column("kind", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("attempt", Serial, ForeignKey("attempts.seq")),
    CheckConstraint("kind IN ('support', 'query')", name="kind_is_known"),
    CheckConstraint("generation >= 0", name="generations_count_from_zero"),
    CheckConstraint("attempt IS NULL OR kind = 'support'", name="a_query_turn_fed_no_attempt"),
    Index(None, "kind"),
)

draws = Table(
    "draws",
    metadata,
    _turn(is_key=True),
    Column("place", SmallInteger, primary_key=True, autoincrement=False),
    Column("skill", Text, nullable=False),
    Column("placed", Boolean, nullable=False),
    Column("propensity", Double, nullable=False),
    Index(None, "skill", "turn"),
)

candidates = Table(
    "candidates",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("change", Text, nullable=False),
    Column("proposal", Text, nullable=False),
    Column("standing", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("made_us", BigInteger, nullable=False),
    Column("certificate", Text),
    CheckConstraint("standing IN ('draft', 'shadow', 'waiting', 'accepted', 'rejected')", name="standing_is_known"),
    Index(None, "made_us", "id"),
    Index(None, "standing", "made_us", "id"),
    Index(None, "name", "made_us"),
)

# By the turn's id, not its number: what a candidate was taught by is known after the turn itself is forgotten.
lessons = Table(
    "lessons",
    metadata,
    Column("candidate", Text, ForeignKey("candidates.id", ondelete="CASCADE"), primary_key=True),
    Column("turn", Text, primary_key=True),
    Index(None, "turn"),
)

unwritten = Table(
    "unwritten",
    metadata,
    Column("name", Text, primary_key=True),
    Column("generation", Integer, ForeignKey("generations.number"), nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("at_us", BigInteger, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column(
        "state",
        Text,
        CheckConstraint("state IN ('open', 'done', 'dropped')", name="state_is_known"),
        nullable=False,
        server_default="open",
    ),
    Column("generation", Integer, nullable=False, server_default=text("0")),
    Column("seed", BigInteger, nullable=False, server_default=text("0")),
    # How many turns it had when it was opened: some may be forgotten since.
    Column("size", Integer, nullable=False, server_default=text("0")),
    Column("note", Text, nullable=False, server_default=""),
    Column(
        "ended_us",
        BigInteger,
        CheckConstraint("(state = 'open') = (ended_us IS NULL)", name="what_ended_says_when"),
    ),
    CheckConstraint("policy_version >= 0", name="versions_count_from_zero"),
    sqlite_autoincrement=True,
)
Index("ix_batches_open", batches.c.seq, sqlite_where=batches.c.ended_us.is_(None))

batch_turns = Table(
    "batch_turns",
    metadata,
    _turn(is_key=True),
    Column("batch", Serial, ForeignKey("batches.seq"), primary_key=True, autoincrement=False, nullable=False),
    Index(None, "batch"),
)

policies = Table(
    "policies",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    # No foreign key: 0 is the untrained model, which has no row.
    Column("parent", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("adapter", Text, nullable=False),
    Column("training", Text),
    Column("base", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("batch", Serial, ForeignKey("batches.seq")),
    Column("steps", Integer, nullable=False),
    Column("report", Text),
    Column("note", Text, nullable=False),
    Column("absorbed", Text, nullable=False),
    Column("made_us", BigInteger, nullable=False),
    # When its state last changed, and after which turn: what it did since is read from there on.
    Column("state_us", BigInteger, nullable=False),
    Column("state_turn", BigInteger, nullable=False),
    # When it first served; a version without this is never rolled back to.
    Column("served_us", BigInteger),
    # When its weights were thrown away.
    Column("gone_us", BigInteger),
    UniqueConstraint("batch"),
    CheckConstraint("number > 0 AND parent >= 0 AND parent < number", name="a_version_has_an_earlier_parent"),
    CheckConstraint("generation >= 0 AND steps >= 0", name="clocks_count_from_zero"),
    CheckConstraint(
        "state IN ('candidate', 'rejected', 'canary', 'serving', 'retired', 'rolled back')",
        name="state_is_known",
    ),
    CheckConstraint("state <> 'serving' OR served_us IS NOT NULL", name="what_serves_has_served"),
    CheckConstraint("gone_us IS NULL OR state NOT IN ('candidate', 'canary', 'serving')", name="what_is_needed_is_kept"),
)
for _state in ("serving", "canary"):
    Index(f"uq_policies_{_state}", policies.c.state, unique=True, sqlite_where=policies.c.state == literal_column(f"'{_state}'"))

cursors = Table(
    "cursors",
    metadata,
    Column("name", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
)

# When a skill last matched a task (placed, or withheld by chance), and in how many turns; to notice unused ones.
uses = Table(
    "uses",
    metadata,
    Column("skill", Text, primary_key=True),
    Column("last_us", BigInteger, nullable=False),
    Column("times", BigInteger, nullable=False),
    CheckConstraint("times >= 0", name="times_are_counted"),
)

# How often a rule, or a skill with a check, was followed: `times` counts the rows of `rule_results`, which triggers see to.
# `hash` is that of its text and check; `reminder` says whether the prompt ended with a reminder of it, or would have.
rule_counts = Table(
    "rule_counts",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("rule", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("day", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("reminder", Text, nullable=False),
    Column("times", BigInteger, nullable=False),
    UniqueConstraint("rule", "hash", "agent", "model", "day", "result", "reminder"),
    CheckConstraint("result IN ('followed', 'broken', 'held', 'unknown')", name="result_is_known"),
    CheckConstraint("reminder IN ('', 'placed', 'withheld')", name="reminder_is_known"),
    CheckConstraint("times >= 0", name="times_are_counted"),
    sqlite_autoincrement=True,
)

# What each turn came to for each rule that applied to it. `reason` says why, where a rule was broken.
rule_results = Table(
    "rule_results",
    metadata,
    _turn(is_key=True),
    Column(
        "count", Serial, ForeignKey("rule_counts.seq", ondelete="CASCADE"), primary_key=True, autoincrement=False, nullable=False
    ),
    Column("reason", Text),
    Index(None, "count", "turn"),
)

# What calls to models cost, in sums. `item` is the name of a skill or rule, empty where the calls were made for none.
spending = Table(
    "spending",
    metadata,
    Column("day", Text, primary_key=True),
    Column("purpose", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("item", Text, primary_key=True),
    Column("turns", BigInteger, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("failures", BigInteger, nullable=False),
    Column("estimated", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("unpriced_tokens", BigInteger, nullable=False),
    Column("cost", Double, nullable=False),
)
Index("ix_spending_item", spending.c.item, sqlite_where=spending.c.item != literal_column("''"))

# Turns a person wanted forgotten: their names only, so that nothing is learned from them afterwards.
forgotten = Table(
    "forgotten",
    metadata,
    Column("turn", Text, primary_key=True),
    Column("session", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Index(None, "session"),
)

# The batches in which a forgotten turn was.
forgotten_batches = Table(
    "forgotten_batches",
    metadata,
    Column("turn", Text, ForeignKey("forgotten.turn"), primary_key=True),
    Column("batch", Serial, ForeignKey("batches.seq"), primary_key=True, autoincrement=False),
    Index(None, "batch"),
)
