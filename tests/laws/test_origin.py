"""Laws of sessions: for any interleaving of any agents, no two share a session and no conversation
is split.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Json, Part, Text, ToolCall, Wire
from metaclaw.domain.ids import new_turn_id
from metaclaw.domain.turn import Origin, TurnEnd
from metaclaw.proxy.sessions import Origins
from tests.support.depth import tries

KeyKind = Literal["none", "header", "claude", "shared-cache-key"]
Step = Literal["send", "complete", "fail", "side"]


@dataclass(slots=True)
class Agent:
    """A client that sends its whole history each time, waits for its answer, and sends again what
    failed.
    """

    number: int
    wire: Wire
    key: KeyKind
    script: int
    floats: bool
    flips: bool
    strips: bool
    tells: bool
    history: list[Json] = field(default_factory=list)
    waiting: Origin | None = None
    failed: Origin | None = None
    sessions: list[str] = field(default_factory=list)
    rounds: int = 0

    @property
    def headers(self) -> dict[str, str]:
        match self.key:
            case "header":
                return {"x-session-id": f"agent-{self.number}"}
            case "claude":
                return {"x-claude-code-session-id": f"01a1dc98-5699-7411-9f18-{self.number:012d}"}
            case _:
                return {}

    def body(self) -> dict[str, Json]:
        if not self.history:
            self.history.append({"role": "user", "content": f"task {self.script}"})
        messages = [self._dressed(message, at) for at, message in enumerate(self.history)]
        if self.floats:
            context = (
                "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nround"
                f" {self.rounds}\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
            )
            messages.append({"role": "user", "content": [{"type": "text", "text": context}]})
        self.rounds += 1
        body: dict[str, Json] = {"model": "m", "max_tokens": 100, "tools": [{"name": "sh"}]}
        if self.key == "shared-cache-key":
            body["prompt_cache_key"] = "everybody"
        if self.wire is Wire.MESSAGES:
            return {**body, "system": "S", "messages": messages}
        return {**body, "messages": [{"role": "system", "content": "S"}, *messages]}

    def _dressed(self, message: Json, at: int) -> Json:
        """The same message, written as this client writes it this time."""
        assert isinstance(message, dict)
        content = message.get("content")
        if self.flips and isinstance(content, str) and content and (at + self.rounds) % 2:
            return {
                **message,
                "content": [
                    {"type": "text", "text": content, "cache_control": {"type": "ephemeral"}}
                ],
            }
        return message

    def hear(self, call: str, words: str) -> tuple[Part, ...]:
        """Take an answer into the history, and its consequence: a tool's output, or the person's
        next wish.
        """
        shown = call.replace("_", "") if self.strips else call
        if self.rounds % 3 == 0:
            self.history += [
                {"role": "assistant", "content": words},
                {"role": "user", "content": f"and then {self.rounds}"},
            ]
            return (Text(words),)
        if self.wire is Wire.MESSAGES:
            use: Json = {"type": "tool_use", "id": shown, "name": "sh", "input": {}}
            result: Json = {"type": "tool_result", "tool_use_id": shown, "content": "ok"}
            self.history += [
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ]
        else:
            calls: Json = [
                {"id": shown, "type": "function", "function": {"name": "sh", "arguments": "{}"}}
            ]
            self.history += [
                {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "tool_call_id": shown, "content": "ok"},
            ]
        return (ToolCall(call, "sh", "{}"),)


class World:
    """Any number of agents and one proxy."""

    def __init__(
        self, agents: list[Agent], *, alike: bool = False, one_machine: bool = False
    ) -> None:
        self.origins = Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
        self.agents = agents
        self.numbers = count()
        self.alike = alike
        self.one_machine = one_machine or alike

    def step(self, agent: Agent, step: Step) -> None:
        if step == "side":
            self._side(agent)
        elif agent.waiting is None:
            self._send(agent)
        elif step == "complete":
            self._complete(agent, agent.waiting)
        elif step == "fail":
            self.origins.finished(agent.waiting, new_turn_id(), TurnEnd.FAILED)
            agent.failed, agent.waiting = agent.waiting, None

    def _send(self, agent: Agent) -> None:
        peer = "127.0.0.1" if self.one_machine else f"10.0.0.{agent.number}"
        agent.waiting = self.origins.identify(agent.wire, agent.headers, agent.body(), peer)
        assert (agent.waiting.retry_of is not None) == (agent.failed is not None)
        agent.failed = None
        agent.sessions.append(agent.waiting.session)

    def _complete(self, agent: Agent, origin: Origin) -> None:
        number = 0 if self.alike else next(self.numbers)
        parts = agent.hear(f"call_{number:04d}", f"answer {number}")
        self.origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        self.origins.answered(origin, f"resp-{next(self.numbers)}", parts if agent.tells else ())
        agent.waiting = None

    def _side(self, agent: Agent) -> None:
        body = {**agent.body(), "tools": []}
        side = self.origins.identify(
            agent.wire, {**agent.headers, "x-turn-type": "side"}, body, f"10.0.0.{agent.number}"
        )
        self.origins.finished(side, new_turn_id(), TurnEnd.COMPLETED)


@st.composite
def agents(draw: st.DrawFn) -> list[Agent]:
    return [
        Agent(
            number,
            draw(st.sampled_from((Wire.CHAT, Wire.MESSAGES))),
            draw(st.sampled_from(("none", "none", "header", "claude", "shared-cache-key"))),
            draw(st.integers(0, 1)),
            floats=draw(st.booleans()),
            flips=draw(st.booleans()),
            strips=draw(st.booleans()),
            tells=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, 5)))
    ]


STEPS: st.SearchStrategy[Step] = st.sampled_from(
    ("send", "complete", "complete", "complete", "fail")
)


@settings(max_examples=tries(66, nightly=1000), deadline=None)
@given(agents(), st.lists(st.tuples(st.integers(0, 4), STEPS), max_size=60))
def test_no_two_agents_share_a_session_and_none_is_split(
    crowd: list[Agent], steps: list[tuple[int, Step]]
) -> None:
    world = World(crowd)
    for number, step in steps:
        world.step(crowd[number % len(crowd)], step)
    sessions = [set(agent.sessions) for agent in crowd if agent.sessions]
    assert all(len(own) == 1 for own in sessions)
    assert len(set().union(*sessions)) == len(sessions)
    assert world.origins.active == len(sessions)


@settings(max_examples=tries(33, nightly=500), deadline=None)
@given(
    agents(),
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(("send", "complete", "complete", "side"))),
        max_size=60,
    ),
)
def test_side_turns_change_nothing_about_the_main_ones(
    crowd: list[Agent], steps: list[tuple[int, Step]]
) -> None:
    world = World(crowd)
    for number, step in steps:
        agent = crowd[number % len(crowd)]
        if step != "side" or agent.history:
            world.step(agent, step)
    sessions = [set(agent.sessions) for agent in crowd if agent.sessions]
    assert all(len(own) == 1 for own in sessions)
    assert len(set().union(*sessions)) == len(sessions)


@settings(max_examples=tries(33, nightly=500), deadline=None)
@given(
    agents(),
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(("send", "complete", "complete"))), max_size=60
    ),
)
def test_on_one_machine_the_answers_tell_agents_apart(
    crowd: list[Agent], steps: list[tuple[int, Step]]
) -> None:
    world = World(crowd, one_machine=True)
    for agent in crowd:
        agent.tells = True
    for number, step in steps:
        world.step(crowd[number % len(crowd)], step)
    sessions = [set(agent.sessions) for agent in crowd if agent.sessions]
    assert all(len(own) == 1 for own in sessions)
    assert len(set().union(*sessions)) == len(sessions)


@settings(max_examples=tries(33, nightly=500), deadline=None)
@given(
    st.integers(2, 5),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(("send", "complete"))), max_size=60),
)
def test_agents_that_nothing_tells_apart_still_make_as_many_linear_sessions(
    size: int, steps: list[tuple[int, Step]]
) -> None:
    """Same words, same machine, same answers, same ids: who is who cannot be known, but how many
    there are can.
    """
    crowd = [
        Agent(number, Wire.CHAT, "none", 0, floats=False, flips=False, strips=False, tells=False)
        for number in range(size)
    ]
    world = World(crowd, alike=True)
    lengths: dict[str, list[int]] = {}
    for number, step in steps:
        agent = crowd[number % size]
        sends = agent.waiting is None
        world.step(agent, step)
        if sends:
            lengths.setdefault(agent.sessions[-1], []).append(len(agent.history))
    assert len(lengths) == sum(bool(agent.sessions) for agent in crowd)
    assert all(own == sorted(set(own)) for own in lengths.values())


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_segments_count_the_persons_tasks_and_anchors_stay(turns: list[bool]) -> None:
    """True is a new task, False a tool round: the segment rises with the first kind only, and old
    anchors keep their digests.
    """
    origins = Origins(now=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    messages: list[Json] = [{"role": "system", "content": "S"}, {"role": "user", "content": "task"}]
    before: tuple[bytes, ...] = ()
    segment = 0
    for number, is_task in enumerate([True, *turns]):
        if number:
            calls: Json = [
                {
                    "id": f"c{number}",
                    "type": "function",
                    "function": {"name": "n", "arguments": "{}"},
                }
            ]
            messages.append(
                {"role": "assistant", "content": "ok"}
                if is_task
                else {"role": "assistant", "content": None, "tool_calls": calls}
            )
            tool: Json = {"role": "tool", "tool_call_id": f"c{number}", "content": "1"}
            messages.append({"role": "user", "content": f"task {number}"} if is_task else tool)
            segment += is_task
        origin = origins.identify(Wire.CHAT, {}, {"messages": list(messages)})
        origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        assert (origin.segment, origin.segment_began) == (segment, is_task)
        digests = tuple(anchor.digest for anchor in origin.anchors)
        assert digests[: len(before)] == before
        assert len(digests) == segment + 1
        before = digests
