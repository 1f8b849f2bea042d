"""How rules are followed, in words, for `metaclaw rules`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from metaclaw.cli.output import agent_name, counted, moment
from metaclaw.domain.skill import SkillKind

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json
    from metaclaw.domain.compliance import Compliance, ReminderEffect, RuleRecord
    from metaclaw.domain.ids import SkillName
    from metaclaw.domain.skill import Skill

_VIOLATIONS_SHOWN = 5
_OF_A_FACT = "not checked: a fact is remembered, not followed"


def followed_by_agent(home: Path, rules: "Sequence[Skill]") -> "dict[SkillName, dict[str, Compliance]]":
    """How each of these rules is followed, by agent."""
    from metaclaw.cli.home import opened
    from metaclaw.config import load
    from metaclaw.domain.compliance import measured_hash
    from metaclaw.store import SqlCompliance

    hashes = {rule.name: measured_hash(rule) for rule in rules}
    with opened(load(home)) as database:
        return {name: {} for name in hashes} if database is None else SqlCompliance(database).totals(hashes)


def record_of(home: Path, rule: "Skill") -> "RuleRecord":
    """Everything that is known of how a rule is followed."""
    from metaclaw.cli.home import opened
    from metaclaw.config import load
    from metaclaw.domain.compliance import Compliance, ReminderEffect, RuleRecord, measured_hash
    from metaclaw.store import SqlCompliance

    with opened(load(home)) as database:
        if database is not None:
            return SqlCompliance(database).of_rule(rule.name, measured_hash(rule))
    return RuleRecord(Compliance(), {}, {}, {}, ReminderEffect(), ())


def compliance_of(by_agent: "Mapping[str, Compliance]") -> "dict[str, Json]":
    """The numbers, as the API has them."""
    from metaclaw.api import compliance_view
    from metaclaw.domain.compliance import Compliance

    return {"compliance": compliance_view(sum(by_agent.values(), Compliance()))}


def record_view(record: "RuleRecord") -> "dict[str, Json]":
    """The record as the API has it."""
    from metaclaw.api import rule_record_view

    return rule_record_view(record)


def in_words(rule: "Skill", by_agent: "Mapping[str, Compliance]") -> str:
    """`followed in 41 of 44; codex 11 of 14`: of the answers that were checked, and the agent that follows it least."""
    from metaclaw.domain.compliance import Compliance

    if rule.kind is SkillKind.FACT:
        return _OF_A_FACT
    total = sum(by_agent.values(), Compliance())
    if not total.applied:
        return "no answer to check yet"
    if not total.checked:
        return f"applied to {counted(total.unknown, 'answer')}; {_unchecked(rule)}"
    words = f"followed in {share(total)}"
    known = {agent: one for agent, one in by_agent.items() if one.checked}
    worst = min(known, key=lambda agent: known[agent].followed / known[agent].checked)
    if len(known) > 1 and known[worst].broken:
        words += f"; {agent_name(worst)} {share(known[worst])}"
    return words


def _unchecked(rule: "Skill") -> str:
    """Why it is not known of any answer whether the rule was followed."""
    return "its check could tell in none of them" if "check" in rule.extra else "no check tells whether it was followed"


def share(one: "Compliance") -> str:
    """`11 of 14`, and how many of the others were held."""
    words = f"{one.followed} of {one.checked}"
    words += f" ({one.held} held)" if one.held else ""
    return words


def record_facts(rule: "Skill", record: "RuleRecord") -> list[tuple[str, object]]:
    """Lines about how a rule is followed: in all, by agent, model and day, and where it was broken last."""
    if rule.kind is SkillKind.FACT:
        return [("compliance", _OF_A_FACT)]
    total = record.total
    if not total.applied:
        return [("compliance", "no answer to check yet")]
    unknown = counted(total.unknown, "answer")
    words = f"followed in {share(total)} answers" if total.checked else f"applied to {unknown}; {_unchecked(rule)}"
    words += f"; of {unknown} more it was not found out" if total.unknown and total.checked else ""
    if not total.checked and "check" not in rule.extra:
        words += f" (add one: metaclaw rules edit {rule.name} --check)"
    facts: list[tuple[str, object]] = [("compliance", words)]
    for label, group in (("by agent", record.by_agent), ("by model", record.by_model), ("by day", record.by_day)):
        known = [f"{agent_name(name)} {share(one)}" for name, one in group.items() if one.checked]
        facts += [(label, "; ".join(known))] if known else []
    facts += _reminder_facts(rule, record.reminders)
    for one in record.violations[:_VIOLATIONS_SHOWN]:
        what = "held" if one.is_held else "broken"
        why = f": {one.reason}" if one.reason else ""
        facts.append((what, f"{moment(one.at)} by {agent_name(one.agent)} ({one.model}) in {one.turn}{why}"))
    return facts


def _reminder_facts(rule: "Skill", effect: "ReminderEffect") -> list[tuple[str, object]]:
    from metaclaw.domain.compliance import ReminderState
    from metaclaw.skills import enforce_of

    if enforce_of(rule) == "off":
        return [("reminders", "off")]
    if not effect.placed.checked and not effect.withheld.checked:
        return []
    words = f"followed in {share(effect.placed)} answers with a reminder, in {share(effect.withheld)} without"
    match effect.state:
        case ReminderState.STOPPED:
            words += "; they did not help, so there are none for now"
        case ReminderState.HELPING:
            words += "; they help"
        case ReminderState.COMPARING:
            words += "; not yet enough to tell whether they help"
    return [("reminders", words)]
