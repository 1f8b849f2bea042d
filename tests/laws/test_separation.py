"""The law of separation: what fed a skill never trains the weights, nor does a turn whose prompt
would differ today. No turn is in two runs at once, and what was in a run never feeds a skill. A run
that came to nothing gives its turns back. A turn's prompt would differ where a rule or skill for
its speaker came, changed or went; facts, examples, states and what is for other speakers age no
turn. A failure may teach until a skill for its speaker comes or changes; rules and facts close
none.

Turns, late verdicts, attempts, publications, edits by hand, reverts, restarts, forgetting and
training come in any order, on a real database; a small model of what must be true is kept beside
it. Whoever goes around the program and writes SQL is refused, too."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import text

from metaclaw.domain.candidate import Candidate, CandidateId, Change, Proposal, Standing
from metaclaw.domain.chat import Finish, SampledTokens, Wire
from metaclaw.domain.front_matter import SkillRecord
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import PolicyState, Weights
from metaclaw.domain.skill import Authorship, Skill, SkillKind
from metaclaw.domain.training import RoleKind, TurnRole, rejection
from metaclaw.domain.turn import Exchange, Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.skills import applies
from metaclaw.store import (
    BatchState,
    LedgerReader,
    RefusedError,
    SqlBatches,
    SqlCandidates,
    SqlForgetting,
    SqlGenerations,
    SqlPolicies,
    SqlTeams,
    SqlVerdicts,
    open_database,
)
from metaclaw.store.turn_writer import TurnWriter
from tests.support.depth import tries
from tests.support.eligible import eligible
from tests.support.machines import assert_machine_holds, migrated_copies
from tests.support.postgres import running_postgres

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
# Each session has its speaker.
SPEAKERS = {
    SessionId("s_0"): Scope(),
    SessionId("s_1"): Scope("ada", "shop"),
    SessionId("s_2"): Scope("bob", "shop"),
    SessionId("s_3"): Scope("user:bob"),
    SessionId("s_4"): Scope(None, "ada"),
    SessionId("s_5"): Scope("ada", "/home/ada/shop"),
    SessionId("s_6"): Scope("ada", "/home/ada/shops"),
}
TEAMS = {"web": ["ada", "bob"], "data": ["bob"]}
sessions = st.sampled_from(list(SPEAKERS))
scopes = st.sampled_from(
    [
        None,
        "owner",
        "user:ada",
        "user:bob",
        "ada",
        "bob",
        "workspace:shop",
        "shop",
        "team:web",
        "team:data",
    ]
)
extras = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["rule", "fact", "skill"]),
        "workspace": st.sampled_from(["shop", "ada", "/home/ada", "/home/ada/shop"]),
        "examples": st.lists(st.sampled_from(["Install numpy.", "Install torch."]), max_size=1),
        "applies": st.just("always"),
    },
)
rules = st.builds(
    SkillRecord,
    st.sampled_from([SkillName("rule-1"), SkillName("rule-2"), SkillName("rule-3")]),
    st.sampled_from(["when installing", "always"]),
    st.sampled_from(["Use uv.", "Use pip."]),
    scope=scopes,
    extra=extras,
).map(SkillRecord.read)
kinds = st.sampled_from([TurnKind.MAIN, TurnKind.MAIN, TurnKind.SIDE])
picks = st.lists(st.integers(0, 10**6), min_size=1, max_size=4)


def make_turn(number: int, session: SessionId, generation: int, kind: TurnKind) -> Turn:
    return Turn(
        id=TurnId(f"t_{number}"),
        session=session,
        kind=kind,
        kind_reason="",
        scope=SPEAKERS[session],
        stamp=Stamp(generation, 0, "", ()),
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
        exchange=Exchange(b"the same long beginning of every request " * 5 + b"%d" % number),
        finish=Finish.STOP,
        usage=None,
        tokens=SampledTokens((1,), (2,), (-0.5,)),
        times=Times(NOON, None, 0.1),
    )


def is_for_directory(skill: Skill, workspace: str | None) -> bool:
    """Whether a rule or skill ages turns of this workspace: one of a directory ages the turns below
    it (docs/decisions/0008), though it is placed in that very directory alone. Too old is the
    safe side."""
    named = skill.workspace
    return skill.is_for_workspace(workspace) or (
        workspace is not None and workspace.startswith(f"{named}/")
    )


@dataclass(frozen=True)
class Chosen:
    """Turns that could train at one moment; when they are used, much may have happened."""

    turns: tuple[TurnId, ...]


class Separation(RuleBasedStateMachine):
    fresh_url: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.waiting: list[
            Turn
        ] = []  # prompts that were built and stamped; their answers are still running
        self.turns: dict[TurnId, Turn] = {}
        self.roles: dict[TurnId, TurnRole] = {}
        self.batches: dict[int, set[TurnId]] = {}
        self.states: dict[int, BatchState] = {}
        self.versions: dict[int, tuple[int, PolicyState]] = {}  # each with its batch
        self.newest = 0
        self.published: list[tuple[Skill, ...]] = [()]
        self.judged_in: dict[
            TurnId, int
        ] = {}  # the generation in which the verdict that stands was given
        self.chosen: list[Chosen] = []
        self.drafts: list[Candidate] = []
        self.url = type(self).fresh_url()

    @initialize()
    def start(self) -> None:
        self.database = open_database(self.url)
        self.turn_writer = TurnWriter(self.database, 1 << 20)
        self.reader = LedgerReader(self.database)
        self.generations = SqlGenerations(self.database)
        self.verdicts = SqlVerdicts(self.database)
        self.candidates = SqlCandidates(self.database)
        self.training = SqlBatches(self.database)
        self.policies = SqlPolicies(self.database)
        SqlTeams(self.database).replace(TEAMS)

    def stop(self) -> None:
        self.turn_writer.close()
        self.database.close()

    def teardown(self) -> None:
        self.stop()

    @rule(session=sessions, kinds=st.lists(kinds, min_size=1, max_size=4))
    def build_prompts(self, session: SessionId, kinds: list[TurnKind]) -> None:
        for kind in kinds:
            self.made += 1
            self.waiting.append(
                make_turn(self.made, session, self.generations.latest().number, kind)
            )

    @rule(
        session=sessions,
        kinds=st.lists(kinds, min_size=1, max_size=4),
        outcome=st.sampled_from(Outcome),
    )
    def serve_and_judge_at_once(
        self, session: SessionId, kinds: list[TurnKind], outcome: Outcome
    ) -> None:
        before = len(self.waiting)
        self.build_prompts(session, kinds)
        self.answer(list(range(before, len(self.waiting))))
        self.judge(list(self.turns)[-len(kinds) :], outcome, Source.DETECTOR)

    @precondition(lambda self: self.waiting)
    @rule(which=picks)
    def answer(self, which: list[int]) -> None:
        done = list(dict.fromkeys(self.waiting[index % len(self.waiting)] for index in which))
        self.turn_writer = self.written(done)
        self.waiting = [turn for turn in self.waiting if turn not in done]
        self.turns |= {turn.id: turn for turn in done}

    def written(self, turns: list[Turn]) -> TurnWriter:
        try:
            self.turn_writer.write(turns)
        except RefusedError:
            # It remembered a body that was forgotten: what the ledger does then.
            self.turn_writer.undo()
            self.turn_writer.write(turns)
        return self.turn_writer

    def some(self, which: list[int]) -> list[TurnId]:
        known = list(self.turns)
        return list(dict.fromkeys(known[index % len(known)] for index in which))

    @precondition(lambda self: self.turns)
    @rule(which=picks, outcome=st.sampled_from(Outcome), source=st.sampled_from(Source))
    def say(self, which: list[int], outcome: Outcome, source: Source) -> None:
        self.judge(self.some(which), outcome, source)

    def judge(self, turns: list[TurnId], outcome: Outcome, source: Source) -> None:
        fault = Fault.AGENT if outcome is Outcome.FAIL else None
        for turn in turns:
            if self.verdicts.record_verdict(Verdict(turn, outcome, source, None, fault=fault)):
                self.judged_in[turn] = self.newest

    @rule(limit=st.integers(1, 5))
    def learn_from_failures(self, limit: int) -> None:
        failures = [one.turn for one in self.verdicts.open_failures(self.newest)[:limit]]
        assert not self.roles.keys() & set(failures)
        if failures:
            self.attempt(failures)

    @precondition(lambda self: self.turns)
    @rule(which=picks)
    def learn_from_anything(self, which: list[int]) -> None:
        self.attempt(self.some(which))

    def attempt(self, turns: list[TurnId]) -> None:
        if any(turn in self.roles for turn in turns):
            with pytest.raises(RefusedError):
                self.candidates.begin_attempt("kind", self.newest, turns)
            return
        self.candidates.begin_attempt("kind", self.newest, turns)
        self.roles |= dict.fromkeys(turns, TurnRole(RoleKind.SUPPORT, self.newest))
        skill = Skill(
            SkillName(f"skill-{self.newest % 3}"),
            "when",
            f"do {turns[0]}",
            author=Authorship.EVOLVER,
        )
        proposal = Proposal(skill, Change.NEW, (), tuple(turns), "kind", "evolver")
        self.drafts.append(
            Candidate(CandidateId(f"c_{turns[0]}"), proposal, Standing.DRAFT, "", self.newest, NOON)
        )

    @precondition(lambda self: self.drafts)
    @rule()
    def publish_what_was_learned(self) -> None:
        draft = self.drafts.pop()
        skill, accepted = draft.proposal.skill, replace(draft, standing=Standing.ACCEPTED)
        if not all(turn in self.turns for turn in draft.proposal.support):
            with pytest.raises(RefusedError, match="forgotten"):
                self.candidates.save_candidate(accepted)
            return
        self.candidates.save_candidate(accepted)
        self.publish(
            [*(old for old in self.generations.latest().skills if old.name != skill.name), skill],
            "learned",
        )

    @rule(body=st.sampled_from(["do this", "do that"]))
    def edit_by_hand(self, body: str) -> None:
        self.publish([Skill(SkillName("by-hand"), "when", body)], "by hand")

    @rule(said=rules)
    def say_a_rule_or_a_fact(self, said: Skill) -> None:
        self.publish([*(old for old in self.published[-1] if old.name != said.name), said], "said")

    @precondition(lambda self: self.published[-1])
    @rule(which=st.integers(0, 10**6))
    def retract(self, which: int) -> None:
        gone = self.published[-1][which % len(self.published[-1])]
        self.publish([old for old in self.published[-1] if old is not gone], "retracted")

    @rule(back=st.integers(1, 3))
    def revert(self, back: int) -> None:
        past = self.generations.at(max(0, self.newest - back))
        assert past is not None
        self.publish(list(past.skills), "reverted")

    def publish(self, skills: list[Skill], reason: str) -> None:
        self.newest += 1
        self.published.append(tuple(skills))
        assert self.generations.publish(skills, reason).number == self.newest

    @rule()
    def restart(self) -> None:
        self.stop()
        self.start()

    @rule(session=sessions)
    def forget(self, session: SessionId) -> None:
        gone = {turn.id for turn in self.turns.values() if turn.session == session}
        forgetting = SqlForgetting(self.database)
        assert forgetting.forget_session(session) == len(gone)
        told = forgetting.derived_data(session)
        self.turns = {turn: made for turn, made in self.turns.items() if turn not in gone}
        self.roles = {turn: role for turn, role in self.roles.items() if turn not in gone}
        hit = {number for number, batch in self.batches.items() if batch & gone}
        assert hit <= set(told.batches)
        self.states |= {
            number: BatchState.DROPPED for number in hit if self.states[number] is BatchState.OPEN
        }
        for number in told.versions:
            batch, state = self.versions[number]
            ended = (
                PolicyState.REJECTED
                if state in (PolicyState.CANDIDATE, PolicyState.REJECTED)
                else PolicyState.ROLLED_BACK
            )
            self.versions[number] = batch, ended

    @rule(limit=st.integers(1, 6))
    def choose_what_may_train(self, limit: int) -> None:
        found = eligible(self.training, self.newest, 0, 0, limit)
        assert self.training.ready(self.newest, 0, 0, limit) == found.turns
        assert all(
            self.may_train(turn) and self.turns[turn].kind is TurnKind.MAIN for turn in found.turns
        )
        assert not any(self.has_taught(turn) for turn in found.turns)
        again = self.training.ready(self.newest, 0, 0, limit, again=True)
        assert all(
            self.has_taught(turn)
            and self.role_kind(turn) is RoleKind.QUERY
            and self.is_current(turn)
            for turn in again
        )
        self.chosen += [Chosen(found.turns)] if found.turns else []

    @precondition(lambda self: self.chosen)
    @rule(which=st.integers(0, 10**6))
    def train_on_what_was_chosen_some_time_ago(self, which: int) -> None:
        self.train(list(self.chosen.pop(which % len(self.chosen)).turns))

    @precondition(lambda self: self.turns)
    @rule(which=picks)
    def train_on_anything(self, which: list[int]) -> None:
        self.train(self.some(which))

    def train(self, turns: list[TurnId]) -> None:
        if not all(self.may_train(turn) for turn in turns):
            with pytest.raises(RefusedError):
                self.training.open_batch(0, turns)
            return
        number = self.training.open_batch(0, turns)
        self.batches[number], self.states[number] = set(turns), BatchState.OPEN
        self.roles |= {
            turn: TurnRole(RoleKind.QUERY, self.turns[turn].stamp.generation)
            for turn in turns
            if turn not in self.roles
        }

    @precondition(lambda self: BatchState.OPEN in self.states.values())
    @rule(which=st.integers(0, 10**6))
    def drop_a_run(self, which: int) -> None:
        number = self.an_open_batch(which)
        given_back = {
            turn for turn in self.batches[number] if self.is_eligible_but_for_its_run(turn)
        }
        self.training.drop_batch(number, "it failed")
        self.states[number] = BatchState.DROPPED
        free = {turn for turn in given_back if not self.has_taught(turn)}
        assert free <= set(self.training.ready(self.newest, 0, 0, 1000))

    def is_eligible_but_for_its_run(self, turn: TurnId) -> bool:
        made = self.turns.get(turn)
        standing = None if made is None else self.reader.standings_of([turn])[turn]
        if made is None or standing is None:
            return False
        return rejection(made, replace(standing, taught=False), self.newest, 0, 0) is None

    @precondition(lambda self: BatchState.OPEN in self.states.values())
    @rule(which=st.integers(0, 10**6))
    def publish_a_version(self, which: int) -> None:
        number = self.an_open_batch(which)
        version = self.policies.publish(
            Weights("b", f"w{number}"), parent=0, base="base", batch=number
        )
        self.states[number] = BatchState.DONE
        self.versions[version.number] = number, PolicyState.CANDIDATE

    @precondition(
        lambda self: any(state is PolicyState.CANDIDATE for _, state in self.versions.values())
    )
    @rule(which=st.integers(0, 10**6))
    def reject_a_version(self, which: int) -> None:
        candidates = [
            number for number, (_, state) in self.versions.items() if state is PolicyState.CANDIDATE
        ]
        number = candidates[which % len(candidates)]
        self.policies.reject(number)
        self.versions[number] = self.versions[number][0], PolicyState.REJECTED

    def an_open_batch(self, which: int) -> int:
        found = [number for number, state in self.states.items() if state is BatchState.OPEN]
        return found[which % len(found)]

    def has_taught(self, turn: TurnId) -> bool:
        """Whether it is in a run that goes on, or trained a version that is not given up."""
        lost = {
            batch
            for batch, state in self.versions.values()
            if state in (PolicyState.REJECTED, PolicyState.ROLLED_BACK)
        }
        lost |= {number for number, state in self.states.items() if state is BatchState.DROPPED}
        return any(turn in batch for number, batch in self.batches.items() if number not in lost)

    def may_train(self, turn: TurnId) -> bool:
        """Whether the database lets a turn into a batch."""
        is_in_a_run = any(
            turn in self.batches[number]
            for number, state in self.states.items()
            if state is BatchState.OPEN
        )
        return (
            self.is_current(turn)
            and not is_in_a_run
            and self.role_kind(turn) is not RoleKind.SUPPORT
        )

    def is_current(self, turn: TurnId) -> bool:
        made = self.turns.get(turn)
        return made is not None and self.prompt_parts(
            made.scope, made.stamp.generation
        ) == self.prompt_parts(made.scope, self.newest)

    def prompt_parts(self, speaker: Scope, generation: int) -> set[tuple[str, bool]]:
        """What the prompts of a speaker are made of, facts left out, and what is for a directory
        above theirs.
        """
        return {
            (skill.content_hash, skill.applies_always)
            for skill in self.published[generation]
            if skill.kind is not SkillKind.FACT
            and applies(skill.scope, speaker, TEAMS)
            and is_for_directory(skill, speaker.workspace)
        }

    def role_kind(self, turn: TurnId) -> RoleKind | None:
        role = self.roles.get(turn)
        return None if role is None else role.kind

    @precondition(lambda self: any(self.may_train(turn) for turn in self.turns))
    @rule(which=picks)
    def train_on_what_may_train_now(self, which: list[int]) -> None:
        fit = [turn for turn in self.turns if self.may_train(turn)]
        self.train(list(dict.fromkeys(fit[index % len(fit)] for index in which)))

    @precondition(lambda self: self.turns and self.batches)
    @rule(which=picks, verb=st.sampled_from(["INSERT", "INSERT OR REPLACE"]))
    def cheat_a_turn_into_a_batch(self, which: list[int], verb: str) -> None:
        turn = self.some(which)[0]
        batch = max(self.batches)
        if self.may_train(turn) and self.states[batch] is BatchState.OPEN:
            return
        self.refused(
            f"{verb} INTO batch_turns (turn, batch) SELECT seq, {batch} FROM turns WHERE id ="
            f" '{turn}'"
        )

    @precondition(lambda self: self.roles)
    @rule(
        which=st.integers(0, 10**6),
        kind=st.sampled_from(RoleKind),
        verb=st.sampled_from(["INSERT", "INSERT OR REPLACE"]),
    )
    def cheat_a_turn_out_of_its_role(self, which: int, kind: RoleKind, verb: str) -> None:
        turn = list(self.roles)[which % len(self.roles)]
        mine = f"turn = (SELECT seq FROM turns WHERE id = '{turn}')"
        self.refused(
            f"{verb} INTO roles (turn, kind, generation) SELECT seq, '{kind.value}', 0 FROM turns"
            f" WHERE id = '{turn}'"
        )
        self.refused(f"UPDATE roles SET kind = '{kind.value}' WHERE {mine}")
        self.refused(f"DELETE FROM roles WHERE {mine}")

    def refused(self, statement: str) -> None:
        if self.database.kind == "postgresql":
            statement = statement.replace(" OR REPLACE", "")
        with pytest.raises(RefusedError):
            with self.database.writing("cheating") as connection:
                connection.execute(text(statement))

    @invariant()
    def roles_are_what_they_were_and_no_batch_holds_what_it_must_not(self) -> None:
        with self.database.reading("checking") as connection:
            roles = connection.execute(
                text("SELECT id, roles.kind, roles.generation FROM roles JOIN turns ON seq = turn")
            ).all()
            taught = connection.execute(
                text("SELECT id, batch FROM batch_turns JOIN turns ON seq = turn")
            ).all()
        assert {
            TurnId(turn): TurnRole(RoleKind(kind), generation) for turn, kind, generation in roles
        } == self.roles
        left = {
            (turn, number)
            for number, batch in self.batches.items()
            for turn in batch
            if turn in self.turns
        }
        assert {(TurnId(turn), number) for turn, number in taught} == left
        assert all(self.role_kind(turn) is RoleKind.QUERY for turn, _ in left)

    @invariant()
    def a_turn_is_aged_where_its_prompt_would_differ_and_only_there(self) -> None:
        standings = self.reader.standings_of(list(self.turns))
        assert {turn: not standing.is_aged for turn, standing in standings.items()} == {
            turn: self.is_current(turn) for turn in self.turns
        }

    @invariant()
    def every_turn_is_readable(self) -> None:
        for turn in list(self.turns.values())[-2:]:
            found = self.reader.turn(turn.id)
            assert found is not None
            assert found.turn == turn


@pytest.fixture(scope="module")
def sqlite_urls(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    return migrated_copies(tmp_path_factory.mktemp("separation"))


@pytest.fixture(scope="module")
def postgres_urls() -> Iterator[Callable[[], str]]:
    with running_postgres() as server:
        yield server.prepared_database


def test_whatever_happens_in_whatever_order_support_and_query_stay_apart(
    sqlite_urls: Callable[[], str],
) -> None:
    assert_machine_holds(
        Separation, {"fresh_url": staticmethod(sqlite_urls)}, examples=15, steps=30
    )


@pytest.mark.slow
@pytest.mark.nightly
def test_so_they_do_over_longer_sequences(sqlite_urls: Callable[[], str]) -> None:
    assert_machine_holds(
        Separation, {"fresh_url": staticmethod(sqlite_urls)}, examples=60, steps=50
    )


@pytest.mark.slow
def test_so_they_do_on_postgresql(postgres_urls: Callable[[], str]) -> None:
    assert_machine_holds(
        Separation,
        {"fresh_url": staticmethod(postgres_urls)},
        examples=tries(2, nightly=10),
        steps=tries(20, nightly=40),
    )
