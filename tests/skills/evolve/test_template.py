"""Skills by template: the person's own words, found again for tasks they concern and not for others."""

from dataclasses import replace

import pytest

from metaclaw.domain.candidate import Change, Proposal
from metaclaw.domain.chat import Message, Role, Text
from metaclaw.domain.skill import Authorship, SkillState
from metaclaw.domain.turn import Scope
from metaclaw.skills import parse_skill, render_skill
from metaclaw.skills.evolve import Failure, from_correction, from_words
from metaclaw.skills.gate.lint import lint
from metaclaw.skills.index import SkillIndex
from tests.skills.evolve.building import make_failure, make_step, not_taught_by

_UNRELATED = ["Write a poem about the sea", "What is the capital of Peru?", "Explain monads to me", "Plan a trip to Rome"]


def _rule(words: str, task: str = "Hello", scope: Scope | None = None) -> Proposal:
    (proposal,) = from_words(make_step(task, words, scope=scope))
    return proposal


def _is_found(proposal: Proposal, request: str) -> bool:
    skill = proposal.skill
    return bool(SkillIndex().changed([skill]).search(request, 3, frozenset([skill.scope or ""])))


def test_the_body_quotes_the_words_and_turns_nothing_round() -> None:
    proposal = _rule("Never push to main.")

    assert "> Never push to main." in proposal.skill.body
    assert proposal.skill.name == "never-push-main"
    assert "push to main" not in proposal.skill.body.replace("Never push to main", "")
    assert "Anti-pattern: doing it all the same" in proposal.skill.body


def test_what_one_agent_tells_another_is_no_persons_rule() -> None:
    step = make_step("Always answer in JSON.", "Never push to main.")

    assert len(from_words(step)) == 2
    assert from_words(replace(step, is_hired=True)) == ()


def test_an_instruction_is_marked_as_one() -> None:
    proposal = _rule("Always run make lint before you commit.", scope=Scope(user="ada"))

    assert proposal.is_instruction
    assert proposal.change is Change.NEW
    assert proposal.support == ("t_1",)
    assert proposal.skill.author is Authorship.INSTRUCTION
    assert proposal.skill.state is SkillState.DRAFT
    assert proposal.skill.scope == "user:ada"
    assert lint(proposal.skill) == ()


@pytest.mark.parametrize(
    ("words", "task", "matching"),
    [
        ("Never push to main.", "Fix the parser", ["push the fix", "commit this please", "merge the branch into main"]),
        ("From now on always write dates as ISO 8601.", "Write the status report", ["list the dates of the meetings"]),
        (
            "From now on always write dates as ISO 8601.",
            "Write the status report for Monday",
            ["Write the status report for Tuesday"],
        ),
        ("Always use tabs for indentation", "Hello", ["reformat the indentation", "write a python function that sums numbers"]),
        ("永远不要直接推送到 main 分支。", "你好", ["推送到 main 分支"]),
    ],
)
def test_a_rule_with_a_topic_comes_up_with_its_topic_only(words: str, task: str, matching: list[str]) -> None:
    proposal = _rule(words, task)

    assert "applies" not in proposal.skill.extra
    assert [request for request in matching if not _is_found(proposal, request)] == []
    assert [request for request in _UNRELATED if _is_found(proposal, request)] == []


@pytest.mark.parametrize(
    "words",
    [
        "Always answer in German.",
        "never use emojis",
        "From now on two sentences max.",
        "Antworte immer auf Deutsch.",
        "以后请用中文回答。",
        "Please stop apologising.",
    ],
)
def test_a_rule_about_answering_as_such_applies_always(words: str) -> None:
    assert _rule(words).skill.extra["applies"] == "always"


def test_what_applies_always_survives_its_file() -> None:
    skill = _rule("Always answer in German.").skill

    written = "\n".join(line for line in render_skill(skill).splitlines() if line != "state: draft")
    assert parse_skill(written, "here").extra["applies"] == "always"


def test_each_instruction_is_a_skill_of_its_own() -> None:
    proposals = from_words(make_step("Hello", "Always use uv to install packages. Never commit to main."))

    assert [proposal.skill.name for proposal in proposals] == ["always-uv-install-packages", "never-commit-main"]


def test_a_task_is_read_at_its_first_turn_only() -> None:
    first = make_step("Never push to main. Fix the parser.")
    second = make_step("Never push to main. Fix the parser.", previous=first)

    assert len(from_words(first)) == 1
    assert from_words(second) == ()


def test_words_in_a_new_task_know_the_task_they_followed() -> None:
    history = (
        Message(Role.USER, (Text("Write the status report for Monday"),)),
        Message(Role.ASSISTANT, (Text("Here it is."),)),
        Message(Role.USER, (Text("No, from now on write dates as ISO 8601."),)),
    )
    step = make_step("No, from now on write dates as ISO 8601.")
    (proposal,) = from_words(replace(step, history=history))

    assert _is_found(proposal, "Write the status report for Tuesday")


def test_numbers_and_keys_of_a_task_do_not_get_into_a_trigger() -> None:
    task = "Deploy with key sk-proj-4f9a8b7c6d5e and ticket A1b2C3 for ada@example.com on port 8443"
    proposal = from_correction(make_failure(task, "No, use blue-green deployment instead."))

    assert proposal is not None
    assert not any(leak in proposal.skill.trigger + proposal.skill.name for leak in ("4f9a", "A1b2", "8443", "a1b2"))


def test_no_instruction_no_skill() -> None:
    assert from_words(make_step("Fix the parser.", "Thanks, that never worked before.")) == ()


def test_two_peoples_rules_are_two_skills() -> None:
    ada = _rule("Always use tabs.", scope=Scope(user="ada")).skill
    bob = _rule("Always use tabs.", scope=Scope(user="bob")).skill

    assert (ada.scope, bob.scope) == ("user:ada", "user:bob")


def test_the_same_words_make_the_same_skill() -> None:
    assert _rule("Always use tabs.").skill == _rule("Always use tabs.").skill


def test_a_rule_for_this_project_remembers_which() -> None:
    here = _rule("In this project we use pnpm.", scope=Scope(user="ada", workspace="shop"))
    everywhere = _rule("Always use pnpm.", scope=Scope(user="ada", workspace="shop"))

    assert here.skill.extra["workspace"] == "shop"
    assert here.skill.scope == "user:ada"
    assert "workspace" not in everywhere.skill.extra


def test_a_correction_is_found_for_tasks_of_its_kind() -> None:
    proposal = from_correction(make_failure("Create an invoice for ACME", "No, use Decimal for the amounts instead of float."))

    assert proposal is not None
    assert not proposal.is_instruction
    assert "> No, use Decimal for the amounts instead of float." in proposal.skill.body
    assert _is_found(proposal, "create an invoice for Globex")
    assert not any(_is_found(proposal, request) for request in _UNRELATED)
    assert lint(proposal.skill) == ()


def test_feedback_outranks_what_was_said_next() -> None:
    proposal = from_correction(
        make_failure("Create an invoice", "Now plan a trip, use trains instead of planes.", comment="Amounts must be in euros.")
    )

    assert proposal is not None
    assert "> Amounts must be in euros." in proposal.skill.body
    assert "trains" not in proposal.skill.body


def test_a_mere_complaint_makes_no_skill() -> None:
    assert from_correction(make_failure("Create an invoice", "wrong")) is None
    assert from_correction(make_failure("Create an invoice")) is None


@pytest.mark.parametrize(
    "failure",
    not_taught_by(make_failure("Create an invoice", "No, use Decimal instead of float.")),
    ids=["pass", "unknown", "environment"],
)
def test_only_the_agents_own_failure_teaches(failure: Failure) -> None:
    assert from_correction(failure) is None
