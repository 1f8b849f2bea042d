"""The law of versions: whatever moves are made in whatever order, one version serves at most, no
turn teaches twice, and going back leads to what once served.

Batches, publications, gates, promotions, rollbacks, forgetting and restarts come in any order on a
real database, legal or not; a small model of what must be true is kept beside it."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import text

from metaclaw.domain.chat import Finish, SampledTokens, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import BASE_POLICY, PolicyState, Weights
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Exchange, Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.store import (
    RefusedError,
    SqlBatches,
    SqlForgetting,
    SqlGenerations,
    SqlPolicies,
    open_database,
)
from metaclaw.store.turn_writer import TurnWriter
from tests.support.depth import tries
from tests.support.machines import assert_machine_holds, migrated_copies
from tests.support.postgres import running_postgres

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
WEIGHTS = Weights("embedded", "policies")
numbers = st.integers(0, 10**6)
MOVES = [
    SqlPolicies.reject,
    SqlPolicies.promote,
    SqlPolicies.promote,
    SqlPolicies.let_go,
]


def make_turn(number: int, session: SessionId, generation: int, version: int) -> Turn:
    return Turn(
        id=TurnId(f"t_{number}"),
        session=session,
        kind=TurnKind.MAIN,
        kind_reason="",
        scope=Scope(),
        stamp=Stamp(generation, version, "", ()),
        agent="agent",
        wire=Wire.CHAT,
        path="/v1/chat/completions",
        stream=False,
        model="m",
        provider="p",
        provider_wire=Wire.CHAT,
        status=200,
        end=TurnEnd.COMPLETED,
        error=None,
        exchange=Exchange(b"%d" % number),
        finish=Finish.STOP,
        usage=None,
        tokens=SampledTokens((1,), (2,), (-0.5,)),
        times=Times(NOON, None, 0.1),
    )


class Versions(RuleBasedStateMachine):
    fresh_url: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.open: dict[int, set[TurnId]] = {}
        self.sessions: dict[SessionId, set[TurnId]] = {}
        self.taught_by: dict[int, set[TurnId]] = {}  # version → turns
        self.has_served = {BASE_POLICY}
        self.serving = BASE_POLICY
        self.url = type(self).fresh_url()

    @initialize()
    def start(self) -> None:
        self.database = open_database(self.url)
        self.turn_writer = TurnWriter(self.database, 1 << 20)
        self.generations, self.batches = SqlGenerations(self.database), SqlBatches(self.database)
        self.policies = SqlPolicies(self.database)

    def teardown(self) -> None:
        self.turn_writer.close()
        self.database.close()

    @rule()
    def restart(self) -> None:
        self.teardown()
        self.start()

    @rule(size=st.integers(1, 3))
    def open_a_batch(self, size: int) -> None:
        session = SessionId(f"s_{self.made}")
        generation = self.generations.latest().number
        turns = [
            make_turn(self.made + place, session, generation, self.serving) for place in range(size)
        ]
        self.made += size
        self.turn_writer.write(turns)
        ids = [turn.id for turn in turns]
        self.open[self.batches.open_batch(self.serving, ids, self.made)] = set(ids)
        self.sessions[session] = set(ids)

    @precondition(lambda self: self.open)
    @rule(from_parent=st.booleans())
    def publish_the_oldest_batch(self, from_parent: bool) -> None:
        batch = self.batches.open_batch_now()
        assert batch is not None
        assert batch.number == min(self.open)
        parent = batch.policy_version if from_parent else self.serving
        try:
            version = self.policies.publish(WEIGHTS, parent=parent, base="m", batch=batch.number)
        except RefusedError:
            assert parent != batch.policy_version
            return
        self.taught_by[version.number] = self.open.pop(batch.number)

    @rule(parent=numbers)
    def publish_what_no_turn_taught(self, parent: int) -> None:
        parent = self.some_version(parent)
        is_known = parent == BASE_POLICY or self.policies.version(parent) is not None
        try:
            made = self.policies.publish(WEIGHTS, parent=parent, base="m")
        except RefusedError:
            assert not is_known
            return
        assert (made.parent, made.state) == (parent, PolicyState.CANDIDATE)

    @precondition(lambda self: self.taught_by)
    @rule(which=numbers)
    def publish_an_old_batch_again(self, which: int) -> None:
        versions = [version for version in self.policies.versions() if version.batch is not None]
        batch = versions[which % len(versions)]
        with pytest.raises(RefusedError):
            self.policies.publish(WEIGHTS, parent=batch.parent, base="m", batch=batch.batch)

    @precondition(lambda self: self.open)
    @rule()
    def drop_the_oldest_batch(self) -> None:
        number = min(self.open)
        self.batches.drop_batch(number, "any reason")
        del self.open[number]
        with pytest.raises(RefusedError):
            self.policies.publish(WEIGHTS, parent=0, base="m", batch=number)

    @precondition(lambda self: self.sessions)
    @rule(which=numbers)
    def forget(self, which: int) -> None:
        session = list(self.sessions)[which % len(self.sessions)]
        turns = self.sessions.pop(session)
        forgetting = SqlForgetting(self.database)
        forgetting.forget_session(session)
        told = forgetting.derived_data(session)
        assert {number for number, taught in self.taught_by.items() if taught & turns} <= set(
            told.versions
        )
        self.open = {number: taught for number, taught in self.open.items() if not taught & turns}

    @rule()
    def learn_a_skill(self) -> None:
        number = self.generations.latest().number
        self.generations.publish([Skill(SkillName("a"), "when", f"do {number}")], "learned")
        batch = self.batches.open_batch_now()
        if batch is not None:
            assert batch.stale == len(batch.turns)

    @rule(
        move=st.sampled_from(MOVES),
        number=numbers,
    )
    def move(self, move: Callable[[SqlPolicies, int], None], number: int) -> None:
        number, before = self.some_version(number), self.policies.versions()
        try:
            move(self.policies, number)
        except RefusedError:
            assert self.policies.versions() == before
            return
        if move is SqlPolicies.promote:
            assert self.policies.serving().version == number
        self.note_who_serves()

    @rule(to=st.none() | numbers)
    def roll_back(self, to: int | None) -> None:
        to = None if to is None else self.some_version(to)
        before = self.serving
        try:
            self.policies.rollback(to)
        except RefusedError:
            assert self.policies.serving().version == before
            return
        after = self.policies.serving()
        assert after.version in self.has_served
        assert after.version == to if to is not None else after.version < before
        target = self.policies.version(after.version)
        assert target is None or target.is_kept
        self.note_who_serves()

    def some_version(self, which: int) -> int:
        """One of the versions, the untrained model, or one that is not there."""
        return which % (len(self.policies.versions()) + 2)

    def note_who_serves(self) -> None:
        self.serving = self.policies.serving().version
        self.has_served.add(self.serving)

    @invariant()
    def one_serves_at_most(self) -> None:
        states = [version.state for version in self.policies.versions()]
        assert states.count(PolicyState.SERVING) == (self.serving != BASE_POLICY)

    @invariant()
    def no_turn_teaches_twice(self) -> None:
        with self.database.reading("checking") as connection:
            query = (
                "SELECT count(*), count(DISTINCT turn) FROM batch_turns JOIN policies ON"
                " policies.batch = batch_turns.batch"
            )
            rows, turns = connection.execute(text(query)).one()
        left = set().union(*self.sessions.values()) if self.sessions else set[TurnId]()
        assert rows == turns == sum(len(taught & left) for taught in self.taught_by.values())


@pytest.fixture(scope="module")
def sqlite_urls(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    return migrated_copies(tmp_path_factory.mktemp("versions"))


@pytest.fixture(scope="module")
def postgres_urls() -> Iterator[Callable[[], str]]:
    with running_postgres() as server:
        yield server.prepared_database


def test_whatever_is_done_in_whatever_order_versions_stay_in_order(
    sqlite_urls: Callable[[], str],
) -> None:
    assert_machine_holds(Versions, {"fresh_url": staticmethod(sqlite_urls)}, examples=12, steps=40)


@pytest.mark.slow
@pytest.mark.nightly
def test_so_they_do_over_longer_sequences(sqlite_urls: Callable[[], str]) -> None:
    assert_machine_holds(Versions, {"fresh_url": staticmethod(sqlite_urls)}, examples=60, steps=50)


@pytest.mark.slow
def test_so_they_do_on_postgresql(postgres_urls: Callable[[], str]) -> None:
    assert_machine_holds(
        Versions,
        {"fresh_url": staticmethod(postgres_urls)},
        examples=tries(2, nightly=15),
        steps=40,
    )
