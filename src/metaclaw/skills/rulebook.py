"""A person's changes to the rules and skills in force: add, change and remove rules, undo the last
lesson, restore, keep, pin.

Works on the library and the generation store, with or without a running proxy. Everything blocks.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Final

from metaclaw.clock import local_today
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import (
    Authorship,
    GenerationChange,
    RetiredSkill,
    Rule,
    Skill,
    SkillState,
)
from metaclaw.errors import SkillError
from metaclaw.ports import GenerationHistory
from metaclaw.skills.files import parse_skill, remove_skill
from metaclaw.skills.library import FILES, SkillLibrary
from metaclaw.skills.rules import RuleFields, changed_rule, find_same, new_rule
from metaclaw.skills.scopes import Reach

_UNDID: Final = re.compile(r"undid generation (\d+)")
UNCONFIRMED: Final = "unconfirmed"
"""The reason of a generation begins with this word if it retires a rule from a sure phrase that the
model did not confirm."""
REWORDED: Final = "reworded"
"""As above, if the same rule is in force in the model's words."""
CHECK_ADDED: Final = "looked for a check of"
_PAGE: Final = 50
_LATELY: Final = 20
_MOST_PAGES: Final = 100
_NAMES_TOLD: Final = 5
Dates = dict[SkillName, tuple[datetime | None, datetime | None]]


@dataclass(frozen=True, slots=True)
class Undone:
    """A lesson that was undone: its generation and reason, the skills removed, the skills restored,
    and the new generation.
    """

    lesson: int
    reason: str
    removed: tuple[Skill, ...]
    restored: tuple[Skill, ...]
    generation: int


@dataclass(eq=False)
class Rulebook:
    """Applies a person's changes; each makes one generation."""

    library: SkillLibrary
    history: GenerationHistory
    today: Callable[[], date] = local_today
    reach: Reach | None = None
    """What the person sees and may change; None if that is everything."""

    def sees(self, skill: Skill) -> bool:
        return self.reach is None or self.reach.sees(skill)

    def owns(self, skill: Skill) -> bool:
        """Whether the person may change this skill, rule or fact."""
        return self.reach is None or self.reach.owns(skill)

    def skills(self) -> list[Skill]:
        """All that is in force."""
        return list(filter(self.sees, self.library.follow().skills))

    def find(self, name: str) -> Skill | None:
        """The skill, rule or fact of this name: in force, or as it was when it was last retired."""
        found = self.library.view.get(name) or self.library.settled().get(name)
        if found is None:
            found = next((one.skill for one in self.retired() if one.skill.name == name), None)
        return found if found is not None and self.sees(found) else None

    def rules(self) -> list[Rule]:
        """Rules and facts in force, by name."""
        return [
            skill
            for skill in self.library.view.skills
            if isinstance(skill, Rule) and self.sees(skill)
        ]

    def rule(self, name: str) -> Rule:
        """The rule or fact of this name, also if it is being published now. Blocks. Raises
        SkillError.
        """
        found = self.library.view.get(name) or self.library.settled().get(name)
        if found is None or not self.sees(found):
            raise SkillError(
                f"there is no rule named {name}; metaclaw rules list shows those there are"
            )
        if not isinstance(found, Rule):
            raise SkillError(f"{name} is a skill, not a rule: use metaclaw skills")
        return found

    def add(self, wanted: Sequence[RuleFields]) -> list[tuple[Rule, bool]]:
        """Put rules and facts in force in one generation. Returns each with whether it is new: if
        one that says the same is in force, that is returned."""
        known = {str(retired.skill.name): retired.skill for retired in self.history.retired()}
        known |= {str(skill.name): skill for skill in self.library.view.skills}
        in_force = list(filter(self.sees, self.library.view.skills))
        added: list[Rule] = []
        rules: list[tuple[Rule, bool]] = []
        for fields in wanted:
            rule = new_rule(self._personal(fields), known.get, self.today())
            self._require_own(rule)
            self._require_plain(rule)
            same = find_same(rule, in_force)
            rules.append((rule, True) if same is None else (same, False))
            if same is None:
                added.append(rule)
                in_force.append(rule)
                known[rule.name] = rule
        if added:
            self.library.publish(
                added,
                (),
                _noted(added),
                expected={rule.name: None for rule in added},
                by_person=True,
            )
        return rules

    def change(self, name: str, fields: RuleFields) -> Rule:
        """Change a rule; return it as it is now."""
        rule = self.rule(name)
        self._require_own(rule)
        changed = changed_rule(rule, fields, self.today())
        self._require_own(changed)
        if "check" in fields:
            self._require_plain(changed)
        expected = {rule.name: rule.content_hash}
        self.library.publish(
            [changed], (), f"edited the {rule.kind} {name}", expected=expected, by_person=True
        )
        return self.rule(name)

    def _personal(self, fields: RuleFields) -> RuleFields:
        """The fields of a new rule: it is for the person, unless they may speak for others."""
        if self.reach is None or fields.get("scope") is not None:
            return fields
        return {**fields, "scope": f"user:{self.reach.user}"}

    def _require_own(self, skill: Skill) -> None:
        if not self.owns(skill):
            raise SkillError(
                f"{skill.name} is for {skill.scope or 'everyone'}: only an owner's key changes it"
            )

    def _require_plain(self, rule: Rule) -> None:
        if self.reach is not None and (rule.check or "").lstrip().startswith("program:"):
            raise SkillError("only an owner's key may write a check that is a program")

    def remove(self, name: str) -> Rule:
        """Retire a rule; return it as it was."""
        rule = self.rule(name)
        self._require_own(rule)
        self.library.publish((), (rule.name,), f"removed the {rule.kind} {name}", by_person=True)
        return rule

    def retired(self) -> list[RetiredSkill]:
        """Retired skills, rules and facts, the last retired first."""
        return [retired for retired in self.history.retired() if self.sees(retired.skill)]

    def dates(self) -> Dates:
        """For each skill that is or was in force, when it first came into force and when it was last
        changed.
        """
        return self.history.dates()

    def restore(self, name: str) -> Skill:
        """Put a retired skill, rule or fact in force again, as it last was; a learned skill is
        pinned.
        """
        if (live := self.library.view.get(name)) is not None and self.sees(live):
            raise SkillError(f"{name} is in force already")
        retired = next((retired for retired in self.retired() if retired.skill.name == name), None)
        if retired is None:
            raise SkillError(
                f"there is no retired skill or rule named {name}; metaclaw skills list --retired"
                " shows those there are"
            )
        skill = _wanted(retired.skill)
        self._require_own(skill)
        self.library.publish(
            [skill], (), f"restored {name}", expected={skill.name: None}, by_person=True
        )
        return skill

    def pin(self, name: str, *, pinned: bool) -> Skill:
        """Pin a live skill, so that the program does not change or retire it; or unpin it."""
        skill = self._skill(name)
        return self._settle(
            replace(skill, pinned=pinned), f"{'pinned' if pinned else 'unpinned'} {name}"
        )

    def rewrite(
        self,
        name: str,
        *,
        trigger: str | None = None,
        body: str | None = None,
        text: str | None = None,
    ) -> Skill:
        """Change a skill's trigger or body, or its whole file (`text`), and make the person its
        author: the program no longer changes or retires it.
        """
        skill = self.library.view.get(name)
        if skill is not None and not skill.is_skill:
            raise SkillError(
                f"{name} is a {skill.kind}: change it with: metaclaw rules edit {name}"
            )
        skill = self._skill(name)
        changed = skill if text is None else parse_skill(text, "the edited text")
        if changed.name != skill.name:
            raise SkillError(
                f"the name was changed to {changed.name}: leave `name: {name}`, or add it as a skill"
                " of its own"
            )
        try:
            changed = replace(
                changed, trigger=trigger or changed.trigger, body=body or changed.body
            )
        except ValueError as error:
            raise SkillError(str(error)) from error
        return self._settle(
            replace(changed, author=Authorship.PERSON, state=SkillState.LIVE),
            f"edited the skill {name}",
            skill,
        )

    def put(self, skills: Sequence[Skill]) -> None:
        """Put skills in force as if a person had written their files."""
        names = ", ".join(skill.name for skill in skills[:_NAMES_TOLD])
        more = f" and {len(skills) - _NAMES_TOLD} more" if len(skills) > _NAMES_TOLD else ""
        self.library.publish(skills, (), f"{FILES}: added {names}{more}", by_person=True)

    def delete(self, name: str) -> None:
        """Delete a skill's folder, also one that cannot be read. Raises SkillError."""
        remove_skill(self.library.folder, name)
        if self.library.view.get(name) is not None:
            self.library.retire(SkillName(name), f"{FILES}: removed {name}")

    def draft(self, fields: RuleFields) -> Rule:
        """A new rule or fact that is not in force. Blocks. Raises SkillError."""
        rule = new_rule(fields, lambda name: self.library.view.get(SkillName(name)), self.today())
        self._require_plain(rule)
        return rule

    def adopt(self, skill: Skill) -> Skill:
        """Put a rejected proposal in force, with the person as its author."""
        self._require_own(skill)
        wanted = replace(skill, author=Authorship.PERSON, state=SkillState.LIVE)
        self.library.publish(
            [wanted],
            (),
            f"a person took {skill.name} after all",
            expected={skill.name: None},
            by_person=True,
        )
        return wanted

    def undo(self, generation: int | None = None) -> Undone:
        """Undo the last lesson that is still in force, or that of `generation`. A lesson is a rule
        or fact noted, changed or removed, or a skill learned, edited or retired. Raises SkillError
        if there is none."""
        for change in (
            self._lessons() if generation is None else self.history.changes(generation + 1, 1)
        ):
            if generation is not None and change.number != generation:
                break
            if not all(map(self.owns, _skills_of(change))):
                continue
            removed, restored = self._reversal(change)
            if removed or restored:
                reason = f"undid generation {change.number} ({change.reason})"
                expected = {skill.name: skill.content_hash for skill in removed}
                view = self.library.publish(
                    restored,
                    [skill.name for skill in removed],
                    reason,
                    expected=expected,
                    by_person=True,
                )
                return Undone(
                    change.number, change.reason, tuple(removed), tuple(restored), view.generation
                )
        if generation is not None:
            raise SkillError(
                f"generation {generation} cannot be taken back: what it changed has been changed"
                " again since"
            )
        raise SkillError(
            "there is no lesson to take back; metaclaw skills history shows what was in force when"
        )

    def lately(self) -> Iterator[GenerationChange]:
        """The lessons and undos, newest first, read page by page; without ends of trials, changes
        of files by hand, and rules that are in force in better words.
        """
        # Not cached, because a forgotten session must disappear from here at once.
        before: int | None = None
        reworded: set[SkillName] = set()
        for _ in range(_MOST_PAGES):
            page = self.history.changes(before, _LATELY, skip=FILES)
            for change in page:
                if change.reason.startswith(REWORDED):
                    reworded |= change.before.keys()
                elif (
                    _says_something_else(change)
                    and not reworded >= change.before.keys() | change.after.keys()
                    and all(map(self.sees, _skills_of(change)))
                ):
                    yield change
            if len(page) < _LATELY:
                return
            before = page[-1].number

    def is_reversible(self, change: GenerationChange) -> bool:
        """Whether a part of a lesson is still in force and can be undone."""
        return all(map(self.owns, _skills_of(change))) and any(self._reversal(change))

    def _lessons(self) -> Iterator[GenerationChange]:
        """The lessons that were not undone, newest first. The reason of an undo names the
        generation of its lesson.
        """
        before: int | None = None
        undone: set[int] = set()
        while page := self.history.changes(before, _PAGE, skip=FILES):
            for change in page:
                if undo := _UNDID.match(change.reason):
                    undone.add(int(undo[1]))
                elif (
                    not change.is_revert
                    and change.number not in undone
                    and not change.reason.startswith((UNCONFIRMED, REWORDED, CHECK_ADDED))
                ):
                    yield change
            before = page[-1].number

    def _reversal(self, change: GenerationChange) -> tuple[list[Skill], list[Skill]]:
        """The skills to remove and those to restore, without skills that were changed again
        since.
        """
        removed: list[Skill] = []
        restored: list[Skill] = []
        for name in sorted(change.before.keys() | change.after.keys()):
            was, made, now = (
                change.before.get(name),
                change.after.get(name),
                self.library.view.get(name),
            )
            if _meaning(was) == _meaning(made) or _meaning(now) != _meaning(made):
                continue
            if was is not None:
                restored.append(was if now is not None else _wanted(was))
            elif now is not None:
                removed.append(now)
        return removed, restored

    def _skill(self, name: str) -> Skill:
        found = self.library.view.get(name)
        if found is None or not self.sees(found):
            raise SkillError(
                f"there is no skill named {name} in force; metaclaw skills list shows those"
                " there are"
            )
        self._require_own(found)
        if not found.is_skill:
            raise SkillError(
                f"{name} is a {found.kind}: your own words are never retired by the program"
            )
        return found

    def _settle(self, skill: Skill, reason: str, before: Skill | None = None) -> Skill:
        """Publish a skill as a person's decision; `before` is the skill as they saw it, if its text
        changes.
        """
        self.library.publish(
            [skill],
            (),
            reason,
            expected={skill.name: (before or skill).content_hash},
            by_person=True,
        )
        return skill


def _skills_of(change: GenerationChange) -> list[Skill]:
    return [*change.before.values(), *change.after.values()]


def _says_something_else(change: GenerationChange) -> bool:
    names = change.before.keys() | change.after.keys()
    return any(
        _meaning(change.before.get(name)) != _meaning(change.after.get(name)) for name in names
    )


def _noted(rules: Sequence[Skill]) -> str:
    if len(rules) == 1:
        return f"noted the {rules[0].kind} {rules[0].name}"
    names = ", ".join(rule.name for rule in rules[:_NAMES_TOLD])
    return f"noted {len(rules)} rules: {names}{' and more' if len(rules) > _NAMES_TOLD else ''}"


def _wanted(skill: Skill) -> Skill:
    """A skill that a person wants in force: live, and pinned if the program could retire it."""
    is_learned = skill.author is Authorship.EVOLVER
    return replace(skill, state=SkillState.LIVE, pinned=skill.pinned or is_learned)


def _meaning(skill: Skill | None) -> tuple[object, ...] | None:
    return None if skill is None else skill.meaning
