"""What a person's words become, by the product's own parts, in process: sure phrases, rules, generations.

    said after a turn ─► sure phrases ─► rule ─► the gate's draft checks ─► in force, the next generation ─► placed by session

A rule is in force at once for the one who said it; a newer one takes the place of what the gate says it takes the place of. What is
simplified: no model reads the words, no database, and no check of where the words come from, since all are the person's own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import anyio

from metaclaw.domain.candidate import Change, Proposal
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillKind, library_hash
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Scope
from metaclaw.learn.listen.phrases import sure_rules
from metaclaw.privacy import take_apart
from metaclaw.skills.block import Block, render_block
from metaclaw.skills.evolve import named_apart
from metaclaw.skills.evolve.names import rule_name
from metaclaw.skills.gate.duplicates import IndexLibrary
from metaclaw.skills.gate.gate import Gate, GateMode
from metaclaw.skills.index import SkillIndex
from metaclaw.skills.query import query_text
from metaclaw.skills.scopes import applying, overrides_of, scope_of_lesson
from metaclaw.skills.view import ShelfView

MAX_PLACED = 6
BUDGET_TOKENS = 1500
"""`skills.max_placed` (3 by default, here as many as a seed has rules, and one) and `skills.budget_tokens` (the default)."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of what a person said: skills that are in force now, and those that had to go. `is_instruction`: a rule was in it,
    whether or not it was in force already."""

    born: tuple[SkillName, ...] = ()
    gone: tuple[SkillName, ...] = ()
    is_instruction: bool = False


class House:
    """The skills in force. Each change is a new generation."""

    def __init__(self) -> None:
        self.view = ShelfView(0, library_hash(()), SkillIndex())
        self._gate = Gate(GateMode.FULL)

    def find(self, question: str, scope: Scope) -> tuple[Skill, ...]:
        """The skills that fit a question by itself, best first."""
        return self.view.retrieve(query_text(question), MAX_PLACED, scope)

    def standing(self, scope: Scope, beside: Sequence[Skill]) -> tuple[Skill, ...]:
        """The person's own standing instructions beside these. The product places those in every task that say `applies: always`;
        here all of them are, for which rule a task asks for its words need not say."""
        mine = applying(scope)
        return tuple(
            one for one in self.view.skills if one.author is Authorship.INSTRUCTION and one.scope in mine and one not in beside
        )

    def hear(self, step: Step) -> Heard:
        """Take up what the person said after this turn, or in it."""
        proposals = list(_rules(step))
        changes = [(proposal, gone) for proposal in proposals if (gone := self._admit(proposal, step.scope)) is not None]
        return Heard(
            tuple(proposal.skill.name for proposal, _ in changes),
            tuple(name for _, gone in changes for name in gone),
            bool(proposals),
        )

    def take(self, proposals: Sequence[Proposal]) -> Heard:
        """Put what an evolver wrote in force as it is (`gate = off`), each in place of what it replaces."""
        for proposal in proposals:
            self._publish(proposal.skill, proposal.replaces)
        return Heard(
            tuple(proposal.skill.name for proposal in proposals),
            tuple(name for proposal in proposals for name in proposal.replaces),
        )

    def _admit(self, proposal: Proposal, scope: Scope) -> tuple[SkillName, ...] | None:
        """Put a proposal in force and say what it took the place of; None where it says nothing new, or may not be placed."""
        proposal = replace(proposal, skill=named_apart(proposal.skill, self.view.get))
        if self.view.get(proposal.skill.name) is not None:
            return None  # the same words are in force already
        library = IndexLibrary(self.view.index, frozenset(applying(scope)))
        admission = anyio.run(self._gate.admit, proposal, library)
        if not admission.is_in_force:
            return None
        gone = tuple(name for name in admission.supersedes if self.view.get(name) is not None)
        self._publish(_with_overrides(replace(proposal.skill, state=admission.state), admission.overrides), gone)
        return gone

    def _publish(self, skill: Skill, gone: Sequence[SkillName]) -> None:
        index = self.view.index.changed([skill], gone)
        self.view = ShelfView(self.view.generation + 1, library_hash(index.skills()), index)


class Session:
    """A day's session. A skill placed for one question stays for the next ones, as the product's placer has it: until one is
    withdrawn, or more than `MAX_PLACED` would stand there; then those of the newest question stand there alone."""

    def __init__(self, house: House, scope: Scope) -> None:
        self._house, self._scope = house, scope
        self._placed: tuple[Skill, ...] = ()

    def place(self, question: str) -> tuple[Skill, ...]:
        """The skills in this question's prompt."""
        now = [self._house.view.get(skill.name) for skill in self._placed]
        placed = self._placed if list(self._placed) == now else ()
        found = self._house.find(question, self._scope)
        found = (*found, *self._house.standing(self._scope, found))[:MAX_PLACED]
        new = tuple(skill for skill in found if skill not in placed)
        too_many = sum(not skill.applies_always for skill in (*placed, *new)) > MAX_PLACED
        self._placed = found if new and too_many else (*placed, *new)
        return self._placed


def render(skills: Sequence[Skill]) -> Block:
    """The block as it stands in the prompt."""
    return render_block(skills, BUDGET_TOKENS)


def _with_overrides(skill: Skill, names: Sequence[SkillName]) -> Skill:
    return replace(skill, extra={**skill.extra, "overrides": [*overrides_of(skill), *names]}) if names else skill


def _rules(step: Step) -> Iterator[Proposal]:
    """The rules that the person's words after a turn, or in it, lay down beyond doubt."""
    for said in dict.fromkeys(filter(None, (step.said_after, step.task))):
        for item in sure_rules(take_apart(said)).items:
            rule = Skill(
                rule_name(item.text, "", SkillKind.RULE, lambda name: False),
                item.text,
                item.text,
                scope=scope_of_lesson(step.scope),
                extra={"kind": "rule"},
                author=Authorship.INSTRUCTION,
            )
            yield Proposal(rule, Change.NEW, (), (step.turn,), f"words-{rule.name}", "sure phrases", is_instruction=True)
