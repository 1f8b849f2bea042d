"""Policy versions: what taught them, which of them answers, and how one goes back."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import (
    Comparison,
    GateReport,
    PolicyState,
    PolicyVersion,
    Serving,
    Weights,
)
from metaclaw.domain.turn import Stamp, Turn, TurnKind
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.errors import StoreError
from metaclaw.store import (
    BatchState,
    Database,
    LedgerReader,
    RefusedError,
    SqlBatches,
    SqlForgetting,
    SqlLedger,
    SqlPolicies,
    SqlVerdicts,
    VersionOutcome,
)

pytestmark = pytest.mark.anyio
TurnMaker = Callable[..., Turn]
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
WEIGHTS = Weights("embedded", "policies/1", "policies/1/training")
PASSED = GateReport(
    True,
    ("not worse", "the paired test favours it"),
    Comparison(40, 12, 3, 0.2, 25.0),
    0.9,
    0.95,
    0.01,
    "judge",
)


@dataclass(frozen=True)
class StoreParts:
    ledger: SqlLedger
    reader: LedgerReader
    batches: SqlBatches
    policies: SqlPolicies

    async def taught(
        self, new_turn: TurnMaker, count: int = 2, version: int = 0, session: str | None = None
    ) -> int:
        """A new open batch with as many turns."""
        turns = [new_turn(session, stamp=Stamp(0, version, "", ())) for _ in range(count)]
        assert all(await asyncio.gather(*(self.ledger.record(turn) for turn in turns)))
        return self.batches.open_batch(version, [turn.id for turn in turns], seed=5)

    def publish(self, parent: int = 0) -> int:
        """The number of a new version that no turns taught."""
        return self.policies.publish(WEIGHTS, parent=parent, base="model").number

    def states(self) -> dict[int, str]:
        return {version.number: version.state.value for version in self.policies.versions()}

    def told(self) -> list[tuple[object, ...]]:
        events = [event.data for event in self.reader.events(limit=1000) if event.kind == "policy"]
        return [(data["action"], data["version"], data["serving"]) for data in events]


@pytest.fixture
def store(ledger: SqlLedger, reader: LedgerReader, database: Database) -> StoreParts:
    return StoreParts(ledger, reader, SqlBatches(database), SqlPolicies(database, lambda: NOON))


async def test_before_anything_is_trained_the_untrained_model_serves(store: StoreParts) -> None:
    assert store.policies.serving() == Serving(0)
    assert store.policies.versions() == []
    assert store.policies.version(0) is None
    assert store.policies.since(1) is None


async def test_a_version_is_read_as_it_was_published_and_its_batch_is_done(
    store: StoreParts, new_turn: TurnMaker
) -> None:
    batch = await store.taught(new_turn)
    made = store.policies.publish(
        WEIGHTS,
        parent=0,
        base="smol\x00",
        batch=batch,
        steps=4,
        report=PASSED,
        note="first",
        absorbed=[SkillName("a")],
    )
    assert made == PolicyVersion(
        1,
        0,
        PolicyState.CANDIDATE,
        WEIGHTS,
        "smol\x00",
        0,
        NOON,
        batch,
        4,
        PASSED,
        "first",
        frozenset({SkillName("a")}),
    )
    assert store.policies.version(1) == made
    done = store.batches.batch(batch)
    assert done is not None
    assert (done.state, done.seed, len(done.turns)) == (BatchState.DONE, 5, 2)
    assert store.batches.open_batch_now() is None
    assert store.told() == [("published", 1, 0)]


async def test_a_batch_teaches_one_version(store: StoreParts, new_turn: TurnMaker) -> None:
    batch = await store.taught(new_turn)
    store.policies.publish(WEIGHTS, parent=0, base="model", batch=batch)
    with pytest.raises(RefusedError, match=f"batch {batch} is done already"):
        store.policies.publish(WEIGHTS, parent=0, base="model", batch=batch)
    assert len(store.policies.versions()) == 1


async def test_nothing_comes_of_a_dropped_batch(store: StoreParts, new_turn: TurnMaker) -> None:
    batch = await store.taught(new_turn)
    store.batches.drop_batch(batch, "the skills changed")
    with pytest.raises(RefusedError, match=r"is dropped already \(the skills changed\)"):
        store.policies.publish(WEIGHTS, parent=0, base="model", batch=batch)
    assert store.policies.versions() == []


async def test_a_forgotten_turn_takes_its_open_batch_with_it(
    store: StoreParts, database: Database, new_turn: TurnMaker
) -> None:
    batch = await store.taught(new_turn, session="s_gone")
    SqlForgetting(database).forget_session(SessionId("s_gone"))
    forgotten = SqlForgetting(database).derived_data(SessionId("s_gone"))
    assert (forgotten.batches, forgotten.versions) == ((batch,), ())
    assert store.batches.open_batch_now() is None
    with pytest.raises(RefusedError, match="a turn of it was forgotten"):
        store.policies.publish(WEIGHTS, parent=0, base="model", batch=batch)


async def test_turns_that_grew_old_do_not_hold_a_batch_up(
    store: StoreParts, database: Database, new_turn: TurnMaker
) -> None:
    batch = await store.taught(new_turn)
    SqlForgetting(database).forget_before(datetime(2030, 1, 1, tzinfo=UTC))
    left = store.batches.open_batch_now()
    assert left is not None
    assert (left.number, left.turns, left.size) == (batch, (), 2)
    assert store.policies.publish(WEIGHTS, parent=0, base="model", batch=batch).number == 1


async def test_forgetting_tells_the_versions_that_descend_from_what_is_gone(
    store: StoreParts, database: Database, new_turn: TurnMaker
) -> None:
    mine, other = await store.taught(new_turn, session="s_gone"), await store.taught(new_turn)
    store.policies.publish(WEIGHTS, parent=0, base="model", batch=other)
    store.policies.publish(WEIGHTS, parent=0, base="model", batch=mine)
    store.publish(parent=1)
    store.publish(parent=2)
    store.publish(parent=4)
    for _ in range(2):
        SqlForgetting(database).forget_session(SessionId("s_gone"))
        found = SqlForgetting(database).derived_data(SessionId("s_gone"))
        assert found.versions == (2, 4, 5)


async def test_weights_that_were_trained_on_a_forgotten_session_never_serve_again(
    store: StoreParts, database: Database, new_turn: TurnMaker
) -> None:
    """Version 1 is clean, 2 was trained on the session and serves, 3 goes on from it."""
    clean, mine = await store.taught(new_turn), await store.taught(new_turn, session="s_gone")
    store.policies.publish(WEIGHTS, parent=0, base="model", batch=clean)
    store.policies.promote(1)
    store.policies.publish(WEIGHTS, parent=0, base="model", batch=mine)
    store.policies.promote(2)
    store.publish(parent=2)
    forgetting = SqlForgetting(database)
    forgetting.forget_session(SessionId("s_gone"))
    for _ in range(2):
        forgetting.erase("it was trained on a session that was forgotten")
        assert store.states() == {3: "rejected", 2: "rolled back", 1: "retired"}
        assert store.policies.serving() == Serving(0), (
            "version 2 began from the untrained model, so that serves again"
        )
    assert len(store.policies.thrown_away()) == 2
    for number in (2, 3):
        with pytest.raises(
            RefusedError, match="no longer kept: it was trained on a session that was forgotten"
        ):
            store.policies.promote(number)
    store.policies.promote(1)
    assert store.policies.serving() == Serving(1, absorbed={1: frozenset()})


async def test_weights_that_go_on_from_a_clean_version_fall_back_to_it(
    store: StoreParts, database: Database, new_turn: TurnMaker
) -> None:
    clean = await store.taught(new_turn)
    store.policies.publish(WEIGHTS, parent=0, base="model", batch=clean)
    store.policies.promote(1)
    mine = await store.taught(new_turn, version=1, session="s_gone")
    store.policies.publish(WEIGHTS, parent=1, base="model", batch=mine)
    store.policies.promote(2)
    SqlForgetting(database).forget_session(SessionId("s_gone"))
    SqlForgetting(database).erase("forgotten")
    assert store.states() == {2: "rolled back", 1: "serving"}


async def test_a_version_descends_from_where_its_batch_began(
    store: StoreParts, new_turn: TurnMaker
) -> None:
    batch = await store.taught(new_turn)
    store.publish()
    with pytest.raises(RefusedError, match="began from version 0, not from 1"):
        store.policies.publish(WEIGHTS, parent=1, base="model", batch=batch)
    with pytest.raises(RefusedError, match="no version 7 to descend from"):
        store.publish(parent=7)
    with pytest.raises(RefusedError, match="no batch 99"):
        store.policies.publish(WEIGHTS, parent=0, base="model", batch=99)
    left = store.batches.open_batch_now()
    assert left is not None
    assert left.number == batch


async def test_a_candidate_serves_and_what_served_is_retired(store: StoreParts) -> None:
    for number in (1, 2):
        assert store.publish(parent=number - 1) == number
        store.policies.promote(number, "better", PASSED)
        assert store.policies.serving() == Serving(number, {number: frozenset()})
    assert store.states() == {1: "retired", 2: "serving"}
    version = store.policies.version(2)
    assert version is not None
    assert (version.report, version.has_served) == (PASSED, True)
    assert store.told()[-2:] == [("published", 2, 1), ("promoted", 2, 2)]


async def test_what_a_version_has_passed_is_noted_with_it_and_with_no_other(
    store: StoreParts,
) -> None:
    store.publish()
    store.policies.promote(1, "better", PASSED)
    store.publish(parent=1)
    store.policies.promote(2, "better still", GateReport(True, ("better still",)))
    first, second = store.policies.version(1), store.policies.version(2)
    assert first is not None
    assert second is not None
    assert (first.report, second.report) == (PASSED, GateReport(True, ("better still",)))


async def test_rolling_back_leads_to_the_nearest_ancestor_that_served(store: StoreParts) -> None:
    store.publish()
    store.policies.promote(1)
    store.policies.reject(store.publish(parent=1), GateReport(False, ("worse",)))
    store.publish(parent=2)
    store.policies.promote(3)
    store.policies.rollback(reason="worse on live turns")
    assert store.states() == {1: "serving", 2: "rejected", 3: "rolled back"}
    store.policies.rollback()
    assert store.states() == {1: "rolled back", 2: "rejected", 3: "rolled back"}
    assert store.policies.serving() == Serving(0)
    assert store.told()[-2:] == [("rolled back", 3, 1), ("rolled back", 1, 0)]


async def test_one_may_go_back_to_any_version_that_served(store: StoreParts) -> None:
    for number in (1, 2, 3):
        store.publish(parent=number - 1)
        store.policies.promote(number)
    store.policies.rollback(1)
    assert store.states() == {1: "serving", 2: "retired", 3: "rolled back"}
    store.policies.rollback(0)
    assert store.policies.serving() == Serving(0)
    store.policies.promote(3, "after all")
    assert store.policies.serving().version == 3


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (lambda policies: policies.promote(9), "no version 9"),
        (lambda policies: policies.promote(0), "untrained model; roll back to it"),
        (lambda policies: policies.promote(2), "serves already"),
        (lambda policies: policies.reject(9), "no version 9"),
        (lambda policies: policies.reject(2), "it is serving, not a candidate"),
        (lambda policies: policies.rollback(9), "no version 9"),
        (lambda policies: policies.rollback(3), r"not earlier than the serving version 2; promote"),
        (lambda policies: policies.let_go(2), "serving and needs them"),
        (lambda policies: policies.let_go(9), "no version 9"),
        (lambda policies: policies.absorb(9, []), "no version 9"),
    ],
)
async def test_a_move_that_may_not_be_made_is_refused_in_words_and_changes_nothing(
    store: StoreParts, move: Callable[[SqlPolicies], None], words: str
) -> None:
    store.publish()
    store.policies.promote(1)
    store.publish(parent=1)
    store.policies.promote(2)
    store.policies.reject(store.publish(parent=2))
    store.publish(parent=2)
    before, told = store.policies.versions(), store.told()
    assert store.states() == {1: "retired", 2: "serving", 3: "rejected", 4: "candidate"}
    with pytest.raises(RefusedError, match=words):
        move(store.policies)
    assert (store.policies.versions(), store.told()) == (before, told)


async def test_there_is_nothing_to_roll_back_from_the_untrained_model_nor_to_what_never_served(
    store: StoreParts,
) -> None:
    with pytest.raises(RefusedError, match="nothing to roll back"):
        store.policies.rollback()
    with pytest.raises(RefusedError, match="version 0 serves already"):
        store.policies.rollback(0)
    store.publish()
    store.publish(parent=1)
    store.policies.promote(2)
    with pytest.raises(RefusedError, match=r"version 1 \(candidate\) has never served"):
        store.policies.rollback(1)


async def test_weights_that_are_gone_are_no_place_to_go(store: StoreParts) -> None:
    for number in (1, 2, 3, 4):
        store.publish(parent=number - 1)
        store.policies.promote(number)
    assert [version.number for version in store.policies.spare(keep=1)] == [2, 1]
    store.policies.let_go(2)
    assert [version.number for version in store.policies.spare(keep=2)] == [1]
    for refused in (store.policies.rollback, store.policies.promote):
        with pytest.raises(RefusedError, match="no longer kept"):
            refused(2)
    store.policies.rollback()
    store.policies.rollback()
    assert store.states() == {1: "serving", 2: "retired", 3: "rolled back", 4: "rolled back"}
    gone = store.policies.version(2)
    assert gone is not None
    assert not gone.is_kept


async def test_absorbed_skills_belong_to_a_version(store: StoreParts) -> None:
    store.publish()
    store.policies.promote(1)
    store.policies.absorb(1, [SkillName("b"), SkillName("a")])
    assert store.policies.serving().absorbed == {1: frozenset({SkillName("a"), SkillName("b")})}
    store.policies.rollback()
    assert store.policies.serving().absorbed == {}


async def test_what_versions_did_is_read_from_the_moment_one_is_tried(
    store: StoreParts, database: Database, new_turn: TurnMaker
) -> None:
    async def serve(version: int, outcome: Outcome | None, **fields: object) -> Turn:
        turn = new_turn("s_1", stamp=Stamp(0, version, "", ()), **fields)
        assert await store.ledger.record(turn)
        if outcome is not None:
            fault = Fault.AGENT if outcome is Outcome.FAIL else None
            assert SqlVerdicts(database).record_verdict(
                Verdict(turn.id, outcome, Source.CHECK, None, fault=fault)
            )
        return turn

    store.publish()
    await serve(0, Outcome.PASS)
    store.policies.promote(1)
    since = store.policies.since(1)
    assert since is not None
    assert since.at == NOON
    await serve(0, Outcome.PASS)
    await serve(1, Outcome.FAIL)
    await serve(1, Outcome.PASS, kind=TurnKind.SIDE)
    await serve(1, None)
    await serve(2, Outcome.PASS)
    await serve(1, Outcome.UNKNOWN)
    assert store.policies.outcomes_by_version([0, 1], since.turn) == [
        VersionOutcome(SessionId("s_1"), 0, Outcome.PASS),
        VersionOutcome(SessionId("s_1"), 1, Outcome.FAIL),
        VersionOutcome(SessionId("s_1"), 1, Outcome.UNKNOWN),
    ]
    assert store.policies.outcomes_by_version([0], 0, since.turn) == [
        VersionOutcome(SessionId("s_1"), 0, Outcome.PASS)
    ]
    newest = store.policies.outcomes_by_version([0, 1], 0, limit=2)
    assert [(one.version, one.outcome) for one in newest] == [
        (1, Outcome.FAIL),
        (1, Outcome.UNKNOWN),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE policies SET state = 'serving' WHERE number = 2",
        "UPDATE policies SET state = 'serving', served_us = 1 WHERE number = 2",
        "UPDATE policies SET state = 'forgotten' WHERE number = 2",
        "UPDATE policies SET gone_us = 1 WHERE number = 1",
        "UPDATE policies SET adapter = 'elsewhere' WHERE number = 2",
        "UPDATE policies SET batch = NULL WHERE number = 1",
        "DELETE FROM policies WHERE number = 2",
        "UPDATE batches SET state = 'open', ended_us = NULL",
        "UPDATE batches SET seed = 9",
        "DELETE FROM batches",
        "INSERT INTO batch_turns (turn, batch) SELECT seq, 1 FROM turns WHERE id = 'free'",
        (
            "INSERT INTO policies (number, parent, state, backend, adapter, base, generation,"
            " batch, steps, note, absorbed, made_us, state_us, state_turn) VALUES (9, 0,"
            " 'candidate', '', '', '', 0, 2, 0, '', '[]', 0, 0, 0)"
        ),
        (
            "INSERT INTO policies (number, parent, state, backend, adapter, base, generation,"
            " batch, steps, note, absorbed, made_us, state_us, state_turn) VALUES (9, 0,"
            " 'candidate', '', '', '', 0, 1, 0, '', '[]', 0, 0, 0)"
        ),
    ],
)
async def test_the_database_itself_keeps_versions_in_order(
    store: StoreParts, database: Database, new_turn: TurnMaker, statement: str
) -> None:
    batch, left = await store.taught(new_turn), await store.taught(new_turn)
    assert (batch, left) == (1, 2)
    store.policies.publish(WEIGHTS, parent=0, base="model", batch=batch)
    store.policies.promote(1)
    store.publish(parent=1)
    assert await store.ledger.record(new_turn(id=TurnId("free"), stamp=Stamp(0, 0, "", ())))
    before = store.policies.versions(), store.batches.batch(1)
    with pytest.raises(RefusedError):
        with database.writing("cheating") as connection:
            connection.execute(text(statement))
    assert (store.policies.versions(), store.batches.batch(1)) == before


async def test_versions_published_at_once_get_numbers_of_their_own_and_one_of_them_serves(
    store: StoreParts,
) -> None:
    failures: list[StoreError] = []

    def work() -> None:
        try:
            for _ in range(5):
                store.policies.promote(store.publish())
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    states = store.states()
    assert sorted(states) == list(range(1, 16))
    assert sorted(states.values()) == ["retired"] * 14 + ["serving"]
