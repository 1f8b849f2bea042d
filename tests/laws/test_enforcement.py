"""However a provider's stream is split and whatever its calls' order, a client under held rules
sees one valid, complete message.

The whole request path runs in this process; what the client got is read by the official SDKs. The
provider refuses histories that it did not make."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle
from random import Random
from typing import Any

import httpx
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Finish,
    Role,
    SampledTokens,
    Text,
    TextDelta,
    ToolCallDelta,
    Usage,
    Wire,
)
from metaclaw.domain.check import Finding
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import OnError, Rule, Skill
from metaclaw.domain.status import Health, StoreHealth
from metaclaw.domain.turn import REMINDER, HoldEnd, TrueAnswer, Turn
from metaclaw.domain.verdict import Outcome
from metaclaw.ports import Call, Headers
from metaclaw.proxy import (
    Acknowledgements,
    CallJudge,
    Enforcer,
    HeldRules,
    Metrics,
    NoAttendant,
    NoSimilarity,
    Opener,
    Origins,
    Pipeline,
    Placer,
    Providers,
    TrueAnswers,
)
from metaclaw.proxy.enforcement import call_judge
from metaclaw.proxy.enforcement.enforcer import Stored
from metaclaw.proxy.http.body import read
from metaclaw.proxy.http.client import Client, Incoming
from metaclaw.proxy.reminders import Due, NoReminders
from metaclaw.skills import Budgets, LibraryView
from metaclaw.upstream import ProviderHealth
from tests.support.cases import each
from tests.support.depth import tries
from tests.support.strict_provider import (
    BAD,
    GOOD,
    OWN,
    STEPS,
    Answer,
    RemindedProvider,
    StrictProvider,
)

PATHS = {
    Wire.CHAT: "/v1/chat/completions",
    Wire.MESSAGES: "/v1/messages",
    Wire.RESPONSES: "/v1/responses",
    Wire.GEMINI: "/v1/models:generateContent",
}
RULE = Rule(
    SkillName("no-force-push"),
    "always",
    "Never force-push.",
    applies_always=True,
    enforce="hold",
    check="not in calls: push --force",
)

SHELL_RULE = replace(RULE, check="not in calls of shell: ^git push --force")


class Reply:
    """An answer in pieces."""

    def __init__(self, status: int, kind: str, pieces: list[bytes]) -> None:
        self.status = status
        self.headers: Headers = [("content-type", kind)]
        self._pieces = iter(pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(0)
            yield piece

    async def aclose(self) -> None:
        return


class InProcess:
    """The strict provider without a network. Streams are cut at any byte."""

    models = ()

    def __init__(self, strict: StrictProvider, wires: frozenset[Wire], random: Random) -> None:
        self.name = "p"
        self.wires = wires
        self._strict = strict
        self._random = random

    async def call(self, call: Call, caller: Mapping[str, str]) -> Reply:
        wire = next(
            wire
            for wire, path in PATHS.items()
            if call.path.removeprefix("/v1") == path.removeprefix("/v1")
        )
        purpose = {} if call.purpose is None else {"x-metaclaw-purpose": str(call.purpose)}
        status, said = self._strict.reply(wire.value, json.loads(call.body), purpose)
        if isinstance(said, dict):
            return Reply(status, "application/json", [json.dumps(said).encode()])
        whole = b"".join(said)
        cuts = sorted(
            self._random.sample(range(len(whole) + 1), min(self._random.randrange(40), len(whole)))
        )
        pieces = [
            whole[begin:end]
            for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)
            if begin < end
        ]
        return Reply(200, "text/event-stream", pieces)

    async def aclose(self) -> None:
        return


class Model:
    """A model that answers in deltas, with exact tokens."""

    name = "p"
    models = ("m",)

    async def generate(self, request: ChatRequest, version: int = 0) -> AsyncGenerator[Delta, None]:
        plan: list[str] = []
        for message in request.messages:
            words = "".join(part.text for part in message.parts if isinstance(part, Text))
            if message.role is Role.USER and "PLAN" in words:
                plan = words.split("PLAN", 1)[1].split()
            elif message.role is Role.ASSISTANT and plan:
                plan.pop(0)
        step = plan[0] if plan else "text"
        yield Begin(f"a{len(request.messages)}", "m")
        yield TextDelta(f"words {len(request.messages)}")
        for place, command in enumerate(STEPS[step]):
            identity = f"call_{len(request.messages):04d}_{place}_abcdefghij"
            tool, key = OWN.get(command, ("bash", "command"))
            yield ToolCallDelta(place, identity, tool, json.dumps({key: command}))
        tokens = SampledTokens((1, len(request.messages)), (2, 3), (-0.5, -0.25))
        yield End(Finish.TOOL_CALLS if STEPS[step] else Finish.STOP, Usage(10, 5), tokens=tokens)

    async def aclose(self) -> None:
        return


class Book:
    """A ledger in memory."""

    health = StoreHealth(Health.HEALTHY, None, 0, 0)

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def record(self, turn: Turn) -> bool:
        self.turns.append(turn)
        return True

    async def end_session(self, session: SessionId, reason: str) -> None:
        return

    async def announce(self, kind: str, data: dict[str, Any]) -> bool:
        self.events.append((kind, data))
        return True

    def newest(self, session: SessionId | None = None) -> list[Stored]:
        return []

    def read(self, turn: TurnId) -> TrueAnswer | None:
        return None


class Line:
    """A connection that keeps what is sent."""

    peer: str | None = "127.0.0.1"
    is_full = False

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    async def drain(self) -> None:
        return

    def pause(self) -> None:
        return

    def resume(self) -> None:
        return

    def answered(self, client: Client) -> None:
        return


class EveryOther:
    """A reminder of the held rule in every other request."""

    broken = (RULE.name,)

    def __init__(self, *, first: bool) -> None:
        self._is_due = cycle((first, not first))

    def due(self, incoming: Incoming, placed: tuple[SkillName, ...]) -> Due:
        return Due((RULE,) if next(self._is_due) else ())


class House:
    """The request path, with one provider and some rules."""

    def __init__(
        self,
        provider: InProcess | Model,
        *rules: Skill,
        judge: CallJudge | None = None,
        has_tools: bool = False,
        reminders: Any = None,
    ) -> None:
        view, routes = LibraryView.of(1, rules), Providers([provider])
        self.book = Book()
        self.enforcer = Enforcer(
            HeldRules(lambda: view, port=30000),
            TrueAnswers(self.book),
            judge or CallJudge(),
            self.book.announce,
        )
        self._pipeline = Pipeline(
            origins=Origins(silence_s=3600),
            placer=Placer(
                lambda: view,
                Budgets(),
                has_tools=has_tools,
                takes_tools=routes.takes_tools,
                reminders=reminders or NoReminders(),
            ),
            similarity=NoSimilarity(),
            enforcer=self.enforcer,
            acknowledgements=Acknowledgements(lambda turn: None),
            opener=Opener(routes, ProviderHealth()),
            ledger=self.book,
            metrics=Metrics(NoAttendant()),
        )

    async def post(self, wire: Wire, request: dict[str, Any]) -> httpx.Response:
        body, line = json.dumps(request).encode(), Line()
        client = Client(line, "POST", b"/", {})
        client.is_whole = True
        client.task = asyncio.current_task()
        now = datetime.now(UTC)
        incoming = Incoming(
            wire, PATHS[wire], "", {}, [], body, read(wire, body), None, now, time.perf_counter()
        )
        await self._pipeline.answer(incoming, client)
        return parsed(b"".join(line.sent))


def parsed(raw: bytes) -> httpx.Response:
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    fields = [tuple(line.split(": ", 1)) for line in lines[1:]]
    if any(name == "transfer-encoding" for name, *_ in fields):
        whole = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
        body = whole
    kept = [
        (name, value)
        for name, value in fields
        if name not in ("transfer-encoding", "content-length")
    ]
    return httpx.Response(int(lines[0].split()[1]), headers=kept, content=body)


def read_by_sdk(
    wire: Wire, stream: bool, response: httpx.Response
) -> tuple[str, list[tuple[str, str]], list[Any], int]:
    """Text, calls, the history as the client keeps it, and the input tokens, as the official SDK
    reads them.
    """
    import anthropic  # only who asks waits for an SDK
    import openai

    if wire is Wire.GEMINI:
        return _read_by_google(stream, response)
    asked: Any = {"model": "m"}
    if wire is Wire.MESSAGES:
        heard = httpx2.MockTransport(
            lambda _: httpx2.Response(
                response.status_code, headers=dict(response.headers), content=response.content
            )
        )
        client = anthropic.Anthropic(
            api_key="k", max_retries=0, http_client=httpx2.Client(transport=heard)
        )
        asked |= {"max_tokens": 9, "messages": []}
        if stream:
            with client.messages.stream(**asked) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**asked)
        blocks = [
            {key: value for key, value in one.to_dict().items() if value is not None}
            for one in message.content
        ]
        calls = [
            (one.id, str(dict(one.input)["command"]))
            for one in message.content
            if one.type == "tool_use"
        ]
        words = "\n\n".join(one.text for one in message.content if one.type == "text")
        return words, calls, [{"role": "assistant", "content": blocks}], message.usage.input_tokens
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(
            response.status_code, headers=dict(response.headers), content=response.content
        )
    )
    oai = openai.OpenAI(api_key="k", max_retries=0, http_client=httpx2.Client(transport=transport))
    if wire is Wire.CHAT:
        asked |= {"messages": []}
        if stream:
            with oai.chat.completions.stream(**asked) as chunks:
                completion: Any = chunks.get_final_completion()
        else:
            completion = oai.chat.completions.create(**asked)
        kept = completion.choices[0].message.to_dict()
        for call in kept.get("tool_calls") or []:
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        made = [
            (one["id"], json.loads(one["function"]["arguments"])["command"])
            for one in kept.get("tool_calls") or []
        ]
        assert completion.choices[0].finish_reason == ("tool_calls" if made else "stop")
        return kept.get("content") or "", made, [kept], completion.usage.prompt_tokens
    if stream:
        with oai.responses.stream(**asked, input="x") as parts:
            assert [one.sequence_number for one in parts] == list(
                range(response.content.count(b"event: response."))
            )
            answer: Any = parts.get_final_response()
    else:
        answer = oai.responses.create(**asked, input="x")
    items = [one.to_dict() for one in answer.output]
    for item in items:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or []:
            part.pop("parsed", None)
    made = [
        (one.call_id, str(json.loads(one.arguments)["command"]))
        for one in answer.output
        if one.type == "function_call"
    ]
    return answer.output_text, made, items, answer.usage.input_tokens


def _read_by_google(
    stream: bool, response: httpx.Response
) -> tuple[str, list[tuple[str, str]], list[Any], int]:
    from google import genai

    heard = httpx2.MockTransport(
        lambda _: httpx2.Response(
            response.status_code, headers=dict(response.headers), content=response.content
        )
    )
    options: Any = {"httpx_client": httpx2.Client(transport=heard)}
    client = genai.Client(api_key="k", http_options=options)
    asked: Any = {"model": "m", "contents": "x"}
    answers = (
        list(client.models.generate_content_stream(**asked))
        if stream
        else [client.models.generate_content(**asked)]
    )
    parts: list[Any] = []
    tokens = 0
    for answer in answers:
        candidates = answer.candidates or []
        for candidate in candidates:
            parts += (candidate.content.parts or []) if candidate.content else []
        if answer.usage_metadata is not None:
            tokens = answer.usage_metadata.prompt_token_count or 0
    calls = [
        (part.function_call.id, str(part.function_call.args["command"]))
        for part in parts
        if part.function_call is not None
    ]
    kept = [
        {key: value for key, value in part.model_dump(mode="json", by_alias=True).items() if value}
        for part in parts
    ]
    text = "".join(part.text or "" for part in parts if not part.thought)
    return text, calls, [{"role": "model", "parts": [one for one in kept if one]}], tokens


def request_of(wire: Wire, history: list[Any], stream: bool) -> dict[str, Any]:
    if wire is Wire.GEMINI:
        said = [
            {"role": one["role"], "parts": [{"text": one["content"]}]} if "content" in one else one
            for one in history
        ]
        return {"model": "m", "stream": stream, "contents": said}
    key = "input" if wire is Wire.RESPONSES else "messages"
    options = {"stream_options": {"include_usage": True}} if wire is Wire.CHAT and stream else {}
    return {"model": "m", "max_tokens": 99, key: history, "stream": stream, **options}


def results_of(wire: Wire, calls: list[tuple[str, str]]) -> list[Any]:
    ids = [identity for identity, _ in calls]
    if wire is Wire.CHAT:
        return [{"role": "tool", "tool_call_id": one, "content": "done"} for one in ids]
    if wire is Wire.RESPONSES:
        return [{"type": "function_call_output", "call_id": one, "output": "done"} for one in ids]
    if wire is Wire.GEMINI:
        done = {"name": "bash", "response": {"output": "done"}}
        return [
            {"role": "user", "parts": [{"functionResponse": {"id": one, **done}} for one in ids]}
        ]
    return [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": one, "content": "done"} for one in ids
            ],
        }
    ]


steps = st.sampled_from(
    ["bad", "good", "mixed", "two", "text", "fail", "mute-bad", "mute-good", "mute-mixed"]
)


@settings(max_examples=tries(16, nightly=500), deadline=None)
@given(
    wire=st.sampled_from(Wire),
    speaks=st.sampled_from(Wire),
    stream=st.booleans(),
    plans=st.lists(
        st.lists(steps.filter(lambda one: one != "fail"), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    ),
    fails=st.booleans(),
    pieces=st.integers(1, 7),
    seed=st.integers(0, 2**32),
)
def test_a_client_sees_one_valid_message_and_the_provider_its_own_history(
    wire: Wire,
    speaks: Wire,
    stream: bool,
    plans: list[list[str]],
    fails: bool,
    pieces: int,
    seed: int,
) -> None:
    random = Random(seed)
    strict = StrictProvider(pieces=pieces, random=random)
    house = House(InProcess(strict, frozenset((speaks,)), random), RULE)

    async def talk() -> None:
        history: list[Any] = []
        for plan in plans:
            asked = [*plan[:1], "fail"] if fails and plan[0].endswith(("bad", "mixed")) else plan
            history.append({"role": "user", "content": f"PLAN {' '.join(asked)}"})
            before = len(strict.bodies)
            response = await house.post(wire, request_of(wire, history, stream))
            assert response.status_code == 200, response.text
            text, calls, kept, tokens = read_by_sdk(wire, stream, response)
            history += kept
            tried = asked[: asked.index("fail")] if "fail" in asked else asked
            wanted = next(
                (
                    step
                    for step in (*tried, "text")[:3]
                    if step.removeprefix("mute-") not in ("bad", "mixed")
                ),
                None,
            )
            is_stopped = wanted is None or (wanted == "text" and "fail" in asked)
            commands = [] if is_stopped or wanted is None else STEPS[wanted.removeprefix("mute-")]
            assert [command for _, command in calls] == commands
            assert BAD not in json.dumps(calls)
            assert ("no-force-push" in text) == is_stopped
            answered = (
                len(strict.bodies) - before - ("fail" in asked and len(strict.bodies) - before > 1)
            )
            assert tokens == 10 * answered
            assert len({identity for identity, _ in calls}) == len(calls)
            if calls:
                history += results_of(wire, calls)
                response = await house.post(wire, request_of(wire, history, stream))
                assert response.status_code == 200, response.text
                _, calls, kept, _ = read_by_sdk(wire, stream, response)
                history += kept
                while calls:
                    history += results_of(wire, calls)
                    response = await house.post(wire, request_of(wire, history, stream))
                    assert response.status_code == 200, response.text
                    _, calls, kept, _ = read_by_sdk(wire, stream, response)
                    history += kept

    asyncio.run(talk())
    assert strict.refused == []


@each("wire", list(Wire))
@each("speaks", list(Wire))
@each("stream", [False, True])
@each("first", [False, True])
def test_reminders_come_and_go_and_the_provider_knows_its_history(
    wire: Wire, speaks: Wire, stream: bool, first: bool
) -> None:
    strict = RemindedProvider(random=Random(1))
    provider = InProcess(strict, frozenset((speaks,)), Random(1))
    house = House(provider, RULE, reminders=EveryOther(first=first))

    async def talk() -> None:
        history: list[Any] = []
        for plan in ("bad good", "mixed two", "two", "bad bad bad", "text"):
            said: list[Any] = [{"role": "user", "content": f"PLAN {plan}"}]
            while said:
                history += said
                response = await house.post(wire, request_of(wire, history, stream))
                assert response.status_code == 200, response.text
                _, calls, kept, _ = read_by_sdk(wire, stream, response)
                history += kept
                said = results_of(wire, calls) if calls else []

    asyncio.run(talk())
    assert strict.refused == []
    anchors = [[one.anchor for one in turn.placements] for turn in house.book.turns]
    assert [REMINDER in one for one in anchors] == [first, not first] * 4


@each("wire", list(Wire))
@each("stream", [False, True])
def test_a_model_in_this_process_is_asked_again_and_every_attempt_keeps_its_tokens(
    wire: Wire, stream: bool
) -> None:
    house = House(Model(), RULE)
    history: list[Any] = [{"role": "user", "content": "PLAN bad good"}]
    response = asyncio.run(house.post(wire, request_of(wire, history, stream)))
    text, calls, _, tokens = read_by_sdk(wire, stream, response)
    assert [command for _, command in calls] == [GOOD]
    assert tokens == 20
    assert "words" in text
    (turn,) = house.book.turns
    assert turn.enforcement is not None
    assert turn.tokens == turn.enforcement.attempts[0].tokens
    assert [
        one.tokens.prompt_ids[0] if one.tokens else None for one in turn.enforcement.attempts
    ] == [1, 1]
    assert [one.end for one in turn.enforcement.rules] == [HoldEnd.COMPLIED]
    assert house.book.events[0][0] == "rule_held"
    assert (house.book.events[0][1]["end"], house.book.events[0][1]["calls"]) == ("complied", 1)


@each("wire", list(Wire))
@each("stream", [False, True])
def test_the_event_of_a_held_call_tells_that_only_words_followed(wire: Wire, stream: bool) -> None:
    house = House(Model(), RULE)
    history: list[Any] = [{"role": "user", "content": "PLAN bad text"}]
    asyncio.run(house.post(wire, request_of(wire, history, stream)))
    ((kind, told),) = house.book.events
    assert (kind, told["end"], told["calls"]) == ("rule_held", "complied", 0)


@each("wire", list(Wire))
@each("stream", [False, True])
def test_a_rule_may_let_its_call_pass_with_a_warning(wire: Wire, stream: bool) -> None:
    strict = StrictProvider(random=Random(1))
    rule = replace(RULE, on_break="call")
    house = House(InProcess(strict, frozenset((wire,)), Random(1)), rule)
    history: list[Any] = [{"role": "user", "content": "PLAN bad bad bad"}]
    text, calls, kept, _ = read_by_sdk(
        wire, stream, asyncio.run(house.post(wire, request_of(wire, history, stream)))
    )
    assert [command for _, command in calls] == [BAD]
    assert "MetaClaw warning" in text
    history += [*kept, *results_of(wire, calls)]
    assert asyncio.run(house.post(wire, request_of(wire, history, stream))).status_code == 200
    assert strict.refused == []


@pytest.mark.parametrize("wire", list(Wire))
def test_the_head_of_a_stream_that_begins_with_calls_names_the_rule(wire: Wire) -> None:
    house = House(InProcess(StrictProvider(), frozenset((wire,)), Random(1)), RULE)
    history: list[Any] = [{"role": "user", "content": "PLAN mute-bad mute-good"}]
    response = asyncio.run(house.post(wire, request_of(wire, history, True)))
    assert read_by_sdk(wire, True, response)[1][0][1] == GOOD
    assert response.headers["x-metaclaw-enforced"] == "no-force-push"
    history = [{"role": "user", "content": "PLAN mute-bad text"}]
    response = asyncio.run(house.post(wire, request_of(wire, history, True)))
    assert read_by_sdk(wire, True, response)[1] == []
    assert response.headers["x-metaclaw-enforced"] == "no-force-push"


@each("wire", list(Wire))
@each("stream", [False, True])
def test_without_a_held_rule_in_force_bytes_are_relayed_and_nothing_is_judged(
    wire: Wire, stream: bool
) -> None:
    class Unwanted(CallJudge):
        async def judge(self, *_: object) -> Any:
            raise AssertionError("nothing is to be judged")

    reminded = replace(RULE, enforce="remind")
    others = replace(RULE, name=SkillName("of-bob"), body="No.", scope="user:bob")
    house = House(
        InProcess(StrictProvider(), frozenset((wire,)), Random(1)),
        reminded,
        others,
        judge=Unwanted(),
    )
    history: list[Any] = [{"role": "user", "content": "PLAN bad"}]
    response = asyncio.run(house.post(wire, request_of(wire, history, stream)))
    assert [command for _, command in read_by_sdk(wire, stream, response)[1]] == [BAD]
    (turn,) = house.book.turns
    assert turn.exchange.seen is None
    assert turn.exchange.said == response.content
    assert turn.enforcement is None


FAULTS = {
    "crash": "program: |\n  raise SystemExit(7)",
    "time": r"not in calls: ([a-z -]+)+\d\d",
}
"""Checks that break, and checks that take far too long, by what is told of them."""


@each("fault", FAULTS)
@each("stream", [False, True])
@each("on_error", ["pass", "hold"])
def test_a_check_that_cannot_be_run_never_loses_an_answer(
    fault: str, stream: bool, on_error: OnError
) -> None:
    rule = replace(RULE, check=FAULTS[fault], on_error=on_error)
    house = House(
        InProcess(StrictProvider(), frozenset((Wire.CHAT,)), Random(1)),
        rule,
        judge=CallJudge(limit_s=0.3),
    )
    history: list[Any] = [{"role": "user", "content": "PLAN bad bad text"}]
    response = asyncio.run(house.post(Wire.CHAT, request_of(Wire.CHAT, history, stream)))
    text, calls, _, _ = read_by_sdk(Wire.CHAT, stream, response)
    assert response.status_code == 200
    (event,) = house.book.events
    if on_error == "pass":
        assert [command for _, command in calls] == [BAD]
        assert "x-metaclaw-enforced" not in response.headers
        assert event[0] == "check_failed"
        if fault == "time":
            assert "took longer than" in event[1]["reason"] or "time limit" in event[1]["reason"]
    else:
        assert calls == []
        assert "words 3" in text
        assert event[0] == "rule_held"
        (turn,) = house.book.turns
        assert turn.enforcement is not None
        assert not turn.enforcement.rules[0].is_checked
        assert event[1]["checked"] is False


def test_a_mass_of_rules_is_looked_at_only_while_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, tried = [0.0], []

    def examine(check: Any, *_: Any, **__: Any) -> Finding:
        tried.append(check)
        clock[0] += 0.25
        return Finding(Outcome.PASS, "", 1.0)

    monkeypatch.setattr(call_judge, "examine", examine)
    monkeypatch.setattr(call_judge, "work_clock", lambda: clock[0])
    rules = [
        replace(
            RULE,
            name=SkillName(f"rule-{number}"),
            body="No.",
            check=f'schema in calls: {{"minProperties": {number}}}',
            on_error="pass",
        )
        for number in range(400)
    ]
    house = House(
        InProcess(StrictProvider(), frozenset((Wire.CHAT,)), Random(1)),
        *rules,
        judge=CallJudge(limit_s=1.0),
    )
    response = asyncio.run(
        house.post(
            Wire.CHAT, request_of(Wire.CHAT, [{"role": "user", "content": "PLAN good"}], False)
        )
    )
    assert [command for _, command in read_by_sdk(Wire.CHAT, False, response)[1]] == [GOOD]
    assert len(tried) == 8, "four while there is time, and four when the others are tried once more"
    assert [kind for kind, _ in house.book.events] == ["check_failed"] * 392


@pytest.mark.parametrize("more", [{"conversation": "conv_1"}, {"background": True}])
def test_calls_that_cannot_be_held_pass_and_it_is_told(more: dict[str, Any]) -> None:
    house = House(InProcess(StrictProvider(), frozenset((Wire.RESPONSES,)), Random(1)), RULE)
    history: list[Any] = [{"role": "user", "content": "PLAN bad good"}]
    response = asyncio.run(
        house.post(Wire.RESPONSES, {**request_of(Wire.RESPONSES, history, False), **more})
    )
    assert [command for _, command in read_by_sdk(Wire.RESPONSES, False, response)[1]] == [BAD]
    ((kind, told),) = house.book.events
    assert (kind, told["rules"], told["turn"]) == (
        "rules_not_held",
        ["no-force-push"],
        house.book.turns[0].id,
    )


class Lingering(InProcess):
    """Sends the stream in two pieces, cut shortly before its end, and leaves the connection open
    behind it.
    """

    async def call(self, call: Call, caller: Mapping[str, str]) -> Reply:
        wire = next(
            wire
            for wire, path in PATHS.items()
            if call.path.removeprefix("/v1") == path.removeprefix("/v1")
        )
        status, said = self._strict.reply(wire.value, json.loads(call.body), {})
        assert isinstance(said, list)
        whole = b"".join(said)
        pieces = iter((whole[:-4], whole[-4:]))
        reply = Reply(status, "text/event-stream", [])

        async def chunks() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece
            await asyncio.Event().wait()

        reply.chunks = chunks  # type: ignore[method-assign]
        return reply


# Google's streams have no event of their own for the end: only the connection tells it.
@pytest.mark.parametrize("wire", [wire for wire in Wire if wire is not Wire.GEMINI])
def test_an_answer_ends_although_its_connection_stays_open(wire: Wire) -> None:
    house = House(Lingering(StrictProvider(), frozenset((wire,)), Random(1)), RULE)

    async def ask() -> httpx.Response:
        async with asyncio.timeout(60):  # for a hang
            return await house.post(
                wire, request_of(wire, [{"role": "user", "content": "PLAN two"}], True)
            )

    response = asyncio.run(ask())
    assert [command for _, command in read_by_sdk(wire, True, response)[1]] == STEPS["two"]


class DamagedProvider(StrictProvider):
    """Makes one kind of call whatever it is asked, and writes its arguments in a form that is no
    JSON, but that clients mend.
    """

    step, damage = "good", "%s"

    def reply(self, wire: str, request: Any, headers: dict[str, str]) -> tuple[int, Any]:
        self.bodies.append((wire, request, headers))
        self.said = self.written(
            wire, DamagedAnswer(**vars(self._make(self.step)), form=self.damage), request
        )
        return 200, self.said

    def written(self, wire: str, answer: Answer, request: Any) -> Any:
        said = super().written(wire, answer, request)
        if wire == "messages" and isinstance(said, dict):
            for block in said["content"]:
                if block["type"] == "tool_use":
                    block["input"] = answer.arguments(block["input"]["command"])
        return said


@dataclass
class DamagedAnswer(Answer):
    form: str = "%s"

    def arguments(self, command: str) -> str:
        return self.form % command


@each("wire", list(Wire))
@each("speaks", list(Wire))
@each("stream", [False, True])
@each(
    "damage",
    [
        '{"command": "%s',
        '{"command": "%s",}',
        "{'command': '%s'}",
        '```json\n{"command": "%s"}\n```',
    ],
)
def test_a_call_with_damaged_arguments_is_held_or_passes_like_any_other(
    wire: Wire, speaks: Wire, stream: bool, damage: str
) -> None:
    strict = DamagedProvider()
    strict.damage = damage
    house = House(InProcess(strict, frozenset((speaks,)), Random(1)), SHELL_RULE)
    passed = asyncio.run(
        house.post(wire, request_of(wire, [{"role": "user", "content": "go on"}], stream))
    )
    assert passed.status_code == 200
    if wire is speaks:
        assert passed.content == (
            b"".join(strict.said) if stream else json.dumps(strict.said).encode()
        )
    assert house.book.events == []
    strict.step = "bad"
    held = asyncio.run(
        house.post(wire, request_of(wire, [{"role": "user", "content": "go on"}], stream))
    )
    assert held.status_code == 200
    assert b"MetaClaw stopped a tool call" in held.content
    assert b"push --force" not in held.content
    ((kind, told),) = house.book.events
    assert (kind, told["rule"], told["end"]) == ("rule_held", "no-force-push", "stopped")
