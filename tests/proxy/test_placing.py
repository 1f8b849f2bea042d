"""Skills in a session's prompts: chosen once a task, at most three, and never at the price of a cached prefix without need."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SessionId, SkillName, new_turn_id
from metaclaw.domain.policy import Serving
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import TurnEnd, apply_splices
from metaclaw.proxy.client import Incoming
from metaclaw.proxy.origin import Origins
from metaclaw.proxy.placing import Placed, Placer
from metaclaw.skills import ShelfView, remove_blocks
from metaclaw.skills.index import SkillIndex
from metaclaw.upstream import PolicySlot

TOPICS = {
    "kubernetes": "diagnose a crashlooping kubernetes pod from its container logs",
    "sourdough": "bake sourdough bread with a rye starter",
    "telescope": "collimate a newtonian telescope mirror",
    "violin": "rehair a violin bow with mongolian horsehair",
    "beehive": "inspect a beehive for varroa mites",
}
CHATTER = ["thanks, go on", "and then?", "hmm, are you sure about that"]


def skill(topic: str, body: str = "Do it step by step.") -> Skill:
    return Skill(SkillName(topic), f"When asked to {TOPICS[topic]}", body)


def view(generation: int, skills: Sequence[Skill]) -> ShelfView:
    return ShelfView(generation, f"hash-{generation}", SkillIndex().changed(list(skills), []))


@dataclass
class Talk:
    """A chat client with a growing history, and the provider's view of each of its requests."""

    view: ShelfView = field(default_factory=lambda: view(1, [skill(topic) for topic in TOPICS]))
    history: list[dict[str, Any]] = field(default_factory=lambda: [{"role": "system", "content": "You are careful."}])
    provider_saw: list[list[dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.origins = Origins(now=lambda: datetime.now(UTC))
        self.placer = Placer(lambda: self.view, max_placed=3, budget_tokens=4000)

    def send(self, *, side: bool = False) -> Placed:
        headers = {"x-session-id": "talk"} | ({"x-turn-type": "side"} if side else {})
        body = json.dumps({"model": "m", "messages": self.history}).encode()
        incoming = Incoming(
            Wire.CHAT, "/chat/completions", "", headers, [], body, json.loads(body), None, datetime.now(UTC), time.perf_counter()
        )
        origin = self.origins.identify(Wire.CHAT, headers, incoming.json)
        placed = self.placer.place(incoming, origin)
        self.origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        self.provider_saw.append(json.loads(apply_splices(body, placed.splices))["messages"])
        return placed

    def ask(self, words: str) -> Placed:
        self.history.append({"role": "user", "content": words})
        return self.send()

    def hear(self, words: str = "very well") -> None:
        self.history.append({"role": "assistant", "content": words})


def test_the_first_tasks_skill_stands_at_the_end_of_the_system_text() -> None:
    talk = Talk()
    placed = talk.ask(f"please {TOPICS['violin']}")
    assert placed.stamp.skills == ("violin",)
    assert talk.provider_saw[0][0]["content"].startswith("You are careful.")
    assert "violin" in talk.provider_saw[0][0]["content"]
    assert talk.provider_saw[0][1] == talk.history[1]


def test_a_later_tasks_skill_stands_behind_its_own_user_message_and_nothing_before_it_changes() -> None:
    talk = Talk()
    talk.ask(f"please {TOPICS['violin']}")
    talk.hear()
    placed = talk.ask(f"now {TOPICS['beehive']}")
    first, second = talk.provider_saw
    assert placed.stamp.skills == ("violin", "beehive")
    assert second[:2] == first
    assert second[2] == talk.history[2]
    assert "beehive" in second[3]["content"]


def test_the_choice_stands_while_tools_run_although_the_shelf_has_moved_on() -> None:
    talk = Talk()
    before = talk.ask(f"please {TOPICS['violin']}")
    talk.view = view(2, [skill("violin", "A new way."), skill("sourdough")])
    talk.history += [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    during = talk.send()
    assert during.stamp == before.stamp
    assert talk.provider_saw[1][:2] == talk.provider_saw[0]
    talk.hear()
    after = talk.ask("thanks, go on")
    assert after.stamp.generation == 2
    assert after.stamp.skills == ()


def test_a_fourth_skill_makes_room_for_itself_behind_the_newest_message() -> None:
    talk = Talk()
    for topic in ("kubernetes", "sourdough", "telescope"):
        talk.ask(f"please {TOPICS[topic]}")
        talk.hear()
    placed = talk.ask(f"please {TOPICS['violin']}")
    assert placed.stamp.skills == ("violin",)
    assert talk.provider_saw[-1][:-1] == talk.history[:-1]


def test_side_turns_get_no_skills_and_leave_the_choice_alone() -> None:
    talk = Talk()
    first = talk.ask(f"please {TOPICS['violin']}")
    assert talk.send(side=True).stamp.skills == ()
    talk.hear()
    assert talk.ask("thanks, go on").stamp.skills == first.stamp.skills


def test_a_restarted_program_goes_on_with_the_same_bytes() -> None:
    talk = Talk()
    placed = talk.ask(f"please {TOPICS['violin']}")
    restarted = Placer(lambda: talk.view, max_placed=3, budget_tokens=4000)
    restarted.restore(SessionId("talk"), 0, placed.stamp, placed.placements)
    talk.placer = restarted
    talk.hear()
    talk.ask("thanks, go on")
    assert talk.provider_saw[1][:2] == talk.provider_saw[0]


@pytest.mark.parametrize("enabled", [False, True])
def test_skills_can_be_switched_off(enabled: bool) -> None:
    talk = Talk()
    talk.placer = Placer(lambda: talk.view, max_placed=3, budget_tokens=4000, enabled=enabled)
    assert bool(talk.ask(f"please {TOPICS['violin']}").splices) == enabled


@settings(deadline=None)
@given(st.lists(st.sampled_from([*TOPICS, *CHATTER]), min_size=1, max_size=8))
def test_prompts_only_grow_and_hold_at_most_three_skills_and_are_the_clients_own_without_them(words: list[str]) -> None:
    talk, old = Talk(), set[SkillName]()
    for number, word in enumerate(words):
        before = talk.provider_saw[-1] if talk.provider_saw else []
        placed = talk.ask(f"please {TOPICS[word]} {number}" if word in TOPICS else word)
        now = talk.provider_saw[-1]
        assert len(placed.stamp.skills) <= 3
        assert len(set(placed.stamp.skills)) == len(placed.stamp.skills)
        if old <= set(placed.stamp.skills):
            assert now[: len(before)] == before
        assert [{**message, "content": remove_blocks(message["content"]).removesuffix("\n\n")} for message in now] == talk.history
        old = set(placed.stamp.skills)
        talk.hear(f"answer {number}")


def test_a_skill_that_the_weights_have_absorbed_needs_no_place_and_comes_back_with_the_old_weights() -> None:
    slot = PolicySlot("embedded")
    talk = Talk()
    talk.placer = Placer(lambda: talk.view, max_placed=3, budget_tokens=4000, policy=slot)
    slot.flip(Serving(version=7, absorbed={7: frozenset({SkillName("violin")})}))
    with_weights = talk.ask(f"please {TOPICS['violin']}")
    talk.hear()
    slot.flip(Serving(version=6))
    without = talk.ask(f"now please {TOPICS['violin']}, once more")
    assert (with_weights.stamp.policy_version, with_weights.stamp.skills) == (7, ())
    assert (without.stamp.policy_version, without.stamp.skills) == (6, ("violin",))


def test_a_skill_that_the_weights_have_absorbed_is_told_to_whoever_else_answers() -> None:
    slot = PolicySlot("embedded")
    slot.flip(Serving(version=7, absorbed={7: frozenset({SkillName("violin")})}))

    def told(*, is_policys: bool) -> tuple[SkillName, ...]:
        talk = Talk()
        talk.placer = Placer(
            lambda: talk.view, max_placed=3, budget_tokens=4000, policy=slot, policy_answers=lambda wire, model: is_policys
        )
        return talk.ask(f"please {TOPICS['violin']}").stamp.skills

    assert told(is_policys=True) == ()
    assert told(is_policys=False) == ("violin",)
