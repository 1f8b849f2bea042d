"""The view of one generation: select the rules, facts and skills for a request, and explain why
each was placed or not.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import NamedTuple

from metaclaw.clock import local_today
from metaclaw.config import SkillsConfig
from metaclaw.domain.episode import Signature
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import ALWAYS, Lesson, Nearness, Skill, SkillKind
from metaclaw.domain.status import SkippedSkill
from metaclaw.domain.turn import Scope, Turn, TurnKind
from metaclaw.skills.block import (
    RULES_BUDGET_TOKENS,
    already_present,
    line_tokens,
    listed_briefly,
    rule_line,
)
from metaclaw.skills.index import SkillIndex, SkillQuery, telling_words
from metaclaw.skills.query import query_text
from metaclaw.skills.scopes import (
    Teams,
    applies,
    applying,
    most_specific,
    rank_of,
)

MOST_STANDING = 5
"""The most skills that apply to every task and are placed in full."""
_CACHED_QUERIES = 128
_CACHED_SCOPES = 256
_MOST_MATCHING = 24
_MOST_RULES = 64
_MOST_LISTED = 96
# If the rules take at most 3 times their budget, they fill it even if none matches; if they take
# more, none is placed then.
_NEARLY_FITTING = 3
# If the rules do not fit, those for every task get at most this share of the budget before those
# that match.
_ALWAYS_SHARE = 2 / 3
_SKILLS = frozenset((SkillKind.SKILL,))
_RULES = frozenset((SkillKind.RULE, SkillKind.FACT, SkillKind.LESSON))
Ranks = frozenset[tuple[str, int]]
_FOR_EVERYONE: Ranks = frozenset()
_NOTHING: frozenset[str] = frozenset()
_UNKNOWN = Scope()


class Budgets(NamedTuple):
    """Limits of what is placed. `is_brief` places only what matches the request, because long
    blocks confuse small models.
    """

    max_placed: int = 3
    skills_tokens: int = 1500
    rules_tokens: int = RULES_BUDGET_TOKENS
    is_brief: bool = False

    @staticmethod
    def configured(config: SkillsConfig) -> "Budgets":
        """The budgets of a configuration."""
        return Budgets(config.max_placed, config.budget_tokens, config.rules_budget_tokens)


class Selection(NamedTuple):
    """What to place for a request: rules and facts by name, skills in full, best first, and skills
    to list. `replaced` are names that others replace, and `until` is the last day on which the
    selection is valid."""

    rules: tuple[Skill, ...] = ()
    full: tuple[Skill, ...] = ()
    listed: tuple[Skill, ...] = ()
    replaced: frozenset[str] = _NOTHING
    until: date | None = None

    @property
    def all(self) -> tuple[Skill, ...]:
        return (*self.rules, *self.full, *self.listed)


class InScope(NamedTuple):
    """Rules and skills in scope for one speaker, for any request. `replaced` are names that more
    specific ones replace; `skills` is None if there are too many to list; `lessons` are by the
    signature of the failure they are about, `lesson_uses` their names by the calls they are about
    (`Signature.uses_of`); `until` is the last day on which this is valid; `cached` are
    selections."""

    rank: dict[str, int]
    replaced: frozenset[str]
    rules: tuple[Skill, ...]
    rules_tokens: int
    always: tuple[Skill, ...]
    skills: tuple[Skill, ...] | None
    skills_tokens: int
    lessons: Mapping[str, Lesson]
    lesson_uses: Mapping[str, set[SkillName]]
    until: date | None
    cached: dict[Hashable, Selection]


class LibraryView:
    """One generation, immutable and searchable.

    All rules and facts in scope are selected if their lines fit the budget; otherwise those for
    every task, and those that match the request. The skills that match best are selected in full;
    all others in scope are listed if their lines fit, otherwise those that rank best. What depends
    only on the scope is computed once for each scope, and selections are cached."""

    __slots__ = ("_scopes", "_speakers", "generation", "hash", "index", "skipped")

    def __init__(
        self, generation: int, index: SkillIndex, skipped: tuple[SkippedSkill, ...] = ()
    ) -> None:
        self.generation = generation
        self.index = index
        self.hash = index.hash
        self.skipped = skipped
        self._scopes = index.scopes
        self._speakers: dict[tuple[Ranks, str | None, str | None], InScope] = {}

    @staticmethod
    def of(generation: int, skills: Sequence[Skill]) -> "LibraryView":
        return LibraryView(generation, SkillIndex().changed(skills))

    @property
    def count(self) -> int:
        return len(self.index)

    @property
    def skills(self) -> tuple[Skill, ...]:
        """Every skill, by name."""
        return tuple(sorted(self.index.skills(), key=lambda skill: skill.name))

    def get(self, name: str) -> Skill | None:
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
        """What to place for a request of this speaker, without the names in `without`. `nearness`
        is similarity in meaning; None: words only."""
        speaker = self.in_scope(scope, teams, today)
        # Requests that differ only in numbers and the like (a ticket's number, today's date) share
        # an entry of the cache.
        words = telling_words(query) if query else []
        key = (hash(" ".join(words)), budgets, without, nearness)  # a hash does not keep the text
        selection = speaker.cached.get(key)
        if selection is None:
            wanted = self.index.read(words)
            request = _Request(wanted, nearness, scope or _UNKNOWN, today, without)
            selection = self._select(request, budgets, speaker)
            if len(speaker.cached) >= _CACHED_QUERIES:
                speaker.cached.clear()
            speaker.cached[key] = selection
        return selection

    def is_ranked(
        self, budgets: Budgets, scope: Scope | None, teams: Teams | None, *, today: date
    ) -> bool:
        """Whether the words of a request decide what is selected: not where all rules fit and there
        are no skills.
        """
        speaker = self.in_scope(scope, teams, today)
        has_skills = speaker.skills != () and budgets.max_placed > 0
        return has_skills or budgets.is_brief or speaker.rules_tokens > budgets.rules_tokens

    def retrieve(
        self,
        query: str,
        limit: int,
        scope: Scope | None = None,
        teams: Teams | None = None,
        *,
        today: date | None = None,
    ) -> tuple[Skill, ...]:
        """The rules and skills for every task, then up to `limit` rules, facts and skills that
        match the request, best first. Of several that say the same, only the most specific is
        returned."""
        if limit <= 0:
            return ()
        brief = self.select(
            query, Budgets(limit, is_brief=True), scope, teams, today=today or local_today()
        )
        return (*brief.rules, *brief.full)

    def in_scope(self, scope: Scope | None, teams: Teams | None, today: date) -> InScope:
        """Rules and skills in scope for this speaker, for any request."""
        ranks = self._ranks(scope, teams) if self._scopes else _FOR_EVERYONE
        speaker = scope or _UNKNOWN
        key = ranks, speaker.workspace, speaker.channel
        known = self._speakers.get(key)
        if known is None or (known.until is not None and today > known.until):
            place = Scope(None, speaker.workspace, speaker.channel)
            known = self._in_scope(ranks, place, today)
            if len(self._speakers) >= _CACHED_SCOPES:
                self._speakers.clear()
            self._speakers[key] = known
        return known

    def scopes_of(self, scope: Scope, teams: Teams | None) -> frozenset[str]:
        """The speaker's scopes that some skill here has."""
        return frozenset([named for named, _ in self._ranks(scope, teams)] if self._scopes else ())

    def _ranks(self, scope: Scope | None, teams: Teams | None) -> Ranks:
        return frozenset(
            named for named in applying(scope, teams).items() if named[0] in self._scopes
        )

    def _in_scope(self, ranks: Ranks, place: Scope, today: date) -> InScope:
        rank, members = dict(ranks), self.index.members
        scopes = (*rank, None)
        groups = [members.skills(scope) for scope in scopes]
        listable = (
            None
            if None in groups
            else [skill for group in groups for skill in (group or {}).values()]
        )
        standing = [skill for scope in scopes for skill in members.standing(scope).values()]
        everything = (*standing, *(listable or ()))
        in_scope = [
            skill for skill in everything if skill.is_for(place) and not skill.is_expired(today)
        ]
        chosen = sorted(most_specific(in_scope, rank), key=lambda skill: skill.name)
        rules = tuple(skill for skill in chosen if not skill.is_skill)
        always = [skill for skill in chosen if skill.is_skill and skill.applies_always]
        always.sort(key=lambda skill: -rank_of(skill, rank))
        skills = tuple(skill for skill in chosen if skill.is_skill and not skill.applies_always)
        ends = [skill.expires for skill in chosen]
        overridden = {name for rule in rules for name in rule.overrides}
        replaced = ({skill.name for skill in in_scope} | overridden) - {
            skill.name for skill in chosen
        }
        lessons = {
            signature: rule
            for rule in rules
            if isinstance(rule, Lesson)
            for signature in rule.signatures
        }
        lesson_uses: dict[str, set[SkillName]] = {}
        for signature, lesson in lessons.items():
            for use in Signature.uses_of(signature):
                lesson_uses.setdefault(use, set()).add(lesson.name)
        return InScope(
            rank,
            frozenset(replaced),
            rules,
            sum(line_tokens(rule, rule_line) for rule in rules),
            tuple(always[:MOST_STANDING]),
            None if listable is None else skills,
            sum(line_tokens(skill, listed_briefly) for skill in skills),
            lessons,
            lesson_uses,
            min((end for end in ends if end is not None), default=None),
            {},
        )

    def _select(self, request: "_Request", budgets: Budgets, speaker: InScope) -> Selection:
        without = request.without
        rules = (
            tuple([rule for rule in speaker.rules if rule.name not in without])
            if without
            else speaker.rules
        )
        if budgets.is_brief or speaker.rules_tokens > budgets.rules_tokens:
            ranked = self.index.rank(
                request.wanted, request.nearness, _RULES, frozenset(speaker.rank), _MOST_RULES
            )
            # Several rules may apply at once, so a strong match does not displace weaker ones, as
            # it does among skills.
            matching = [hit.skill for hit in ranked if hit.score >= 1.0]
            if not budgets.is_brief:
                # The ranking is more reliable than the bar: if any rule matches, the next best fill
                # the budget.
                if matching:
                    matching += [hit.skill for hit in ranked if hit.score < 1.0]
                if speaker.rules_tokens <= _NEARLY_FITTING * budgets.rules_tokens:
                    matching += rules
            rules = _most_needed(rules, matching, budgets)
        if not budgets.max_placed:
            return Selection(rules, (), (), speaker.replaced, speaker.until)
        fits = speaker.skills is not None and speaker.skills_tokens <= budgets.skills_tokens
        limit = _MOST_MATCHING if fits or budgets.is_brief else _MOST_LISTED
        hits = self.index.rank(
            request.wanted, request.nearness, _SKILLS, frozenset(speaker.rank), limit
        )
        hits = [
            hit
            for hit in hits
            if not hit.skill.applies_always and _may_be_placed(hit.skill, request, speaker)
        ]
        always = [skill for skill in speaker.always if skill.name not in without]
        full = [*always, *(hit.skill for hit in hits if hit.is_match)]
        if speaker.skills is None:
            full = list(most_specific(full, speaker.rank))
        taken = sum(rule.when != ALWAYS for rule in rules) if budgets.is_brief else 0
        full = full[: len(always) + max(0, budgets.max_placed - taken)]
        ends = [skill.expires for skill in full]
        until = min((end for end in (*ends, speaker.until) if end is not None), default=None)
        if budgets.is_brief:
            return Selection(rules, tuple(full), (), speaker.replaced, until)
        listed = speaker.skills or ()
        if not fits:
            ranked_first = {hit.skill.name: hit.skill for hit in hits} | {
                skill.name: skill for skill in listed
            }
            listed = tuple(ranked_first.values())[:_MOST_LISTED]
        placed = without.union([skill.name for skill in full])
        listed = tuple([skill for skill in listed if skill.name not in placed])
        return Selection(rules, tuple(full), listed, speaker.replaced, until)


class _Request(NamedTuple):
    """A request as `_select` needs it."""

    wanted: SkillQuery
    nearness: Nearness | None
    scope: Scope
    today: date
    without: frozenset[str]


def _may_be_placed(skill: Skill, request: _Request, speaker: InScope) -> bool:
    is_left_out = skill.name in request.without or skill.name in speaker.replaced
    return not is_left_out and skill.is_for(request.scope) and not skill.is_expired(request.today)


def _most_needed(
    rules: tuple[Skill, ...], matching: list[Skill], budgets: Budgets
) -> tuple[Skill, ...]:
    """The rules that are placed if not all fit: held rules (a rule holds calls only if it is
    placed), rules for every task, then `matching`, best first."""
    known = {rule.name for rule in rules}
    matching = [rule for rule in matching if rule.name in known]
    always = list({rule.name: rule for rule in (*matching, *rules) if rule.when == ALWAYS}.values())
    matching = [rule for rule in matching if rule.when != ALWAYS]
    if budgets.is_brief:
        always, matching = always[:MOST_STANDING], matching[: budgets.max_placed]
    held = [rule for rule in rules if rule.enforce == "hold"]
    spent, placed = 0, set[str]()
    for group, most in (
        (held, math.inf),
        (always, _ALWAYS_SHARE * budgets.rules_tokens),
        (matching, budgets.rules_tokens),
        (always, budgets.rules_tokens),
    ):
        for rule in group:
            tokens = line_tokens(rule, rule_line)
            if rule.name not in placed and spent + tokens <= most:
                placed.add(rule.name)
                spent += tokens
    return tuple(rule for rule in rules if rule.name in placed)


MOST_CONSIDERED = 1000
"""In a larger library, only rules and skills that are in scope or match are explained."""


class Fate(StrEnum):
    """Whether a rule, fact or skill was placed in a turn's prompt, listed, or neither."""

    PLACED = "placed"
    LISTED = "listed"
    NOT_PLACED = "not placed"


class SkillExplanation(NamedTuple):
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
) -> list[SkillExplanation]:
    """Explain a recorded turn: rules, facts and skills that were placed, then listed, then neither;
    each group by name. Those for other people are left out.

    `task` is the request in the person's own words; `view` the generation in the turn's stamp;
    `today` the day on which it was served; `absorbed` are the rules and skills that the policy
    version had absorbed."""
    query = query_text(task)
    selection = view.select(query, budgets, turn.scope, teams, today=today, without=absorbed)
    speaker = view.in_scope(turn.scope, teams, today)
    reasons = _Reasons(turn, selection, speaker, budgets, today, absorbed)
    placed = {*turn.stamp.skills, *turn.listed}
    considered = [
        reasons.of(skill)
        for skill in _candidates(turn, view, selection, speaker)
        if skill.name in placed or applies(skill.scope, turn.scope, teams)
    ]
    order = list(Fate)
    return sorted(considered, key=lambda item: (order.index(item.fate), item.skill.name))


def _candidates(
    turn: Turn, view: LibraryView, selection: Selection, speaker: InScope
) -> Iterable[Skill]:
    if view.count <= MOST_CONSIDERED:
        return view.skills
    placed = (view.get(name) for name in (*turn.stamp.skills, *turn.listed))
    in_scope = (*selection.all, *speaker.rules, *speaker.always, *(speaker.skills or ()))
    return {skill.name: skill for skill in (*placed, *in_scope) if skill is not None}.values()


@dataclass(eq=False)
class _Reasons:
    """Explains for one turn why each rule, fact or skill was placed or not."""

    turn: Turn
    selection: Selection
    speaker: InScope
    budgets: Budgets
    today: date
    absorbed: frozenset[str]

    def __post_init__(self) -> None:
        self._full = {skill.name for skill in self.selection.full}
        self._request = ""

    def of(self, skill: Skill) -> SkillExplanation:
        if skill.name in self.turn.stamp.skills:
            return SkillExplanation(skill, Fate.PLACED, self._placed(skill))
        if skill.name in self.turn.listed:
            return SkillExplanation(
                skill,
                Fate.LISTED,
                "in scope, and does not match the request well enough to be placed in full",
            )
        return SkillExplanation(
            skill, Fate.NOT_PLACED, self._out_of_reach(skill) or self._left_out(skill)
        )

    def _placed(self, skill: Skill) -> str:
        for placement in self.turn.placements:
            if placement.call_id is not None and skill.name in placement.skills:
                return f"the call {placement.call_id} failed in its way; it is behind that result"
        if skill.applies_always:
            return "applies to every task"
        if not skill.is_skill:
            is_all = self.speaker.rules_tokens <= self.budgets.rules_tokens
            return (
                "in scope, and all rules in scope fit the budget"
                if is_all
                else "matches the request, or ranked high enough"
            )
        return (
            "matches the request"
            if skill.name in self._full
            else "placed for an earlier task of this session"
        )

    def _out_of_reach(self, skill: Skill) -> str | None:
        """Why it could not be placed for this speaker at any request, or None."""
        turn = self.turn
        if turn.kind is TurnKind.SIDE:
            return f"a side turn ({turn.kind_reason}): it gets only rules about what it writes"
        if not skill.is_for_workspace(turn.scope.workspace):
            return f"out of scope: it is for the project {skill.workspace}"
        if not skill.is_for(turn.scope):
            return f"out of scope: it is for the channel {skill.channel}"
        if skill.is_expired(self.today):
            return f"expired after {skill.expires}"
        if skill.name in self.absorbed:
            return "the weights that answered know it without being told"
        if skill.name in self.speaker.replaced:
            by = next((one for one in self.speaker.rules if skill.name in one.overrides), None)
            if by is None:
                return "a more specific or newer one replaces it"
            where = by.workspace or by.channel
            return f"{by.name} counts instead{f' in {where}' if where else ''}"
        return None

    def _left_out(self, skill: Skill) -> str:
        if skill.is_skill and skill.name in self._full and self._is_brought(skill):
            return "the client has put it into the prompt itself"
        if not skill.is_skill:
            if skill in self.selection.rules:
                return (
                    "not in force yet when this task began, or there was no room for it in the"
                    " prompt"
                )
            if self.speaker.rules_tokens <= self.budgets.rules_tokens:
                return (
                    "it does not match the request, and the embedded model is given only what does"
                )
            tokens = f"{self.speaker.rules_tokens} of {self.budgets.rules_tokens} tokens"
            return (
                f"over budget: the rules in scope take {tokens}, and it does not match the request"
            )
        if not self.budgets.max_placed:
            return "skills are switched off (skills.max_placed is 0)"
        if skill.name in self._full:
            return "over budget: it matches the request, but does not fit beside the others"
        if self.budgets.is_brief:
            return (
                "below the bar: it does not match the request, and the embedded model is given no"
                " list"
            )
        if skill in self.selection.listed:
            return "not listed: not in force yet when this session began, or its line did not fit"
        return "below the bar: it does not match the request, and the list of skills is full"

    def _is_brought(self, skill: Skill) -> bool:
        if not self._request:
            self._request = self.turn.exchange.request.decode("utf-8", "replace").replace(
                "\\n", "\n"
            )
        return already_present(skill, self._request)
