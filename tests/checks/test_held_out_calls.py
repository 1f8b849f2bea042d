"""Calls that were written after the checks of the library, or before the reader of commands and
without a look at it, to find what they miss and what they hold wrongly. A breaking call that cannot
be read counts as found, because a held rule holds it."""

import json
from pathlib import Path
from typing import Any

import pytest

from metaclaw.checks.commands import commands_of
from metaclaw.domain.chat import Message, Part, Role, Text, ToolCall
from metaclaw.domain.check import Check, Conversation, ProgramCheck
from metaclaw.domain.verdict import Outcome
from metaclaw.proxy.enforcement.held_rules import keep_rules
from metaclaw.skills import examine, parse_check, rule_example, rule_examples, run_check
from tests.checks.spellings import call, edit_call, shell_call
from tests.support.cases import each

CALLS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "held_out_calls.json").read_text(encoding="utf-8")
)
BLIND: dict[str, Any] = json.loads(
    (Path(__file__).parent / "blind_calls.json").read_text(encoding="utf-8")
)
MOST_MISSED = 0.05
MOST_MISSED_LATER = 0.02
"""Of the calls that were written after the checks. What only a shell, or git with its own settings,
would tell is not followed: `git p -f` after `alias.p = push`, `dd of=uv.lock`."""
WALLS = examine(ProgramCheck("pass", approved=True), [Text("x")], 60.0)


def check_of(rule: str) -> Check:
    return (
        keep_rules(30000).check if rule == "keep-rules" else parse_check(rule_example(rule).check)
    )


def outcome(check: Check, made: Any) -> Outcome:
    """What a check says of a command, a file, code for a notebook, an answer, or a command after
    some words.
    """
    said = Conversation()
    answer: list[Part]
    match made:
        case str():
            answer = [shell_call("Bash", made)]
        case {"path": str(path), "text": str(text)} if path.endswith(".ipynb"):
            answer = [call("NotebookEdit", {"notebook_path": path, "new_source": text})]
        case {"path": str(path), "text": str(text)}:
            answer = [edit_call("Edit", path, text)]
        case {"code": str(code)}:
            answer = [call("execute_code", {"code": code})]
        case {"tool": str(name), "arguments": str(arguments)}:
            answer = [ToolCall("call_1", name, arguments)]
        case {"answer": str(words)}:
            answer = [Text(words)]
        case {"asked": str(asked), "said": str(task), "command": str(command)}:
            turns = [(Role.USER, "Start"), (Role.ASSISTANT, asked), (Role.USER, task)]
            said = Conversation(tuple(Message(role, (Text(words),)) for role, words in turns), task)
            answer = [shell_call("Bash", command)]
        case _:
            raise ValueError(made)
    return run_check(check, answer, said)


def unread(made: Any) -> bool:
    """Whether a command cannot be read."""
    command = made.get("command") if isinstance(made, dict) else made
    return isinstance(command, str) and bool(commands_of(command).unread)


@pytest.mark.parametrize("rule", CALLS["follows"])
def test_complying_calls_pass(rule: str) -> None:
    check = check_of(rule)
    if isinstance(check, ProgramCheck) and WALLS.outcome is not Outcome.PASS:
        pytest.skip(f"programs cannot be run here: {WALLS.reason}")
    assert [
        one for one in CALLS["follows"][rule] if outcome(check, one) is Outcome.FAIL or unread(one)
    ] == []


def missed_calls(calls: dict[str, list[Any]]) -> tuple[list[Any], int]:
    """The breaking calls that no check finds, and the number of all."""
    checks = {
        rule: check
        for rule in calls
        if not isinstance(check := check_of(rule), ProgramCheck) or WALLS.outcome is Outcome.PASS
    }
    breaking = [(check, one) for rule, check in checks.items() for one in calls[rule]]
    missed = [
        one
        for check, one in breaking
        if outcome(check, one) is not Outcome.FAIL and not unread(one)
    ]
    return missed, len(breaking)


def test_few_breaking_calls_are_missed() -> None:
    missed, tried = missed_calls(CALLS["breaks"])
    assert len(missed) <= MOST_MISSED_LATER * tried, missed


def test_few_of_the_calls_that_were_written_blind_are_missed_and_none_is_held_wrongly() -> None:
    missed, tried = missed_calls(BLIND["breaks"])
    assert len(missed) <= MOST_MISSED * tried, missed
    checks = {
        rule: check_of(rule)
        for rule in BLIND["breaks"]
        if rule != "ask-before-deleting" or WALLS.outcome is Outcome.PASS
    }
    passing = [
        (rule, one)
        for rule in checks
        for one in (*BLIND["follows"].get(rule, ()), *BLIND["ordinary"])
    ]
    assert [
        one for rule, one in passing if outcome(checks[rule], one) is Outcome.FAIL or unread(one)
    ] == []


@each("rule", ["keep-rules", *(name for name in rule_examples() if name != "tests-before-done")])
def test_ordinary_commands_pass_every_rule(rule: str) -> None:
    check = check_of(rule)
    if isinstance(check, ProgramCheck) and WALLS.outcome is not Outcome.PASS:
        pytest.skip(f"programs cannot be run here: {WALLS.reason}")
    commands = [
        {"asked": "I look at it.", "said": "Add the login page", "command": one}
        for one in CALLS["ordinary"]
    ]
    assert [one["command"] for one in commands if outcome(check, one) is Outcome.FAIL] == []


def test_ordinary_commands_can_be_read() -> None:
    assert [one for one in CALLS["ordinary"] if commands_of(one).unread] == []
