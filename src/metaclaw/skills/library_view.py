"""The view of one generation, from which a request's rules, facts and skills are selected; and why each was placed or not."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import NamedTuple, TypeVar

from metaclaw.config import SkillsConfig
from metaclaw.domain.skill import Nearness, Skill, SkillKind
from metaclaw.domain.status import SkippedSkill
from metaclaw.domain.turn import Scope, Turn, TurnKind
from metaclaw.skills.block import RULES_BUDGET_TOKENS, already_present, line_tokens, listed_briefly, rule_line
from metaclaw.skills.fields import (
    ALWAYS,
    Teams,
    applies,
    applying,
    is_held,
    may_be_withheld,
    most_specific,
    overrides_of,
    rank_of,
    rule_when,
)
from metaclaw.skills.index import SkillIndex, SkillQuery, telling_words, words_digest
from metaclaw.skills.query import query_text

MOST_STANDING = 5
"""Most skills placed in full for whatever the task is."""
_CACHED_QUERIES = 128
_CACHED_SCOPES = 256
_MOST_MATCHING = 24
_MOST_RULES = 64
_MOST_LISTED = 96
# Rules that exceed their budget at most so many times fill it, whatever is asked; of more, none are placed where none matches.
_NEARLY_FITTING = 3
# Of a budget that the rules do not fit, those for every task take at most so much before those that match.
_ALWAYS_SHARE = 2 / 3
_SKILL = SkillKind.SKILL
_SKILLS = frozenset((SkillKind.SKILL,))
_RULES = frozenset((SkillKind.RULE, SkillKind.FACT))
Ranks = frozenset[tuple[str, int]]
_FOR_EVERYONE: Ranks = frozenset()
_NOTHING: frozenset[str] = frozenset()
_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


class Budgets(NamedTuple):
    """Limits of what is placed. `is_brief` leaves out all that does not match the request: long blocks confuse small models."""

    max_placed: int = 3
    skills_tokens: int = 1500
    rules_tokens: int = RULES_BUDGET_TOKENS
    is_brief: bool = False

    @staticmethod
    def configured(config: SkillsConfig) -> "Budgets":
        """The budgets of a configuration."""
        return Budgets(config.max_placed, config.budget_tokens, config.rules_budget_tokens)


class Selection(NamedTuple):
    """What to place for a request: rules and facts by name, skills in full best first, skills to list; names that others replace;
    the last day on which all of it holds; and whether some of the skills may be withheld at random."""

    rules: tuple[Skill, ...] = ()
    full: tuple[Skill, ...] = ()
    listed: tuple[Skill, ...] = ()
    replaced: frozenset[str] = _NOTHING
    until: date | None = None
    has_withholdable: bool = False

    @property
    def all(self) -> tuple[Skill, ...]:
        """Everything selected."""
        return (*self.rules, *self.full, *self.listed)


class InScope(NamedTuple):
    """Rules and skills in scope for one speaker, for any request. `replaced` are names that more specific ones replace; `skills` is
    None if too many to list; `until` is the last day on which all of it holds; `cached` are selections."""

    rank: dict[str, int]
    replaced: frozenset[str]
    rules: tuple[Skill, ...]
    rules_tokens: int
    always: tuple[Skill, ...]
    skills: tuple[Skill, ...] | None
    skills_tokens: int
    until: date | None
    cached: dict[Hashable, Selection]


class LibraryView:
    """One generation, ready to be searched. Never changes.

    All rules and facts in scope are selected while their lines fit their budget; beyond that those for every task, and those that
    match the request. Of the skills, the best that match are selected in full, and all others in scope are listed while their lines
    fit; beyond that the best ranked. What depends on the scope alone is worked out once for each scope, and selections are cached.
    """

    __slots__ = ("_scopes", "_speakers", "generation", "hash", "index", "skipped")

    def __init__(self, generation: int, index: SkillIndex, skipped: tuple[SkippedSkill, ...] = ()) -> None:
        self.generation = generation
        self.index = index
        self.hash = index.hash
        self.skipped = skipped
        self._scopes = index.scopes
        self._speakers: dict[tuple[Ranks, str | None], InScope] = {}

    @staticmethod
    def of(generation: int, skills: Sequence[Skill]) -> "LibraryView":
        """The view of these skills."""
        return LibraryView(generation, SkillIndex().changed(skills))

    @property
    def count(self) -> int:
        """Number of skills."""
        return len(self.index)

    @property
    def skills(self) -> tuple[Skill, ...]:
        """Every skill, by name."""
        return tuple(sorted(self.index.skills(), key=lambda skill: skill.name))

    def get(self, name: str) -> Skill | None:
        """The skill of this name."""
        return self.index.get(name)

    def select(
        self,
        query: str,
        budgets: Budgets,
        scope: Scope | None = None,
        teams: Teams | None = None,
        *,
        today: date,
        without: frozenset[str] = _NOTHING,
        nearness: Nearness | None = None,
    ) -> Selection:
        """What to place for a request of this speaker, without the names in `without`. `nearness` is similarity in meaning; None:
        words only."""
        speaker = self.in_scope(scope, teams, today)
        # Requests that differ only in what is no word (a ticket's number, today's date) are the same request here.
        words = telling_words(query)
        key = (words_digest(words), budgets, without, nearness)
        found = speaker.cached.get(key)
        if found is None:
            wanted = self.index.read(words)
            request = _Request(wanted, nearness, None if scope is None else scope.workspace, today, without)
            found = self._select(request, budgets, speaker)
            found = found._replace(has_withholdable=any(map(may_be_withheld, (*found.full, *found.listed))))
            _remember(speaker.cached, key, found, _CACHED_QUERIES)
        return found

    def retrieve(
        self, query: str, limit: int, scope: Scope | None = None, teams: Teams | None = None, *, today: date | None = None
    ) -> tuple[Skill, ...]:
        """What applies to every task, then up to `limit` rules, facts and skills that match the request, best first, the most
        specific of those that say the same."""
        if limit <= 0:
            return ()
        brief = self.select(query, Budgets(limit, is_brief=True), scope, teams, today=today or date.today())
        return (*brief.rules, *brief.full)

    def in_scope(self, scope: Scope | None, teams: Teams | None, today: date) -> InScope:
        """Rules and skills in scope for this speaker, for any request."""
        ranks, workspace = self._ranks(scope, teams), None if scope is None else scope.workspace
        known = self._speakers.get((ranks, workspace))
        if known is None or (known.until is not None and today > known.until):
            known = self._in_scope(ranks, workspace, today)
            _remember(self._speakers, (ranks, workspace), known, _CACHED_SCOPES)
        return known

    def scopes_of(self, scope: Scope, teams: Teams | None) -> frozenset[str]:
        """The speaker's scopes that some skill here has."""
        return frozenset([named for named, _ in self._ranks(scope, teams)])

    def _ranks(self, scope: Scope | None, teams: Teams | None) -> Ranks:
        if not self._scopes:
            return _FOR_EVERYONE
        return frozenset(named for named in applying(scope, teams).items() if named[0] in self._scopes)

    def _in_scope(self, ranks: Ranks, workspace: str | None, today: date) -> InScope:
        rank, members = dict(ranks), self.index.members
        scopes = (*rank, None)
        groups = [members.skills(scope) for scope in scopes]
        listable = None if any(group is None for group in groups) else [one for group in groups for one in (group or {}).values()]
        standing = [one for scope in scopes for one in members.standing(scope).values()]
        mine = [one for one in (*standing, *(listable or ())) if one.is_for_workspace(workspace) and not one.is_expired(today)]
        chosen = sorted(most_specific(mine, rank), key=lambda one: one.name)
        rules = tuple(one for one in chosen if one.kind is not _SKILL)
        always = sorted((one for one in chosen if one.kind is _SKILL and one.applies_always), key=lambda one: -rank_of(one, rank))
        skills = tuple(one for one in chosen if one.kind is _SKILL and not one.applies_always)
        ends = [one.expires for one in chosen]
        overridden = {name for one in rules for name in overrides_of(one)}
        replaced = ({one.name for one in mine} | overridden) - {one.name for one in chosen}
        return InScope(
            rank,
            frozenset(replaced),
            rules,
            sum(line_tokens(rule, rule_line) for rule in rules),
            tuple(always[:MOST_STANDING]),
            None if listable is None else skills,
            sum(line_tokens(skill, listed_briefly) for skill in skills),
            min((end for end in ends if end is not None), default=None),
            {},
        )

    def _select(self, request: "_Request", budgets: Budgets, speaker: InScope) -> Selection:
        without = request.without
        rules = tuple([rule for rule in speaker.rules if rule.name not in without]) if without else speaker.rules
        if budgets.is_brief or speaker.rules_tokens > budgets.rules_tokens:
            ranked = self.index.rank(request.wanted, request.nearness, _RULES, frozenset(speaker.rank), _MOST_RULES)
            # Several rules may apply at once, so the best match does not displace weaker ones, as it does among skills.
            matching = [one.skill for one in ranked if one.score >= 1.0]
            if not budgets.is_brief:
                # Ranking is surer than telling what matches: where anything does, the next best fill the budget.
                if matching:
                    matching += [one.skill for one in ranked if one.score < 1.0]
                if speaker.rules_tokens <= _NEARLY_FITTING * budgets.rules_tokens:
                    matching += rules
            rules = _most_needed(rules, matching, budgets)
        if not budgets.max_placed:
            return Selection(rules, (), (), speaker.replaced, speaker.until)
        fits = speaker.skills is not None and speaker.skills_tokens <= budgets.skills_tokens
        limit = _MOST_MATCHING if fits or budgets.is_brief else _MOST_LISTED
        found = self.index.rank(request.wanted, request.nearness, _SKILLS, frozenset(speaker.rank), limit)
        found = [one for one in found if not one.skill.applies_always and _may_stand(one.skill, request, speaker)]
        always = [skill for skill in speaker.always if skill.name not in without]
        full = [*always, *(one.skill for one in found if one.is_match)]
        if speaker.skills is None:
            full = list(most_specific(full, speaker.rank))
        taken = sum(rule_when(rule) != ALWAYS for rule in rules) if budgets.is_brief else 0
        full = full[: len(always) + max(0, budgets.max_placed - taken)]
        ends = [one.expires for one in full if "expires" in one.extra]
        until = min((end for end in (*ends, speaker.until) if end is not None), default=None)
        if budgets.is_brief:
            return Selection(rules, tuple(full), (), speaker.replaced, until)
        listed = speaker.skills or ()
        if not fits:
            ranked_first = {one.skill.name: one.skill for one in found} | {one.name: one for one in listed}
            listed = tuple(ranked_first.values())[:_MOST_LISTED]
        placed = without.union([one.name for one in full])
        listed = tuple([one for one in listed if one.name not in placed])
        return Selection(rules, tuple(full), listed, speaker.replaced, until)


class _Request(NamedTuple):
    """A request as a view reads it, for all kinds."""

    wanted: SkillQuery
    nearness: Nearness | None
    workspace: str | None
    today: date
    without: frozenset[str]


def _may_stand(skill: Skill, request: _Request, speaker: InScope) -> bool:
    is_left_out = skill.name in request.without or skill.name in speaker.replaced
    return not is_left_out and skill.is_for_workspace(request.workspace) and not skill.is_expired(request.today)


def _most_needed(rules: tuple[Skill, ...], matching: list[Skill], budgets: Budgets) -> tuple[Skill, ...]:
    """Of rules that do not all fit: the held ones (a rule holds only where it is placed), those for every task, then `matching`,
    best first."""
    known = {rule.name for rule in rules}
    matching = [rule for rule in matching if rule.name in known]
    always = list({rule.name: rule for rule in (*matching, *rules) if rule_when(rule) == ALWAYS}.values())
    matching = [rule for rule in matching if rule_when(rule) != ALWAYS]
    if budgets.is_brief:
        always, matching = always[:MOST_STANDING], matching[: budgets.max_placed]
    held = [rule for rule in rules if is_held(rule)]
    spent, kept = 0, set[str]()
    for group, most in (
        (held, math.inf),
        (always, _ALWAYS_SHARE * budgets.rules_tokens),
        (matching, budgets.rules_tokens),
        (always, budgets.rules_tokens),
    ):
        for rule in group:
            tokens = line_tokens(rule, rule_line)
            if rule.name not in kept and spent + tokens <= most:
                kept.add(rule.name)
                spent += tokens
    return tuple(rule for rule in rules if rule.name in kept)


def _remember(cache: dict[_K, _T], key: _K, value: _T, most: int) -> None:
    if len(cache) >= most:
        cache.clear()
    cache[key] = value


MOST_CONSIDERED = 1000
"""Of a library with more than this, only what is in scope and what matches is explained."""


class Fate(StrEnum):
    """Whether a rule, fact or skill was placed in a turn's prompt, listed, or neither."""

    PLACED = "placed"
    LISTED = "listed"
    NOT_PLACED = "not placed"


class Considered(NamedTuple):
    """A rule, fact or skill, whether it was placed, and why, in words for people."""

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
        """Why this speaker could not get it for any request, or None."""
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
