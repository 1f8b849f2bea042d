"""Explain a turn's prompt: every rule, fact and skill that was considered, whether it was placed, and why."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import NamedTuple

from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Turn, TurnKind
from metaclaw.skills.block import already_present
from metaclaw.skills.library_view import Budgets, InScope, LibraryView, Selection
from metaclaw.skills.query import query_text
from metaclaw.skills.scopes import Teams, applies

MOST_CONSIDERED = 1000
"""Of a library with more than this, only what is in scope and what matches is explained."""


class Fate(StrEnum):
    """Where a rule, fact or skill stands in a turn's prompt, or why it does not."""

    PLACED = "placed"
    LISTED = "listed"
    NOT_PLACED = "not placed"


class Considered(NamedTuple):
    """One rule, fact or skill, what became of it, and why, in words for people."""

    skill: Skill
    fate: Fate
    reason: str


def explain(
    turn: Turn,
    task: str,
    view: LibraryView,
    budgets: Budgets,
    teams: Teams | None = None,
    *,
    today: date,
    absorbed: frozenset[str] = frozenset(),
) -> list[Considered]:
    """Explain a recorded turn: placed first, then listed, then what was not placed; each by name. What is for other people is left
    out.

    `task` is what the person asked for in their own words; `view` the generation that the turn was stamped with, `today` the day it
    was served, and `absorbed` what the weights that answered know without being told.
    """
    query = query_text(task)
    found = view.select(query, budgets, turn.scope, teams, today=today, without=absorbed)
    speaker = view.in_scope(turn.scope, teams, today)
    why = _Reasons(turn, found, speaker, budgets, today, absorbed)
    placed = {*turn.stamp.skills, *turn.listed}
    mine = (one for one in _candidates(turn, view, found, speaker) if one.name in placed or applies(one.scope, turn.scope, teams))
    considered = [why.of(skill) for skill in mine]
    order = list(Fate)
    return sorted(considered, key=lambda one: (order.index(one.fate), one.skill.name))


def _candidates(turn: Turn, view: LibraryView, found: Selection, speaker: InScope) -> Iterable[Skill]:
    if view.count <= MOST_CONSIDERED:
        return view.skills
    named = (view.get(name) for name in (*turn.stamp.skills, *turn.listed))
    mine = (*found.all, *speaker.rules, *speaker.always, *(speaker.skills or ()))
    return {skill.name: skill for skill in (*named, *mine) if skill is not None}.values()


@dataclass(eq=False)
class _Reasons:
    """Finds the reason for one turn; asked once for each rule, fact and skill."""

    turn: Turn
    found: Selection
    speaker: InScope
    budgets: Budgets
    today: date
    absorbed: frozenset[str]

    def __post_init__(self) -> None:
        self._full = {skill.name for skill in self.found.full}
        self._withheld = {draw.skill: draw.propensity for draw in self.turn.draws if not draw.placed}
        self._request = ""

    def of(self, skill: Skill) -> Considered:
        if skill.name in self.turn.stamp.skills:
            return Considered(skill, Fate.PLACED, self._placed(skill))
        if skill.name in self.turn.listed:
            return Considered(skill, Fate.LISTED, "in scope, and does not match the request well enough to stand there in full")
        return Considered(skill, Fate.NOT_PLACED, self._out_of_reach(skill) or self._left_out(skill))

    def _placed(self, skill: Skill) -> str:
        drawn = next((draw for draw in self.turn.draws if draw.skill == skill.name), None)
        if drawn is not None:
            return f"matches the request; it is on trial and is placed in {drawn.propensity:.0%} of such tasks"
        if skill.applies_always:
            return "applies to every task"
        if not skill.is_skill:
            is_all = self.speaker.rules_tokens <= self.budgets.rules_tokens
            return "in scope, and all rules in scope fit the budget" if is_all else "matches the request, or ranked high enough"
        return "matches the request" if skill.name in self._full else "placed for an earlier task of this session"

    def _out_of_reach(self, skill: Skill) -> str | None:
        """Why this speaker could not be given it, whatever they asked."""
        turn = self.turn
        if turn.kind is TurnKind.SIDE:
            return f"a side turn ({turn.kind_reason}): it gets only rules about what it writes"
        if not skill.is_for_workspace(turn.scope.workspace):
            return f"out of scope: it is for the project {skill.extra.get('workspace')}"
        if skill.is_expired(self.today):
            return f"expired after {skill.expires}"
        if skill.name in self.absorbed:
            return "the weights that answered know it without being told"
        if skill.name in self.speaker.replaced:
            return "a more specific or newer one stands in its place"
        return None

    def _left_out(self, skill: Skill) -> str:
        if skill.name in self._withheld:
            return f"withheld by chance, as in {1 - self._withheld[skill.name]:.0%} of such tasks, to measure what it is worth"
        if skill.is_skill and skill.name in self._full and self._is_brought(skill):
            return "the client has put it into the prompt itself"
        if not skill.is_skill:
            if skill in self.found.rules:
                return "not in force yet when this task began, or there was no room for it in the prompt"
            if self.speaker.rules_tokens <= self.budgets.rules_tokens:
                return "it does not match the request, and the embedded model is given only what does"
            tokens = f"{self.speaker.rules_tokens} of {self.budgets.rules_tokens} tokens"
            return f"over budget: the rules in scope take {tokens}, and it does not match the request"
        if not self.budgets.max_placed:
            return "skills are switched off (skills.max_placed is 0)"
        if skill.name in self._full:
            return "over budget: it matches the request, but does not fit beside the others"
        if self.budgets.is_brief:
            return "below the bar: it does not match the request, and the embedded model is given no list"
        if skill in self.found.listed:
            return "not listed: withheld by chance, not in force yet when this session began, or its line did not fit"
        return "below the bar: it does not match the request, and the list of skills is full"

    def _is_brought(self, skill: Skill) -> bool:
        if not self._request:
            self._request = self.turn.exchange.request.decode("utf-8", "replace").replace("\\n", "\n")
        return already_present(skill, self._request)
