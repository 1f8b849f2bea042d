"""Skills in a session's prompts: chosen once a task, at most three, and never at the price of a
cached prefix without need.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Wire
from metaclaw.domain.front_matter import SkillRecord
from metaclaw.domain.ids import SessionId, SkillName, new_turn_id
from metaclaw.domain.policy import Serving
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import TurnEnd, apply_splices
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.placement import Placed, Placer
from metaclaw.proxy.sessions import Origins
from metaclaw.skills import Budgets, LibraryView, remove_blocks
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


def rule(name: str, text: str, when: str = "always", kind: str = "rule", **extra: object) -> Skill:
    extra |= {"kind": kind} | ({"applies": "always"} if when == "always" else {})
    return SkillRecord(SkillName(name), when, text, extra=extra).read()


def fact(name: str, text: str) -> Skill:
    return rule(name, text, kind="fact")


def view(generation: int, skills: Sequence[Skill]) -> LibraryView:
    return LibraryView.of(generation, skills)


@dataclass
class Talk:
    """A chat client with a growing history, and the provider's view of each of its requests."""

    view: LibraryView = field(default_factory=lambda: view(1, [skill(topic) for topic in TOPICS]))
    history: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "system", "content": "You are careful."}]
    )
    provider_saw: list[list[dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.origins = Origins(now=lambda: datetime.now(UTC))
        self.placer = Placer(lambda: self.view, Budgets(3, 4000))

    def send(self, *, side: bool = False) -> Placed:
        headers = {"x-session-id": "talk"} | ({"x-turn-type": "side"} if side else {})
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
        origin = self.origins.identify(Wire.CHAT, headers, incoming.json)
        self.session = origin.session
        asked = self.placer.ask(incoming, origin)
        self.query = asked.query
        placed = self.placer.place(asked)
        self.origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
        self.provider_saw.append(json.loads(apply_splices(body, placed.splices))["messages"])
        return placed

    def ask(self, words: str) -> Placed:
        self.history.append({"role": "user", "content": words})
        return self.send()

    def name(self, *skills: str) -> None:
        """Have skills placed that the model which reads the messages has named."""
        self.placer.name(self.session, [SkillName(one) for one in skills])

    def hear(self, words: str = "very well") -> None:
        self.history.append({"role": "assistant", "content": words})


def test_the_first_tasks_skill_stands_at_the_end_of_the_system_text() -> None:
    talk = Talk()
    placed = talk.ask(f"please {TOPICS['violin']}")
    assert placed.stamp.skills == ("violin",)
    assert talk.provider_saw[0][0]["content"].startswith("You are careful.")
    assert "violin" in talk.provider_saw[0][0]["content"]
    assert talk.provider_saw[0][1] == talk.history[1]


def test_skills_that_a_message_needs_are_in_full_from_the_next_request_on() -> None:
    talk = Talk()
    assert talk.ask("what shall we do today?").stamp.skills == ()
    talk.hear()
    talk.name("violin", "no-such-skill", "beehive", "sourdough", "telescope")
    placed = talk.ask("good, begin")
    assert placed.stamp.skills == ("violin", "beehive")
    assert talk.provider_saw[1][:2] == talk.provider_saw[0]
    talk.hear()
    talk.name("violin")
    assert talk.ask("go on").placements == placed.placements


def test_a_task_is_searched_for_only_where_its_words_decide_what_is_placed() -> None:
    greet = rule("greet", "Greet by name.")
    talk = Talk(view(1, [greet]))
    assert talk.ask("rehair a bow").stamp.skills == ("greet",)
    assert talk.query == ""
    for library in ([greet, skill("violin")], [rule(f"r{n}", "word " * 200) for n in range(40)]):
        talk = Talk(view(1, library))
        talk.ask("rehair a bow")
        assert talk.query == "rehair a bow"


def test_a_later_tasks_skill_stands_behind_its_own_user_message_and_nothing_before_it_changes() -> (
    None
):
    talk = Talk()
    talk.ask(f"please {TOPICS['violin']}")
    talk.hear()
    placed = talk.ask(f"now {TOPICS['beehive']}")
    first, second = talk.provider_saw
    assert placed.stamp.skills == ("violin", "beehive")
    assert second[:2] == first
    assert second[2] == talk.history[2]
    assert "beehive" in second[3]["content"]


def test_the_choice_stands_while_tools_run_although_the_library_has_moved_on() -> None:
    talk = Talk()
    before = talk.ask(f"please {TOPICS['violin']}")
    talk.view = view(2, [skill("violin", "A new way."), skill("sourdough")])
    talk.history += [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
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


def test_when_later_tasks_need_a_fourth_skill_their_blocks_make_room_and_the_first_block_stays() -> (
    None
):
    talk = Talk()
    for topic in ("kubernetes", "sourdough", "telescope", "violin"):
        talk.ask(f"please {TOPICS[topic]}")
        talk.hear()
    placed = talk.ask(f"please {TOPICS['beehive']}")
    assert placed.stamp.skills == ("kubernetes", "beehive")
    assert talk.provider_saw[-1][0] == talk.provider_saw[0][0]
    assert talk.provider_saw[-1][1:-1] == talk.history[1:-1]


def test_the_first_block_holds_all_rules_and_facts_one_skill_in_full_and_lists_the_others() -> None:
    talk = Talk(
        view(
            1,
            [
                *map(skill, TOPICS),
                rule("uv", "Use uv instead of pip."),
                fact("staging", "Staging is stage-2."),
            ],
        )
    )
    placed = talk.ask(f"please {TOPICS['violin']}")
    block = talk.provider_saw[0][0]["content"]
    assert placed.stamp.skills == ("uv", "staging", "violin")
    assert sorted(placed.listed) == sorted(set(TOPICS) - {"violin"})
    assert "\n- Use uv instead of pip.\n" in block
    assert "\n- Staging is stage-2.\n" in block
    assert all(
        f"\n- {topic}: When asked to {TOPICS[topic]} — Do it step by step.\n" in block
        for topic in placed.listed
    )


def test_rules_are_placed_whatever_is_asked_and_whoever_asks_on_the_persons_behalf() -> None:
    talk = Talk(
        view(1, [rule("uv", "Use uv instead of pip.", when="When installing Python packages")])
    )
    talk.history[0]["content"] = "You are a research subagent."
    assert talk.ask("What is the capital of France?").stamp.skills == ("uv",)
    assert (
        "- Use uv instead of pip. [When installing Python packages]"
        in talk.provider_saw[0][0]["content"]
    )


def test_a_new_rule_goes_behind_the_newest_user_message_at_the_next_task() -> None:
    talk = Talk(view(1, [rule("uv", "Use uv.")]))
    talk.ask("please begin")
    talk.hear()
    talk.view = view(2, [rule("uv", "Use uv."), rule("tabs", "Indent with tabs.")])
    placed = talk.ask("please go on with it")
    first, second = talk.provider_saw
    assert placed.stamp.skills == ("uv", "tabs")
    assert second[:2] == first
    assert "- Indent with tabs." in second[-1]["content"]
    assert "- Use uv." not in second[-1]["content"]


@pytest.mark.parametrize("left", [[], [("uv", "Use uv, and never pip.")]])
def test_a_retracted_or_changed_rule_rewrites_the_first_block_once(
    left: list[tuple[str, str]],
) -> None:
    talk = Talk(view(1, [rule("uv", "Use uv."), rule("tabs", "Indent with tabs.")]))
    talk.ask("please begin")
    talk.hear()
    talk.view = view(2, [rule("tabs", "Indent with tabs."), *(rule(*one) for one in left)])
    for words in ("please go on with it", "and now the rest"):
        placed = talk.ask(words)
        talk.hear()
        assert sorted(placed.stamp.skills) == ["tabs", *(name for name, _ in left)]
    first, second, third = (seen[0]["content"] for seen in talk.provider_saw)
    assert "- Use uv.\n" not in second
    assert second != first
    assert third == second


def test_an_expired_rule_leaves_at_the_next_task() -> None:
    until = rule("freeze", "Do not deploy.", expires="2026-11-16")
    day = date(2026, 11, 16)
    talk = Talk(view(1, [until]))
    talk.placer = Placer(lambda: talk.view, Budgets(), today=lambda: day)
    assert talk.ask("please begin").stamp.skills == ("freeze",)
    talk.hear()
    day = date(2026, 11, 17)
    assert talk.ask("please go on with it").stamp.skills == ()


def test_a_rule_that_replaced_another_is_the_only_one_placed() -> None:
    talk = Talk(view(1, [rule("old", "Use pip.")]))
    talk.ask("please begin")
    talk.hear()
    talk.view = view(2, [rule("old", "Use pip."), rule("new", "Use uv.", overrides=["old"])])
    assert talk.ask("please go on with it").stamp.skills == ("new",)


def test_the_embedded_model_gets_only_the_best_matches_and_no_list() -> None:
    rules = [
        rule(f"r-{topic}", f"Be careful to {words}.", when=f"When asked to {words}")
        for topic, words in TOPICS.items()
    ]
    talk = Talk(view(1, [*map(skill, TOPICS), *rules, rule("german", "Answer in German.")]))
    talk.placer = Placer(lambda: talk.view, Budgets(), is_embedded=lambda wire, model: True)
    placed = talk.ask(f"please {TOPICS['violin']}")
    assert placed.stamp.skills == ("german", "r-violin", "violin")
    assert placed.listed == ()


def test_where_the_rules_do_not_fit_those_for_every_task_and_those_that_match_are_placed() -> None:
    others = [
        rule(f"other-{number}", f"Mind the {number}th gap.", when=f"When on platform {number}")
        for number in range(60)
    ]
    mine = rule("strings", "Order the strings in Vienna.", when=f"When asked to {TOPICS['violin']}")
    talk = Talk(view(1, [*others, mine, rule("german", "Answer in German.")]))
    talk.placer = Placer(lambda: talk.view, Budgets(rules_tokens=200))
    assert talk.ask(f"please {TOPICS['violin']}").stamp.skills == ("german", "strings")


def test_side_turns_get_no_skills_and_leave_the_choice_alone() -> None:
    talk = Talk()
    first = talk.ask(f"please {TOPICS['violin']}")
    assert talk.send(side=True).stamp.skills == ()
    talk.hear()
    assert talk.ask("thanks, go on").stamp.skills == first.stamp.skills


COMMITS = (
    "You are an expert software engineer that generates concise, one-line Git commit messages based"
    " on the provided diffs."
)


@pytest.mark.parametrize(
    "words",
    [
        "Write commit messages in German.",
        "提交信息一律用英文写。",
        "コミットメッセージは日本語で。",
    ],
)
def test_a_side_turn_gets_the_rules_about_what_it_writes_and_no_others(words: str) -> None:
    talk = Talk(view(1, [rule("about-commits", words), rule("uv", "Use uv."), *map(skill, TOPICS)]))
    talk.history[0]["content"] = COMMITS
    assert talk.ask("diff --git a/x b/x").stamp.skills == ("about-commits",)
    assert f"- {words}" in talk.provider_saw[0][0]["content"]


def test_a_side_turn_that_writes_a_title_gets_no_rule_about_commits() -> None:
    talk = Talk(
        view(
            1,
            [
                rule("about-commits", "Write commit messages in German."),
                rule("titles", "Titles have no emoji."),
            ],
        )
    )
    talk.history[0]["content"] = "Generate a short title for this conversation."
    assert talk.ask("hello").stamp.skills == ("titles",)


def test_a_restarted_program_goes_on_with_the_same_bytes() -> None:
    talk = Talk()
    placed = talk.ask(f"please {TOPICS['violin']}")
    restarted = Placer(lambda: talk.view, Budgets(3, 4000))
    restarted.restore(SessionId("talk"), 0, placed.stamp, placed.placements)
    talk.placer = restarted
    talk.hear()
    talk.ask("thanks, go on")
    assert talk.provider_saw[1][:2] == talk.provider_saw[0]


@pytest.mark.parametrize("enabled", [False, True])
def test_skills_can_be_switched_off(enabled: bool) -> None:
    talk = Talk()
    talk.placer = Placer(lambda: talk.view, Budgets(3, 4000), enabled=enabled)
    assert bool(talk.ask(f"please {TOPICS['violin']}").splices) == enabled


@settings(deadline=None)
@given(st.lists(st.sampled_from([*TOPICS, *CHATTER]), min_size=1, max_size=8))
def test_prompts_only_grow_and_are_the_clients_own_without_the_blocks(words: list[str]) -> None:
    talk, old = Talk(), set[SkillName]()
    for number, word in enumerate(words):
        before = talk.provider_saw[-1] if talk.provider_saw else []
        placed = talk.ask(f"please {TOPICS[word]} {number}" if word in TOPICS else word)
        now = talk.provider_saw[-1]
        assert sum(len(one.skills) for one in placed.placements[1:]) <= 3
        assert len(set(placed.stamp.skills)) == len(placed.stamp.skills)
        if old <= set(placed.stamp.skills):
            assert now[: len(before)] == before
        assert [
            {**message, "content": remove_blocks(message["content"]).removesuffix("\n\n")}
            for message in now
        ] == talk.history
        old = set(placed.stamp.skills)
        talk.hear(f"answer {number}")


def test_a_skill_that_the_weights_have_absorbed_needs_no_place_and_comes_back_with_the_old_weights() -> (
    None
):
    slot = PolicySlot("embedded")
    talk = Talk()
    talk.placer = Placer(lambda: talk.view, Budgets(3, 4000), policy=slot)
    slot.flip(Serving(version=7, absorbed={7: frozenset({SkillName("violin")})}))
    with_weights = talk.ask(f"please {TOPICS['violin']}")
    talk.hear()
    slot.flip(Serving(version=6))
    without = talk.ask(f"now please {TOPICS['violin']}, once more")
    assert (with_weights.stamp.policy_version, with_weights.stamp.skills) == (7, ())
    assert (without.stamp.policy_version, without.stamp.skills) == (6, ("violin",))


@pytest.mark.parametrize("when", ["always", f"When asked to {TOPICS['violin']}"])
def test_a_rule_that_the_weights_have_absorbed_is_no_longer_placed(when: str) -> None:
    slot = PolicySlot("embedded")
    talk = Talk(view(1, [rule("no-glue", "Never use glue.", when), rule("be-brief", "Be brief.")]))
    talk.placer = Placer(lambda: talk.view, Budgets(3, 4000), policy=slot)
    slot.flip(Serving(version=7, absorbed={7: frozenset({SkillName("no-glue")})}))
    placed = talk.ask(f"please {TOPICS['violin']}")
    assert placed.stamp.skills == ("be-brief",)
    assert "Never use glue." not in str(talk.provider_saw[-1])
    talk.hear()
    slot.flip(Serving(version=6))
    assert set(talk.ask(f"now please {TOPICS['violin']}, once more").stamp.skills) == {
        "be-brief",
        "no-glue",
    }


def test_a_skill_that_the_weights_have_absorbed_is_told_to_whoever_else_answers() -> None:
    slot = PolicySlot("embedded")
    slot.flip(Serving(version=7, absorbed={7: frozenset({SkillName("violin")})}))

    def told(*, is_policys: bool) -> tuple[SkillName, ...]:
        talk = Talk()
        talk.placer = Placer(
            lambda: talk.view,
            Budgets(3, 4000),
            policy=slot,
            policy_answers=lambda wire, model: is_policys,
        )
        return talk.ask(f"please {TOPICS['violin']}").stamp.skills

    assert told(is_policys=True) == ()
    assert told(is_policys=False) == ("violin",)
