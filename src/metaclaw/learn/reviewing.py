"""The gate's safety checks, which run in every mode: secrets, instructions nobody gave, reach that a person must allow."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from metaclaw.domain.candidate import Change, Proposal
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.errors import SkillError
from metaclaw.privacy import Redactor, Span, review, spans_of
from metaclaw.privacy.sentences import open_text
from metaclaw.skills import Shelf
from metaclaw.skills.checks import waits_for_person
from metaclaw.skills.gate import Objection


_BESIDE: Final = 8


class Reviewing:
    """A `DraftCheck` of the gate. `step` reads the turn that taught a proposal."""

    def __init__(self, step: Callable[[TurnId], Step | None], shelf: Shelf, redactor: Redactor) -> None:
        self._step = step
        self._shelf = shelf
        self._redactor = redactor

    def __call__(self, proposal: Proposal) -> Sequence[Objection]:
        """Blocks: it reads every turn that taught the proposal."""
        skill = proposal.skill
        before = [known for name in proposal.replaces if (known := self._shelf.view.get(name)) is not None]
        beside = self._near(proposal)
        found = review(skill, self._spans(proposal), [*beside, *before], self._redactor, beside)
        # What a skill said before this edit was reviewed when it came in; what taught it then is not what teaches it now.
        stood = [open_text(f"{one.trigger}\n\n{one.body}") for one in before if proposal.change is Change.EDIT]
        doubts = [one for one in found.objections if not any(_is_said(one.instruction, text) for text in stood)]
        objections = [Objection(f"it holds a secret ({finding.placeholder})") for finding in found.secrets]
        objections += [Objection(f"{one.doubt}: {one.instruction!r}: {one.reason}") for one in doubts]
        if found.must_wait:
            objections.append(Objection(f"it adds {found.reach.words()}", waits=True))
        return [*objections, *_check_objections(skill)]

    def _spans(self, proposal: Proposal) -> list[Span]:
        steps = (self._step(turn) for turn in proposal.support)
        return [span for step in steps if step is not None for span in spans_of(step)]

    def _near(self, proposal: Proposal) -> list[Skill]:
        """What could stand in the same prompt."""
        skill, view = proposal.skill, self._shelf.view
        scopes = frozenset((skill.scope,)) if skill.scope else frozenset()
        found = view.index.search(f"{skill.trigger}\n{skill.body}", _BESIDE, scopes)
        return [one.skill for one in found if one.skill.name not in (skill.name, *proposal.replaces)]

    def scrub(self, proposal: Proposal) -> Proposal:
        """The proposal without secrets, for what is kept of it."""
        skill = proposal.skill
        trigger, body = self._redactor.text(skill.trigger).text, self._redactor.text(skill.body).text
        if (trigger, body) == (skill.trigger, skill.body):
            return proposal
        return replace(proposal, skill=replace(skill, trigger=trigger, body=body))


def _is_said(instruction: str, text: str) -> bool:
    """Whether a text says this already; of a long instruction, its beginning counts."""
    wanted = " ".join(instruction.removesuffix("…").split())
    return bool(wanted) and wanted in " ".join(text.split())


def _check_objections(skill: Skill) -> list[Objection]:
    try:
        program = waits_for_person(skill)
    except SkillError as error:
        return [Objection(str(error))]
    return [] if program is None else [Objection(program, waits=True)]
