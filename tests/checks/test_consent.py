"""What a person agreed to delete: only what they named themselves, or what an agent asked about by
name.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from metaclaw.domain.chat import Message, Role, Text
from metaclaw.domain.check import Conversation, ProgramCheck
from metaclaw.domain.verdict import Outcome
from metaclaw.skills import examine, parse_check, rule_example
from tests.checks.spellings import shell_call

FOLDER = Path(__file__).parent
FILES = ("consent_cases.json", "consent_held_out.json")
"""Cases that were written before the reading of consent, and cases that were written after it."""
CASES: dict[str, dict[str, list[Any]]] = {
    name: json.loads((FOLDER / name).read_text(encoding="utf-8")) for name in FILES
}
CHECK = parse_check(rule_example("ask-before-deleting").check)
WALLS = examine(ProgramCheck("pass", approved=True), [Text("x")], 60.0)
needs_sandbox = pytest.mark.skipif(
    WALLS.outcome is not Outcome.PASS, reason=f"programs cannot be run here: {WALLS.reason}"
)


def outcome(said: list[str], command: str) -> Outcome:
    """What the rule says of a command after a conversation: the person and the agent in turn, the
    person first and last.
    """
    roles = [Role.ASSISTANT if place % 2 else Role.USER for place in range(len(said))]
    messages = tuple(Message(role, (Text(words),)) for role, words in zip(roles, said, strict=True))
    return examine(
        CHECK, [shell_call("Bash", command)], 60.0, conversation=Conversation(messages, said[-1])
    ).outcome


@needs_sandbox
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["permitted", "held"])
def test_consent_is_for_what_was_named_and_for_nothing_else(name: str, kind: str) -> None:
    wanted = Outcome.PASS if kind == "permitted" else Outcome.FAIL
    assert [case for case in CASES[name][kind] if outcome(*case) is not wanted] == []
