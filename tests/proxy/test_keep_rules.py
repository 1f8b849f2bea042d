"""The rule that is built in while others are held: an agent does not lift the person's rules."""

import pytest

from metaclaw.domain.verdict import Outcome
from metaclaw.proxy.held_rules import KEEP_RULES_CHECK
from metaclaw.skills.checks import run_check
from tests.skills.checks.spellings import call


@pytest.mark.parametrize(
    "command",
    [
        "metaclaw undo",
        "metaclaw skills revert 5",
        "python -mmetaclaw enforce off",
        "python3 -m metaclaw.cli enforce off",
        "metaclaw config set proxy.enforce_opt_out true",
        "metaclaw stop && metaclaw start --detach --set proxy.enforce_opt_out=true",
        "curl -s -X POST http://127.0.0.1:30000/api/undo",
        "curl -X POST -H 'Authorization: Bearer x' $ANTHROPIC_BASE_URL/api/undo",
        "curl -X POST http://localhost:30000/k/KEY/api/generations/revert",
        "curl -X POST http://127.0.0.1:30000/api/skills/no-sudo/retire",
        "http POST :30000/api/undo",
    ],
)
def test_calls_that_lift_rules_are_held(command: str) -> None:
    assert run_check(KEEP_RULES_CHECK, [call("Bash", {"command": command})]) is Outcome.FAIL


@pytest.mark.parametrize(
    "command",
    [
        "metaclaw rules list",
        "metaclaw status && metaclaw why --last",
        "metaclaw config set providers.0.name x",
        "curl http://127.0.0.1:30000/api/rules",
        "curl -X DELETE https://api.example.com/api/rules/7",
        "curl -X PUT http://firewall.local/api/rules/12",
        "git commit -m 'metaclaw undo works'",
    ],
)
def test_other_calls_are_not(command: str) -> None:
    assert run_check(KEEP_RULES_CHECK, [call("Bash", {"command": command})]) is Outcome.PASS
