"""Forgetting: a session goes with everything that is known of it, and nothing else is harmed."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import msgspec
import pytest
from sqlalchemy import text

from metaclaw.domain.candidate import Candidate, CandidateId, Change, Proposal, Standing
from metaclaw.domain.front_matter import SkillRecord
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Authorship, LearnedFrom, Rule, Skill
from metaclaw.domain.turn import Exchange, Placement, Splice, Stamp, Turn, TurnKind
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.skills import render_block
from metaclaw.store import (
    Database,
    DerivedData,
    LedgerCounts,
    LedgerLimits,
    LedgerReader,
    RefusedError,
    SqlBatches,
    SqlCandidates,
    SqlForgetting,
    SqlGenerations,
    SqlLedger,
    SqlVerdicts,
    open_database,
)
from metaclaw.store.turn_writer import TurnWriter

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NOW = Stamp(0, 0, "", ())
ABOUT_TURNS = (
    *(
        "sessions",
        "turns",
        "payloads",
        "translations",
        "tokens",
        "snippets",
        "placements",
        "splices",
    ),
    *("verdicts", "stands", "roles", "batch_turns"),
)


@pytest.fixture
def forgetting(database: Database) -> SqlForgetting:
    return SqlForgetting(database, clock=lambda: NOON)


def contents(database: Database) -> dict[str, int]:
    with database.reading("counting") as connection:
        return {
            table: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
            for table in ABOUT_TURNS
        }


async def record(ledger: SqlLedger, *turns: Turn) -> None:
    for turn in turns:
        assert await ledger.record(turn)


def failed(turn: Turn) -> Verdict:
    return Verdict(turn.id, Outcome.FAIL, Source.USER, 1.0, fault=Fault.AGENT, comment="no!")


def candidate(
    name: str,
    *support: Turn,
    standing: Standing = Standing.ACCEPTED,
    replaces: tuple[str, ...] = (),
) -> Candidate:
    skill = Skill(SkillName(name), "when", "do", author=Authorship.EVOLVER)
    change = Change.MERGE if replaces else Change.NEW
    replaced = tuple(SkillName(one) for one in replaces)
    proposal = Proposal(
        skill, change, replaced, tuple(turn.id for turn in support), "kind", "evolver"
    )
    return Candidate(CandidateId(f"c_{name}"), proposal, standing, "", 0, NOON)


def learned(*names: str, author: Authorship = Authorship.EVOLVER) -> list[Skill]:
    return [Skill(SkillName(name), "when", "do", author=author) for name in names]


async def test_nothing_of_a_forgotten_session_is_left_and_nothing_of_others_is_gone(
    ledger: SqlLedger,
    reader: LedgerReader,
    database: Database,
    forgetting: SqlForgetting,
    new_turn: TurnMaker,
) -> None:
    def turn(session: str, number: int) -> Turn:
        body = b"%s says the same again " % session.encode() * 20 * (number + 1)
        return new_turn(
            session,
            stamp=NOW,
            kind=TurnKind.SIDE if number % 3 == 2 else TurnKind.MAIN,
            exchange=Exchange(
                body, (Splice(1, b"shared"), Splice(2, session.encode())), body * 2, b"said"
            ),
            placements=(
                Placement(b"", (), "shared"),
                Placement(session.encode(), (), f"only {session}"),
            ),
        )

    kept = [turn("s_kept", number) for number in range(5)]
    await record(ledger, *kept)
    SqlVerdicts(database).record_verdict(failed(kept[0]))
    SqlCandidates(database).begin_attempt("kind", 0, [kept[0].id])
    before = contents(database)
    gone = [turn("s_gone", number) for number in range(100)]
    for one, other in zip(gone, [turn("s_kept", number) for number in range(5, 105)], strict=True):
        await record(ledger, one, *([other] if len(kept) < 8 else []))
        kept += [other] if len(kept) < 8 else []
    for one in gone:
        SqlVerdicts(database).record_verdict(failed(one))
    SqlCandidates(database).begin_attempt("kind", 0, [gone[1].id])
    batch = SqlBatches(database).open_batch(0, [gone[0].id, kept[1].id])
    assert forgetting.forget_session(SessionId("s_gone")) == 100
    assert forgetting.derived_data(SessionId("s_gone")) == DerivedData(batches=(batch,))
    more = 3
    assert contents(database) == before | {
        **{
            table: before[table] + more for table in ("turns", "payloads", "translations", "tokens")
        },
        **{"roles": 2, "batch_turns": 1},
    }
    assert reader.session(SessionId("s_gone")) is None
    assert [reader.turn(one.id) for one in gone] == [None] * 100
    assert reader.counts() == LedgerCounts(1, 8, sum(one.kind is TurnKind.MAIN for one in kept))
    for one in kept:
        found = reader.turn(one.id)
        assert found is not None
        assert found.turn == one
    assert SqlBatches(database).turns_of(batch) == [kept[1].id]


async def test_what_was_learned_from_a_session_is_told_and_told_again(
    ledger: SqlLedger, database: Database, forgetting: SqlForgetting, new_turn: TurnMaker
) -> None:
    mine, also_mine, others = (
        new_turn("s_1", stamp=NOW),
        new_turn("s_1", stamp=NOW),
        new_turn("s_2", stamp=NOW),
    )
    await record(ledger, mine, also_mine, others)
    store = SqlCandidates(database)
    made = [
        candidate("from-mine", mine),
        candidate("from-both", also_mine, others),
        candidate("from-others", others),
        candidate("rejected", mine, standing=Standing.REJECTED),
        candidate("waiting", also_mine, standing=Standing.WAITING),
        candidate("gone-from-the-library", mine),
        candidate("rewritten-by-hand", mine),
        candidate("merged", others, replaces=("from-mine", "from-others")),
        candidate("merged-again", others, replaces=("merged",)),
        candidate("of-the-rejected", others, replaces=("rejected",)),
    ]
    for number, one in enumerate(made):
        store.save_candidate(replace(one, made_at=NOON + timedelta(seconds=number)))
    live = learned("from-mine", "from-both", "from-others", "rejected", "merged-again")
    SqlGenerations(database).publish(
        [*live, *learned("rewritten-by-hand", author=Authorship.PERSON)], "learned"
    )
    assert forgetting.forget_session(SessionId("s_1")) == 2
    found = forgetting.derived_data(SessionId("s_1"))
    assert found.skills == ("from-both", "from-mine", "merged-again")
    assert found.candidates == tuple(
        f"c_{name}"
        for name in (
            *(
                "from-mine",
                "from-both",
                "rejected",
                "waiting",
                "gone-from-the-library",
                "rewritten-by-hand",
            ),
            *("merged", "merged-again"),
        )
    )
    assert forgetting.forget_session(SessionId("s_1")) == 0
    assert forgetting.derived_data(SessionId("s_1")) == found
    SqlGenerations(database).publish(learned("from-others", "rejected"), "retired")
    forgetting.erase("forgotten")
    assert {one.proposal.skill.name for one in store.candidates()} == {
        "from-others",
        "of-the-rejected",
    }
    first = SqlGenerations(database).at(1)
    assert first is not None
    assert {skill.name for skill in first.skills} == {
        "from-others",
        "rejected",
        "rewritten-by-hand",
    }
    assert forgetting.forget_session(SessionId("s_1")) == 0
    assert forgetting.derived_data(SessionId("s_1")) == DerivedData()


async def test_a_rule_whose_candidate_was_not_saved_before_a_crash_is_forgotten_by_the_turn_it_names(
    ledger: SqlLedger, database: Database, forgetting: SqlForgetting, new_turn: TurnMaker
) -> None:
    mine, others = new_turn("s_1", stamp=NOW), new_turn("s_2", stamp=NOW)
    await record(ledger, mine, others)
    rules: list[Skill] = []
    for turn in (mine, others):
        name = SkillName(f"from-{turn.session}".replace("_", "-"))
        rules.append(Rule(name, "always", "do", author=Authorship.INSTRUCTION, source=turn.id))
        resting_on = LearnedFrom(0, (turn.id,), CandidateId(f"c_{name}"))
        SqlGenerations(database).publish(rules, "noted", learned=resting_on)
    forgetting.forget_session(SessionId("s_1"))
    assert forgetting.derived_data(SessionId("s_1")).skills == ("from-s-1",)
    assert not forgetting.erase("forgotten")
    SqlGenerations(database).publish(rules[1:], "retired")
    assert forgetting.erase("forgotten")
    assert forgetting.derived_data().names == frozenset()
    kept = SqlGenerations(database).at(2)
    assert kept is not None
    assert [skill.name for skill in kept.skills] == ["from-s-2"]


@pytest.mark.parametrize("kind", ["rule", "skill"])
async def test_a_forgotten_rule_is_cleared_from_prompts_that_do_not_name_it_and_a_forgotten_skill_from_lists(
    ledger: SqlLedger,
    reader: LedgerReader,
    database: Database,
    forgetting: SqlForgetting,
    new_turn: TurnMaker,
    kind: str,
) -> None:
    mine = new_turn("s_1", stamp=NOW)
    await record(ledger, mine)
    SqlCandidates(database).save_candidate(candidate("from-mine", mine))
    own = SkillRecord(
        SkillName("from-mine"),
        "When asked",
        "Say xyzzy.",
        author=Authorship.EVOLVER,
        extra={"kind": kind},
    ).read()
    SqlGenerations(database).publish([own], "learned")
    block = render_block([own], 500) if kind == "rule" else render_block([], 500, listed=[own])
    assert "xyzzy" in block.text
    body = Splice(1, msgspec.json.encode(block.text)[1:-1])
    carrier = new_turn(
        "s_2",
        stamp=Stamp(1, 0, "", block.skills),
        exchange=Exchange(b"{}", (body,), None, b"said"),
        placements=(
            Placement(b"", block.skills, block.text, block.listed),
            Placement(b"later", (), "kept"),
        ),
    )
    await record(ledger, carrier)
    forgetting.forget_session(SessionId("s_1"))
    SqlGenerations(database).publish([], "retired")
    forgetting.erase("forgotten")
    found = reader.turn(carrier.id)
    assert found is not None
    assert [one.text for one in found.turn.placements] == ["", "kept"]
    assert b"xyzzy" not in found.turn.exchange.sent
    assert "from-mine" not in (
        *found.turn.placements[0].skills,
        *found.turn.listed,
        *found.turn.stamp.skills,
    )


async def test_nothing_is_learned_afterwards_from_what_was_forgotten(
    ledger: SqlLedger, database: Database, forgetting: SqlForgetting, new_turn: TurnMaker
) -> None:
    turn, other = new_turn("s_1", stamp=NOW), new_turn("s_2", stamp=NOW)
    await record(ledger, turn, other)
    store = SqlCandidates(database)
    on_its_way = candidate("on-its-way", turn, other, standing=Standing.DRAFT)
    store.save_candidate(on_its_way)
    forgetting.forget_session(SessionId("s_1"))
    with pytest.raises(RefusedError, match="was forgotten"):
        store.save_candidate(replace(on_its_way, standing=Standing.ACCEPTED))
    with pytest.raises(RefusedError, match="was forgotten"):
        SqlGenerations(database).publish(
            learned("on-its-way"), "learned", learned=LearnedFrom(0, (other.id, turn.id))
        )
    with database.reading("looking for its text") as connection:
        assert connection.execute(text("SELECT * FROM skill_texts")).all() == []
    forgetting.erase("forgotten")
    assert store.candidates() == []
    with pytest.raises(RefusedError):
        store.begin_attempt("kind", 0, [turn.id])
    with pytest.raises(RefusedError):
        SqlVerdicts(database).record_verdict(failed(turn))
    with pytest.raises(RefusedError):
        SqlBatches(database).open_batch(0, [turn.id])


async def test_a_session_that_is_not_there_is_forgotten_already(forgetting: SqlForgetting) -> None:
    assert forgetting.forget_session(SessionId("s_nobody")) == 0


async def test_the_ledger_goes_on_where_it_left_off_with_a_session_that_was_forgotten(
    ledger: SqlLedger, reader: LedgerReader, forgetting: SqlForgetting, new_turn: TurnMaker
) -> None:
    body = b"a long conversation " * 100
    await record(ledger, new_turn("s_1", exchange=Exchange(body, (Splice(1, b"skill"),))))
    forgetting.forget_session(SessionId("s_1"))
    # The ledger remembers a body to patch and texts that it has stored; all of them are gone by
    # now.
    later = [
        new_turn("s_1", exchange=Exchange(body + b"more" * number, (Splice(1, b"skill"),)))
        for number in range(1, 4)
    ]
    assert all(await asyncio.gather(*(ledger.record(turn) for turn in later)))
    for turn in later:
        found = reader.turn(turn.id)
        assert found is not None
        assert found.turn == turn
    assert ledger.health.lost_turns == 0


async def test_a_turn_that_was_stored_as_a_patch_on_a_forgotten_one_stays_readable(
    database: Database, reader: LedgerReader, forgetting: SqlForgetting, new_turn: TurnMaker
) -> None:
    turn_writer = TurnWriter(database, 1 << 20)
    body = b"what both have in common " * 50
    turns = [
        new_turn("s_1", exchange=Exchange(body + b"." * number, (), body * 2 + b"." * number))
        for number in range(6)
    ]
    turn_writer.write(turns)
    turn_writer.close()
    with database.writing("giving the later ones to another session") as connection:
        # No program of ours codes across sessions; the schema allows it, so forgetting must cope.
        trigger = " ON turns" if database.kind == "postgresql" else ""
        connection.execute(text(f"DROP TRIGGER turns_are_final{trigger}"))
        connection.execute(
            text(
                "INSERT INTO sessions SELECT 's_2', key, agent, user_id, workspace_id, parent,"
                " began_us, last_us, NULL, NULL, 3, 3 FROM sessions"
            )
        )
        connection.execute(text("UPDATE sessions SET turns = 3, main_turns = 3 WHERE id = 's_1'"))
        connection.execute(text("UPDATE turns SET session = 's_2' WHERE seq IN (2, 4, 5)"))
    assert forgetting.forget_session(SessionId("s_1")) == 3
    for number in (1, 3, 4):
        found = reader.turn(turns[number].id)
        assert found is not None
        assert found.turn == replace(turns[number], session=SessionId("s_2"))
    with database.reading("looking") as connection:
        links = connection.execute(
            text("SELECT turn, base, link FROM payloads ORDER BY turn")
        ).all()
    assert [tuple(link) for link in links] == [(2, None, 0), (4, None, 0), (5, 4, 1)]


async def test_what_is_old_goes_and_what_was_learned_from_it_stays(
    ledger: SqlLedger,
    reader: LedgerReader,
    database: Database,
    forgetting: SqlForgetting,
    new_turn: TurnMaker,
) -> None:
    body = b"a conversation that goes on " * 20
    long = [
        new_turn(
            "s_long",
            stamp=NOW,
            exchange=Exchange(body * (number + 1)),
            kind=TurnKind.SIDE if number == 1 else TurnKind.MAIN,
        )
        for number in range(80)
    ]
    old, new = new_turn("s_old", stamp=NOW), new_turn("s_new", stamp=NOW)
    early = replace(old, times=replace(old.times, received_at=long[0].times.received_at))
    await record(ledger, early, *long, new)
    SqlCandidates(database).save_candidate(candidate("from-old", early))
    SqlGenerations(database).publish(learned("from-old"), "learned")
    instant = long[70].times.received_at
    assert forgetting.forget_before(instant) == 71
    assert reader.session(SessionId("s_old")) is None
    row = reader.session(SessionId("s_long"))
    assert row is not None
    assert (row.turns, row.main_turns, row.began_at, row.last_at) == (
        10,
        10,
        instant,
        long[-1].times.received_at,
    )
    for turn in (*long[70:], new):
        found = reader.turn(turn.id)
        assert found is not None
        assert found.turn == turn
    assert [one.id for one in SqlCandidates(database).candidates()] == ["c_from-old"]
    SqlCandidates(database).save_candidate(candidate("merged-later", early, replaces=("from-old",)))
    assert forgetting.forget_before(instant) == 0


async def test_an_instant_without_a_time_zone_is_no_limit(forgetting: SqlForgetting) -> None:
    with pytest.raises(RefusedError, match="time zone"):
        forgetting.forget_before(datetime(2026, 1, 1))


async def test_forgotten_words_are_in_none_of_the_files_while_others_have_the_database_open(
    sqlite_url: str, tmp_path: Path, new_turn: TurnMaker
) -> None:
    database, others = open_database(sqlite_url), open_database(sqlite_url)
    turn_writer = TurnWriter(database, 1 << 20)
    secret = b"the-word-nobody-may-find"
    exchanges = [
        Exchange(secret + b"x" * size, (Splice(0, secret),), secret, secret, secret)
        for size in (10, 9000)
    ]
    placed = (Placement(b"", (), secret.decode()),)
    turn_writer.write(
        [
            new_turn("s_1", exchange=exchange, placements=placed, error=secret.decode())
            for exchange in exchanges
        ]
    )
    turn_writer.write([new_turn("s_2")])
    reader = LedgerReader(others)
    assert reader.counts().turns == 3
    forgetting = SqlForgetting(database)
    forgetting.forget_session(SessionId("s_1"))
    assert forgetting.is_unfinished()
    assert forgetting.purge(compact_below_bytes=None, within_s=60)
    assert not forgetting.is_unfinished()
    files = list((tmp_path / "folder").iterdir())
    assert {path.name for path in files} >= {"ledger.db", "ledger.db-wal"}
    assert [path.name for path in files if secret in path.read_bytes()] == []
    turn_writer.write([new_turn("s_3")])
    assert reader.counts().turns == 2
    turn_writer.close()


async def test_a_log_that_somebody_reads_is_not_said_to_be_empty(
    sqlite_url: str, new_turn: TurnMaker
) -> None:
    database, others = open_database(sqlite_url), open_database(sqlite_url)
    turn_writer = TurnWriter(database, 1 << 20)
    turn_writer.write([new_turn("s_1")])
    turn_writer.close()
    forgetting = SqlForgetting(database)
    with others.reading("holding a snapshot") as connection:
        connection.execute(text("SELECT count(*) FROM turns"))
        forgetting.forget_session(SessionId("s_1"))
        assert not forgetting.purge(compact_below_bytes=None, within_s=0.3)
        assert forgetting.is_unfinished()
    assert forgetting.purge(compact_below_bytes=None, within_s=60)


async def test_the_ledger_records_on_while_a_large_session_is_forgotten(
    database: Database, reader: LedgerReader, forgetting: SqlForgetting, new_turn: TurnMaker
) -> None:
    ledger = SqlLedger(
        database, LedgerLimits(patience_s=60)
    )  # a busy machine may take long for what holds the database
    await ledger.start()
    body = b"a conversation that goes on " * 40
    await asyncio.gather(
        *(
            ledger.record(new_turn("s_large", exchange=Exchange(body * (n % 40))))
            for n in range(600)
        )
    )
    done = threading.Event()

    def forget() -> None:
        forgetting.forget_session(SessionId("s_large"))
        done.set()

    thread = threading.Thread(target=forget)
    thread.start()
    recorded: list[TurnId] = []
    while not done.is_set() or not recorded:
        turn = new_turn("s_other")
        await ledger.record(turn)
        recorded.append(turn.id)
        with anyio.fail_after(60):
            while (
                ledger.health.waiting_turns
            ):  # the disk stalled while forgetting held the database locked
                await anyio.sleep(0.005)
    thread.join(30)
    assert ledger.health.lost_turns == 0
    assert reader.counts().turns == len(recorded)
    await ledger.aclose()
