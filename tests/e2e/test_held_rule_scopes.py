"""Whose calls a held rule holds: a rule of one user, or of one project, leaves all other traffic
alone, on every wire.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.holding import Got, MessagesAgent, new_agent
from tests.support.program import NOT_LEARNING, Program, providers_toml
from tests.support.strict_provider import BAD, GOOD, StrictProvider

TARGETS = [
    ("chat", "openai"),
    ("messages", "anthropic"),
    ("responses", "openai"),
    ("responses", "chatonly"),
]
CHECK = "not in calls of shell: git push.* --force"
SHOP, LAB = "/srv/shop", "/srv/lab"


@pytest.fixture(scope="module")
def strict() -> Iterator[StrictProvider]:
    running = StrictProvider().start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def program(strict: StrictProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    home: Path = tmp_path_factory.mktemp("scopes") / "home"
    running = Program(home, providers_toml(strict.url), env=NOT_LEARNING).start()
    for text, *scope in (
        ("Never force-push, Ann.", "--for", "ann"),
        ("Never force-push here.", "--project", SHOP),
    ):
        added = running.command("rules", "add", text, *scope, "--check", CHECK, "--enforce", "hold")
        assert added.returncode == 0, added.stderr
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def ask(program: Program, wire: str, target: str, stream: bool, words: str, **scope: str) -> Got:
    headers = {f"X-{name}-Id": value for name, value in scope.items()}
    return new_agent(wire, program.url, f"{target}/m", stream, headers).ask(words)


def commands(got: Got) -> list[str]:
    return [command for _, command in got.calls]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("wire", "target"), TARGETS)
def test_a_rule_of_one_user_holds_only_that_users_calls(
    program: Program, wire: str, target: str, stream: bool
) -> None:
    assert commands(ask(program, wire, target, stream, "ann: PLAN bad good", User="ann")) == [GOOD]
    for others in ({}, {"User": "bob"}, {"User": "ann2"}, {"User": "bob", "Workspace": LAB}):
        got = ask(program, wire, target, stream, f"{others}: PLAN bad good", **others)
        assert commands(got) == [BAD]
        assert "x-metaclaw-enforced" not in got.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("wire", "target"), TARGETS)
def test_a_rule_of_one_project_holds_only_there(
    program: Program, wire: str, target: str, stream: bool
) -> None:
    for inside in (
        {"Workspace": SHOP},
        {"Workspace": f"{SHOP}/src"},
        {"User": "bob", "Workspace": SHOP},
    ):
        assert commands(
            ask(program, wire, target, stream, f"{inside}: PLAN mixed good", **inside)
        ) == [GOOD]
    for outside in (LAB, f"{SHOP}2", "/srv"):
        assert commands(
            ask(program, wire, target, stream, f"{outside}: PLAN bad good", Workspace=outside)
        ) == [BAD]


def test_both_rules_are_named_where_both_hold(program: Program) -> None:
    got = ask(
        program, "responses", "openai", False, "both: PLAN bad good", User="ann", Workspace=SHOP
    )
    assert commands(got) == [GOOD]
    assert set(got.headers["x-metaclaw-enforced"].split(",")) == {
        "never-force-push-ann",
        "never-force-push-here",
    }


def test_a_rule_of_the_same_words_that_only_reminds_does_not_lift_one_that_holds(
    program: Program,
) -> None:
    added = program.command(
        "rules", "add", "Never force-push here.", "--for", "bob", "--enforce", "remind"
    )
    assert added.returncode == 0, added.stderr
    assert commands(
        ask(program, "chat", "openai", False, "again: PLAN bad good", User="bob", Workspace=SHOP)
    ) == [GOOD]


def test_another_user_who_knows_the_ids_does_not_get_what_was_held(
    program: Program, strict: StrictProvider
) -> None:
    ann = MessagesAgent(program.url, "anthropic/m", False, {"X-User-Id": "ann"})
    assert commands(ann.ask("secret: PLAN bad good")) == [GOOD]
    bob = MessagesAgent(program.url, "anthropic/m", False, {"X-User-Id": "bob"}, list(ann.history))
    with pytest.raises(Exception, match=r"never given here|cannot be modified"):
        bob.answer_calls()
    assert BAD not in str(strict.bodies[-1][1])
    assert commands(ann.answer_calls()) == []
