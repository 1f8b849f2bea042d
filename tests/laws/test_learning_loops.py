"""The law of the loops: whatever people say, whoever is down, wherever it is stopped, what is
learned is learned once, kept apart from what may train, and in force only through the gate or by a
person's hand.

Sensing, learning and admitting run on a real store and a real library. Turns, verdicts that come
late, judges and evolvers that are down, feedback, edits and deletions by hand, reverts, forgetting,
training, restarts and kills in the middle of anything come in any order; after each of them the law
is checked against what is on disk."""

import shutil
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import Connection

from metaclaw.domain.candidate import Candidate, Standing
from metaclaw.domain.chat import SampledTokens
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Outcome, Source
from metaclaw.errors import UpstreamError
from metaclaw.skills import GateMode, remove_skill
from metaclaw.store import Database, RefusedError, open_database
from tests.learn.learning import (
    CORRECTION,
    DATES,
    FAILED,
    PASSED,
    TASK,
    THANKS,
    ScriptedLearning,
    Speaker,
    Talk,
    running,
)
from tests.support.eligible import eligible
from tests.support.machines import assert_machine_holds

T = TypeVar("T")
PEOPLE = [Scope("ada"), Scope("bob")]
INSTRUCTIONS = [
    "From now on, always write changelog release dates as YYYY-MM-DD.",
    f"No, that's wrong. From now on, always answer in German. {CORRECTION}",
    "From now on, always answer in French.",
]
PLAIN = "Please prepare the report about the state of our harbour cranes."
WORDS = [TASK.format(1), CORRECTION, CORRECTION, THANKS, PLAIN, *INSTRUCTIONS]
SKILLS: list[dict[str, Any]] = [
    dict(DATES),
    {
        **DATES,
        "name": "dates-again",
        "body": f"{DATES['body']}\n- Look at the release date once more.",
    },
    {**DATES, "name": "vague", "trigger": "Whenever needed", "body": "Be careful."},
    {
        **DATES,
        "name": "reaching",
        "body": f"{DATES['body']}\n- Release dates are listed on https://dates.example/releases.",
    },
    {
        **DATES,
        "replaces": "iso-release-dates",
        "body": f"{DATES['body']}\n- Never leave the release date out.",
    },
]
Skills = list[dict[str, Any]]
picks = st.integers(0, 10**6)
some_words = st.lists(st.sampled_from(WORDS), min_size=2, max_size=4)
some_skills = st.lists(st.sampled_from(SKILLS), min_size=1, max_size=2)


class KilledError(BaseException):
    """The program is no more. Nobody catches this."""


@dataclass(frozen=True)
class Kill:
    """Where the program is killed: around the how-manyeth write, before it or when it is on
    disk.
    """

    write: int
    is_done: bool


kills = st.none() | st.builds(Kill, st.integers(1, 12), st.booleans())


class Fragile:
    """A database whose program can be killed."""

    def __init__(self, database: Database) -> None:
        self._writing = database.writing
        self.kill: Kill | None = None
        self.writes = 0
        database.writing = self.writing  # type: ignore[method-assign]

    @contextmanager
    def writing(self, doing: str) -> Iterator[Connection]:
        self.writes += 1
        mine = self.kill if self.kill is not None and self.kill.write == self.writes else None
        if mine is not None and not mine.is_done:
            raise KilledError
        with self._writing(doing) as connection:
            yield connection
        if mine is not None:
            raise KilledError


async def survived(work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Whether the program was killed over it; anything else that is raised is a breach of the
    law.
    """
    was_killed = False
    try:
        await work()
    except* KilledError:
        was_killed = True
    return was_killed


class Loops(RuleBasedStateMachine):
    portal: BlockingPortal
    empty: Path
    folders: Callable[[], Path]

    def __init__(self) -> None:
        super().__init__()
        self.open = ExitStack()
        self.talks: list[Talk] = []
        self.turns: list[TurnId] = []
        self.newest = 0
        self.trained: set[TurnId] = set()

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        return self.portal.call(work)

    @initialize(gate=st.sampled_from(GateMode))
    def begin(self, gate: GateMode) -> None:
        self.judge, self.evolver = (
            Speaker("world/judge", lambda prompt: PASSED),
            Speaker("world/evolver", lambda prompt: {}),
        )
        told: dict[str, Any] = {
            "gate": gate,
            "judge": self.judge,
            "evolver": self.evolver,
        }
        learning = running(self.empty, self.folders(), teams={"web": ("ada", "bob")}, **told)
        self.learning: ScriptedLearning = self.open.enter_context(
            self.portal.wrap_async_context_manager(learning)
        )
        self.fragile = Fragile(self.learning.database)

    def teardown(self) -> None:
        try:
            self.nothing_was_lost()
        finally:
            self.open.close()

    def nothing_was_lost(self) -> None:
        """However it was stopped and started: in the end every turn that somebody went on from has
        its verdict.
        """
        self.judge.rule = lambda prompt: PASSED
        for _ in range(3):
            self.call(self.learning.sense)
        followed = [recorded.turn.id for talk in self.talks for recorded in talk.agent.turns[:-1]]
        assert [turn for turn in followed if self.learning.outcome(turn) is None] == []

    @rule(
        who=st.sampled_from(PEOPLE),
        lines=st.lists(st.sampled_from(WORDS), min_size=2, max_size=4),
        which=picks,
        ends=st.booleans(),
    )
    def somebody_works(self, who: Scope, lines: list[str], which: int, ends: bool) -> None:
        """In a session of before, or in a new one."""
        mine = [talk for talk in self.talks if talk.scope == who]
        talk = mine[which % len(mine)] if mine and which % 3 else Talk(self.learning, who)
        self.talks += [] if talk in mine else [talk]
        tokens = SampledTokens((1,), (2,), (-0.5,))
        for words in (TASK.format(which % 5), *lines):
            self.turns.append(self.call(partial(talk.say, words, tokens=tokens)))
        if ends:
            self.call(talk.end)

    @rule(says=st.sampled_from([PASSED, FAILED, FAILED, None, "mumbling"]), kill=kills)
    def sense(self, says: object, kill: Kill | None) -> None:
        self.judge.rule = lambda prompt: UpstreamError("down") if says is None else says
        self.run_or_kill(self.learning.sense, kill)

    @rule(
        written=st.lists(st.sampled_from(SKILLS), min_size=1, max_size=2),
        is_down=st.sampled_from([True, False, False]),
        kill=kills,
    )
    def sense_and_learn(self, written: Skills, is_down: bool, kill: Kill | None) -> None:
        self.sense(FAILED, None)
        self.evolver.rule = lambda prompt: UpstreamError("down") if is_down else {"skills": written}
        self.run_or_kill(self.learning.learn, kill)

    @precondition(lambda self: self.talks)
    @rule(
        correction=st.sampled_from([CORRECTION, *INSTRUCTIONS]),
        which=picks,
        written=some_skills,
        kill=kills,
    )
    def somebody_corrects_and_it_is_learned(
        self, correction: str, which: int, written: Skills, kill: Kill | None
    ) -> None:
        talk = Talk(self.learning, PEOPLE[which % len(PEOPLE)])
        self.talks.append(talk)
        for words in (TASK.format(which % 5), correction):
            self.turns.append(self.call(partial(talk.say, words)))
        self.sense_and_learn(written, False, kill)

    def run_or_kill(self, work: Callable[[], Coroutine[Any, Any, None]], kill: Kill | None) -> None:
        """Let it run; or kill the program when it writes for the how-manyeth time, and start it
        again.
        """
        self.fragile.kill, self.fragile.writes = kill, 0
        was_killed = self.call(partial(survived, work))
        self.fragile.kill = None
        if was_killed:
            self.restart()

    @rule()
    def restart(self) -> None:
        """Whatever was under way is taken up again; then everything in force has its papers."""
        self.learning.restart()
        self.evolver.rule = lambda prompt: {"skills": []}
        self.call(self.learning.take_up_again)

    @rule()
    def time_passes_and_the_library_is_tended(self) -> None:
        self.learning.clock.pass_by(hours=13)
        self.call(self.learning.tend)

    @precondition(lambda self: self.turns)
    @rule(which=picks, outcome=st.sampled_from(Outcome))
    def give_feedback(self, which: int, outcome: Outcome) -> None:
        turn = self.turns[which % len(self.turns)]
        self.call(
            lambda: self.learning.owner.feedback(
                turn, outcome, "The release date must be written as YYYY-MM-DD."
            )
        )
        if self.learning.reader.turn(turn) is not None:
            assert (self.learning.verdict(turn).outcome, self.learning.verdict(turn).source) == (
                outcome,
                Source.USER,
            )

    @rule(which=picks, does=st.sampled_from(["writes", "edits", "deletes"]))
    def a_person_touches_the_files(self, which: int, does: str) -> None:
        learning, names = self.learning, self.learning.names
        if does == "writes" or not names:
            name = ["by-hand", "iso-release-dates"][which % 2]
            learning.write_by_hand(
                Skill(SkillName(name), "When I say so", f"My own words {which % 3}.")
            )
            return
        name = names[which % len(names)]
        path = learning.library.folder / name / "SKILL.md"
        if not path.exists():
            return  # deleted a moment ago; the next look at the folder will see it
        if does == "edits":
            path.write_text(path.read_text() + f"\nA word of mine {which % 3}.\n")
        else:
            remove_skill(learning.library.folder, name)
        learning.library.sync()

    @rule(back=st.integers(1, 3))
    def a_person_reverts(self, back: int) -> None:
        number = max(0, self.learning.library.view.generation - back)
        assert self.call(lambda: self.learning.owner.revert(number)) >= number

    @rule(which=picks)
    def a_person_retires(self, which: int) -> None:
        if names := self.learning.names:
            self.call(lambda: self.learning.owner.retire(SkillName(names[which % len(names)])))

    @rule(approved=st.booleans())
    def a_person_decides(self, approved: bool) -> None:
        waiting = self.learning.candidates.candidates(Standing.WAITING)
        if waiting:
            decided = self.call(
                lambda: self.learning.owner.decide(waiting[0].id, approved=approved)
            )
            assert decided is not None
            assert decided.standing in (Standing.ACCEPTED, Standing.REJECTED)

    @precondition(lambda self: self.talks)
    @rule(which=picks)
    def a_session_is_forgotten(self, which: int) -> None:
        talk = self.talks.pop(which % len(self.talks))
        self.call(lambda: self.learning.owner.forget(talk.session))
        gone = {recorded.turn.id for recorded in talk.agent.turns}
        for candidate in self.learning.candidates.candidates(Standing.ACCEPTED):
            skill = self.learning.library.view.get(candidate.proposal.skill.name)
            if (
                gone & {*candidate.proposal.support}
                and skill is not None
                and skill.author is not Authorship.PERSON
            ):
                mine = [one for one in self.papers(skill) if not gone & {*one.proposal.support}]
                assert mine, f"{skill.name} is in force, and all who taught it are forgotten"

    @rule(limit=st.integers(1, 4))
    def the_weights_train(self, limit: int) -> None:
        found = eligible(
            self.learning.batches, self.learning.library.view.generation, 0, 0, limit
        ).turns
        if not found:
            return
        try:
            self.learning.batches.open_batch(0, found)
        except RefusedError:
            pytest.fail("a turn that may train was refused")
        self.trained |= set(found)

    def papers(self, skill: Skill) -> list[Candidate]:
        """The candidates as which a skill came into force."""
        found = self.learning.candidates.candidates(name=skill.name)
        mine = [one for one in found if one.proposal.skill.content_hash == skill.content_hash]
        return [one for one in mine if one.standing is Standing.ACCEPTED]

    @invariant()
    def what_taught_a_skill_is_support_and_trains_nothing(self) -> None:
        learning = self.learning
        taught = {
            turn
            for one in learning.candidates.candidates(None, 500)
            for turn in one.proposal.support
        }
        there = learning.reader.standings_of(sorted(taught))
        assert all(
            standing.role is not None and standing.role.kind.value == "support"
            for standing in there.values()
        )
        free = eligible(learning.batches, learning.library.view.generation, 0, 0, 1000).turns
        assert not taught & ({*free} | self.trained)

    @invariant()
    def what_is_in_force_came_through_the_gate_or_by_a_persons_hand(self) -> None:
        for skill in self.learning.library.view.skills:
            assert skill.author is Authorship.PERSON or self.papers(skill), (
                f"{skill.name} has no papers"
            )

    @invariant()
    def generations_count_publications(self) -> None:
        number, latest = self.learning.library.view.generation, self.learning.generations.latest()
        assert number == latest.number
        assert number >= self.newest
        assert len(self.learning.generations.history(1000)) == number + 1
        assert {skill.name for skill in latest.skills} == set(self.learning.names)
        self.newest = number

    @invariant()
    def no_turn_is_judged_twice(self) -> None:
        for turn in self.turns[-6:]:
            said = [
                one
                for one in self.learning.verdicts.verdicts_of(turn)
                if one.source in (Source.DETECTOR, Source.JUDGE)
            ]
            assert sum(one.outcome is not Outcome.UNKNOWN for one in said) <= 1


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """One event loop for all examples, and a fresh folder for each."""
    folder = tmp_path_factory.mktemp("loops")
    open_database(f"sqlite:///{folder / 'empty.db'}").close()
    numbers = count()

    def fresh() -> Path:
        old = folder / f"learning-{next(numbers)}"
        shutil.rmtree(folder / f"learning-{int(old.name.split('-')[1]) - 3}", ignore_errors=True)
        return old

    with start_blocking_portal("asyncio") as portal:
        yield {"portal": portal, "empty": folder / "empty.db", "folders": staticmethod(fresh)}


def test_whatever_happens_what_is_learned_is_learned_once_and_lawfully(
    stage: dict[str, Any],
) -> None:
    assert_machine_holds(Loops, stage, examples=5, steps=25)


@pytest.mark.slow
@pytest.mark.nightly
def test_so_it_is_over_longer_sequences(stage: dict[str, Any]) -> None:
    assert_machine_holds(Loops, stage, examples=15, steps=30)
