"""Trying checks on answers: three outcomes, and no answer or pattern that holds anybody up."""

import time

import pytest

from metaclaw.domain.chat import Part, Reasoning, Text, ToolCall
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.checks import examine, parse_check, run_check


def _call(name: str, arguments: str) -> ToolCall:
    return ToolCall("call_1", name, arguments)


_PUSH = _call("bash", '{"command": "git push\\norigin main"}')
_SAVE = _call("save", '{"name": "x", "size": 3}')


@pytest.mark.parametrize(
    ("text", "answer", "outcome"),
    [
        (r"pattern: \d{4}-\d{2}-\d{2}", [Text("on 2026-01-02")], Outcome.PASS),
        (r"pattern: \d{4}-\d{2}-\d{2}", [Text("on 1/2/26")], Outcome.FAIL),
        ("not: (?i)as an ai", [Text("As an AI, I")], Outcome.FAIL),
        ("not: (?i)as an ai", [Text("Gladly.")], Outcome.PASS),
        ("not: (?:very )+sorry", [Text("very very sorry")], Outcome.FAIL),
        ("pattern: ^done$", [Text("I am done")], Outcome.FAIL),
        ("pattern: secret", [Reasoning("secret"), Text("open")], Outcome.FAIL),
        ("pattern: x", [_PUSH], Outcome.UNKNOWN),
        ("not: x", [Text("  ")], Outcome.UNKNOWN),
        ("not: x", [], Outcome.UNKNOWN),
        (r"not in calls: git push\s+origin main", [_PUSH], Outcome.FAIL),
        (r"not in calls: git push\s+origin main", [_SAVE], Outcome.PASS),
        ("not in calls: push", [Text("push")], Outcome.UNKNOWN),
        ("pattern in calls of save: size", [_PUSH, _SAVE], Outcome.PASS),
        ("pattern in calls of save: size", [_PUSH], Outcome.UNKNOWN),
        ("pattern in calls: broken", [_call("bash", "{broken")], Outcome.PASS),
    ],
)
def test_a_pattern_is_looked_for_where_it_says(text: str, answer: list[Part], outcome: Outcome) -> None:
    assert run_check(parse_check(text), answer) is outcome


_ITEM = 'schema: {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}'


@pytest.mark.parametrize(
    ("text", "answer", "outcome"),
    [
        (_ITEM, [Text('{"name": "x"}')], Outcome.PASS),
        (_ITEM, [Text('Here:\n```json\n{"name": "x"}\n```\nDone.')], Outcome.PASS),
        (_ITEM, [Text('It is {"name": "x"}, see [above].')], Outcome.PASS),
        (_ITEM, [Text('{"name": 3}')], Outcome.FAIL),
        (_ITEM, [Text("There is none.")], Outcome.FAIL),
        (_ITEM, [_SAVE], Outcome.UNKNOWN),
        (_ITEM.replace("schema", "schema in calls", 1), [_SAVE], Outcome.PASS),
        (_ITEM.replace("schema", "schema in calls", 1), [_SAVE, _PUSH], Outcome.FAIL),
        (_ITEM.replace("schema", "schema in calls of save", 1), [_SAVE, _PUSH], Outcome.PASS),
        (_ITEM.replace("schema", "schema in calls", 1), [_call("save", "{broken")], Outcome.FAIL),
        ('schema: {"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}', [Text("[1]")], Outcome.FAIL),
        ('schema: {"$ref": "#/nowhere"}', [Text("[1]")], Outcome.UNKNOWN),
        ('schema: {"$ref": "#"}', [Text("[1]")], Outcome.UNKNOWN),
    ],
)
def test_json_is_held_against_a_schema(text: str, answer: list[Part], outcome: Outcome) -> None:
    assert run_check(parse_check(text), answer) is outcome


def test_a_failure_says_what_is_wrong() -> None:
    assert "'name' is a required property" in examine(parse_check(_ITEM), [Text('{"title": "x"}')]).reason


@pytest.mark.parametrize(
    "text",
    [
        "pattern: (a+)+$",
        "not: (a|aa)+$",
        'schema: {"items": {"pattern": "(a+)+$"}}',
        'schema: {"$ref": "#/$defs/x0", "$defs": {'
        + ", ".join(f'"x{n}": {{"allOf": [{{"$ref": "#/$defs/x{n + 1}"}}, {{"$ref": "#/$defs/x{n + 1}"}}]}}' for n in range(40))
        + ', "x40": {}}}',
    ],
)
def test_a_check_that_would_never_end_is_unknown_in_good_time(text: str) -> None:
    began = time.monotonic()
    finding = examine(parse_check(text), [Text('["' + "a" * 60 + '!"]')], limit_s=1.5)

    assert finding.outcome is Outcome.UNKNOWN
    assert "took longer than 1.5 s" in finding.reason
    assert time.monotonic() - began < 10


def test_an_enormous_answer_is_not_looked_at() -> None:
    assert examine(parse_check("not: x"), [Text("y" * 300_000)]).reason == "the answer has more than 200000 characters"
