"""Training batches: one predicate chooses, and the database itself refuses what may not train."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Fact, Rule, Skill
from metaclaw.domain.training import Rejection, RoleKind, TurnRole, rejection
from metaclaw.domain.turn import Scope, Stamp, Turn, TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome, Source, Verdict
from metaclaw.store import (
    BatchState,
    Database,
    LedgerReader,
    RefusedError,
    SqlBatches,
    SqlCandidates,
    SqlGenerations,
    SqlLedger,
    SqlTeams,
    SqlVerdicts,
    TrainingBatch,
)
from tests.support.eligible import EligibleTurns, eligible

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
NOW = Stamp(1, 7, "", ())


@dataclass(frozen=True)
class StoreParts:
    ledger: SqlLedger
    reader: LedgerReader
    generations: SqlGenerations
    verdicts: SqlVerdicts
    candidates: SqlCandidates
    batches: SqlBatches

    async def record(self, *turns: Turn) -> None:
        assert all(await asyncio.gather(*(self.ledger.record(turn) for turn in turns)))

    async def judged(self, *turns: Turn) -> list[TurnId]:
        for turn in turns:
            await self.record(turn)
            self.verdicts.record_verdict(Verdict(turn.id, Outcome.PASS, Source.JUDGE, 0.2))
        return [turn.id for turn in turns]


@pytest.fixture
def store(ledger: SqlLedger, reader: LedgerReader, database: Database) -> StoreParts:
    """A store whose newest generation is 1."""
    made = StoreParts(
        ledger,
        reader,
        SqlGenerations(database),
        SqlVerdicts(database),
        SqlCandidates(database),
        SqlBatches(database),
    )
    made.generations.publish([Skill(SkillName("first"), "when", "do")], "first")
    return made


async def test_a_batch_makes_its_turns_query_and_they_are_in_one_run_at_a_time(
    store: StoreParts, new_turn: TurnMaker
) -> None:
    turns = await store.judged(*(new_turn(stamp=NOW) for _ in range(3)))
    number = store.batches.open_batch(7, turns[:2])
    assert store.batches.turns_of(number) == turns[:2]
    assert [store.reader.role_of(turn) for turn in turns] == [TurnRole(RoleKind.QUERY, 1)] * 2 + [
        None
    ]
    assert [standing.taught for standing in store.reader.standings_of(turns).values()] == [
        True,
        True,
        False,
    ]
    with pytest.raises(RefusedError, match="one open batch at a time"):
        store.batches.open_batch(8, [turns[2], turns[1]])
    assert store.reader.role_of(turns[2]) is None
    assert store.batches.open_batch(8, turns[2:]) > number


async def test_what_fed_a_skill_never_trains_and_what_trained_feeds_no_skill(
    store: StoreParts, new_turn: TurnMaker
) -> None:
    support, query = await store.judged(new_turn(stamp=NOW), new_turn(stamp=NOW))
    store.candidates.begin_attempt("kind", 1, [support])
    with pytest.raises(RefusedError, match="fed a skill"):
        store.batches.open_batch(7, [query, support])
    store.batches.open_batch(7, [query])
    with pytest.raises(RefusedError, match="one role"):
        store.candidates.begin_attempt("kind", 1, [query])
    assert store.reader.role_of(support) == TurnRole(RoleKind.SUPPORT, 1)
    assert store.reader.role_of(query) == TurnRole(RoleKind.QUERY, 1)


@pytest.mark.parametrize("generation", [0, 2])
async def test_a_turn_made_with_other_skills_than_the_newest_does_not_train(
    store: StoreParts, new_turn: TurnMaker, generation: int
) -> None:
    turns = await store.judged(new_turn(stamp=Stamp(generation, 7, "", ())))
    with pytest.raises(RefusedError, match="other skills"):
        store.batches.open_batch(7, turns)
    assert store.reader.role_of(turns[0]) is None


async def test_a_skill_for_everyone_ages_every_turn_before_it(
    store: StoreParts, new_turn: TurnMaker
) -> None:
    turns = await store.judged(new_turn(stamp=NOW))
    store.generations.publish([Skill(SkillName("a"), "when", "do")], "learned")
    with pytest.raises(RefusedError, match="other skills"):
        store.batches.open_batch(7, turns)


FIRST = Skill(SkillName("first"), "when", "do")
ADA_AT_WORK = Scope("ada", "/home/work")
TEAMS = {"web": ["ada", "bob"], "data": ["bob"]}


CHANGES = [
    (True, [FIRST, Rule(SkillName("r"), "always", "Use uv.", scope="user:ada")]),
    (True, [FIRST, Rule(SkillName("r"), "always", "Use uv.", scope="ada")]),
    (True, [FIRST, Rule(SkillName("r"), "always", "Use uv.", scope="/home/work")]),
    (
        True,
        [
            FIRST,
            Rule(SkillName("r"), "always", "Use uv.", scope="workspace:/home/work"),
        ],
    ),
    (True, [FIRST, Rule(SkillName("r"), "always", "Use uv.", scope="team:web")]),
    (
        True,
        [
            FIRST,
            Rule(
                SkillName("r"),
                "always",
                "Use uv.",
                scope="user:ada",
                workspace="/home/work",
            ),
        ],
    ),
    (
        True,
        [
            FIRST,
            Rule(
                SkillName("r"),
                "always",
                "Use uv.",
                scope="user:ada",
                workspace="/home",
            ),
        ],
    ),
    (True, [replace(FIRST, body="do it otherwise")]),
    (True, [replace(FIRST, applies_always=True)]),
    (True, []),
    (False, [FIRST, Rule(SkillName("r"), "always", "Use uv.", scope="user:bob")]),
    (False, [FIRST, Rule(SkillName("r"), "always", "Use uv.", scope="owner")]),
    (
        False,
        [FIRST, Rule(SkillName("r"), "always", "Use uv.", scope="workspace:home")],
    ),
    (False, [FIRST, Rule(SkillName("r"), "always", "Use uv.", scope="team:data")]),
    (
        False,
        [
            FIRST,
            Rule(
                SkillName("r"),
                "always",
                "Use uv.",
                scope="user:ada",
                workspace="/ho",
            ),
        ],
    ),
    (
        False,
        [
            FIRST,
            Fact(
                SkillName("f"),
                "always",
                "Stage is stage-2.",
                scope="user:ada",
            ),
        ],
    ),
    (False, [replace(FIRST, examples=("Install numpy.",))]),
    (False, [replace(FIRST, author=Authorship.EVOLVER)]),
    (False, [replace(FIRST, pinned=True)]),
]


async def test_a_turn_ages_by_what_changes_in_its_speakers_prompts_until_that_is_taken_back(
    store: StoreParts, database: Database, new_turn: TurnMaker
) -> None:
    SqlTeams(database).replace(TEAMS)
    turns = await store.judged(new_turn(stamp=NOW, scope=ADA_AT_WORK))
    for ages, changed in CHANGES:
        newest = store.generations.publish(changed, "a change").number
        found = eligible(store.batches, newest, 7, 2, 10)
        assert found == (
            EligibleTurns((), {Rejection.OLD_GENERATION: 1})
            if ages
            else EligibleTurns(tuple(turns), {})
        ), changed
        assert store.batches.ready(newest, 7, 2, 10) == found.turns
        assert store.reader.standings_of(turns)[turns[0]].is_aged is ages
        if ages:
            with pytest.raises(RefusedError, match="other skills"):
                store.batches.open_batch(7, turns)
        store.generations.publish([FIRST], "taken back")
    batch = store.batches.batch(store.batches.open_batch(7, turns))
    assert batch is not None
    assert (batch.generation, batch.stale) == (1 + 2 * len(CHANGES), 0)


async def test_who_joins_or_leaves_a_team_is_known_to_the_database(
    store: StoreParts, database: Database, new_turn: TurnMaker
) -> None:
    teams = SqlTeams(database)
    teams.replace(TEAMS)
    turns = await store.judged(new_turn(stamp=NOW, scope=Scope("ada")))
    store.generations.publish(
        [FIRST, Rule(SkillName("r"), "always", "Use uv.", scope="team:data")],
        "a team's rule",
    )
    assert store.batches.ready(2, 7, 2, 10) == tuple(turns)
    teams.replace({"data": ["ada"]})
    assert store.batches.ready(2, 7, 2, 10) == ()


@pytest.mark.parametrize("wanted", [[], ["t_unknown"]])
async def test_a_batch_of_nothing_is_none(store: StoreParts, wanted: list[str]) -> None:
    with pytest.raises(RefusedError):
        store.batches.open_batch(7, [TurnId(turn) for turn in wanted])


async def test_turns_that_may_train_are_found_and_others_are_counted_by_their_reason(
    store: StoreParts, new_turn: TurnMaker
) -> None:
    good = [new_turn(stamp=NOW), new_turn(stamp=Stamp(1, 5, "", (SkillName("a"),)))]
    bad = {
        Rejection.SIDE: new_turn(stamp=NOW, kind=TurnKind.SIDE),
        Rejection.INCOMPLETE: new_turn(stamp=NOW, end=TurnEnd.CANCELLED),
        Rejection.SUPPORT: new_turn(stamp=NOW),
        Rejection.OLD_GENERATION: new_turn(stamp=Stamp(0, 7, "", ())),
        Rejection.FUTURE_GENERATION: new_turn(stamp=Stamp(2, 7, "", ())),
        Rejection.NO_TOKENS: new_turn(stamp=NOW, tokens=None),
        Rejection.OLD_POLICY: new_turn(stamp=Stamp(1, 4, "", ())),
        Rejection.TAUGHT: new_turn(stamp=NOW),
    }
    cut = new_turn(stamp=NOW, truncated=True)
    found = await store.judged(*good, cut, *bad.values())
    unjudged, unknown = new_turn(stamp=NOW), new_turn(stamp=NOW)
    await store.record(unjudged, unknown)
    store.verdicts.record_verdict(Verdict(unknown.id, Outcome.UNKNOWN, Source.UNDECIDED, None))
    bad |= {Rejection.NO_VERDICT: unjudged, Rejection.UNKNOWN: unknown}
    store.candidates.begin_attempt("kind", 1, [bad[Rejection.SUPPORT].id])
    store.batches.open_batch(7, [bad[Rejection.TAUGHT].id])
    chosen = eligible(store.batches, 1, 7, max_lag=2, limit=10)
    assert chosen == EligibleTurns(
        (found[1], found[0]), dict.fromkeys(bad, 1) | {Rejection.INCOMPLETE: 2}
    )
    for reason, turn in [*bad.items(), (Rejection.INCOMPLETE, cut)]:
        whole, standing = store.reader.turn(turn.id), store.reader.standing_of(turn.id)
        assert whole is not None
        assert standing is not None
        assert rejection(whole.turn, standing, 1, 7, 2) is reason
    assert store.batches.ready(1, 7, max_lag=2, limit=10) == chosen.turns
    assert store.batches.ready(1, 7, max_lag=2, limit=1) == (found[1],)
    assert store.batches.ready(1, 7, max_lag=2, limit=10, within=3) == ()
    assert eligible(store.batches, 1, 7, max_lag=2, limit=1).turns == (found[1],)
    assert eligible(store.batches, 1, 7, max_lag=2, limit=10, within=3) == EligibleTurns(
        (), {Rejection.UNKNOWN: 1, Rejection.NO_VERDICT: 1, Rejection.TAUGHT: 1}
    )
    store.batches.open_batch(7, chosen.turns)
    assert eligible(store.batches, 1, 7, max_lag=2, limit=10).turns == ()


async def test_turns_kept_for_the_gate_and_answers_of_other_models_are_set_aside(
    store: StoreParts, new_turn: TurnMaker
) -> None:
    mine = await store.judged(*(new_turn(stamp=NOW, provider="embedded") for _ in range(3)))
    await store.judged(new_turn(stamp=NOW, provider="openai"))
    chosen = eligible(
        store.batches, 1, 7, 2, 10, held_out={mine[1]}.__contains__, policy_provider="embedded"
    )
    assert chosen == EligibleTurns(
        (mine[2], mine[0]), {Rejection.OTHER_MODEL: 1, Rejection.HELD_OUT: 1}
    )
    assert (
        store.batches.ready(
            1, 7, 2, 10, held_out={mine[1]}.__contains__, policy_provider="embedded"
        )
        == chosen.turns
    )
    assert len(eligible(store.batches, 1, 7, 2, 10).turns) == 4


async def test_rejections_are_counted_anew_when_a_clock_moved_or_some_time_has_passed(
    store: StoreParts, database: Database, new_turn: TurnMaker
) -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    batches = SqlBatches(database, lambda: now)
    await store.judged(new_turn(stamp=NOW))
    assert batches.rejections(1, 7, 2) == {}
    await store.record(new_turn(stamp=NOW), new_turn(stamp=NOW))
    assert batches.rejections(1, 7, 2) == {}
    assert batches.rejections(1, 8, 0) == {Rejection.OLD_POLICY: 3}
    now += timedelta(minutes=1)
    assert batches.rejections(1, 8, 1) == {Rejection.NO_VERDICT: 2}


async def test_an_interrupted_batch_is_found_again_with_what_became_stale(
    store: StoreParts, new_turn: TurnMaker
) -> None:
    first = await store.judged(*(new_turn(stamp=NOW) for _ in range(2)))
    second = await store.judged(new_turn(stamp=NOW))
    assert store.batches.open_batch_now() is None
    number = store.batches.open_batch(7, first, seed=42)
    later = store.batches.open_batch(7, second)
    assert store.batches.open_batch_now() == TrainingBatch(
        number, BatchState.OPEN, 7, 1, 42, 2, tuple(store.batches.turns_of(number)), 0
    )
    store.generations.publish([Skill(SkillName("a"), "when", "do")], "learned")
    stale = store.batches.open_batch_now()
    assert stale is not None
    assert (stale.number, stale.generation, stale.stale) == (number, 1, 2)
    store.batches.drop_batch(number, "the skills changed")
    dropped = store.batches.batch(number)
    assert dropped is not None
    assert (dropped.state, dropped.note) == (BatchState.DROPPED, "the skills changed")
    left = store.batches.open_batch_now()
    assert left is not None
    assert left.number == later


async def test_a_batch_is_dropped_once_and_gives_its_turns_back(
    store: StoreParts, new_turn: TurnMaker
) -> None:
    turns = await store.judged(new_turn(stamp=NOW))
    number = store.batches.open_batch(7, turns)
    store.batches.drop_batch(number, "it drifted")
    for refused, words in ((number, r"is dropped already \(it drifted\)"), (99, "no batch 99")):
        with pytest.raises(RefusedError, match=words):
            store.batches.drop_batch(refused, "again")
    assert eligible(store.batches, 1, 7, 2, 10) == EligibleTurns(tuple(turns), {})
    assert store.reader.role_of(turns[0]) == TurnRole(RoleKind.QUERY, 1)
    assert store.batches.untried(turns) == 0
    assert store.batches.open_batch(7, turns) > number
    assert eligible(store.batches, 1, 7, 2, 10) == EligibleTurns((), {Rejection.TAUGHT: 1})
    (event,) = [event for event in store.reader.events() if event.kind == "batch.dropped"]
    assert event.data == {"batch": number, "turns": 1, "reason": "it drifted"}
    assert store.batches.batch(99) is None


INTO = "INSERT INTO batch_turns (turn, batch) SELECT seq, 1 FROM turns WHERE"


@pytest.mark.parametrize(
    "statement",
    [
        f"{INTO} id = 'support'",
        f"{INTO} id = 'old'",
        f"{INTO} id = 'taught'",
        f"{INTO} id IN ('free', 'support')",
        "INSERT INTO batch_turns (turn, batch) VALUES (99, 1)",
        f"{INTO.replace('1 FROM', '99 FROM')} id = 'free'",
        "UPDATE batch_turns SET turn = (SELECT seq FROM turns WHERE id = 'free')",
        "DELETE FROM batch_turns",
        "DELETE FROM roles WHERE turn IN (SELECT turn FROM batch_turns)",
        "INSERT INTO roles (turn, kind, generation) SELECT turn, 'support', 1 FROM batch_turns",
    ],
)
async def test_the_database_itself_keeps_support_and_query_apart(
    store: StoreParts, database: Database, new_turn: TurnMaker, statement: str
) -> None:
    stamps = {"support": NOW, "old": Stamp(0, 7, "", ()), "taught": NOW, "free": NOW}
    await store.judged(*(new_turn(id=TurnId(name), stamp=stamp) for name, stamp in stamps.items()))
    store.candidates.begin_attempt("kind", 1, [TurnId("support")])
    batch = store.batches.open_batch(7, [TurnId("taught")])
    before = store.reader.standings_of([TurnId(name) for name in stamps])
    assert batch == 1
    with pytest.raises(RefusedError):
        with database.writing("cheating") as connection:
            connection.execute(text(statement))
    assert store.reader.standings_of([TurnId(name) for name in stamps]) == before


@pytest.mark.parametrize(
    "statement",
    [
        (
            "INSERT OR REPLACE INTO roles (turn, kind, generation) SELECT turn, 'support', 1 FROM"
            " batch_turns"
        ),
        "INSERT OR REPLACE INTO batch_turns (turn, batch) SELECT turn, batch FROM batch_turns",
        (
            "INSERT OR REPLACE INTO batch_turns (turn, batch) SELECT turn, 1 FROM roles WHERE kind"
            " = 'support'"
        ),
        (
            "INSERT OR IGNORE INTO batch_turns (turn, batch) SELECT turn, 1 FROM roles WHERE kind ="
            " 'support'"
        ),
        (
            "INSERT OR REPLACE INTO verdicts SELECT seq, turn, at_us, 'pass', source, 0, signals,"
            " votes, NULL, '' FROM verdicts"
        ),
        "INSERT OR REPLACE INTO turns SELECT * FROM turns",
        "UPDATE OR REPLACE turns SET generation = 5",
    ],
)
async def test_a_replacement_is_no_way_around(
    sqlite_url: str, new_turn: TurnMaker, statement: str
) -> None:
    from metaclaw.store import open_database
    from metaclaw.store.turn_writer import TurnWriter

    database = open_database(sqlite_url)
    turn_writer = TurnWriter(database, 1000)
    stamp = Stamp(0, 0, "", ())
    turn_writer.write(
        [new_turn("s_1", id=TurnId(name), stamp=stamp) for name in ("support", "taught")]
    )
    turn_writer.close()
    SqlVerdicts(database).record_verdict(Verdict(TurnId("support"), Outcome.PASS, Source.USER, 0.0))
    SqlCandidates(database).begin_attempt("kind", 0, [TurnId("support")])
    SqlBatches(database).open_batch(0, [TurnId("taught")])
    reader = LedgerReader(database)
    wanted = [TurnId("support"), TurnId("taught")]
    before = reader.standings_of(wanted), [reader.turn(turn) for turn in wanted]
    with pytest.raises(RefusedError):
        with database.writing("cheating") as connection:
            connection.execute(text(statement))
    assert (reader.standings_of(wanted), [reader.turn(turn) for turn in wanted]) == before
    database.close()


async def test_an_attempt_and_a_batch_that_want_the_same_turns_at_once_never_both_get_them(
    store: StoreParts, new_turn: TurnMaker
) -> None:
    turns = await store.judged(*(new_turn(stamp=NOW) for _ in range(40)))
    refused: list[str] = []

    def take(kind: str) -> None:
        for turn in turns if kind == "attempt" else reversed(turns):
            try:
                if kind == "attempt":
                    store.candidates.begin_attempt("kind", 1, [turn])
                else:
                    store.batches.open_batch(7, [turn])
            except RefusedError:
                refused.append(kind)

    threads = [threading.Thread(target=take, args=(kind,)) for kind in ("attempt", "batch")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    standings = store.reader.standings_of(turns)
    kinds = [
        (standing.role.kind if standing.role else None, standing.taught)
        for standing in standings.values()
    ]
    assert len(refused) == len(turns)
    assert set(kinds) <= {(RoleKind.SUPPORT, False), (RoleKind.QUERY, True)}
