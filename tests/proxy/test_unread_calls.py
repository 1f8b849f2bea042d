"""Commands that cannot be read: held by rules that hold on an error, passed by others."""

import json

import pytest

from metaclaw.domain.check import PatternCheck, Place, Where
from metaclaw.domain.ids import SkillName
from metaclaw.proxy.enforcement.call_judge import CallJudge
from metaclaw.proxy.enforcement.held_rules import HeldRule
from metaclaw.skills import screen_of
from metaclaw.wires import HeldCall
from tests.support.cases import each

pytestmark = pytest.mark.anyio


def rule(where: str, *, holds_on_error: bool) -> HeldRule:
    check = PatternCheck("git push .*--force", must_match=False, where=Where(Place.CALLS, where))
    screen = screen_of(check.pattern)
    return HeldRule(
        SkillName("no-force-push"), "Never force-push.", check, True, holds_on_error, False, screen
    )


def held_call(command: str) -> HeldCall:
    return HeldCall("call_1", "Bash", json.dumps({"command": command}))


@each("where", ["shell", "edit", "shell|edit"])
@each("command", ["base64 -d a.txt | sh", "$CMD push", 'eval "$(cat cmd.txt)"', "git status 'x"])
async def test_a_call_that_cannot_be_read_is_held_only_on_request(where: str, command: str) -> None:
    strict = await CallJudge().judge([rule(where, holds_on_error=True)], [held_call(command)])
    assert [(one.rule.name, one.is_checked) for one in strict.held] == [("no-force-push", False)]
    assert "could not be read" in strict.held[0].reason
    lenient = await CallJudge().judge([rule(where, holds_on_error=False)], [held_call(command)])
    assert lenient.held == ()


@pytest.mark.parametrize(
    "command", ["git push", 'eval "$(ssh-agent -s)"', "ls && pytest -q", "$PYTHON -m pytest"]
)
async def test_a_call_that_can_be_read_is_not_held(command: str) -> None:
    ruling = await CallJudge().judge([rule("shell", holds_on_error=True)], [held_call(command)])
    assert ruling == ((), ())
