"""Convert sessions, turns, verdicts, rules, skills, candidates and generations to JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from metaclaw.api.status_words import counted
from metaclaw.domain.candidate import PROPOSED, Candidate, Change
from metaclaw.domain.chat import Json
from metaclaw.domain.compliance import Compliance, RuleRecord
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import Fact, GenerationChange, Lesson, RetiredSkill, Rule, Skill
from metaclaw.domain.status import agent_word, held_words
from metaclaw.domain.training import RoleKind, TurnStanding
from metaclaw.domain.turn import EnforcedRule, Turn, TurnKind
from metaclaw.domain.verdict import Verdict
from metaclaw.skills import (
    Undone,
    can_hold,
    question_of,
)
from metaclaw.store import GenerationRow, LessonUse, SessionRow, TurnRow

if TYPE_CHECKING:
    from metaclaw.learn import SkillFacts


def time_view(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def picked(value: object, *names: str) -> dict[str, Any]:
    """These attributes, as they are encoded in JSON."""
    return {name: getattr(value, name) for name in names}


def session_view(row: SessionRow, title: str | None) -> dict[str, Any]:
    """A session, with its title."""
    return {
        **picked(row, "id", "agent", "parent", "end_reason"),
        "title": title or "",
        "scope": asdict(row.scope),
        "began_at": time_view(row.began_at),
        "last_at": time_view(row.last_at),
        "ended_at": time_view(row.ended_at),
        "turn_count": row.turns,
        "main_turn_count": row.main_turns,
    }


_OF_TURN = (
    *("id", "session", "kind", "kind_reason", "wire", "stream", "model", "provider", "status"),
    *("end", "error", "finish", "segment", "retry_of"),
)


def turn_row_view(turn: TurnRow | Turn) -> dict[str, Any]:
    """A turn's facts, without its bytes."""
    return {
        **picked(turn, *_OF_TURN),
        **picked(turn.stamp, "generation", "policy_version", "library_hash", "skills"),
        "usage": None if turn.usage is None else asdict(turn.usage),
        "times": {
            **picked(turn.times, "first_byte_s", "duration_s"),
            "received_at": time_view(turn.times.received_at),
        },
    }


def turn_view(turn: Turn) -> dict[str, Any]:
    """A whole turn: also the request as the client sent it, the answer as the client saw it, and
    the exact tokens.
    """
    exchange, enforcement = turn.exchange, turn.enforcement
    return {
        **turn_row_view(turn),
        **picked(turn, "agent", "listed", "provider_wire", "truncated"),
        "scope": asdict(turn.scope),
        "enforced": [enforced_view(rule) for rule in enforcement.rules] if enforcement else [],
        "attempts": [attempt.id for attempt in enforcement.attempts] if enforcement else [],
        "request": _readable(exchange.request),
        "sent": _readable(exchange.sent),
        "said": _readable(exchange.said),
        "answer": _readable(exchange.shown),
        "tokens": turn.tokens and picked(turn.tokens, "prompt_ids", "sampled_ids", "logprobs"),
    }


def enforced_view(rule: EnforcedRule) -> dict[str, Any]:
    """A rule that held calls: the number of attempts that broke it, and what the client got."""
    return {**picked(rule, "rule", "attempts", "end", "reason"), "checked": rule.is_checked}


def role_view(turn: TurnRow | Turn, standing: TurnStanding) -> RoleKind | None:
    """Support if a turn fed a skill; query if it trained weights, or while its speaker's rules and
    skills are the same.
    """
    if standing.role is not None:
        return standing.role.kind
    is_query = turn.kind is TurnKind.MAIN and not standing.is_aged
    return RoleKind.QUERY if is_query else None


def verdict_view(verdict: Verdict | None) -> dict[str, Any] | None:
    """The verdict on a turn; null if it has not been judged."""
    if verdict is None:
        return None
    votes = verdict.votes
    return {
        **picked(verdict, "outcome", "score", "p_fail", "source", "fault", "comment"),
        "signals": [
            picked(signal, "detector", "evidence", "quote", "fault") for signal in verdict.signals
        ],
        "votes": votes
        and {
            **picked(votes, "unknown", "model"),
            "pass": votes.passed,
            "fail": votes.failed,
        },
    }


def _readable(body: bytes) -> Json:
    """The decoded JSON; if it is not JSON (a stream of events), the text."""
    text = body.decode("utf-8", "replace")
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # A lone surrogate cannot be encoded as UTF-8; such a body is returned as text, in which it is
    # escaped.
    return value if "\\ud" not in text.lower() else text


_MOST_LESSONS = 20


_OF_RULE = (
    *(
        "name",
        "kind",
        "when",
        "scope",
        "workspace",
        "channel",
        "examples",
        "source",
        "check",
        "check_note",
    ),
    "author",
)


def rule_view(rule: Skill, dates: tuple[datetime | None, datetime | None] | None) -> dict[str, Any]:
    """A rule or fact: its text, when and for whom it applies, and since when."""
    created, changed = dates or (None, None)
    return {
        **picked(rule, *_OF_RULE),
        "text": rule.body,
        "project": "unknown" if rule.is_project_unknown else None,
        "expires": None if rule.expires is None else rule.expires.isoformat(),
        "check_state": rule.check and (rule.check_state or "confirmed"),
        "enforce": rule.enforcement,
        "on_error": rule.error_handling,
        "on_break": rule.on_break or "text",
        "can_hold": can_hold(rule),
        "question": question_of(rule),
        "created": time_view(created),
        "changed": time_view(changed),
    }


def rule_notes(rule: Rule, exceptions: Sequence[Rule]) -> list[str]:
    """What a person should know of a rule beside its fields. `exceptions` are the rules in force that
    override others."""
    notes = ["as you said it"] if rule.is_as_said else []
    notes += [f"instead of {name}" for name in rule.overrides]
    for one in exceptions:
        if rule.name in one.overrides:
            where = one.workspace or one.channel
            notes.append(f"{f'in {where}, ' if where else ''}{one.name} counts instead")
    return notes


def retired_rule_view(retired: RetiredSkill) -> dict[str, Any]:
    """A rule or fact that is no longer in force."""
    return {
        **rule_view(retired.skill, None),
        "state": "retired",
        "retired_at": time_view(retired.retired_at),
        "reason": retired.reason,
    }


def compliance_view(counts: Compliance) -> dict[str, Any]:
    """Counts of how often a rule was followed. A held call also counts as broken."""
    return {"applied": counts.applied, "not_held": counts.not_held, **asdict(counts)}


def followed_view(rule: Skill, by_agent: Mapping[str, Compliance]) -> dict[str, Any]:
    """How often a rule was followed, in all and by agent."""
    total = sum(by_agent.values(), Compliance())
    return {
        "compliance": compliance_view(total),
        "by_agent": {agent: compliance_view(counts) for agent, counts in by_agent.items()},
        "in_words": followed_words(rule, total, by_agent),
    }


def followed_words(rule: Skill, total: Compliance, by_agent: Mapping[str, Compliance]) -> str:
    """`followed in 41 of 44; codex 11 of 14; 2 held back (codex)`: in how many of the
    checked answers of which no call was held, the agent that follows it least, and the held ones.
    """
    if isinstance(rule, Fact):
        return "not checked: it is a fact"
    if not total.applied:
        return "no answer to check yet"
    if not total.checked:
        why = "it has no check that says whether it was followed"
        if rule.check:
            why = "its check decided none of them"
        return f"applied to {counted(total.unknown, 'answer')}; {why}"
    words = []
    if total.not_held:
        words.append(f"followed in {total.followed} of {total.not_held}")
    shares = {
        agent: counts.followed / counts.not_held
        for agent, counts in by_agent.items()
        if counts.not_held
    }
    if len(set(shares.values())) > 1:
        worst = min(shares, key=lambda agent: shares[agent])
        least = by_agent[worst]
        words.append(f"{agent_word(worst)} {least.followed} of {least.not_held}")
    if total.held:
        words.append(held_words(total.held, {agent: one.held for agent, one in by_agent.items()}))
    return "; ".join(words)


def rule_record_view(rule: Skill, record: RuleRecord) -> dict[str, Any]:
    """The compliance of a rule: total, by agent, model and day, the last violations, and with and
    without reminders.
    """
    groups = {"by_model": record.by_model, "by_day": record.by_day}
    return {
        **followed_view(rule, record.by_agent),
        **{
            name: {key: compliance_view(one) for key, one in group.items()}
            for name, group in groups.items()
        },
        "violations": [
            {
                **picked(one, "turn", "agent", "model", "reason"),
                "at": time_view(one.at),
                "held": one.is_held,
            }
            for one in record.violations
        ],
        "reminders": {
            "state": record.reminders.state,
            "placed": compliance_view(record.reminders.placed),
            "withheld": compliance_view(record.reminders.withheld),
        },
    }


def lesson_view(skill: Skill) -> dict[str, Any]:
    """A skill, rule or fact in brief: name, kind, and its text (for a skill, when it is used)."""
    return {
        **picked(skill, "name", "kind"),
        "text": skill.trigger if skill.is_skill else skill.body,
    }


def change_view(change: GenerationChange) -> dict[str, Any]:
    """The rules and skills that one generation added and removed, at most `_MOST_LESSONS` of
    each.
    """
    gone = [skill for name, skill in change.before.items() if name not in change.after]
    return {
        "at": time_view(change.published_at),
        "generation": change.number,
        "reason": change.reason,
        "put": [lesson_view(skill) for skill in list(change.after.values())[:_MOST_LESSONS]],
        "gone": [lesson_view(skill) for skill in gone[:_MOST_LESSONS]],
    }


def undone_view(undone: Undone) -> dict[str, Any]:
    """The result of an undo: the lesson, the removed and the restored rules and skills."""
    return {
        "undone": {"generation": undone.lesson, "reason": undone.reason},
        "removed": [lesson_view(skill) for skill in undone.removed],
        "restored": [lesson_view(skill) for skill in undone.restored],
        "generation": undone.generation,
    }


_OF_SKILL = (
    "name",
    "kind",
    "category",
    "scope",
    "workspace",
    "channel",
    "state",
    "author",
    "pinned",
)


def skill_view(skill: Skill) -> dict[str, Any]:
    """A skill without its body."""
    return {
        **picked(skill, *_OF_SKILL),
        "description": skill.trigger,
        "expires": None if skill.expires is None else skill.expires.isoformat(),
        "hash": skill.content_hash,
    }


def lesson_use_view(
    use: LessonUse, state: str, reason: str | None, turns: Sequence[TurnId]
) -> dict[str, Any]:
    """A lesson, why it waits or was withdrawn, the sessions in which its failure came before it was
    in force and since, those that were spared it, and the turns that taught it."""
    lesson = use.lesson
    return {
        **picked(lesson, "name", "scope", "workspace", "channel"),
        **asdict(use.count),
        "text": lesson.body,
        "state": state,
        "reason": reason,
        "signature": lesson.signatures[0] if lesson.signatures else None,
        "since_when": time_view(use.since),
        "turns": turns,
    }


def retired_skill_view(retired: RetiredSkill) -> dict[str, Any]:
    """A skill, rule, fact or lesson that is no longer in force, without the body of a skill."""
    return {
        **skill_view(retired.skill),
        **lesson_view(retired.skill),
        "state": "retired",
        "pinned": False,
        "retired_at": time_view(retired.retired_at),
        "reason": retired.reason,
    }


def skill_facts_view(facts: "SkillFacts") -> dict[str, Any]:
    """The origin of a skill, and the outcomes of turns with it."""
    return {
        "learned_from": facts.learned_from,
        "passed": facts.tally.passed,
        "failed": facts.tally.failed,
    }


def whole_candidate_view(candidate: Candidate) -> dict[str, Any]:
    """A candidate with its text, its check, and the turns it was learned from."""
    skill = candidate.proposal.skill
    return {
        **candidate_view(candidate),
        **picked(skill, "body", "check"),
        "support": candidate.proposal.support,
    }


def candidate_view(candidate: Candidate) -> dict[str, Any]:
    """A candidate without its body."""
    proposal = candidate.proposal
    return {
        "about": proposal.skill.kind,
        **picked(candidate, "id", "standing", "reason", "generation"),
        **picked(proposal, "change", "replaces", "kind", "written_by", "is_instruction"),
        "skill": proposal.skill.name,
        "description": proposal.skill.trigger,
        "scope": proposal.skill.scope,
        "made_at": time_view(candidate.made_at),
    }


def candidate_question(candidate: Candidate, words: str) -> str:
    """What a person is asked about a candidate; `words` are what they said in the turn that taught
    it.
    """
    skill, change = candidate.proposal.skill, candidate.proposal.change
    text = " ".join(skill.body.split())
    if candidate.proposal.kind == PROPOSED:
        place = f" in {skill.workspace}" if skill.workspace else ""
        return f"{candidate.proposal.written_by} proposes{place}: “{text}” — put it in force?"
    if who := candidate.proposal.said_by:
        return f"For {skill.scope}, from {who}: “{text}” — put it in force?"
    if isinstance(skill, Lesson):
        return f"A tool call failed repeatedly: “{text}” — keep it as a lesson?"
    if candidate.proposal.script:
        return f"Make a script of what earlier sessions did: {skill.trigger}?"
    if not isinstance(skill, Rule):
        return f"Put the learned skill {skill.name} in force?"
    if change is Change.EDIT:
        return f"Your rule: “{text}” — check it with a program that a model wrote?"
    others = [name for name in candidate.proposal.replaces if name != skill.name]
    place = f", instead of {', '.join(others)}" * (change is Change.MERGE)
    if not words or text.rstrip(".").casefold() in words.casefold():
        return f"You said: “{text}” — keep it as a {skill.kind}{place}?"
    return f"You said: “{words}” — keep this as a {skill.kind}{place}: “{text}”?"


def generation_view(row: GenerationRow) -> dict[str, Any]:
    """A generation in a list."""
    return {**asdict(row), "published_at": time_view(row.published_at)}


def held_rules(skills: Sequence[Skill]) -> list[str]:
    """Rules and skills with `enforce: hold` and a check of tool calls, without which nothing is
    held.
    """
    return [skill.name for skill in skills if skill.enforce == "hold" and can_hold(skill)]
