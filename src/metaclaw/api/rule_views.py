"""Rules, facts, how they were followed, and lessons, as JSON."""

from datetime import datetime

from metaclaw.api.turn_views import time_view
from metaclaw.domain.chat import Json
from metaclaw.domain.compliance import Compliance, RuleRecord
from metaclaw.domain.skill import GenerationChange, RetiredSkill, Skill
from metaclaw.skills import (
    Undone,
    can_hold,
    check_state_of,
    enforce_of,
    is_rule,
    on_break_of,
    on_error_of,
    question_of,
    rule_text,
    rule_when,
)

_MOST_LESSONS = 20


def rule_view(rule: Skill, dates: tuple[datetime | None, datetime | None] | None) -> dict[str, Json]:
    """A rule or fact: the person's words, when and for whom they apply, and since when."""
    extra, (created, changed) = rule.extra, dates or (None, None)
    named = {key: str(extra[key]) if extra.get(key) is not None else None for key in ("workspace", "source", "check", "check_note")}
    return {
        "name": rule.name,
        "kind": rule.kind.value,
        "text": rule_text(rule),
        "when": rule_when(rule),
        "scope": rule.scope,
        "workspace": named["workspace"],
        "examples": list(rule.examples),
        "expires": None if rule.expires is None else rule.expires.isoformat(),
        "source": named["source"],
        "check": named["check"],
        "check_state": check_state_of(rule),
        "check_note": named["check_note"],
        "enforce": enforce_of(rule),
        "on_error": on_error_of(rule),
        "on_break": on_break_of(rule),
        "can_hold": can_hold(rule),
        "question": question_of(rule),
        "author": rule.author.value,
        "created": time_view(created),
        "changed": time_view(changed),
    }


def retired_rule_view(retired: RetiredSkill) -> dict[str, Json]:
    """A rule or fact that is no longer in force."""
    return {
        **rule_view(retired.skill, None),
        "state": "retired",
        "retired_at": time_view(retired.retired_at),
        "reason": retired.reason,
    }


def compliance_view(counted: Compliance) -> dict[str, Json]:
    """Counts of how often a rule was followed. A held call is counted as broken, too."""
    return {
        "applied": counted.applied,
        "followed": counted.followed,
        "broken": counted.broken,
        "held": counted.held,
        "unknown": counted.unknown,
    }


def rule_record_view(record: RuleRecord) -> dict[str, Json]:
    """The same by agent, model and day, with the last violations, and with and without reminders."""
    groups = {"by_agent": record.by_agent, "by_model": record.by_model, "by_day": record.by_day}
    return {
        "compliance": compliance_view(record.total),
        **{name: {key: compliance_view(one) for key, one in group.items()} for name, group in groups.items()},
        "violations": [
            {
                "turn": one.turn,
                "at": time_view(one.at),
                "agent": one.agent,
                "model": one.model,
                "held": one.is_held,
                "reason": one.reason,
            }
            for one in record.violations
        ],
        "reminders": {
            "state": record.reminders.state.value,
            "placed": compliance_view(record.reminders.placed),
            "withheld": compliance_view(record.reminders.withheld),
        },
    }


def lesson_view(skill: Skill) -> dict[str, Json]:
    """A skill, rule or fact in three words: name, kind, and its text, or when a skill is used."""
    return {"name": skill.name, "kind": skill.kind.value, "text": rule_text(skill) if is_rule(skill) else skill.trigger}


def change_view(change: GenerationChange) -> dict[str, Json]:
    """The rules and skills that one generation added and removed, at most `_MOST_LESSONS` of each."""
    gone = [skill for name, skill in change.before.items() if name not in change.after]
    return {
        "at": time_view(change.published_at),
        "generation": change.number,
        "reason": change.reason,
        "put": [lesson_view(skill) for skill in list(change.after.values())[:_MOST_LESSONS]],
        "gone": [lesson_view(skill) for skill in gone[:_MOST_LESSONS]],
    }


def undone_view(undone: Undone) -> dict[str, Json]:
    """The result of an undo: the lesson, the removed and the restored rules and skills."""
    return {
        "undone": {"generation": undone.lesson, "reason": undone.reason},
        "removed": [lesson_view(skill) for skill in undone.removed],
        "restored": [lesson_view(skill) for skill in undone.restored],
        "generation": undone.generation,
    }
