"""Policy versions: what taught them, which of them answers, and how one goes back."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import Comparison, GateReport, PolicyState, PolicyVersion, Serving, Weights
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
PASSED = GateReport(True, ("not worse", "the paired test favours it"), Comparison(40, 12, 3, 0.2, 25.0), 0.9, 0.95, 0.01, "judge")


@dataclass(frozen=True)
class House:
    ledger: SqlLedger
    reader: LedgerReader
    batches: SqlBatches
    policies: SqlPolicies

    async def taught(self, new_turn: TurnMaker, count: int = 2, version: int = 0, session: str | None = None) -> int:
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
        return [(data["action"], data["version"], data["serving"], data["canary"]) for data in events]


@pytest.fixture
def house(ledger: SqlLedger, reader: LedgerReader, database: Database) -> House:
    return House(ledger, reader, SqlBatches(database), SqlPolicies(database, lambda: NOON))


async def test_before_anything_is_trained_the_untrained_model_serves(house: House) -> None:
    assert house.policies.serving(0.5) == Serving(0)
    assert house.policies.versions() == []
    assert house.policies.version(0) is None
    assert house.policies.since(1) is None


async def test_a_version_is_read_as_it_was_published_and_its_batch_is_done(house: House, new_turn: TurnMaker) -> None:
    batch = await house.taught(new_turn)
    made = house.policies.publish(
        WEIGHTS, parent=0, base="smol\x00", batch=batch, steps=4, report=PASSED, note="first", absorbed=[SkillName("a")]
    )
    assert made == PolicyVersion(
        1, 0, PolicyState.CANDIDATE, WEIGHTS, "smol\x00", 0, NOON, batch, 4, PASSED, "first", frozenset({SkillName("a")})
    )
    assert house.policies.version(1) == made
    done = house.batches.batch(batch)
    assert done is not None
    assert (done.state, done.seed, len(done.turns)) == (BatchState.DONE, 5, 2)
    assert house.batches.open_batch_now() is None
    assert house.told() == [("published", 1, 0, None)]


async def test_a_batch_teaches_one_version(house: House, new_turn: TurnMaker) -> None:
    batch = await house.taught(new_turn)
    house.policies.publish(WEIGHTS, parent=0, base="model", batch=batch)
    with pytest.raises(RefusedError, match=f"batch {batch} is done already"):
        house.policies.publish(WEIGHTS, parent=0, base="model", batch=batch)
    assert len(house.policies.versions()) == 1


async def test_nothing_comes_of_a_dropped_batch(house: House, new_turn: TurnMaker) -> None:
    batch = await house.taught(new_turn)
    house.batches.drop_batch(batch, "the skills changed")
    with pytest.raises(RefusedError, match=r"is dropped already \(the skills changed\)"):
        house.policies.publish(WEIGHTS, parent=0, base="model", batch=batch)
    assert house.policies.versions() == []


async def test_a_forgotten_turn_takes_its_open_batch_with_it(house: House, database: Database, new_turn: TurnMaker) -> None:
    batch = await house.taught(new_turn, session="s_gone")
    forgotten = SqlForgetting(database).forget_session(SessionId("s_gone"))
    assert (forgotten.batches, forgotten.versions) == ((batch,), ())
    assert house.batches.open_batch_now() is None
    with pytest.raises(RefusedError, match="a turn of it was forgotten"):
        house.policies.publish(WEIGHTS, parent=0, base="model", batch=batch)


async def test_turns_that_grew_old_do_not_hold_a_batch_up(house: House, database: Database, new_turn: TurnMaker) -> None:
    batch = await house.taught(new_turn)
    SqlForgetting(database).forget_before(datetime(2030, 1, 1, tzinfo=UTC))
    left = house.batches.open_batch_now()
    assert left is not None
    assert (left.number, left.turns, left.size) == (batch, (), 2)
    assert house.policies.publish(WEIGHTS, parent=0, base="model", batch=batch).number == 1


async def test_forgetting_tells_the_versions_that_descend_from_what_is_gone(
    house: House, database: Database, new_turn: TurnMaker
) -> None:
    mine, other = await house.taught(new_turn, session="s_gone"), await house.taught(new_turn)
    house.policies.publish(WEIGHTS, parent=0, base="model", batch=other)
    house.policies.publish(WEIGHTS, parent=0, base="model", batch=mine)
    house.publish(parent=1)
    house.publish(parent=2)
    house.publish(parent=4)
    for _ in range(2):
        assert SqlForgetting(database).forget_session(SessionId("s_gone")).versions == (2, 4, 5)


async def test_weights_that_were_trained_on_a_forgotten_session_never_serve_again(
    house: House, database: Database, new_turn: TurnMaker
) -> None:
    """Version 1 is clean, 2 was trained on the session and serves, 3 goes on from it and is on trial."""
    clean, mine = await house.taught(new_turn), await house.taught(new_turn, session="s_gone")
    house.policies.publish(WEIGHTS, parent=0, base="model", batch=clean)
    house.policies.promote(1)
    house.policies.publish(WEIGHTS, parent=0, base="model", batch=mine)
    house.policies.promote(2)
    house.publish(parent=2)
    house.policies.canary(3)
    forgetting = SqlForgetting(database)
    forgetting.forget_session(SessionId("s_gone"))
    for _ in range(2):
        forgetting.erase("it was trained on a session that was forgotten")
        assert house.states() == {3: "rolled back", 2: "rolled back", 1: "retired"}
        assert house.policies.serving() == Serving(0), "version 2 began from the untrained model, so that serves again"
    assert len(house.policies.thrown_away()) == 2
    for number in (2, 3):
        with pytest.raises(RefusedError, match="no longer kept: it was trained on a session that was forgotten"):
            house.policies.promote(number)
    house.policies.promote(1)
    assert house.policies.serving() == Serving(1, absorbed={1: frozenset()})


async def test_weights_that_go_on_from_a_clean_version_fall_back_to_it(
    house: House, database: Database, new_turn: TurnMaker
) -> None:
    clean = await house.taught(new_turn)
    house.policies.publish(WEIGHTS, parent=0, base="model", batch=clean)
    house.policies.promote(1)
    mine = await house.taught(new_turn, version=1, session="s_gone")
    house.policies.publish(WEIGHTS, parent=1, base="model", batch=mine)
    house.policies.promote(2)
    SqlForgetting(database).forget_session(SessionId("s_gone"))
    SqlForgetting(database).erase("forgotten")
    assert house.states() == {2: "rolled back", 1: "serving"}


async def test_a_version_descends_from_where_its_batch_began(house: House, new_turn: TurnMaker) -> None:
    batch = await house.taught(new_turn)
    house.publish()
    with pytest.raises(RefusedError, match="began from version 0, not from 1"):
        house.policies.publish(WEIGHTS, parent=1, base="model", batch=batch)
    with pytest.raises(RefusedError, match="no version 7 to descend from"):
        house.publish(parent=7)
    with pytest.raises(RefusedError, match="no batch 99"):
        house.policies.publish(WEIGHTS, parent=0, base="model", batch=99)
    left = house.batches.open_batch_now()
    assert left is not None
    assert left.number == batch


async def test_a_candidate_is_tried_then_serves_and_what_served_is_retired(house: House) -> None:
    for number in (1, 2):
        assert house.publish(parent=number - 1) == number
        house.policies.canary(number, PASSED)
        assert house.policies.serving(0.25) == Serving(
            number - 1, number, 0.25, dict.fromkeys({number, number - 1} - {0}, frozenset())
        )
        house.policies.promote(number, "better")
    assert house.states() == {1: "retired", 2: "serving"}
    version = house.policies.version(2)
    assert version is not None
    assert (version.report, version.has_served) == (PASSED, True)
    assert house.told()[-3:] == [("published", 2, 1, None), ("tried", 2, 1, 2), ("promoted", 2, 2, None)]


async def test_what_a_version_has_passed_is_noted_with_it_and_with_no_other(house: House) -> None:
    house.publish()
    house.policies.promote(1, "better", PASSED)
    house.publish(parent=1)
    house.policies.promote(2, "better still", GateReport(True, ("better still",)))
    first, second = house.policies.version(1), house.policies.version(2)
    assert first is not None
    assert second is not None
    assert (first.report, second.report) == (PASSED, GateReport(True, ("better still",)))


async def test_rolling_back_leads_to_the_nearest_ancestor_that_served(house: House) -> None:
    house.publish()
    house.policies.promote(1)
    house.policies.reject(house.publish(parent=1), GateReport(False, ("worse",)))
    house.publish(parent=2)
    house.policies.promote(3)
    house.policies.rollback(reason="worse on live turns")
    assert house.states() == {1: "serving", 2: "rejected", 3: "rolled back"}
    house.policies.rollback()
    assert house.states() == {1: "rolled back", 2: "rejected", 3: "rolled back"}
    assert house.policies.serving() == Serving(0)
    assert house.told()[-2:] == [("rolled back", 3, 1, None), ("rolled back", 1, 0, None)]


async def test_a_trial_is_taken_back_before_what_serves(house: House) -> None:
    house.publish()
    house.policies.promote(1)
    house.policies.canary(house.publish(parent=1))
    house.policies.rollback()
    assert house.states() == {1: "serving", 2: "rolled back"}


async def test_one_may_go_back_to_any_version_that_served(house: House) -> None:
    for number in (1, 2, 3):
        house.publish(parent=number - 1)
        house.policies.promote(number)
    house.policies.canary(house.publish(parent=3))
    house.policies.rollback(1)
    assert house.states() == {1: "serving", 2: "retired", 3: "rolled back", 4: "rolled back"}
    house.policies.rollback(0)
    assert house.policies.serving() == Serving(0)
    house.policies.promote(3, "after all")
    assert house.policies.serving().version == 3


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (lambda policies: policies.promote(9), "no version 9"),
        (lambda policies: policies.promote(0), "untrained model; roll back to it"),
        (lambda policies: policies.promote(2), "serves already"),
        (lambda policies: policies.canary(9), "no version 9"),
        (lambda policies: policies.canary(1), "it is retired, not a candidate"),
        (lambda policies: policies.canary(5), "version 4 is being tried already"),
        (lambda policies: policies.reject(2), "it is serving, not a candidate"),
        (lambda policies: policies.rollback(9), "no version 9"),
        (lambda policies: policies.rollback(3), r"no earlier than version 2, which serves; promote"),
        (lambda policies: policies.let_go(2), "serving and needs them"),
        (lambda policies: policies.let_go(9), "no version 9"),
        (lambda policies: policies.absorb(9, []), "no version 9"),
    ],
)
async def test_a_move_that_may_not_be_made_is_refused_in_words_and_changes_nothing(
    house: House, move: Callable[[SqlPolicies], None], words: str
) -> None:
    house.publish()
    house.policies.promote(1)
    house.publish(parent=1)
    house.policies.promote(2)
    house.policies.reject(house.publish(parent=2))
    house.policies.canary(house.publish(parent=2))
    house.publish(parent=2)
    before, told = house.policies.versions(), house.told()
    assert house.states() == {1: "retired", 2: "serving", 3: "rejected", 4: "canary", 5: "candidate"}
    with pytest.raises(RefusedError, match=words):
        move(house.policies)
    assert (house.policies.versions(), house.told()) == (before, told)


async def test_there_is_nothing_to_roll_back_from_the_untrained_model_nor_to_what_never_served(house: House) -> None:
    with pytest.raises(RefusedError, match="nothing to roll back"):
        house.policies.rollback()
    with pytest.raises(RefusedError, match="version 0 serves already"):
        house.policies.rollback(0)
    house.publish()
    house.publish(parent=1)
    house.policies.promote(2)
    with pytest.raises(RefusedError, match=r"version 1 \(candidate\) has never served"):
        house.policies.rollback(1)


async def test_weights_that_are_gone_are_no_place_to_go(house: House) -> None:
    for number in (1, 2, 3, 4):
        house.publish(parent=number - 1)
        house.policies.promote(number)
    assert [version.number for version in house.policies.spare(keep=1)] == [2, 1]
    house.policies.let_go(2)
    assert [version.number for version in house.policies.spare(keep=2)] == [1]
    for refused in (house.policies.rollback, house.policies.promote):
        with pytest.raises(RefusedError, match="no longer kept"):
            refused(2)
    house.policies.rollback()
    house.policies.rollback()
    assert house.states() == {1: "serving", 2: "retired", 3: "rolled back", 4: "rolled back"}
    gone = house.policies.version(2)
    assert gone is not None
    assert not gone.is_kept


async def test_absorbed_skills_belong_to_a_version(house: House) -> None:
    house.publish()
    house.policies.promote(1)
    house.policies.absorb(1, [SkillName("b"), SkillName("a")])
    assert house.policies.serving().absorbed == {1: frozenset({SkillName("a"), SkillName("b")})}
    house.policies.rollback()
    assert house.policies.serving().absorbed == {}


async def test_what_versions_did_is_read_from_the_moment_one_is_tried(
    house: House, database: Database, new_turn: TurnMaker
) -> None:
    async def serve(version: int, outcome: Outcome | None, **fields: object) -> Turn:
        turn = new_turn("s_1", stamp=Stamp(0, version, "", ()), **fields)
        assert await house.ledger.record(turn)
        if outcome is not None:
            fault = Fault.AGENT if outcome is Outcome.FAIL else None
            assert SqlVerdicts(database).record_verdict(Verdict(turn.id, outcome, Source.CHECK, None, fault=fault))
        return turn

    house.publish()
    await serve(0, Outcome.PASS)
    house.policies.canary(1)
    since = house.policies.since(1)
    assert since is not None
    assert since.at == NOON
    await serve(0, Outcome.PASS)
    await serve(1, Outcome.FAIL)
    await serve(1, Outcome.PASS, kind=TurnKind.SIDE)
    await serve(1, None)
    await serve(2, Outcome.PASS)
    await serve(1, Outcome.UNKNOWN)
    assert house.policies.outcomes_by_version([0, 1], since.turn) == [
        VersionOutcome(SessionId("s_1"), 0, Outcome.PASS),
        VersionOutcome(SessionId("s_1"), 1, Outcome.FAIL),
        VersionOutcome(SessionId("s_1"), 1, Outcome.UNKNOWN),
    ]
    assert house.policies.outcomes_by_version([0], 0, since.turn) == [VersionOutcome(SessionId("s_1"), 0, Outcome.PASS)]
    newest = house.policies.outcomes_by_version([0, 1], 0, limit=2)
    assert [(one.version, one.outcome) for one in newest] == [(1, Outcome.FAIL), (1, Outcome.UNKNOWN)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE policies SET state = 'serving' WHERE number = 2",
        "UPDATE policies SET state = 'serving', served_us = 1 WHERE number = 2",
        "UPDATE policies SET state = 'canary' WHERE number = 2",
        "UPDATE policies SET state = 'forgotten' WHERE number = 2",
        "UPDATE policies SET gone_us = 1 WHERE number = 1",
        "UPDATE policies SET adapter = 'elsewhere' WHERE number = 2",
        "UPDATE policies SET batch = NULL WHERE number = 1",
        "DELETE FROM policies WHERE number = 2",
        "UPDATE batches SET state = 'open', ended_us = NULL",
        "UPDATE batches SET seed = 9",
        "DELETE FROM batches",
        "INSERT INTO batch_turns (turn, batch) SELECT seq, 1 FROM turns WHERE id = 'free'",
        "INSERT INTO policies (number, parent, state, backend, adapter, base, generation, batch, steps, note, absorbed, made_us,"
        " state_us, state_turn) VALUES (9, 0, 'candidate', '', '', '', 0, 2, 0, '', '[]', 0, 0, 0)",
        "INSERT INTO policies (number, parent, state, backend, adapter, base, generation, batch, steps, note, absorbed, made_us,"
        " state_us, state_turn) VALUES (9, 0, 'candidate', '', '', '', 0, 1, 0, '', '[]', 0, 0, 0)",
    ],
)
async def test_the_database_itself_keeps_versions_in_order(
    house: House, database: Database, new_turn: TurnMaker, statement: str
) -> None:
    batch, left = await house.taught(new_turn), await house.taught(new_turn)
    assert (batch, left) == (1, 2)
    house.policies.publish(WEIGHTS, parent=0, base="model", batch=batch)
    house.policies.promote(1)
    house.publish(parent=1)
    house.policies.canary(house.publish(parent=1))
    assert await house.ledger.record(new_turn(id=TurnId("free"), stamp=Stamp(0, 0, "", ())))
    before = house.policies.versions(), house.batches.batch(1)
    with pytest.raises(RefusedError):
        with database.writing("cheating") as connection:
            connection.execute(text(statement))
    assert (house.policies.versions(), house.batches.batch(1)) == before


async def test_versions_published_at_once_get_numbers_of_their_own_and_one_of_them_serves(house: House) -> None:
    failures: list[StoreError] = []

    def work() -> None:
        try:
            for _ in range(5):
                house.policies.promote(house.publish())
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    states = house.states()
    assert sorted(states) == list(range(1, 16))
    assert sorted(states.values()) == ["retired"] * 14 + ["serving"]
