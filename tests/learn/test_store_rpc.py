"""The learner reads the store, the serving process writes for it, and the learner's library follows
what is published.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import ChatRequest, Completion, Finish, Message, Role, Text, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.skill import Authorship, LearnedFrom, Skill
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.errors import EngineError, SkillError
from metaclaw.learn.store_rpc import (
    CallError,
    CallResult,
    Channel,
    ForgetSession,
    RemoteLibrary,
    RemoteProvider,
    StoreCall,
    StoreClient,
    WakeLearner,
)
from metaclaw.store import (
    RefusedError,
    SqlCandidates,
    SqlCursors,
    SqlUses,
    SqlVerdicts,
    writes_of,
)
from metaclaw.wires import deltas_of
from tests.learn.conftest import NewLearning
from tests.learn.learning import TASK, ScriptedLearning, Talk, learned_skill, running

pytestmark = pytest.mark.anyio


class Direct:
    """Carries calls out at once."""

    def __init__(self, **deeds: Callable[..., object]) -> None:
        self.deeds = deeds
        self.names: list[str] = []

    def run(self, name: str, *arguments: object) -> object:
        self.names.append(name)
        return self.deeds[name](*arguments)


def library_of(learning: ScriptedLearning) -> RemoteLibrary:
    def publish(
        put: tuple[Skill, ...],
        gone: tuple[SkillName, ...],
        reason: str,
        expected: Mapping[SkillName, str | None],
        learned: LearnedFrom | None,
        by_person: bool,
    ) -> int:
        return learning.library.publish(
            put, gone, reason, expected=expected, learned=learned, by_person=by_person
        ).generation

    return RemoteLibrary(learning.generations, Direct(publish=publish), learning.library.folder)


def assert_same(sent: RemoteLibrary, learning: ScriptedLearning) -> None:
    view, real = sent.follow(), learning.library.view
    assert (view.generation, view.hash, view.skills) == (real.generation, real.hash, real.skills)


async def test_what_a_learner_writes_is_written_for_it_and_what_it_reads_it_reads_itself(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    turn = await Talk(learning).say(TASK.format(1))
    kinds = SqlVerdicts, SqlCandidates, SqlCursors, SqlUses
    calls = Direct(**writes_of(kind(learning.database) for kind in kinds))
    verdicts = SqlVerdicts(learning.database, remote=calls)
    candidates = SqlCandidates(learning.database, remote=calls)
    cursors = SqlCursors(learning.database, remote=calls)
    uses = SqlUses(learning.database, remote=calls)
    assert verdicts.record_verdict(
        Verdict(turn, Outcome.FAIL, Source.DETECTOR, None, fault=Fault.AGENT)
    )
    found = verdicts.verdict_of(turn)
    assert found is not None
    assert found.outcome is Outcome.FAIL
    number = candidates.begin_attempt("dates", 0, [turn])
    assert [attempt.number for attempt in candidates.interrupted()] == [number]
    candidates.end_attempt(number)
    assert candidates.interrupted() == []
    cursors.move_cursor("somewhere", 7)
    assert cursors.cursor("somewhere") == 7
    rows = learning.reader.turns_after(0)
    uses.note(rows)
    assert uses.cursor() == rows[-1].seq
    once_each = [
        "SqlVerdicts.record_verdict",
        "SqlCandidates.begin_attempt",
        "SqlCandidates.end_attempt",
        "SqlCursors.move_cursor",
        "SqlUses.note",
    ]
    assert calls.names == once_each


async def test_a_turn_that_has_its_role_is_refused_to_a_learner_too(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    turn = await Talk(learning).say(TASK.format(1))
    calls = Direct(**writes_of([learning.candidates]))
    candidates = SqlCandidates(learning.database, remote=calls)
    candidates.begin_attempt("dates", 0, [turn])
    with pytest.raises(RefusedError):
        candidates.begin_attempt("dates", 0, [turn])


async def test_a_learner_sees_its_own_publication_at_once_and_everybody_elses_when_it_follows(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    sent = library_of(learning)
    mine = sent.publish(
        [learned_skill("one")], (), "learned one", expected={SkillName("one"): None}
    )
    assert [skill.name for skill in mine.skills] == ["one"]
    learning.write_by_hand(learned_skill("by-hand", author=Authorship.PERSON, scope=None))
    learning.library.retire(SkillName("one"))
    assert [skill.name for skill in sent.view.skills] == ["one"]
    assert_same(sent, learning)
    learning.library.revert(mine.generation)
    assert_same(sent, learning)
    with pytest.raises(SkillError):
        sent.publish(
            [learned_skill("one", body="1. Do otherwise.")],
            (),
            "too late",
            expected={SkillName("one"): None},
        )
    assert_same(sent, learning)


names = st.sampled_from(["a", "b", "c", "d"])
changes = st.lists(
    st.tuples(st.sampled_from(["put", "retire", "revert", "follow"]), names, st.integers(0, 5)),
    max_size=12,
)


@given(done=changes)
@settings(max_examples=12, deadline=None)
async def test_whoever_follows_has_what_is_in_force_however_it_came_about(
    empty_ledger: Path, tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, str, int]]
) -> None:
    async with running(empty_ledger, tmp_path_factory.mktemp("followed")) as learning:
        assert_follows(learning, done)


def assert_follows(learning: ScriptedLearning, done: list[tuple[str, str, int]]) -> None:
    sent = library_of(learning)
    for what, name, number in done:
        try:
            match what:
                case "put":
                    learning.library.publish(
                        [learned_skill(name, body=f"1. Do it {number} times.\n\nDo not stop.")],
                        (),
                        "put",
                    )
                case "retire":
                    learning.library.retire(SkillName(name))
                case "revert":
                    learning.library.revert(learning.library.view.generation - number)
                case _:
                    assert_same(sent, learning)
        except SkillError:
            continue  # there is no such skill, or generation
    assert_same(sent, learning)


@contextmanager
def connected() -> Iterator[tuple[Channel, Channel]]:
    (heard_there, said_here), (heard_here, said_there) = os.pipe(), os.pipe()
    yield Channel(heard_here, said_here), Channel(heard_there, said_there)


async def test_what_is_said_arrives_whole_and_in_order_until_the_other_side_goes() -> None:
    said = (
        WakeLearner(),
        ForgetSession(SessionId("s")),
        StoreCall(1, "name", ("x" * 300_000, (1, None))),
    )
    with connected() as (here, there):

        def speak() -> None:
            for one in said:
                here.send(one)
            here.close()

        sender = threading.Thread(target=speak)
        sender.start()
        assert [await run_sync(there.receive) for _ in said] == list(said)
        assert await run_sync(there.receive) is None
        sender.join(5)
        here.close()  # once more does no harm
        there.close()
        assert await run_sync(here.receive) is None


async def test_each_answer_finds_whoever_asked_and_an_error_is_raised_where_it_was_asked() -> None:
    asked: list[StoreCall] = []
    is_asked = threading.Semaphore(0)

    def send(call: StoreCall) -> None:
        asked.append(call)
        is_asked.release()

    store, answers = StoreClient(send), dict[str, object]()

    async def ask(name: str) -> None:
        try:
            answers[name] = await run_sync(store.run, name, 1)
        except EngineError as error:
            answers[name] = (error.status, str(error))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for name in ("one", "two", "three"):
                group.start_soon(ask, name)
            for _ in range(3):
                await run_sync(is_asked.acquire)
            numbers = {call.name: call.number for call in asked}
            store.hear(CallResult(numbers["two"], "second"))
            store.hear(CallError(numbers["three"], EngineError("it sleeps", status=529)))
            store.hear(CallResult(numbers["one"], "first"))
    assert answers == {"one": "first", "two": "second", "three": (529, "it sleeps")}


async def test_a_model_that_only_the_program_has_answers_a_learner_all_the_same() -> None:
    answer = Completion("x", "m-1", (Text("Hello."),), Finish.STOP, Usage(1, 1))
    request = ChatRequest(Wire.CHAT, "m-1", (Message(Role.USER, (Text("Hi"),)),))
    asked: list[object] = []

    def generate(*arguments: object) -> object:
        asked.extend(arguments)
        return tuple(deltas_of(answer))

    provider = RemoteProvider("embedded", ("m-1",), Direct(generate=generate))
    assert [delta async for delta in provider.generate(request)] == list(deltas_of(answer))
    assert asked == ["embedded", request, 0]
    await provider.aclose()
