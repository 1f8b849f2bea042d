"""Law: a lesson stands behind the first result that needs it, stays there byte for byte, once a
session, and changes nothing else.
"""

import json
import time
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Text as TextPart
from metaclaw.domain.chat import ToolCall, ToolResult, Wire
from metaclaw.domain.ids import SessionId, SkillName, new_turn_id
from metaclaw.domain.skill import Authorship, Lesson, Rule, Skill
from metaclaw.domain.turn import TurnEnd, apply_splices
from metaclaw.outcome import failure_signature
from metaclaw.proxy import Origins, Placer
from metaclaw.proxy.http.body import read
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.placement import Placed
from metaclaw.skills import Budgets, LibraryView, remove_blocks
from tests.support.cases import each
from tests.support.depth import tries

FAILURES = {
    "pytest -q": "Exit code 4\nModuleNotFoundError: No module named 'app'",
    "make build": "make: *** No rule to make target 'build'.  Stop.\nExit code 2",
}
FINE = {"ls": "README.md"}
OUTPUTS = FAILURES | FINE


def signature(command: str) -> str:
    call = ToolCall("c", "Bash", json.dumps({"command": command}))
    return failure_signature(call, ToolResult("c", (TextPart(OUTPUTS[command]),)))


def lesson(number: int, command: str, project: str | None) -> Skill:
    return Lesson(
        SkillName(f"lesson-{number}"),
        "always",
        f"Do it in the other way, number {number}.",
        author=Authorship.EVOLVER,
        applies_always=True,
        workspace=project,
        signatures=(signature(command),),
    )


LIBRARY = [lesson(number, command, "/shop") for number, command in enumerate(FAILURES)]
RULE = Rule(SkillName("brief"), "always", "Be brief.", applies_always=True)


@dataclass
class Talk:
    """A session of an agent whose requests hold the results of its calls."""

    wire: Wire
    form: str = "string"
    library: list[Skill] = field(default_factory=lambda: [*LIBRARY, RULE])
    project: str = "/shop"
    history: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "user", "content": "go on"}]
    )

    def __post_init__(self) -> None:
        self.origins = Origins()
        self.open()

    def open(self) -> None:
        view = LibraryView.of(1, self.library)
        # Only what stands behind results is looked at here.
        self.placer = Placer(
            lambda: view, Budgets(rules_tokens=0), today=lambda: date(2026, 11, 18)
        )

    def run(self, number: int, *commands: str) -> None:
        """The agent makes these calls in parallel."""
        ids = [f"call_{number}_{place}" for place in range(len(commands))]
        self.history += self.calls(ids, commands)
        self.history += self.results(ids, commands)

    def calls(self, ids: list[str], commands: tuple[str, ...]) -> list[dict[str, Any]]:
        made = list(zip(ids, commands, strict=True))
        match self.wire:
            case Wire.CHAT:
                calls = [
                    {
                        "id": one,
                        "type": "function",
                        "function": {"name": "Bash", "arguments": json.dumps({"command": what})},
                    }
                    for one, what in made
                ]
                return [{"role": "assistant", "content": None, "tool_calls": calls}]
            case Wire.MESSAGES:
                blocks = [
                    {"type": "tool_use", "id": one, "name": "Bash", "input": {"command": what}}
                    for one, what in made
                ]
                return [{"role": "assistant", "content": blocks}]
            case _:
                return [self.item(one, what) for one, what in made]

    def item(self, identity: str, command: str) -> dict[str, Any]:
        match self.form:
            case "local":
                action = {"type": "exec", "command": ["bash", "-c", command]}
                return {"type": "local_shell_call", "call_id": identity, "action": action}
            case "shell":
                return {
                    "type": "shell_call",
                    "call_id": identity,
                    "action": {"commands": [command]},
                }
            case _:
                return {
                    "type": "function_call",
                    "call_id": identity,
                    "name": "Bash",
                    "arguments": json.dumps({"command": command}),
                }

    def results(self, ids: list[str], commands: tuple[str, ...]) -> list[dict[str, Any]]:
        outputs = [OUTPUTS[command] for command in commands]
        shown: list[Any] = list(outputs)
        if self.form == "parts":
            kind = "input_text" if self.wire is Wire.RESPONSES else "text"
            shown = [[{"type": kind, "text": one}] for one in outputs]
        elif self.form == "shell":
            shown = [
                [
                    {
                        "stdout": "",
                        "stderr": one,
                        "outcome": {"type": "exit", "exit_code": int("E" in one)},
                    }
                ]
                for one in outputs
            ]
        made = list(zip(ids, shown, strict=True))
        match self.wire:
            case Wire.CHAT:
                return [
                    {"role": "tool", "tool_call_id": one, "content": said} for one, said in made
                ]
            case Wire.MESSAGES:
                blocks = [
                    {"type": "tool_result", "tool_use_id": one, "content": said}
                    for one, said in made
                ]
                return [{"role": "user", "content": blocks}]
            case _:
                kind = {"local": "local_shell_call", "shell": "shell_call"}.get(
                    self.form, "function_call"
                )
                return [
                    {"type": f"{kind}_output", "call_id": one, "output": said} for one, said in made
                ]

    def say(self, words: str) -> None:
        self.history += [
            {"role": "assistant", "content": "done"},
            {"role": "user", "content": words},
        ]

    def body(self) -> bytes:
        key = "input" if self.wire is Wire.RESPONSES else "messages"
        return json.dumps({"model": "m", "max_tokens": 9, key: self.history}).encode()

    def send(self, end: TurnEnd = TurnEnd.COMPLETED) -> tuple[Placed, bytes]:
        headers = {"x-session-id": "talk", "x-workspace-id": self.project}
        body = self.body()
        parsed, now = read(self.wire, body), datetime.now(UTC)
        incoming = Incoming(
            self.wire, "/x", "", headers, [], body, parsed, None, now, time.perf_counter()
        )
        origin = self.origins.identify(self.wire, headers, parsed)
        self.segment = origin.segment
        placed = self.placer.place(self.placer.ask(incoming, origin))
        self.origins.finished(origin, new_turn_id(), end)
        return placed, apply_splices(body, placed.splices)

    def items(self, sent: bytes) -> list[Any]:
        body = json.loads(sent)
        items: list[Any] = body["input" if self.wire is Wire.RESPONSES else "messages"]
        return items


def plain(value: Any) -> Any:
    """A request without anything of ours."""
    if isinstance(value, str):
        return remove_blocks(value).rstrip("\n")
    if isinstance(value, list):
        return [plain(one) for one in value if not (isinstance(one, dict) and ours(one))]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def ours(item: Any) -> bool:
    """Whether an item or part holds nothing but a lesson."""
    if item.get("role") == "developer":
        return True
    return str(item.get("text", "")).startswith("<house_rules")


FORMS = {
    Wire.CHAT: ["string", "parts"],
    Wire.MESSAGES: ["string", "parts"],
    Wire.RESPONSES: ["string", "parts", "local", "shell"],
}
CASES = [(wire, form) for wire, forms in FORMS.items() for form in forms]
STEPS = st.lists(
    st.one_of(
        st.lists(st.sampled_from([*OUTPUTS]), min_size=1, max_size=3),
        st.sampled_from(["ask", "restart", "again"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=tries(40, nightly=500))
@given(st.sampled_from(CASES), STEPS)
def test_a_lesson_stands_behind_the_result_that_needs_it_and_stays(
    case: tuple[Wire, str], steps: list[Any]
) -> None:
    talk = Talk(*case)
    last, sent = talk.send()
    needed: dict[str, str] = {}
    for number, step in enumerate(steps):
        if step == "restart":
            talk.open()
            talk.placer.restore(SessionId("talk"), talk.segment, last.stamp, last.placements)
            assert talk.send()[1] == sent
            continue
        if step == "again":
            talk.send(TurnEnd.FAILED)
            assert talk.send()[1] == sent
            continue
        if step == "ask":
            talk.say(f"and {number}")
        else:
            talk.run(number, *step)
            for place, command in enumerate(step):
                if command in FAILURES and command not in needed:
                    needed[command] = f"call_{number}_{place}"
        before = talk.items(sent)
        last, sent = talk.send()
        assert talk.items(sent)[: len(before)] == before
        placed = {one.call_id: one.skills[0] for one in last.placements}
        names = {
            identity: f"lesson-{list(FAILURES).index(what)}" for what, identity in needed.items()
        }
        assert placed == names
        assert set(last.stamp.skills) == set(names.values())
        for name in names.values():
            number_of = name.removeprefix("lesson-")
            assert sent.count(f"number {number_of}.".encode()) == 1
    assert sent == talk.body() or needed
    assert [plain(one) for one in talk.items(sent) if not ours(one)] == talk.history


@each("case", CASES)
def test_a_lesson_does_not_leave_its_project(case: tuple[Wire, str]) -> None:
    talk = Talk(*case, project="/elsewhere")
    talk.run(0, *FAILURES)
    placed, sent = talk.send()
    assert sent == talk.body()
    assert placed.placements == ()


def test_a_result_that_a_client_sent_before_the_lesson_was_learned_stays_as_it_is() -> None:
    talk = Talk(Wire.CHAT, library=[RULE])
    talk.run(0, "pytest -q")
    talk.send()
    talk.library = [*LIBRARY, RULE]
    talk.open()
    talk.run(1, "ls")
    assert talk.send()[1] == talk.body()
    talk.run(2, "pytest -q")
    (placed,) = talk.send()[0].placements
    assert placed.call_id == "call_2_0"


def test_text_behind_the_results_of_a_message_stays_behind_them() -> None:
    talk = Talk(Wire.MESSAGES)
    talk.run(0, "pytest -q")
    block = talk.history[-1]["content"][0]
    talk.history[-1]["content"].append({"type": "text", "text": "Mind the time."})
    _, sent = talk.send()
    shown = talk.items(sent)[-1]["content"]
    assert shown[1] == {"type": "text", "text": "Mind the time."}
    assert shown[0]["content"].startswith(block["content"])
    assert "number 0." in shown[0]["content"]
