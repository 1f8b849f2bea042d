"""Law: within a session the first block's bytes never change while nothing it holds is withdrawn or
changed.
"""

import json
import time
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Wire
from metaclaw.domain.front_matter import SkillRecord
from metaclaw.domain.ids import SessionId, SkillName, new_turn_id
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.turn import TurnEnd, apply_splices
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.placement import Placed, Placer
from metaclaw.proxy.sessions import Origins
from metaclaw.skills import Budgets, LibraryView, remove_blocks
from tests.support.depth import tries

TODAY = date(2026, 11, 16)
TOPICS = {
    "violin": "rehair a violin bow with mongolian horsehair",
    "beehive": "inspect a beehive for varroa mites",
    "sourdough": "bake sourdough bread with a rye starter",
    "telescope": "collimate a newtonian telescope mirror",
    "kubernetes": "diagnose a crashlooping kubernetes pod",
}
NAMES = ["uv", "tabs", "staging", "brief", *TOPICS]


def item(name: str, version: int) -> Skill:
    """A rule, a fact or a skill, by its name; another version says something else."""
    if name in TOPICS:
        body = f"Do it step by step, in version {version}."
        return Skill(
            SkillName(name),
            f"When asked to {TOPICS[name]}",
            body,
            author=Authorship.EVOLVER,
        )
    kind = "fact" if name == "staging" else "rule"
    return SkillRecord(
        SkillName(name),
        "always",
        f"Mind {name}, version {version}.",
        extra={"kind": kind, "applies": "always"},
    ).read()


@dataclass
class Conversation:
    """A chat session, the library behind it, and what the provider saw last."""

    library: dict[str, Skill] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "system", "content": "You are careful."}]
    )
    seen: list[dict[str, Any]] = field(default_factory=list)
    generation: int = 1

    def __post_init__(self) -> None:
        self.origins = Origins()
        self.open()

    def open(self) -> None:
        self.placer = Placer(
            self.view,
            Budgets(rules_tokens=40),
            today=lambda: TODAY,
        )

    def view(self) -> LibraryView:
        return LibraryView.of(self.generation, list(self.library.values()))

    def send(self) -> Placed:
        headers = {"x-session-id": "talk"}
        body = json.dumps({"model": "m", "messages": self.history}).encode()
        parsed = json.loads(body)
        now = datetime.now(UTC)
        incoming = Incoming(
            Wire.CHAT,
            "/chat/completions",
            "",
            headers,
            [],
            body,
            parsed,
            None,
            now,
            time.perf_counter(),
        )
        origin = self.origins.identify(Wire.CHAT, headers, parsed)
        self.segment = origin.segment
        placed = self.placer.place(self.placer.ask(incoming, origin))
        self.origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        self.seen = json.loads(apply_splices(body, placed.splices))["messages"]
        return placed


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from([*TOPICS, "thanks, go on"])),
        st.tuples(st.just("tool"), st.none()),
        st.tuples(st.sampled_from(["put", "retract"]), st.sampled_from(NAMES)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=14,
)


@settings(deadline=None, max_examples=tries(40, nightly=600))
@given(st.lists(st.sampled_from(NAMES), unique=True), STEPS)
def test_the_first_block_stays_while_nothing_it_holds_is_withdrawn(
    begins_with: list[str], steps: list[tuple[str, Any]]
) -> None:
    talk = Conversation({name: item(name, 0) for name in begins_with})
    talk.history.append({"role": "user", "content": "please begin"})
    last, saw, held = talk.send(), talk.seen, dict(talk.library)
    for number, (what, value) in enumerate(steps, 1):
        if what == "put":
            talk.library[value] = item(value, number)
        elif what == "retract":
            talk.library.pop(value, None)
        elif what == "restart":
            talk.open()
            talk.placer.restore(SessionId("talk"), talk.segment, last.stamp, last.placements)
        else:
            if what == "tool":
                call = {
                    "id": f"c{number}",
                    "type": "function",
                    "function": {"name": "f", "arguments": "{}"},
                }
                talk.history.append({"role": "assistant", "content": None, "tool_calls": [call]})
                talk.history.append(
                    {"role": "tool", "tool_call_id": f"c{number}", "content": "done"}
                )
            else:
                talk.history.append({"role": "assistant", "content": f"answer {number}"})
                words = (
                    f"please {TOPICS[value]} {number}" if value in TOPICS else f"{value} {number}"
                )
                talk.history.append({"role": "user", "content": words})
            now = talk.send()
            first = last.placements[0] if last.placements else None
            names = () if first is None else (*first.skills, *first.listed)
            if first is not None and (
                what == "tool" or all(talk.library.get(name) == held.get(name) for name in names)
            ):
                assert now.placements[0] == first
                assert talk.seen[0] == saw[0]
            standing = [name for one in last.placements for name in (*one.skills, *one.listed)]
            is_longer = set(last.stamp.skills) <= set(now.stamp.skills)
            if is_longer and all(talk.library.get(name) == held.get(name) for name in standing):
                assert talk.seen[: len(saw)] == saw
            if what == "ask":
                held = dict(talk.library)
                placed = {*now.stamp.skills, *now.listed}
                assert placed <= talk.library.keys()
            last, saw = now, talk.seen
        talk.generation += 1
    plain = [
        {**message, "content": message["content"] and remove_blocks(message["content"])}
        for message in talk.seen
    ]
    assert [replace_end(one) for one in plain] == [replace_end(one) for one in talk.history]


def replace_end(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": (message["content"] or "").rstrip("\n")}
