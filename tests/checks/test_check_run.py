"""Running checks on answers: three outcomes, and no answer or pattern that takes too long."""

import os
import signal
import threading
import time

import pytest

from metaclaw.checks.workers import Matcher
from metaclaw.domain.chat import Json, Part, Reasoning, Text, ToolCall
from metaclaw.domain.verdict import Outcome
from metaclaw.skills import examine, examine_all, parse_check, run_check
from tests.support.cases import each


def _call(name: str, arguments: str) -> ToolCall:
    return ToolCall("call_1", name, arguments)


_PUSH = _call("bash", '{"command": "git push \\\\\\norigin main"}')
_SAVE = _call("save", '{"name": "x", "size": 3}')


@each(
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
def test_a_pattern_is_looked_for_where_it_says(
    text: str, answer: list[Part], outcome: Outcome
) -> None:
    assert run_check(parse_check(text), answer) is outcome


_ITEM = (
    'schema: {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}'
)


@each(
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
        (
            'schema: {"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}',
            [Text("[1]")],
            Outcome.FAIL,
        ),
        ('schema: {"$ref": "#/nowhere"}', [Text("[1]")], Outcome.UNKNOWN),
        ('schema: {"$ref": "#"}', [Text("[1]")], Outcome.UNKNOWN),
    ],
)
def test_json_is_held_against_a_schema(text: str, answer: list[Part], outcome: Outcome) -> None:
    assert run_check(parse_check(text), answer) is outcome


def test_a_failure_says_what_is_wrong() -> None:
    assert (
        "'name' is a required property"
        in examine(parse_check(_ITEM), [Text('{"title": "x"}')]).reason
    )


@pytest.mark.parametrize(
    "text",
    [
        "pattern: (a+)+$",
        "not: (a|aa)+$",
        'schema: {"items": {"pattern": "(a+)+$"}}',
        'schema: {"$ref": "#/$defs/x0", "$defs": {'
        + ", ".join(
            f'"x{n}": {{"allOf": [{{"$ref": "#/$defs/x{n + 1}"}}, {{"$ref": "#/$defs/x{n + 1}"}}]}}'
            for n in range(40)
        )
        + ', "x40": {}}}',
    ],
)
def test_a_check_that_would_never_end_is_unknown_in_good_time(text: str) -> None:
    began = time.monotonic()
    finding = examine(parse_check(text), [Text('["' + "a" * 60 + '!"]')], limit_s=0.3)

    assert finding.outcome is Outcome.UNKNOWN
    assert "took longer than 0.3 s" in finding.reason
    assert time.monotonic() - began < 60  # it would be for ever


def test_a_pattern_that_waits_for_a_processor_is_not_late() -> None:
    task: dict[str, Json] = {"patterns": [["(?:a+)+b", [0]]]}
    matcher = Matcher()
    try:
        matcher.ask({**task, "texts": ["ab"]}, 60.0)
        os.kill(matcher.pid, signal.SIGSTOP)
        begins = threading.Timer(0.6, os.kill, (matcher.pid, signal.SIGCONT))
        begins.start()
        assert matcher.ask({**task, "texts": ["aab"]}, 0.3) != [None]
        begins.join()
    finally:
        matcher.close()


def test_a_pattern_that_was_ended_does_not_hurt_the_next() -> None:
    assert (
        examine(parse_check("pattern: (a+)+$"), [Text("a" * 60 + "!")], limit_s=0.5).outcome
        is Outcome.UNKNOWN
    )
    assert (
        examine(parse_check("pattern: (a+)+$"), [Text("aaa")], limit_s=60.0).outcome is Outcome.PASS
    )


_TIME = r"pattern: ^(?P<time>\d\d:\d\d)(?P<zone>\+05:30)$"


@each(
    ("check", "text", "score"),
    [
        (_TIME, "14:17+05:30", 1.0),
        (_TIME, "It is 14:17.", 1 / 5),
        (_TIME, "It is 14:17 (+05:30).", 2 / 5),
        (_TIME, "+05:30, 14:17", 1 / 5),
        (_TIME, "noon", 0.0),
        (r"pattern: (?i)^(?P<a>[)(]x)(?P<b>(?P<in>y)\))$", "(X y)", 2 / 5),
        (r"pattern: (?P<a>x)(?P<b>(?P=a))", "x", 1 / 3),
        (r"pattern: (?:x|y)z", "x", 0.0),
        (r"not: (?P<a>x)z?", "x", 0.0),
        (
            'schema: {"required": ["a", "b"], "properties": {"b": {"type": "string"}}}',
            '{"a": 1, "b": 2}',
            1 / 5,
        ),
        (
            'schema: {"required": ["a", "b"], "properties": {"b": {"type": "string"}}}',
            '{"a": 1, "b": "x"}',
            1.0,
        ),
        ('schema: {"required": ["a"]}', '{"b": 2}', 0.0),
        ('schema: {"required": ["a", "b"]}', 'first {"a": 1} then {}', 1 / 5),
        ('schema: {"type": "object"}', "no JSON", 0.0),
    ],
)
def test_what_is_partly_right_earns_a_part_and_fails(check: str, text: str, score: float) -> None:
    finding = examine(parse_check(check), [Text(text)])

    assert finding.score == pytest.approx(score)
    assert finding.outcome is (Outcome.PASS if score == 1.0 else Outcome.FAIL)


_LENIENT = r"pattern: \d\d:\d\d\+05:30"


@each(
    ("check", "text", "outcome"),
    [
        (_LENIENT, "14:17+05:30", Outcome.PASS),
        (_LENIENT, " 14:17+05:30\n", Outcome.PASS),
        (_LENIENT, "The shift begins at 14:17+05:30.", Outcome.PASS),
        (_LENIENT, "From 14:17+05:30 to 18:00+05:30.", Outcome.PASS),
        (_LENIENT, "14:17+05:30+05:30", Outcome.FAIL),
        (_LENIENT, "14:17+05:30+05:30+05:30", Outcome.FAIL),
        (_LENIENT, "14:17+05:3014:17+05:30", Outcome.FAIL),
        (_LENIENT, "14:17+05:3017:14+05:30", Outcome.FAIL),
        (r"pattern: \d", "1417", Outcome.PASS),
        (_LENIENT, "14:17+05:30 14:17+05:30 14:17+05:30", Outcome.FAIL),
        (_LENIENT, "at 14:17+05:30 14:17+05:30 14:17+05:30", Outcome.FAIL),
        (_LENIENT, "14:17+05:30 ++ == 77 88 99 11", Outcome.FAIL),
        (_LENIENT, "noon", Outcome.FAIL),
        ("pattern: (?i)thank", "Thanks for asking!", Outcome.PASS),
        ("not: sorry", "All done.", Outcome.PASS),
        ("not: sorry", "sorry", Outcome.FAIL),
        ('schema: {"required": ["a"]}', '{"a": 1}', Outcome.PASS),
        ('schema: {"required": ["a"]}', '{"b": 1} {"a": 1}', Outcome.FAIL),
        ('schema: {"properties": {"a": {}, "b": {}}}', '{"b": 1}', Outcome.PASS),
        ('schema: {"properties": {"a": {}, "b": {}}}', '{"c": 1}', Outcome.FAIL),
        ('schema: {"properties": {"a": {}, "b": {}}}', "{}", Outcome.FAIL),
        ('schema: {"type": "array"}', "[1]", Outcome.PASS),
    ],
)
def test_the_strict_reading_looks_at_the_whole_answer(
    check: str, text: str, outcome: Outcome
) -> None:
    assert examine(parse_check(check), [Text(text)], is_strict=True).outcome is outcome


def test_an_enormous_answer_is_not_looked_at() -> None:
    assert (
        examine(parse_check("not: x"), [Text("y" * 300_000)]).reason
        == "the answer has more than 200000 characters"
    )


def test_a_long_call_does_not_disarm_a_check_on_calls() -> None:
    check = parse_check("not in calls of shell: git push --force")
    long = _call("Write", '{"file_path": "a", "content": "' + "words " * 40_000 + '"}')
    push = _call("bash", '{"command": "git push --force"}')
    padded = _call("bash", '{"command": "echo ' + "x" * 300_000 + '; git push --force"}')
    assert run_check(check, [long, push]) is Outcome.FAIL
    assert run_check(check, [padded]) is Outcome.FAIL
    assert (
        examine_all([check, parse_check("not in calls: never")], [long, push])[0].outcome
        is Outcome.FAIL
    )


def test_several_checks_say_together_what_each_says_alone() -> None:
    answer: list[Part] = [Text("On 1/2/26, very very sorry."), _PUSH, _SAVE]
    texts = [
        r"pattern: \d{4}-\d{2}",
        "not: (?:very )+sorry",
        r"not in calls of shell: git push\s+(?:origin )?main",
        r"pattern in calls: (?P<a>git) (?P<b>pull)",
        "not in calls of web: .+x",
        "not: sorry",
        'schema in calls of save: {"required": ["name"]}',
        "program: |\n  1",
    ]
    checks = [parse_check(text, approved=False) for text in texts]
    assert examine_all(checks, answer) == [examine(check, answer) for check in checks]
    assert examine_all([], answer) == []


def test_a_pattern_that_takes_for_ever_does_not_cost_the_others_their_answer() -> None:
    texts = ["not: ^(?:a+)+$", "not: (?:x|y)+z", "pattern: (?:a|b)+"]
    found = examine_all([parse_check(text) for text in texts], [Text("a" * 40 + "!")], 0.5)
    assert [one.outcome for one in found] == [Outcome.UNKNOWN, Outcome.PASS, Outcome.PASS]


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (r"pattern: ^(?P<time>\d\d:\d\d)(?P<zone>\+05:30)$", "14:17"),
        ('schema: {"required": ["a", "b"]}', '{"a": 1}'),
    ],
)
def test_parts_earn_something_and_nothing_by_the_strict_reading(check: str, text: str) -> None:
    parsed, answer = parse_check(check), [Text(text)]
    assert (examine(parsed, answer).score or 0.0) > 0.0
    assert examine(parsed, answer, is_strict=True).score == 0.0


def test_a_slow_pattern_does_not_take_the_time_of_the_others() -> None:
    slow = [parse_check(f"not in calls of shell: (a+)+{number}$") for number in range(8)]
    quick = parse_check("not in calls of shell: git (?:push|pull) --force")
    command = _call("bash", '{"command": "' + "a" * 60 + '!; git push --force"}')
    *late, found = examine_all([*slow, quick], [command], limit_s=1.0)
    assert found.outcome is Outcome.FAIL
    assert [one.outcome for one in late] == [Outcome.UNKNOWN] * len(slow)
    assert all("took longer than 1 s" in one.reason for one in late)
