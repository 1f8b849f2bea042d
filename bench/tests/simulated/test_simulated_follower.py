"""The rule-follower keeps rules as often as its habits say, by what the skills in its prompt tell;
and plays judge and evolver.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.skills import lint, render_block
from metaclaw_bench.questions import KEEP_IN_MIND, Feedback, FileCheck, Round
from metaclaw_bench.simulated.model import Message, Prompt, Purpose, Said
from metaclaw_bench.simulated.rule_follower import Follower, Habits
from metaclaw_bench.simulated.skills import RuleText, Telling, Writing
from metaclaw_bench.workdays.model import Answer, Item
from tests.support.cases import each

SAYS = {
    "plus": "Always write a plus before the number.",
    "minus": "Always write a minus before the number.",
}
LORE = RuleText(
    "signs",
    "numbers in the ledger of the harbour office",
    {form: (says,) for form, says in SAYS.items()},
)


def item(number: int, form: str = "plus") -> Item:
    feedback = Feedback("Fine.", f"That is wrong. {SAYS[form]}")
    asked = Round(f"r{number}", f"Write number {number} down.", FileCheck("true"), feedback)
    files = {"plus": f"+{number}", "minus": f"-{number}"}
    return Item(
        asked,
        ("signs",),
        Answer("Done.", {"n.txt": files[form]}),
        (Answer("Done.", {"n.txt": f"{number}"}),),
    )


def block(telling: Telling, form: str = "plus") -> str:
    return render_block([skill(telling, form)], 1500).text


def skill(telling: Telling, form: str = "plus") -> Skill:
    made = LORE.skill(form, telling)
    return Skill(
        SkillName(str(made["name"])),
        str(made["trigger"]),
        str(made["body"]),
        author=Authorship.EVOLVER,
    )


def asked(text: str, *, tools: bool = False, after: tuple[Message, ...] = ()) -> Prompt:
    return Prompt(
        (Message("system", "You help."), Message("user", text), *after),
        frozenset({"write"} if tools else ()),
    )


def said(follower: Follower, prompt: Prompt) -> Said:
    thought = follower.answer(prompt)
    assert isinstance(thought, Said)
    return thought


def parsed(follower: Follower, prompt: Prompt) -> Any:
    return json.loads(said(follower, prompt).text)


@each(
    ("placed", "expected"),
    [
        (block(Telling.WHOLE), 0.95),
        (block(Telling.HALF), 0.525),
        (block(Telling.CONTRARY), 0.02),
        (block(Telling.WHOLE, "minus"), 0.02),
        ("", 0.1),
    ],
    ids=["told", "half told", "misled", "told another form", "untold"],
)
def test_a_rule_is_kept_as_often_as_its_habit_says(placed: str, expected: float) -> None:
    items = [item(number) for number in range(800)]
    follower = Follower(items, [LORE], seed=3)
    kept = sum(follower.done(one, placed) == one.reference for one in items) / len(items)
    assert kept == pytest.approx(expected, abs=0.045)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**31), number=st.integers(0, 50))
def test_a_skill_never_makes_an_answer_worse_unless_it_is_wrong(seed: int, number: int) -> None:
    one = item(number)
    follower = Follower([one], [LORE], seed=seed)
    order = [Telling.CONTRARY, Telling.NOTHING, Telling.HALF, Telling.WHOLE]
    texts = ["" if telling is Telling.NOTHING else block(telling) for telling in order]
    right = [follower.done(one, text) == one.reference for text in texts]
    assert right == sorted(right)


def test_the_same_prompt_gets_the_same_answer_whatever_was_asked_before() -> None:
    items = [item(number) for number in range(20)]
    prompts = [asked(one.round.question) for one in items]
    forwards, backwards = Follower(items, [LORE], seed=1), Follower(items, [LORE], seed=1)
    first = [forwards.answer(prompt) for prompt in prompts]
    assert first == [backwards.answer(prompt) for prompt in reversed(prompts)][::-1]


def test_only_what_the_proxy_placed_tells_a_rule() -> None:
    one = item(1)
    follower = Follower([one], [LORE], seed=1, habits=Habits(told=1.0, untold=0.0))
    feedback = f"[Previous Feedback] {SAYS['plus']}\n\n{one.round.question}"
    assert "+1" not in said(follower, asked(feedback)).text
    assert "+1" in said(follower, asked(feedback + block(Telling.WHOLE))).text


def test_with_tools_it_writes_first_and_answers_then() -> None:
    one = item(7)
    follower = Follower([one], [LORE], seed=1, habits=Habits(untold=1.0))
    first = said(follower, asked(one.round.question, tools=True))
    assert [(call.tool, call.arguments) for call in first.calls] == [
        ("write", {"path": "n.txt", "content": "+7"})
    ]
    done = (Message("assistant", "", ("write",)), Message("tool", "n.txt: 2 bytes written"))
    second = said(follower, asked(one.round.question, tools=True, after=done))
    assert (second.text, second.calls) == ("Done.", ())


def test_a_message_that_asks_nothing_is_understood() -> None:
    assert said(Follower([item(1)], [LORE], seed=1), asked("[Previous Feedback] Fine.")) == Said(
        "Understood."
    )


def judge(next_words: str) -> Prompt:
    record = (
        f"## What the person asked\n[Previous Feedback] Wrong. {KEEP_IN_MIND}\n\nWrite.\n## What"
        f" the person said next\n{next_words}"
    )
    return Prompt((Message("user", record),), purpose=Purpose.JUDGE)


@pytest.mark.parametrize(
    ("next_words", "outcome"),
    [
        (f"[Previous Feedback] No. {KEEP_IN_MIND}\n\nNext.", "fail"),
        ("[Previous Feedback] Fine.\n\nNext.", "pass"),
        ("nothing yet", "pass"),
    ],
)
def test_the_judge_hears_the_verdict_in_what_the_person_says_next(
    next_words: str, outcome: str
) -> None:
    assert parsed(Follower([item(1)], [LORE], seed=1), judge(next_words))["outcome"] == outcome


def test_in_a_replay_the_judge_compares_with_the_reference() -> None:
    one = item(4)
    follower = Follower([one], [LORE], seed=1)

    def tried(wanted: str, answer: str) -> str:
        text = f"begin\n== The requirement\n{wanted}\n\n== The answer\n{answer}"
        outcome: str = parsed(follower, Prompt((Message("user", text),), purpose=Purpose.JUDGE))[
            "outcome"
        ]
        return outcome

    assert tried(one.round.question, 'Done.\n[called write with {"content": "+4"}]') == "pass"
    assert (
        tried(one.round.feedback.incorrect, 'Done.\n[called write with {"content": "4"}]') == "fail"
    )
    assert tried("Something else.", "Done.") == "unknown"


def evolve(writing: Writing, prompt: str) -> list[dict[str, Any]]:
    follower = Follower([item(1), item(2, "minus")], [LORE], seed=5, writing=writing)
    found: list[dict[str, Any]] = parsed(
        follower, Prompt((Message("user", prompt),), purpose=Purpose.EVOLVE)
    )["skills"]
    return found


def test_the_evolver_writes_the_rule_of_what_failed_in_the_form_it_was_wanted() -> None:
    (whole,) = evolve(
        Writing.STRONG, "<<<turn 1\n## What the person asked\n Write  number 2 down.\n>>>"
    )
    assert LORE.told_in(whole["body"], "minus") is Telling.WHOLE
    assert LORE.told_in(whole["body"], "plus") is Telling.CONTRARY
    (half,) = evolve(Writing.WEAK, "Write number 1 down.")
    assert LORE.told_in(half["body"], "plus") is Telling.HALF


def test_a_noisy_evolver_writes_the_contrary_of_some_rules() -> None:
    lore = [RuleText(f"rule{number}", LORE.trigger, LORE.forms) for number in range(30)]
    one = item(1)
    every = Item(one.round, tuple(each.rule for each in lore), one.reference, one.near_misses)
    told = set()
    for seed in range(5):
        follower = Follower([every], lore, seed=seed, writing=Writing.NOISY)
        written = parsed(
            follower, Prompt((Message("user", one.round.question),), purpose=Purpose.EVOLVE)
        )["skills"]
        told |= {
            each.told_in(skill["body"], "plus")
            for skill in written
            for each in lore
            if each.name == skill["name"]
        }
    assert told == {Telling.WHOLE, Telling.CONTRARY}


def test_the_evolver_says_nothing_where_its_skill_is_there_or_nothing_is_known() -> None:
    assert evolve(Writing.STRONG, f"Write number 1 down.\nname: {LORE.name} (may be edited)") == []
    assert evolve(Writing.STRONG, "Something else.") == []


@pytest.mark.parametrize("telling", [Telling.WHOLE, Telling.HALF, Telling.CONTRARY])
def test_what_it_writes_passes_the_draft_checks(telling: Telling) -> None:
    assert lint(skill(telling)) == ()
