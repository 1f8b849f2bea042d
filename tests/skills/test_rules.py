"""The library of example rules: each check tells breaking samples from others, in every spelling of
agents.
"""

import pytest

from metaclaw.domain.chat import Message, Part, Role, Text, ToolCall, ToolResult
from metaclaw.domain.check import Conversation, Place, ProgramCheck
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import SkillError
from metaclaw.skills import examine, parse_check, run_check, sample_answer
from metaclaw.skills.rules import RuleExample, rule_example, rule_examples
from tests.checks.spellings import EDITS, SHELLS, call, edit_call, shell_call
from tests.support.cases import each

EXAMPLES = rule_examples()
PATTERNS = [
    one for one in EXAMPLES.values() if not isinstance(parse_check(one.check), ProgramCheck)
]


def test_there_are_more_than_a_dozen() -> None:
    assert len(EXAMPLES) >= 20
    assert {
        "no-force-push",
        "tests-before-done",
        "uv-not-pip",
        "no-secrets",
        "ask-before-deleting",
        "iso-dates",
    } <= set(EXAMPLES)
    with pytest.raises(SkillError, match="no example nonsense"):
        rule_example("nonsense")


def outcomes(example: RuleExample, sample: str) -> dict[str, Outcome]:
    """What the check says of a sample in each spelling."""
    check = parse_check(example.check)
    assert not isinstance(check, ProgramCheck)
    if check.where.place is Place.ANSWER:
        return {"words": run_check(check, [Text(sample)])}
    plain = {"plain": run_check(check, sample_answer(check, sample))}
    if check.where.tools == ("edit",):
        path, _, text = sample.partition("\n")
        return plain | {one: run_check(check, [edit_call(one, path, text)]) for one in EDITS}
    return plain | {one: run_check(check, [shell_call(one, sample)]) for one in SHELLS}


@each("example", PATTERNS, ids=lambda one: one.name)
def test_a_check_tells_samples_apart_in_every_spelling(example: RuleExample) -> None:
    assert len(example.breaks) >= 2
    assert len(example.follows) >= 2
    for sample in example.breaks:
        assert set(outcomes(example, sample).values()) == {Outcome.FAIL}, (
            sample,
            outcomes(example, sample),
        )
    for sample in example.follows:
        assert set(outcomes(example, sample).values()) == {Outcome.PASS}, (
            sample,
            outcomes(example, sample),
        )


@each("spelling", EDITS)
def test_secrets_and_built_files_are_found_in_files_too(spelling: str) -> None:
    for name, path, text in (
        ("no-secrets", "a.py", "key = 'ghp_0123456789abcdefghijABCDEFGHIJ456789'\n"),
        ("no-js-beside-ts", "web/src/main.js", "var a = 1\n"),
    ):
        check = parse_check(rule_example(name).check)
        assert run_check(check, [edit_call(spelling, path, text)]) is Outcome.FAIL
        assert (
            run_check(check, [edit_call(spelling, "web/src/main.ts", "let a = 1\n")])
            is Outcome.PASS
        )


def conversation(task: str, *calls: ToolCall) -> Conversation:
    said = [Message(Role.USER, (Text(task),))]
    for one in calls:
        said += [
            Message(Role.ASSISTANT, (one,)),
            Message(Role.USER, (ToolResult(one.id, (Text("ok"),)),)),
        ]
    return Conversation(tuple(said), task)


WALLS = examine(ProgramCheck("pass", approved=True), [Text("x")], 60.0)
needs_walls = pytest.mark.skipif(
    WALLS.outcome is not Outcome.PASS, reason=f"programs cannot be run here: {WALLS.reason}"
)


@needs_walls
@each("spelling", ["Bash", "exec_command", "exec", "tool_call", "exec in JavaScript", "terminal"])
def test_done_is_said_only_after_tests(spelling: str) -> None:
    check = parse_check(rule_example("tests-before-done").check)
    edit, test = (
        edit_call("apply_patch", "a.py", "x = 1\n"),
        shell_call(spelling, "cd x && pytest -q"),
    )
    done: list[Part] = [Text("Done: it is fixed.")]
    going: list[Part] = [Text("I look at it."), shell_call(spelling, "ls")]
    for said, answer, outcome in (
        ((edit,), done, Outcome.FAIL),
        ((test, edit), done, Outcome.FAIL),
        ((edit, test), done, Outcome.PASS),
        ((edit,), going, Outcome.PASS),
        ((edit_call("Write", "README.md", "x\n"),), done, Outcome.PASS),
        ((), done, Outcome.PASS),
    ):
        assert run_check(check, answer, conversation("Fix it", *said)) is outcome, (said, answer)


@needs_walls
@each("spelling", ["Bash", "exec_command", "exec", "tool_call", "exec in JavaScript", "terminal"])
def test_deleting_needs_a_word_of_the_person(spelling: str) -> None:
    check = parse_check(rule_example("ask-before-deleting").check)
    for task, command, outcome in (
        ("Tidy up", "rm -rf src/old", Outcome.FAIL),
        ("Tidy up", "cd x && git branch -D old", Outcome.FAIL),
        ("Tidy up", "psql -c 'DROP TABLE users'", Outcome.FAIL),
        ("Delete src/old", "rm -rf src/old", Outcome.PASS),
        ("Yes, go ahead", "rm -rf src/old", Outcome.FAIL),
        ("Tidy up", "rm -rf node_modules", Outcome.PASS),
        ("Tidy up", "ls -la", Outcome.PASS),
    ):
        assert run_check(check, [shell_call(spelling, command)], conversation(task)) is outcome, (
            task,
            command,
        )
    assert (
        run_check(check, [call("delete_file", {"path": "a.py"})], conversation("Tidy up"))
        is Outcome.FAIL
    )
