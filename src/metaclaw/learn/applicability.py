"""Whether a rule applies to an answer: its situation is the task's, and the answer holds what its check looks at."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime

from metaclaw.domain.chat import Part, Text, ToolCall
from metaclaw.domain.check import Check, PatternCheck, Place, ProgramCheck, SchemaCheck
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill, SkillKind
from metaclaw.domain.turn import Scope
from metaclaw.errors import SkillError
from metaclaw.learn.shelf import SkillShelf
from metaclaw.skills import ALWAYS, ShelfView, Teams, check_of, documents_at, query_text, rule_when, texts_at

log = logging.getLogger(__name__)

_MOST_MATCHING = 24


def concerns(check: Check, answer: Sequence[Part]) -> bool:
    """Whether an answer holds what a check looks at: a call of its tools, or the words of a final answer, which calls no tool."""
    calls = any(isinstance(part, ToolCall) for part in answer)
    match check:
        case PatternCheck() | SchemaCheck() if check.where.place is Place.CALLS:
            found = texts_at if isinstance(check, PatternCheck) else documents_at
            return bool(found(answer, check.where))
        case PatternCheck() | SchemaCheck():
            return not calls and _says_something(answer)
        case ProgramCheck():
            # A program that reads the calls looks at every answer, others at what an agent says in the end.
            return "calls" in check.source if calls else _says_something(answer)


def needs_situation(rule: Skill) -> bool:
    """Whether the task must say if a rule applies: one for a situation whose check looks at answers. All rules stand in the prompt
    while they fit, also those for other situations; but calls of a check's tools speak for themselves."""
    if rule.kind is not SkillKind.RULE or rule_when(rule) == ALWAYS:
        return False
    check = readable_check(rule)
    return not (isinstance(check, PatternCheck | SchemaCheck) and check.where.place is Place.CALLS)


def matching(view: ShelfView, task: str, scope: Scope, teams: Teams, day: date) -> frozenset[SkillName]:
    """The rules and skills whose situation is that of the task, and those that apply always."""
    query = query_text(task) if task else ""
    return frozenset(one.name for one in view.retrieve(query, _MOST_MATCHING, scope, teams, today=day)) if query else frozenset()


def readable_check(rule: Skill) -> Check | None:
    """The check of a rule or skill; None where it has none, or one that cannot be read, which `status` tells."""
    try:
        return check_of(rule)
    except SkillError as error:
        log.debug("check_unreadable skill=%s reason=%s", rule.name, error)
        return None


class Situations:
    """Says of rules in force whether their situation is that of a task. Blocks."""

    def __init__(self, shelf: SkillShelf, teams: Teams, today: Callable[[], date] = lambda: datetime.now(UTC).date()) -> None:
        self._shelf = shelf
        self._teams = teams
        self._today = today

    def match(self, rule: Skill, task: str, scope: Scope) -> bool:
        """Whether a rule applies to this task of this speaker."""
        return not needs_situation(rule) or rule.name in matching(self._shelf.view, task, scope, self._teams, self._today())


def always_match(rule: Skill, task: str, scope: Scope) -> bool:
    """As `Situations.match`, where nothing is known of situations."""
    return True


def _says_something(answer: Sequence[Part]) -> bool:
    return any(isinstance(part, Text) and part.text.strip() for part in answer)
