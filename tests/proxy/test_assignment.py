"""Skills that are left to chance: drawn once a task, honestly, the same after a restart, and never
a person's own.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import sqrt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SessionId, SkillName, new_turn_id
from metaclaw.domain.skill import Authorship, Rule, Skill, SkillState
from metaclaw.domain.turn import Draw, Scope, Stamp, TurnEnd, apply_splices
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.placement import Placed, Placer, SkillAssignment
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
    state: SkillState = SkillState.CANARY,
    author: Authorship = Authorship.EVOLVER,
    **more: Any,
) -> Skill:
    kind = Rule if author is Authorship.INSTRUCTION else Skill
    return kind(
        SkillName(topic),
        f"When asked to {TOPICS[topic]}",
        "Do it step by step.",
        state=state,
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

    def opened(
        self, canary_share: float = 0.5, holdout_share: float = 0.0, budget_tokens: int = 4000
    ) -> "House":
        self.placer = Placer(
            lambda: self.view,
            Budgets(3, budget_tokens),
            canary_share=canary_share,
            holdout_share=holdout_share,
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
        placed = self.house.placer.place(incoming, origin)
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


def session_where(
    house: House, wanted: Callable[[Placed], bool], topic: str = "violin"
) -> tuple[Talk, Placed]:
    for number in range(200):
        talk = Talk(house, f"talk-{number}")
        placed = talk.ask(f"please {TOPICS[topic]}")
        if wanted(placed):
            return talk, placed
    raise AssertionError("no such session among 200")


def test_a_skill_on_trial_is_placed_or_withheld_and_the_draw_is_told() -> None:
    house = House(view(1, [skill("violin")])).opened(canary_share=0.5)
    _, with_it = session_where(house, lambda placed: bool(placed.stamp.skills))
    _, without = session_where(house, lambda placed: not placed.stamp.skills)
    assert with_it.draws == (Draw(SkillName("violin"), placed=True, propensity=0.5),)
    assert without.draws == (Draw(SkillName("violin"), placed=False, propensity=0.5),)
    assert (without.placements, without.splices) == ((), ())


def test_a_learned_live_skill_is_withheld_only_where_there_is_a_holdout() -> None:
    house = House(view(1, [skill("violin", SkillState.LIVE)])).opened(holdout_share=0.0)
    assert Talk(house).ask(f"please {TOPICS['violin']}").draws == ()
    house.opened(holdout_share=0.25)
    _, withheld = session_where(house, lambda placed: not placed.stamp.skills)
    assert withheld.draws == (Draw(SkillName("violin"), placed=False, propensity=0.75),)


@pytest.mark.parametrize(
    "certain",
    [
        skill("violin", SkillState.LIVE, Authorship.PERSON),
        skill("violin", SkillState.CANARY, Authorship.PERSON),
        skill("violin", SkillState.LIVE, Authorship.INSTRUCTION),
        skill("violin", SkillState.CANARY, Authorship.INSTRUCTION),
        skill("violin", SkillState.LIVE, Authorship.EVOLVER, pinned=True),
    ],
)
def test_what_a_person_wrote_told_or_pinned_is_always_placed(certain: Skill) -> None:
    house = House(view(1, [certain])).opened(canary_share=0.01, holdout_share=0.99)
    for number in range(50):
        placed = Talk(house, f"talk-{number}").ask(f"please {TOPICS['violin']}")
        assert (placed.stamp.skills, placed.draws) == (("violin",), ())


@pytest.mark.parametrize(
    ("share", "state"),
    [(0.5, SkillState.CANARY), (0.1, SkillState.CANARY), (0.05, SkillState.LIVE)],
)
def test_over_many_sessions_the_share_is_what_the_propensity_says(
    share: float, state: SkillState
) -> None:
    house = House(
        view(1, [skill("violin", state), skill("beehive", SkillState.LIVE, Authorship.PERSON)])
    )
    house.opened(canary_share=share, holdout_share=share)
    placed = [
        Talk(house, f"talk-{number}").ask(f"please {TOPICS['violin']}") for number in range(1500)
    ]
    (propensity,) = {draw.propensity for one in placed for draw in one.draws}
    assert propensity == (share if state is SkillState.CANARY else 1 - share)
    seen = sum("violin" in one.stamp.skills for one in placed) / len(placed)
    assert abs(seen - propensity) < 4 * sqrt(propensity * (1 - propensity) / len(placed))


def test_draws_of_different_skills_know_nothing_of_each_other() -> None:
    chance, skills = SkillAssignment(canary_share=0.5), [skill("violin"), skill("beehive")]
    both = [
        tuple(draw.placed for draw in chance.draw(SessionId(f"s{number}"), number % 3, skills))
        for number in range(4000)
    ]
    for outcome in ((True, True), (True, False), (False, True), (False, False)):
        assert abs(both.count(outcome) / len(both) - 0.25) < 4 * sqrt(0.25 * 0.75 / len(both))


def test_a_share_that_is_no_share_is_refused() -> None:
    for shares in ((0.0, 0.0), (1.5, 0.0), (0.5, 1.0), (0.5, -0.1), (float("nan"), 0.0)):
        with pytest.raises(ValueError, match="share"):
            SkillAssignment(*shares)


def test_the_draw_stands_for_the_whole_segment_and_is_drawn_anew_for_the_next() -> None:
    house = House(view(1, [skill("violin")])).opened()
    talk, first = session_where(house, lambda placed: not placed.stamp.skills)
    house.view = view(2, [skill("violin", SkillState.LIVE, Authorship.PERSON)])
    during = talk.use_tool()
    assert (during.stamp, during.draws) == (first.stamp, first.draws)
    house.view = view(3, [skill("violin")])
    outcomes = set()
    for _ in range(20):
        talk.hear()
        outcomes.add(talk.ask(f"please {TOPICS['violin']} again").draws)
    assert outcomes >= {(Draw(SkillName("violin"), placed=True, propensity=0.5),)}


def test_a_skill_that_stands_in_the_prompt_already_is_not_drawn_again() -> None:
    house = House(view(1, [skill("violin")])).opened()
    talk, first = session_where(house, lambda placed: bool(placed.stamp.skills))
    for _ in range(6):
        talk.hear()
        later = talk.ask(f"please {TOPICS['violin']} again")
        assert (later.stamp.skills, later.draws) == (first.stamp.skills, ())
        assert talk.provider_saw[-1][: len(talk.provider_saw[-2])] == talk.provider_saw[-2]


def test_side_turns_are_not_left_to_chance() -> None:
    house = House(view(1, [skill("violin")])).opened()
    talk, _ = session_where(house, lambda placed: bool(placed.draws))
    assert talk.send(side=True).draws == ()


@pytest.mark.parametrize("remembers", [False, True])
def test_after_a_restart_the_segment_goes_on_with_the_same_draw(remembers: bool) -> None:
    house = House(view(1, [skill("violin")])).opened()
    for number in range(20):
        talk = Talk(house, f"talk-{number}")
        before = talk.ask(f"please {TOPICS['violin']}")
        again = House(house.view, house.origins).opened()
        if remembers:
            again.placer.restore(
                SessionId(talk.name), 0, before.stamp, before.placements, before.draws
            )
            again.view = view(2, [])
        talk.house = again
        after = talk.use_tool()
        assert (after.stamp.skills, after.placements, after.draws) == (
            before.stamp.skills,
            before.placements,
            before.draws,
        )


def test_promotion_does_not_disturb_a_running_sessions_prefix() -> None:
    house = House(
        view(1, [skill("violin"), skill("beehive", SkillState.LIVE, Authorship.PERSON)])
    ).opened()
    talk, first = session_where(house, lambda placed: bool(placed.stamp.skills))
    house.view = view(
        2, [skill("violin", SkillState.LIVE), skill("beehive", SkillState.LIVE, Authorship.PERSON)]
    )
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
    house.view = view(2, [skill("violin", SkillState.LIVE)])
    assert running.use_tool().stamp == Stamp(1, 0, view(1, []).hash, ())
    assert Talk(house, "new").ask(f"please {TOPICS['violin']}").stamp.skills == ("violin",)
    running.hear()
    assert running.ask(f"please {TOPICS['violin']}").stamp.skills == ("violin",)


def test_after_a_restart_a_skill_that_changed_meanwhile_is_replaced_at_the_next_task() -> None:
    house = House(view(1, [skill("violin", SkillState.LIVE)])).opened()
    talk = Talk(house)
    before = talk.ask(f"please {TOPICS['violin']}")
    for now, kept in (
        (house.view, True),
        (view(2, [replace(skill("violin"), body="Another way.")]), False),
    ):
        again = House(view(0, []), house.origins).opened(canary_share=1.0)
        again.placer.restore(SessionId("talk"), 0, before.stamp, before.placements, before.draws)
        again.view, talk.house = now, again
        talk.hear()
        later = talk.ask("thanks, go on")
        assert (later.placements == before.placements) is kept


def test_whether_a_skill_is_placed_depends_on_nothing_but_its_own_draw_also_where_room_is_short() -> (
    None
):
    """Two skills of which one fits: the second is not drawn, since its place would depend on how
    the first came out.
    """
    long = "Step by step. " * 60
    pair = [
        replace(skill("violin"), body=long),
        replace(skill("violin"), name=SkillName("violin-bow"), body=long),
    ]
    house = House(view(1, pair)).opened(budget_tokens=400)
    drawn = set()
    for number in range(40):
        placed = Talk(house, f"talk-{number}").ask(f"please {TOPICS['violin']}")
        drawn |= {draw.skill for draw in placed.draws}
        assert {draw.skill for draw in placed.draws if draw.placed} == set(placed.stamp.skills)
    assert len(drawn) == 1


def test_a_request_that_takes_no_block_was_not_left_to_chance() -> None:
    house = House(view(1, [skill("violin")])).opened(canary_share=0.99)
    talk = Talk(house, history=[{"role": "system", "content": {"odd": "shape"}}])
    placed = talk.ask(f"please {TOPICS['violin']}")
    assert (placed.stamp.skills, placed.draws) == ((), ())


def test_a_team_gets_its_skills_and_nobody_else_does() -> None:
    house = House(
        view(1, [skill("violin", SkillState.LIVE, Authorship.PERSON, scope="team:strings")])
    ).opened()
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
    house = House(
        view(1, [skill("violin", SkillState.LIVE, Authorship.PERSON, scope=scope)])
    ).opened()
    assert Talk(house, "talk", "alice").ask(f"please {TOPICS['violin']}").stamp.skills == (
        "violin",
    )
    house.origins = Origins()
    assert Talk(house, "talk", "bob").ask("thanks, go on").stamp.skills == ()


def test_a_skill_that_is_no_longer_for_this_speaker_leaves_at_the_next_task() -> None:
    everyones = skill("violin", SkillState.LIVE, Authorship.PERSON)
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
    everyones = skill("violin", SkillState.LIVE, Authorship.PERSON)
    house = House(view(1, [everyones])).opened()
    talk = Talk(house, "talk", "bob")
    assert talk.ask(f"please {TOPICS['violin']}").stamp.skills == ("violin",)
    house.view = view(2, [replace(everyones, workspace="shop")])
    talk.hear()
    assert talk.ask("thanks, go on").stamp.skills == ()


STATES = st.sampled_from(
    [
        (SkillState.CANARY, Authorship.EVOLVER),
        (SkillState.LIVE, Authorship.EVOLVER),
        (SkillState.LIVE, Authorship.PERSON),
    ]
)
LIBRARIES = st.dictionaries(st.sampled_from(list(TOPICS)), STATES, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from([*TOPICS, "thanks, go on"])),
        st.tuples(st.just("tool"), st.just("")),
        st.tuples(st.just("library"), LIBRARIES),
        st.tuples(st.just("restart"), st.just("")),
    ),
    max_size=10,
)


@settings(deadline=None, max_examples=60)
@given(
    LIBRARIES,
    STEPS,
    st.sampled_from([0.2, 0.5, 1.0]),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 10**6),
)
def test_within_a_segment_nothing_changes_and_draws_tell_the_truth(
    library: dict[str, tuple[SkillState, Authorship]],
    steps: list[tuple[str, Any]],
    canary: float,
    holdout: float,
    number: int,
) -> None:
    def view_of(of: dict[str, tuple[SkillState, Authorship]], generation: int) -> LibraryView:
        return view(generation, [skill(topic, *standing) for topic, standing in of.items()])

    house = House(view_of(library, 1)).opened(canary, holdout)
    talk = Talk(house, f"talk-{number}")
    last = talk.ask("hello there")
    for generation, (what, value) in enumerate(steps, 2):
        if what == "library":
            house.view = view_of(value, generation)
        elif what == "restart":
            house.opened(canary, holdout)
            segment = talk.history.count({"role": "assistant", "content": "very well"})
            house.placer.restore(
                SessionId(talk.name), segment, last.stamp, last.placements, last.draws
            )
        elif what == "tool":
            now = talk.use_tool()
            assert (now.stamp, now.placements, now.draws) == (
                last.stamp,
                last.placements,
                last.draws,
            )
            last = now
        else:
            talk.hear()
            last = talk.ask(f"please {TOPICS[value]}" if value in TOPICS else value)
            assert {draw.skill for draw in last.draws if draw.placed} <= set(last.stamp.skills)
            assert not {draw.skill for draw in last.draws if not draw.placed} & set(
                last.stamp.skills
            )
            for draw in last.draws:
                one = house.view.get(draw.skill)
                assert one is not None
                assert draw.propensity == (
                    canary if one.state is SkillState.CANARY else 1 - holdout
                )
                assert 0 < draw.propensity < 1
                assert one.author is Authorship.EVOLVER


def test_scope_is_part_of_what_is_asked_for() -> None:
    """The speaker's scope reaches retrieval as it came."""
    mine = skill("violin", SkillState.LIVE, Authorship.INSTRUCTION, scope="owner")
    assert view(1, [mine]).retrieve(TOPICS["violin"], 3, Scope()) == (mine,)
    house = House(view(1, [mine])).opened()
    assert Talk(house).ask(f"please {TOPICS['violin']}").stamp.skills == ("violin",)
    assert Talk(house, "other", "bob").ask(f"please {TOPICS['violin']}").stamp.skills == ()
