"""The gate's safety checks, which run in every mode: secrets, instructions nobody gave, reach that a person must allow."""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import islice
from operator import or_
from typing import Final

from metaclaw.domain.candidate import Change, Proposal
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.errors import SkillError
from metaclaw.learn.shelf import SkillShelf
from metaclaw.privacy import Doubt, Passage, Redactor, combined_capabilities, passages_of, review_skill
from metaclaw.skills import IndexLibrary, Objection, is_untouchable, waits_for_person
from metaclaw.text import instructions, split_sentences, visible_text

_TOGETHER: Final = 7  # with the skill itself as many as are looked at together; further ones are looked at in pairs
_MOST_KIN: Final = 48
_NEAR: Final = 8
_OF_ORIGIN: Final = frozenset((Doubt.UNBACKED, Doubt.BORROWED, Doubt.ATTRIBUTED))


class SafetyReview:
    """A `DraftCheck` of the gate. `step` reads the turn that taught a proposal."""

    def __init__(self, step: Callable[[TurnId], Step | None], shelf: SkillShelf, redactor: Redactor) -> None:
        self._step = step
        self._shelf = shelf
        self._redactor = redactor

    def __call__(self, proposal: Proposal) -> Sequence[Objection]:
        """Blocks: it reads every turn that taught the proposal."""
        skill = proposal.skill
        before = [known for name in proposal.replaces if (known := self._shelf.view.get(name)) is not None]
        near, beside = self._near(proposal), self._beside(proposal)
        # What skills for the same situation may reach already is nothing new; what others may reach elsewhere is.
        found = review_skill(skill, self._spans(proposal), [*near, *before], self._redactor, beside[:_TOGETHER])
        reach = reduce(or_, (combined_capabilities((skill, one)) for one in beside[_TOGETHER:]), found.reach)
        stood = _said_before(proposal, before)
        doubts = [one for one in found.objections if one.doubt not in _OF_ORIGIN or one.instruction not in stood]
        objections = [Objection(f"it holds a secret ({finding.placeholder})") for finding in found.secrets]
        objections += [Objection(f"{one.doubt}: {one.instruction!r}: {one.reason}") for one in doubts]
        if reach:
            objections.append(Objection(f"it adds {reach.words()}", waits=True))
        return [*objections, *_check_objections(skill)]

    def _spans(self, proposal: Proposal) -> list[Passage]:
        steps = (self._step(turn) for turn in proposal.support)
        return [span for step in steps if step is not None for span in passages_of(step)]

    def _beside(self, proposal: Proposal) -> list[Skill]:
        """What could stand in the same prompt, the likeliest first: skills for the same situation, those for every task, and other
        learned ones of its scope. An attacker's pieces need share no word with each other."""
        skill, index = proposal.skill, self._shelf.view.index
        alike = IndexLibrary(index).near(skill)
        standing = [one for scope in {None, skill.scope} for one in index.members.standing(scope).values()]
        kin = (one for one in index.skills() if one.scope in (None, skill.scope) and not is_untouchable(one))
        found = {one.name: one for one in (*alike, *standing, *islice(kin, _MOST_KIN))}
        return [one for name, one in found.items() if name not in (skill.name, *proposal.replaces)]

    def _near(self, proposal: Proposal) -> list[Skill]:
        """Skills for the same situation."""
        skill, index = proposal.skill, self._shelf.view.index
        scopes = frozenset((skill.scope,)) if skill.scope else frozenset()
        found = index.search(f"{skill.trigger}\n{skill.body}", _NEAR, scopes)
        return [one.skill for one in found if one.skill.name not in (skill.name, *proposal.replaces)]


def _said_before(proposal: Proposal, before: Sequence[Skill]) -> frozenset[str]:
    """The sentences of a skill that is edited, as they stand: they were reviewed when they came in, with what taught them then."""
    if proposal.change is not Change.EDIT:
        return frozenset()
    texts = [f"{one.trigger}\n\n{one.body}" for one in before]
    orders = {order.text for text in texts for order in instructions(text)}
    return frozenset(orders | {one for text in texts for one in split_sentences(visible_text(text), with_code=True)})


def _check_objections(skill: Skill) -> list[Objection]:
    try:
        program = waits_for_person(skill)
    except SkillError as error:
        return [Objection(str(error))]
    return [] if program is None else [Objection(program, waits=True)]
