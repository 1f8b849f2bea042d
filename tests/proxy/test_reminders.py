"""Reminders: of rules that were broken lately, where they are likely to matter, and only while they
help.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from metaclaw.domain.chat import Wire
from metaclaw.domain.compliance import (
    Compliance,
    CountedResult,
    Reminded,
    ReminderEffect,
    ReminderState,
    RuleResult,
    measured_hash,
)
from metaclaw.domain.front_matter import SkillRecord
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.reminders import Reminders, is_left_out
from metaclaw.skills import LibraryView, remove_blocks, render_reminder

BEGAN = date(2026, 6, 1)


def rule(
    name: str, text: str = "Use uv.", check: str | None = "not: pip", **extra: object
) -> Skill:
    extra |= {"kind": "rule", "applies": "always"} | ({} if check is None else {"check": check})
    return SkillRecord(SkillName(name), "always", text, extra=extra).read()


def day_with(one: Skill, *, is_out: bool = False, begin: date = BEGAN) -> date:
    """The first day from then on, on which a reminder of it is placed, or left out."""
    days = (begin + timedelta(days=number) for number in range(200))
    return next(day for day in days if is_left_out(measured_hash(one), day) is is_out)


@dataclass
class Stage:
    """Rules, how they were followed, and today."""

    rules: Sequence[Skill]
    counts: list[CountedResult] = field(default_factory=list)
    today: date = BEGAN

    def __post_init__(self) -> None:
        self.reminders = Reminders(self, lambda: LibraryView.of(1, self.rules), lambda: self.today)

    def counted(self, rules: None = None, since: str = "") -> list[CountedResult]:
        return [one for one in self.counts if one.day >= since]

    def last_broken(self, since: str = "") -> dict[tuple[SkillName, str], int]:
        bad = [
            one
            for one in self.counted(since=since)
            if one.result in (RuleResult.BROKEN, RuleResult.HELD)
        ]
        return {(one.rule, one.hash): turn for turn, one in enumerate(bad)}

    def count(
        self,
        one: Skill,
        result: RuleResult,
        days_ago: int = 0,
        reminded: Reminded = Reminded.NOT_DUE,
        times: int = 1,
    ) -> None:
        day = (self.today - timedelta(days=days_ago)).isoformat()
        self.counts.append(
            CountedResult(one.name, measured_hash(one), "codex", "m", day, result, reminded, times)
        )

    def due(self, **body: Any) -> tuple[list[str], list[str]]:
        self.reminders.refresh()
        found = self.reminders.due(asked(**body), tuple(one.name for one in self.rules))
        return [one.name for one in found.placed], [one.name for one in found.withheld]


def asked(text: str = "Go on.", wire: Wire = Wire.CHAT, **fields: Any) -> Incoming:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    sent = json.dumps(body).encode()
    return Incoming(
        wire,
        "/v1/x",
        "",
        {},
        [],
        sent,
        json.loads(sent),
        None,
        datetime.now(UTC),
        time.perf_counter(),
    )


def test_a_rule_is_reminded_of_for_some_days_after_it_was_broken() -> None:
    one = rule("uv")
    stage = Stage([one], today=day_with(one, begin=BEGAN + timedelta(days=40)))
    assert stage.due() == ([], [])
    stage.count(one, RuleResult.FOLLOWED)
    assert stage.due() == ([], [])
    stage.count(one, RuleResult.BROKEN, days_ago=7)
    assert stage.due() == (["uv"], [])
    stage.counts = []
    stage.count(one, RuleResult.BROKEN, days_ago=8)
    assert stage.due() == ([], [])


def test_it_must_stand_in_the_prompt_and_still_say_what_was_broken() -> None:
    one = rule("uv")
    stage = Stage([one], today=day_with(one))
    stage.count(one, RuleResult.BROKEN)
    stage.reminders.refresh()
    assert stage.reminders.due(asked(), ()).placed == ()
    stage.rules = [replace(one, body="Use uv, always.")]
    assert stage.reminders.due(asked(), (one.name,)).placed == ()
    assert stage.due() == ([], [])


def test_a_rule_that_is_only_placed_is_not_reminded_of() -> None:
    one = rule("uv", enforce="off")
    stage = Stage([one], today=day_with(one))
    stage.count(one, RuleResult.BROKEN)
    assert stage.due() == ([], [])


def test_on_some_days_it_is_left_out_but_never_for_a_held_rule() -> None:
    one, held = rule("uv"), rule("held", enforce="hold")
    stage = Stage([one, held])
    seen = set()
    for number in range(60):
        stage.today, stage.counts = BEGAN + timedelta(days=number), []
        stage.count(one, RuleResult.BROKEN)
        stage.count(held, RuleResult.HELD)
        placed, withheld = stage.due()
        assert "held" in placed
        assert ("uv" in withheld) is is_left_out(measured_hash(one), stage.today)
        seen.add("uv" in withheld)
    assert seen == {True, False}


def test_a_rule_about_calls_waits_for_a_request_that_offers_such_tools() -> None:
    shell, own, any_call = (
        rule("shell", check="not in calls of shell: pip"),
        rule("own", check="not in calls of save: x"),
        rule("any", check="not in calls: rm"),
    )
    tools = {
        "chat": [{"type": "function", "function": {"name": "exec_command"}}],
        "flat": [{"name": "save", "input_schema": {}}],
        "typed": [{"type": "local_shell"}],
    }
    wanted = {None: [], "chat": ["shell", "any"], "flat": ["own", "any"], "typed": ["shell", "any"]}
    for kind, expected in wanted.items():
        for one in (shell, own, any_call):
            stage = Stage([one], today=day_with(one))
            stage.count(one, RuleResult.BROKEN)
            found = stage.due(**({} if kind is None else {"tools": tools[kind]}))
            assert (one.name in found[0]) is (one.name in expected)


def test_a_rule_that_names_a_type_of_file_is_reminded_of_when_such_a_file_is_touched() -> None:
    one = rule("artifacts", "Never leave *.js artifacts beside .ts files.", "not: artifact")
    stage = Stage([one], today=day_with(one, begin=BEGAN + timedelta(days=40)))
    stage.count(one, RuleResult.BROKEN, days_ago=20)
    assert stage.due(text="Look at main.py") == ([], [])
    assert stage.due(text="Look at src/main.ts") == (["artifacts"], [])
    stage.counts = []
    stage.count(one, RuleResult.BROKEN, days_ago=31)
    assert stage.due(text="Look at src/main.ts") == ([], [])


def test_nothing_is_left_with_a_provider_that_keeps_the_history() -> None:
    one = rule("uv")
    stage = Stage([one], today=day_with(one))
    stage.count(one, RuleResult.BROKEN)
    assert stage.due(previous_response_id="resp_1") == ([], [])
    assert stage.due(conversation={"id": "conv_1"}) == ([], [])


def test_at_most_three_rules_are_reminded_of_the_last_broken_first() -> None:
    rules = [rule(f"rule-{number}", enforce="hold") for number in range(5)]
    stage = Stage(rules)
    for number, one in enumerate(rules):
        stage.count(one, RuleResult.BROKEN, days_ago=number)
    assert stage.due() == (["rule-0", "rule-1", "rule-2"], [])


def test_of_rules_broken_on_one_day_the_last_three_are_reminded_of() -> None:
    rules = [rule(name) for name in ("a", "b", "c", "d")]
    today = next(
        day
        for day in (BEGAN + timedelta(days=n) for n in range(400))
        if not any(is_left_out(measured_hash(r), day) for r in rules)
    )
    stage = Stage(rules, today=today)
    for one in (*rules, rules[1]):
        stage.count(one, RuleResult.BROKEN)
    assert stage.due() == (["b", "d", "c"], [])
    stage.count(rules[0], RuleResult.BROKEN)
    assert stage.due() == (["a", "b", "d"], [])


def arms(stage: Stage, one: Skill, placed: tuple[int, int], withheld: tuple[int, int]) -> None:
    """On each of three days a third of these: followed and broken, with a reminder and without."""
    for ago in range(3):
        for arm, (followed, broken) in ((Reminded.PLACED, placed), (Reminded.WITHHELD, withheld)):
            stage.count(one, RuleResult.FOLLOWED, ago, arm, followed // 3)
            stage.count(one, RuleResult.BROKEN, ago, arm, broken // 3)


def test_reminders_that_do_not_help_stop_and_those_that_do_go_on() -> None:
    for placed, withheld, goes_on in (
        ((27, 3), (9, 21), True),
        ((15, 15), (15, 15), False),
        ((9, 21), (15, 15), False),
    ):
        for enforce in ("remind", "hold"):
            one = rule("uv", enforce=enforce)
            stage = Stage([one], today=day_with(one))
            arms(stage, one, placed, withheld)
            assert stage.due() == (["uv"] if goes_on or enforce == "hold" else [], [])


def test_nothing_is_decided_before_there_is_enough_to_compare() -> None:
    bad, good = Compliance(followed=0, broken=30), Compliance(followed=30)
    assert ReminderEffect(bad, good, 3, 2).state is ReminderState.COMPARING
    assert ReminderEffect(bad, Compliance(followed=19), 3, 3).state is ReminderState.COMPARING
    assert ReminderEffect(bad, good, 3, 3).state is ReminderState.STOPPED
    assert ReminderEffect(good, bad, 3, 3).state is ReminderState.HELPING
    assert ReminderEffect(good, bad, 3, 3).probability > 0.999


def test_a_reminder_is_one_line_that_can_be_taken_out_again() -> None:
    text = render_reminder([rule("uv"), rule("long", "x" * 500)])
    inner = text.splitlines()[1]
    assert inner.startswith("Reminder, keep to what the user laid down: Use uv. / xxx")
    assert len(text.splitlines()) == 3
    assert len(inner) < 400
    assert remove_blocks(f"Do it.\n\n{text}") == "Do it."
