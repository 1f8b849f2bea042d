"""Replays of recorded turns with a skill: only the model is asked, tool results come from the
recording.
"""

import json
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from benchmarks import cassettes
from metaclaw.domain.candidate import Probe, ProbeKind, ReplayCost, ReplayResult
from metaclaw.domain.chat import (
    ChatRequest,
    Completion,
    Finish,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    Usage,
    Wire,
)
from metaclaw.domain.ids import SkillName, TurnId, new_turn_id
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.domain.turn import Anchor, Placement, Stamp, Step, Turn, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import JudgeError, UpstreamError
from metaclaw.learn.replay import (
    CassetteReplayer,
    ReplayedTurn,
    ReplayLimits,
    ReplayPrompt,
    ReplayScore,
)
from metaclaw.learn.steps import StepBuilder, read_request
from metaclaw.ports import Model, Purpose, Replayer
from metaclaw.proxy.splice import placement_splices
from metaclaw.skills import Budgets, render_block
from metaclaw.store import Database, LedgerLimits, LedgerReader, SqlLedger, open_database
from metaclaw.wires import encode_json, wire_format
from tests.learn.recordings import Agent, call, say, words
from tests.support.cases import each

TABS = Skill(SkillName("use-tabs"), "When writing Go", "Indent with tabs, never with spaces.")
OLDER = Skill(SkillName("indent-well"), "When writing code", "Indent well.")
LIMIT = 100_000
BESIDE = Skill(SkillName("be-brief"), "Always", "Be brief.")


class Scripted:
    """A model that answers by a rule. It hears requests as the port gives them."""

    name = "primary/m-1"

    def __init__(self, rule: Callable[[ChatRequest], Sequence[Part]]) -> None:
        self._rule = rule
        self.asked: list[ChatRequest] = []

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        assert purpose is Purpose.REPLAY
        self.asked.append(request)
        await anyio.lowlevel.checkpoint()
        parts = tuple(
            replace(part, id=f"new_{len(self.asked)}_{number}")
            if isinstance(part, ToolCall)
            else part
            for number, part in enumerate(self._rule(request))
        )
        return Completion("x", "m-1", parts, Finish.STOP, Usage(100, 10))


class Judge:
    """Passes answers and calls in which a word stands."""

    def __init__(self, word: str = "tabs") -> None:
        self.word = word
        self.heard: list[ReplayedTurn] = []

    def estimate(self, skill: Skill, step: Step) -> int | None:
        return 40

    async def score(self, skill: Skill, played: ReplayedTurn) -> ReplayScore:
        self.heard.append(played)
        return ReplayScore(
            Outcome.PASS if self.word in str(played.answer) + str(played.calls) else Outcome.FAIL,
            40,
        )


def texts(request: ChatRequest) -> str:
    return "\n".join(
        part.text
        for message in request.messages
        for part in message.parts
        if isinstance(part, Text)
    )


def results(request: ChatRequest) -> int:
    """How many tool results the conversation has."""
    return sum(
        1
        for message in request.messages
        for part in message.parts
        if type(part).__name__ == "ToolResult"
    )


def coding(wire: Wire, **fields: object) -> Agent:
    """The agent reads, tests, edits, tests again, and says so with spaces; the person wants
    tabs.
    """
    agent = Agent(wire, **fields)  # type: ignore[arg-type]
    agent.hear("Fix the Go test.")
    for made, result in STEPS:
        agent.use(made, result)
    return (
        agent.answer(Text("Fixed with spaces.")).hear("I want tabs there.").answer(Text("Sorry."))
    )


STEPS = [
    (call("Read", file_path="a.go"), "func main"),
    (call("Bash", command="go test ./..."), "FAIL"),
    (call("Edit", file_path="a.go", old_string="x", new_string="y"), "The file was edited."),
    (call("Bash", command="go test ./..."), "ok"),
]


def again(request: ChatRequest) -> Sequence[Part]:
    """The same session over again, said a little differently; tabs only where the prompt asks for
    them.
    """
    done = results(request)
    varied = [
        call("Read", file_path="./a.go"),
        call("Bash", command="go  test './...'", description="Run the tests"),
        call("Edit", new_string="y", old_string="x", file_path="a.go"),
        call("Bash", command="go test ./..."),
    ]
    if done < len(varied):
        return (Text("Next."), varied[done])
    return (
        Text("Fixed with tabs." if "Indent with tabs" in texts(request) else "Fixed with spaces."),
    )


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty ledger, made once: making its tables takes longer than any test here."""
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def database(empty: Path, tmp_path: Path) -> Iterator[Database]:
    shutil.copy(empty, tmp_path / "ledger.db")
    database = open_database(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield database
    database.close()


@pytest.fixture
async def ledger(database: Database) -> AsyncIterator[SqlLedger]:
    ledger = SqlLedger(database, LedgerLimits(patience_s=60))
    await ledger.start()
    yield ledger
    await ledger.aclose()


@pytest.fixture
def reader(database: Database) -> LedgerReader:
    return LedgerReader(database)


async def kept(ledger: SqlLedger, agent: Agent) -> list[Turn]:
    turns = [recorded.turn for recorded in agent.turns]
    for turn in turns:
        assert await ledger.record(turn)
    return turns


def replayer(
    reader: LedgerReader,
    model: Model | None,
    judge: Judge | None = None,
    *,
    skills: Sequence[Skill] = (),
    limits: ReplayLimits | None = None,
    budget_tokens: int = 1500,
) -> CassetteReplayer:
    generation = SkillGeneration(1, "h", tuple(skills))
    return CassetteReplayer(
        reader,
        StepBuilder(words),
        lambda provider, name: model,
        judge or Judge(),
        lambda number: generation if number == 1 else None,
        Budgets(skills_tokens=budget_tokens),
        limits or ReplayLimits(),
    )


def probe(turn: Turn) -> Probe:
    return Probe(turn.id, ProbeKind.FAILING)


# Whatever the process does that could be felt outside of it, while a test watches.
_OUTSIDE = (
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
)
_watching: list[list[str]] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if not _watching:
        return
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if (
        writes
        or event.startswith(_OUTSIDE)
        or event in ("os.remove", "os.rename", "os.mkdir", "shutil.rmtree")
    ):
        _watching[-1].append(f"{event} {arguments}")


sys.addaudithook(_note)


@contextmanager
def nothing_outside_is_touched() -> Iterator[None]:
    deeds: list[str] = []
    _watching.append(deeds)
    try:
        yield
    finally:
        _watching.pop()
    assert deeds == []


def test_the_watch_sees_a_socket_and_a_file(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"socket\.bind"), nothing_outside_is_touched():
        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
    with pytest.raises(AssertionError, match="open"), nothing_outside_is_touched():
        (tmp_path / "written").open("w").close()


@pytest.mark.anyio
@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_coding_session_is_replayed_to_its_end_and_nothing_outside_is_touched(
    ledger: SqlLedger, reader: LedgerReader, wire: Wire, stream: bool
) -> None:
    turns = await kept(ledger, coding(wire, stream=stream))
    model, judge = Scripted(again), Judge()
    as_port: Replayer = replayer(reader, model, judge)
    with nothing_outside_is_touched(), anyio.fail_after(60):
        result = await as_port.replay(probe(turns[0]), TABS, (), 7, LIMIT)
    assert result == ReplayResult(probe(turns[0]), Outcome.PASS, tokens=5 * 110 + 40)
    assert len(model.asked) == 5
    assert {request.sampling.seed for request in model.asked} == {7}
    assert {request.sampling.temperature for request in model.asked} == {0.5}
    assert {request.sampling.max_tokens for request in model.asked} == {512}
    assert not any(request.stream for request in model.asked)
    assert " ".join(map(texts, model.asked)).count(TABS.body) == 5
    # The judge is shown the recorded step with the person's correction, and the replay's own end.
    (played,) = judge.heard
    step = played.step
    assert (step.turn, step.task, step.said_after) == (
        turns[0].id,
        "Fix the Go test.",
        "I want tabs there.",
    )
    assert played.answer == (Text("Fixed with tabs."),)
    assert [call.name for call in played.calls] == ["Read", "Bash", "Edit", "Bash"]
    assert "ok" in str(model.asked[-1].messages[-1].parts)


@pytest.mark.anyio
@pytest.mark.parametrize("wire", Wire)
async def test_every_request_of_a_replay_can_be_sent_in_its_wire(
    ledger: SqlLedger, reader: LedgerReader, wire: Wire
) -> None:
    turns = await kept(ledger, coding(wire))
    model = Scripted(again)
    await replayer(reader, model).replay(probe(turns[0]), TABS, (), 1, LIMIT)
    for request in model.asked:
        form = wire_format(wire)
        body = form.render_request(request)
        assert form.render_request(form.parse_request(json.loads(encode_json(body)))) == body
        if wire is Wire.RESPONSES:
            assert body["store"] is False


@pytest.mark.anyio
async def test_a_call_that_was_not_recorded_leaves_it_undecided(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    turns = await kept(ledger, coding(Wire.CHAT))

    def curious(request: ChatRequest) -> Sequence[Part]:
        return (
            (call("Read", file_path="other.go"),)
            if "Indent with tabs" in texts(request)
            else again(request)
        )

    judge = Judge()
    result = await replayer(reader, Scripted(curious), judge).replay(
        probe(turns[0]), TABS, (), 1, LIMIT
    )
    assert result.outcome is Outcome.UNKNOWN
    assert result.note == "this call of Read was not recorded"
    assert result.tokens == 110
    assert judge.heard == []


@pytest.mark.anyio
async def test_a_replay_that_takes_more_than_it_may_is_stopped(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    turns = await kept(ledger, coding(Wire.CHAT))
    model = Scripted(again)
    result = await replayer(reader, model).replay(probe(turns[0]), TABS, (), 1, 200)
    assert (result.outcome, result.note) == (Outcome.UNKNOWN, "still at work after 220 tokens")
    assert len(model.asked) == 2


@pytest.mark.anyio
async def test_the_cost_of_a_replay_is_known_before_it_is_paid(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    turns = await kept(ledger, coding(Wire.CHAT))
    tried = replayer(reader, Scripted(again))
    last = await tried.estimate(probe(turns[4]), TABS)
    whole = await tried.estimate(probe(turns[0]), TABS)
    assert 0 < last.turn < whole.turn
    assert 40 < last.beside == whole.beside
    assert await tried.estimate(Probe(TurnId("gone"), ProbeKind.FAILING), TABS) == ReplayCost(0)
    assert await replayer(reader, None).estimate(probe(turns[0]), TABS) == ReplayCost(0)


@pytest.mark.anyio
async def test_where_nobody_can_judge_nothing_is_replayed(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    turns = await kept(ledger, coding(Wire.CHAT))

    class Nobody(Judge):
        def estimate(self, skill: Skill, step: Step) -> int | None:
            return None

    model = Scripted(again)
    tried = replayer(reader, model, Nobody())
    assert await tried.estimate(probe(turns[0]), TABS) == ReplayCost(0)
    assert (await tried.replay(probe(turns[0]), TABS, (), 1, LIMIT)).outcome is Outcome.UNKNOWN
    assert model.asked == []


@pytest.mark.anyio
async def test_a_model_that_never_ends_is_undecided(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    turns = await kept(ledger, coding(Wire.CHAT))
    model = Scripted(lambda _: (call("Read", file_path="a.go"),))
    result = await replayer(reader, model, limits=ReplayLimits(max_answers=5)).replay(
        probe(turns[0]), TABS, (), 1, LIMIT
    )
    assert result.note == "still at work after 5 answers"
    assert len(model.asked) == 5


@pytest.mark.anyio
async def test_a_write_in_other_words_is_taken_for_done_and_the_note_says_so(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    turns = await kept(ledger, coding(Wire.CHAT))

    def edits(request: ChatRequest) -> Sequence[Part]:
        tabs = "Indent with tabs" in texts(request)
        script = [
            call("Edit", file_path="a.go", old_string="x", new_string="tabs" if tabs else "y")
        ]
        return (script[results(request)],) if results(request) < 1 else (Text("Edited."),)

    result = await replayer(reader, Scripted(edits)).replay(probe(turns[0]), TABS, (), 1, LIMIT)
    assert result.outcome is Outcome.PASS
    assert result.note == "1 results were of a call that differs: Edit: what is written"
    strict = replayer(reader, Scripted(edits), limits=ReplayLimits(accept_nearest=False))
    result = await strict.replay(probe(turns[0]), TABS, (), 1, LIMIT)
    assert result.note == "Edit was recorded with a difference: what is written"


@pytest.mark.anyio
async def test_a_provider_that_fails_leaves_it_undecided_and_is_asked_again_next_time(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    turns = await kept(ledger, coding(Wire.CHAT))
    failures = [UpstreamError("down")]

    def moody(request: ChatRequest) -> Sequence[Part]:
        if failures:
            raise failures.pop()
        return again(request)

    tried = replayer(reader, Scripted(moody))
    result = await tried.replay(probe(turns[0]), TABS, (), 1, LIMIT)
    assert (result.outcome, result.note) == (Outcome.UNKNOWN, "primary/m-1 cannot be asked: down")
    assert result.is_unavailable
    assert (await tried.replay(probe(turns[0]), TABS, (), 1, LIMIT)).outcome is Outcome.PASS


@pytest.mark.anyio
async def test_a_judge_that_cannot_say_leaves_it_unknown(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    turns = await kept(ledger, coding(Wire.CHAT))

    class Absent(Judge):
        async def score(self, skill: Skill, played: ReplayedTurn) -> ReplayScore:
            raise JudgeError("nobody there")

    result = await replayer(reader, Scripted(again), Absent()).replay(
        probe(turns[0]), TABS, (), 1, LIMIT
    )
    assert (result.outcome, result.tokens) == (Outcome.UNKNOWN, 550)


@pytest.mark.anyio
async def test_turns_that_cannot_be_replayed_say_why(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    agent = coding(Wire.RESPONSES)
    turn = agent.turns[0].turn
    body = turn.exchange.request
    linked = replace(
        turn,
        id=new_turn_id(),
        exchange=replace(turn.exchange, request=b'{"previous_response_id":"r",' + body[1:]),
    )
    side = replace(turn, id=new_turn_id(), kind=TurnKind.SIDE)
    broken = replace(turn, id=new_turn_id(), exchange=replace(turn.exchange, translated=b"no json"))
    placed = replace(
        turn, id=new_turn_id(), placements=(Placement(b"", (TABS.name,), "not there"),)
    )
    for one in (turn, linked, side, broken, placed):
        assert await ledger.record(one)
    tried = replayer(reader, Scripted(again))
    notes = {
        linked.id: "a part of the prompt is stored at the provider and was not recorded",
        side.id: "the turn is not a main turn, or its request cannot be read",
        placed.id: "the placed skills are not found in the request to the provider",
        TurnId("gone"): "the turn is not recorded any more",
    }
    for turn_id, note in notes.items():
        result = await tried.replay(Probe(turn_id, ProbeKind.PASSING), TABS, (), 1, LIMIT)
        assert (result.outcome, result.note) == (Outcome.UNKNOWN, note)
    result = await tried.replay(probe(broken), TABS, (), 1, LIMIT)
    assert result.note.startswith("the request to the provider cannot be read")
    result = await replayer(reader, None).replay(probe(turn), TABS, (), 1, LIMIT)
    assert result.note == "the model m-1 of provider primary cannot be asked by the program"
    result = await replayer(reader, Scripted(again), budget_tokens=10).replay(
        probe(turn), TABS, (), 1, LIMIT
    )
    assert result.note == "the skill use-tabs does not fit into the prompt's budget of 10 tokens"


@pytest.mark.anyio
async def test_a_replay_that_is_given_up_stops_at_once_and_leaves_others_going(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    turns = await kept(ledger, coding(Wire.CHAT))
    began = anyio.Event()
    hold = [True]

    class Slow(Scripted):
        async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
            if hold:
                hold.clear()
                began.set()
                await anyio.sleep_forever()
            return await super().ask(request, purpose)

    tried = replayer(reader, Slow(again))
    trials: list[ReplayResult] = []

    async def second() -> None:
        trials.append(await tried.replay(probe(turns[0]), TABS, (), 1, LIMIT))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            first = anyio.CancelScope()

            async def given_up() -> None:
                with first:
                    await tried.replay(probe(turns[0]), TABS, (), 1, LIMIT)

            group.start_soon(given_up)
            await began.wait()
            group.start_soon(second)
            first.cancel()
    assert [result.outcome for result in trials] == [Outcome.PASS]


@pytest.mark.anyio
async def test_a_session_that_goes_on_is_read_again(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    agent = Agent(Wire.CHAT).hear("Go.").answer(call("Bash", command="ls"))
    (turn,) = await kept(ledger, agent)

    def looks(request: ChatRequest) -> Sequence[Part]:
        wanted = [call("Bash", command="ls"), call("Bash", command="pwd")]
        return (wanted[results(request)],) if results(request) < 2 else (Text("tabs"),)

    tried = replayer(reader, Scripted(looks))
    assert (
        await tried.replay(probe(turn), TABS, (), 1, LIMIT)
    ).outcome is Outcome.FAIL  # the session ended with that call
    agent.give("a").use(call("Bash", command="pwd"), "/").answer(Text("Done."))
    for recorded in agent.turns[1:]:
        assert await ledger.record(recorded.turn)
    trials = [await tried.replay(probe(turn), TABS, (), 1, LIMIT) for _ in range(2)]
    assert [result.outcome for result in trials] == [Outcome.PASS, Outcome.PASS]


# Where the skill stands in the prompt.


def spliced(turn: Turn, skills: Sequence[Skill], task: int | None = None) -> Turn:
    """The turn as the proxy would have sent it with these skills: behind the task at this index, or
    in the system text.
    """
    text = render_block(skills, 1500).text.removeprefix("\n\n")
    anchor = b"" if task is None else b"task"
    placement = Placement(anchor, tuple(skill.name for skill in skills), text)
    body = turn.exchange.request
    anchors = () if task is None else (Anchor(task, anchor),)
    placed = placement_splices(turn.wire, body, json.loads(body), [placement], anchors)
    assert placed.refused is None
    return replace(
        turn,
        placements=placed.placed,
        exchange=replace(turn.exchange, splices=placed.splices),
        stamp=Stamp(1, 0, "h", placement.skills),
    )


def stage(turn: Turn, *known: Skill) -> ReplayPrompt:
    builder = StepBuilder(words)
    skills = {skill.name: skill for skill in known}
    return ReplayPrompt(
        turn, skills, lambda message: builder.own_words(turn.agent, message), Budgets()
    )


def flat(request: ChatRequest) -> list[tuple[str, str]]:
    """Who says what, however it is cut into parts."""
    return [
        (
            str(message.role),
            "\n\n".join(part.text for part in message.parts if isinstance(part, Text)),
        )
        for message in request.messages
    ]


@each("wire", Wire)
@each("system", ["You are a coding agent.", ""])
def test_the_skill_of_a_first_task_stands_where_the_proxy_would_put_it(
    wire: Wire, system: str
) -> None:
    agent = coding(wire, system=system)
    turn = agent.turns[2].turn
    arms = stage(turn).arms(TABS, ())
    proxys = spliced(turn, [TABS])
    assert arms.without == read_request(wire, turn.exchange.request)
    assert flat(arms.with_skill) == flat(read_request(wire, proxys.exchange.sent))
    assert wire_format(wire).render_request(arms.with_skill)


@pytest.mark.parametrize("wire", Wire)
def test_the_skill_of_a_later_task_stands_behind_the_persons_words(wire: Wire) -> None:
    agent = coding(wire)
    turn = agent.turns[-1].turn
    body = json.loads(turn.exchange.request)
    items = body["input" if wire is Wire.RESPONSES else "messages"]
    task = next(number for number, item in enumerate(items) if "I want tabs" in json.dumps(item))
    arms = stage(turn).arms(TABS, ())
    proxys = spliced(turn, [TABS], task)
    assert flat(arms.with_skill) == flat(read_request(wire, proxys.exchange.sent))
    if (
        wire is not Wire.RESPONSES
    ):  # there a message of one string and one of one part cannot be told apart
        assert arms.with_skill == read_request(wire, proxys.exchange.sent)


@pytest.mark.parametrize("wire", Wire)
def test_a_skill_that_was_in_the_prompt_is_taken_out_of_it_and_put_back(wire: Wire) -> None:
    agent = coding(wire)
    turn = spliced(agent.turns[0].turn, [BESIDE, TABS])
    sent = read_request(wire, turn.exchange.sent)
    arms = stage(turn, BESIDE, TABS).arms(TABS, ())
    assert arms.with_skill == sent
    assert TABS.body not in texts(arms.without)
    assert BESIDE.body in texts(arms.without)
    alone = spliced(agent.turns[0].turn, [TABS])
    assert flat(stage(alone, TABS).arms(TABS, ()).without) == flat(
        read_request(wire, alone.exchange.request)
    )


@pytest.mark.parametrize("wire", Wire)
def test_a_new_version_takes_the_place_of_what_it_replaces(wire: Wire) -> None:
    agent = coding(wire)
    turn = spliced(agent.turns[0].turn, [OLDER, BESIDE])
    arms = stage(turn, OLDER, BESIDE).arms(TABS, (OLDER.name,))
    assert OLDER.body not in texts(arms.without) + texts(arms.with_skill)
    assert flat(arms.without) == flat(
        read_request(wire, spliced(agent.turns[0].turn, [BESIDE]).exchange.sent)
    )
    assert flat(arms.with_skill) == flat(
        read_request(wire, spliced(agent.turns[0].turn, [TABS, BESIDE]).exchange.sent)
    )


def test_a_skill_joins_those_that_stand_at_its_place_and_no_more_than_are_allowed() -> None:
    agent = coding(Wire.CHAT)
    others = [Skill(SkillName(f"other-{number}"), "Always", f"Do {number}.") for number in range(3)]
    turn = spliced(agent.turns[0].turn, others)
    arms = stage(turn, *others).arms(TABS, ())
    assert all(other.body in texts(arms.without) for other in others)
    assert [other.body in texts(arms.with_skill) for other in others] == [True, True, False]
    assert TABS.body in texts(arms.with_skill)
    assert texts(arms.with_skill).count("<house_rules") == 1


def test_what_was_translated_for_the_provider_is_what_is_asked_again() -> None:
    agent = coding(Wire.MESSAGES)
    turn = spliced(agent.turns[1].turn, [BESIDE])
    asked = read_request(Wire.MESSAGES, turn.exchange.sent)
    body = encode_json(wire_format(Wire.CHAT).render_request(asked))
    translated = replace(
        turn, provider_wire=Wire.CHAT, exchange=replace(turn.exchange, splices=(), translated=body)
    )
    arms = stage(translated, BESIDE).arms(TABS, (BESIDE.name,))
    assert arms.without.wire is Wire.CHAT
    assert BESIDE.body not in texts(arms.without)
    assert TABS.body in texts(arms.with_skill)
    assert [message.role for message in arms.without.messages[:3]] == [
        Role.SYSTEM,
        Role.USER,
        Role.ASSISTANT,
    ]


@pytest.mark.anyio
async def test_a_turn_with_skills_in_its_prompt_is_replayed_from_the_ledger(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    agent = coding(Wire.CHAT)
    turns = [spliced(recorded.turn, [OLDER, BESIDE]) for recorded in agent.turns]
    for turn in turns:
        assert await ledger.record(turn)
    model = Scripted(again)
    tried = replayer(reader, model, skills=[OLDER, BESIDE])
    result = await tried.replay(probe(turns[0]), TABS, [OLDER.name], 3, LIMIT)
    assert result.outcome is Outcome.PASS
    assert not any(OLDER.body in texts(request) for request in model.asked)
    assert all(BESIDE.body in texts(request) for request in model.asked)
    asked = len(model.asked)
    await tried.replay(probe(turns[0]), TABS, (), 3, LIMIT)
    assert all(
        OLDER.body in texts(request) for request in model.asked[asked:]
    )  # nothing is replaced this time
    assert len(model.asked) == asked + 5
    forgotten = await replayer(reader, model).replay(probe(turns[0]), TABS, [OLDER.name], 3, LIMIT)
    assert forgotten.note == "the skill be-brief that was in the prompt is no longer known"


@pytest.mark.anyio
async def test_thoughts_go_back_only_to_those_who_want_them(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    for wire, sealed, comes_back in (
        (Wire.CHAT, None, False),
        (Wire.MESSAGES, "messages:sig", True),
        (Wire.RESPONSES, None, False),
    ):
        turns = await kept(ledger, coding(wire))
        thought = Reasoning("hm", sealed)
        model = Scripted(lambda request, thought=thought: (thought, *again(request)))  # type: ignore[misc]
        await replayer(reader, model).replay(probe(turns[0]), TABS, (), 1, LIMIT)
        assert (thought in model.asked[1].messages[-2].parts) is comes_back


@pytest.mark.anyio
async def test_a_session_that_ends_with_a_call_is_replayed_to_that_call(
    ledger: SqlLedger, reader: LedgerReader
) -> None:
    submit = call("Bash", command="echo COMPLETE_TASK")
    agent = Agent(Wire.CHAT).hear("Go.").use(call("Bash", command="ls"), "a").answer(submit)
    turns = await kept(ledger, agent)

    def submits(request: ChatRequest) -> Sequence[Part]:
        tabs = (Text("tabs"),) if "Indent with tabs" in texts(request) else ()
        return (*tabs, call("Bash", command="ls") if results(request) == 0 else submit)

    result = await replayer(reader, Scripted(submits)).replay(probe(turns[0]), TABS, (), 1, LIMIT)
    assert result.outcome is Outcome.PASS


def test_a_person_who_only_said_one_thing_has_one_task() -> None:
    agent = Agent(Wire.MESSAGES).hear("Go.")
    agent.messages.append(say("<system-reminder>mind the gap</system-reminder>"))
    agent.answer(Text("Done."))
    arms = stage(agent.turns[0].turn).arms(TABS, ())
    system = arms.with_skill.messages[0]
    assert system == Message(Role.SYSTEM, system.parts)
    assert TABS.body in str(system.parts)


@pytest.mark.slow
@pytest.mark.anyio
async def test_at_least_six_in_ten_recorded_sessions_are_decidable_to_the_end(
    tmp_path: Path,
) -> None:
    found = await cassettes.measure(2, cassettes.CHANCES, accept_nearest=True, folder=tmp_path)
    figures = cassettes.Figures.of([notes for sessions in found.values() for notes in sessions])
    ended, all_ = figures.sessions
    assert all_ == 32
    assert ended >= cassettes.GOAL * all_
    assert figures.runs[0] + figures.reasons.total() == figures.runs[1] == 64
