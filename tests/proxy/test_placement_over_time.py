"""Which skills a session gets when the library, the speaker or the process changes."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SessionId, SkillName, new_turn_id
from metaclaw.domain.skill import Authorship, Rule, Skill
from metaclaw.domain.turn import Scope, Stamp, TurnEnd, apply_splices
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.placement import Placed, Placer
from metaclaw.proxy.sessions import Origins
from metaclaw.skills import Budgets, LibraryView

TOPICS = {
    "kubernetes": "diagnose a crashlooping kubernetes pod from its container logs",
    "sourdough": "bake sourdough bread with a rye starter",
    "violin": "rehair a violin bow with mongolian horsehair",
    "beehive": "inspect a beehive for varroa mites",
}


def skill(
    topic: str,
    author: Authorship = Authorship.EVOLVER,
    **more: Any,
) -> Skill:
    kind = Rule if author is Authorship.INSTRUCTION else Skill
    return kind(
        SkillName(topic),
        f"When asked to {TOPICS[topic]}",
        "Do it step by step.",
        author=author,
        **more,
    )


def view(generation: int, skills: Sequence[Skill]) -> LibraryView:
    return LibraryView.of(generation, skills)


@dataclass
class House:
    """A placer and the sessions that speak to it."""

    view: LibraryView
    origins: Origins = field(default_factory=Origins)
    placer: Placer = field(init=False)

    def opened(self) -> "House":
        self.placer = Placer(
            lambda: self.view,
            Budgets(3, 4000),
            teams={"strings": ("alice",)},
        )
        return self


@dataclass
class Talk:
    """One session: a growing history, and what the provider saw of it."""

    house: House
    name: str = "talk"
    user: str | None = None
    history: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "system", "content": "You are careful."}]
    )
    provider_saw: list[list[dict[str, Any]]] = field(default_factory=list)

    def send(self, *, side: bool = False) -> Placed:
        headers = {"x-session-id": self.name} | ({"x-turn-type": "side"} if side else {})
        headers |= {"x-user-id": self.user} if self.user else {}
        body = json.dumps({"model": "m", "messages": self.history}).encode()
        incoming = Incoming(
            Wire.CHAT,
            "/chat/completions",
            "",
            headers,
            [],
            body,
            json.loads(body),
            None,
            datetime.now(UTC),
            time.perf_counter(),
        )
        origin = self.house.origins.identify(Wire.CHAT, headers, incoming.json)
        placed = self.house.placer.place(self.house.placer.ask(incoming, origin))
        self.house.origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        self.provider_saw.append(json.loads(apply_splices(body, placed.splices))["messages"])
        return placed

    def ask(self, words: str) -> Placed:
        self.history.append({"role": "user", "content": words})
        return self.send()

    def hear(self, words: str = "very well") -> None:
        self.history.append({"role": "assistant", "content": words})

    def use_tool(self) -> Placed:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        self.history += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ]
        return self.send()


@pytest.mark.parametrize("remembers", [False, True])
def test_after_a_restart_the_segment_goes_on_as_it_was(remembers: bool) -> None:
    house = House(view(1, [skill("violin")])).opened()
    for number in range(20):
        talk = Talk(house, f"talk-{number}")
        before = talk.ask(f"please {TOPICS['violin']}")
        again = House(house.view, house.origins).opened()
        if remembers:
            again.placer.restore(SessionId(talk.name), 0, before.stamp, before.placements)
            again.view = view(2, [])
        talk.house = again
        after = talk.use_tool()
        assert (after.stamp.skills, after.placements) == (before.stamp.skills, before.placements)


def test_a_new_generation_does_not_disturb_a_running_sessions_prefix() -> None:
    house = House(view(1, [skill("violin"), skill("beehive", Authorship.PERSON)])).opened()
    talk = Talk(house)
    first = talk.ask(f"please {TOPICS['violin']}")
    house.view = view(2, [skill("violin"), skill("beehive", Authorship.PERSON)])
    talk.hear()
    second = talk.ask(f"please {TOPICS['beehive']}")
    assert (second.stamp.generation, second.stamp.skills) == (2, ("violin", "beehive"))
    assert talk.provider_saw[1][:2] == talk.provider_saw[0]
    assert second.placements[0] == first.placements[0]


def test_a_new_generation_reaches_a_new_session_at_once_and_a_running_one_at_its_next_task() -> (
    None
):
    house = House(view(1, [])).opened()
    running = Talk(house, "running")
    assert running.ask(f"please {TOPICS['violin']}").stamp.skills == ()
    house.view = view(2, [skill("violin")])
    assert running.use_tool().stamp == Stamp(1, 0, view(1, []).hash, ())
    assert Talk(house, "new").ask(f"please {TOPICS['violin']}").stamp.skills == ("violin",)
    running.hear()
    assert running.ask(f"please {TOPICS['violin']}").stamp.skills == ("violin",)


def test_after_a_restart_a_skill_that_changed_meanwhile_is_replaced_at_the_next_task() -> None:
    house = House(view(1, [skill("violin")])).opened()
    talk = Talk(house)
    before = talk.ask(f"please {TOPICS['violin']}")
    for now, kept in (
        (house.view, True),
        (view(2, [replace(skill("violin"), body="Another way.")]), False),
    ):
        again = House(view(0, []), house.origins).opened()
        again.placer.restore(SessionId("talk"), 0, before.stamp, before.placements)
        again.view, talk.house = now, again
        talk.hear()
        later = talk.ask("thanks, go on")
        assert (later.placements == before.placements) is kept


def test_a_team_gets_its_skills_and_nobody_else_does() -> None:
    house = House(view(1, [skill("violin", Authorship.PERSON, scope="team:strings")])).opened()
    placed = {
        user: Talk(house, f"talk-{user}", user).ask(f"please {TOPICS['violin']}").stamp.skills
        for user in ("alice", "bob")
    }
    assert placed == {"alice": ("violin",), "bob": ()}
    assert Talk(house, "nobody").ask(f"please {TOPICS['violin']}").stamp.skills == ()


@pytest.mark.parametrize("scope", [None, "user:alice"])
def test_what_is_remembered_of_somebody_elses_session_of_the_same_name_is_not_used(
    scope: str | None,
) -> None:
    house = House(view(1, [skill("violin", Authorship.PERSON, scope=scope)])).opened()
    assert Talk(house, "talk", "alice").ask(f"please {TOPICS['violin']}").stamp.skills == (
        "violin",
    )
    house.origins = Origins()
    assert Talk(house, "talk", "bob").ask("thanks, go on").stamp.skills == ()


def test_a_skill_that_is_no_longer_for_this_speaker_leaves_at_the_next_task() -> None:
    everyones = skill("violin", Authorship.PERSON)
    house = House(view(1, [everyones])).opened()
    talk = Talk(house, "talk", "bob")
    before = talk.ask(f"please {TOPICS['violin']}")
    house.view = view(2, [replace(everyones, scope="user:alice")])
    for placer in ("running", "restarted"):
        if placer == "restarted":
            house.opened()
            house.placer.restore(SessionId("talk"), 0, before.stamp, before.placements)
        talk.hear()
        assert talk.ask("thanks, go on").stamp.skills == ()


def test_a_skill_that_is_for_another_workspace_from_now_on_leaves_too() -> None:
    everyones = skill("violin", Authorship.PERSON)
    house = House(view(1, [everyones])).opened()
    talk = Talk(house, "talk", "bob")
    assert talk.ask(f"please {TOPICS['violin']}").stamp.skills == ("violin",)
    house.view = view(2, [replace(everyones, workspace="shop")])
    talk.hear()
    assert talk.ask("thanks, go on").stamp.skills == ()


def test_a_skill_that_is_for_another_channel_from_now_on_leaves_too() -> None:
    everyones = skill("violin", Authorship.PERSON)
    house = House(view(1, [everyones])).opened()
    talk = Talk(house, "talk", "bob")
    assert talk.ask(f"please {TOPICS['violin']}").stamp.skills == ("violin",)
    house.view = view(2, [replace(everyones, channel="slack")])
    talk.hear()
    assert talk.ask("thanks, go on").stamp.skills == ()


def test_scope_is_part_of_what_is_asked_for() -> None:
    """The speaker's scope reaches retrieval as it came."""
    mine = skill("violin", Authorship.INSTRUCTION, scope="owner")
    assert view(1, [mine]).retrieve(TOPICS["violin"], 3, Scope()) == (mine,)
    house = House(view(1, [mine])).opened()
    assert Talk(house).ask(f"please {TOPICS['violin']}").stamp.skills == ("violin",)
    assert Talk(house, "other", "bob").ask(f"please {TOPICS['violin']}").stamp.skills == ()
