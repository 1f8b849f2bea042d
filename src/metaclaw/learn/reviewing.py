"""The gate's safety checks, which run in every mode: secrets, instructions nobody gave, reach that a person must allow."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from metaclaw.domain.candidate import Proposal
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.step import Step
from metaclaw.privacy import Redactor, Span, review, spans_of
from metaclaw.skills import Shelf
from metaclaw.skills.checks import waits_for_person
from metaclaw.skills.gate import Objection


class Reviewing:
    """A `DraftCheck` of the gate. `step` reads the turn that taught a proposal."""

    def __init__(self, step: Callable[[TurnId], Step | None], shelf: Shelf, redactor: Redactor) -> None:
        self._step = step
        self._shelf = shelf
        self._redactor = redactor

    def __call__(self, proposal: Proposal) -> Sequence[Objection]:
        """Blocks: it reads every turn that taught the proposal."""
        skill = proposal.skill
        existing = self._near(skill)
        found = review(skill, self._spans(proposal), existing, self._redactor, existing)
        objections = [Objection(f"it holds a secret ({finding.placeholder})") for finding in found.secrets]
        objections += [Objection(f"{one.doubt}: {one.instruction!r}: {one.reason}") for one in found.objections]
        if found.must_wait:
            objections.append(Objection(f"it adds {found.reach.words()}", waits=True))
        program = waits_for_person(skill)
        return objections if program is None else [*objections, Objection(program, waits=True)]

    def _spans(self, proposal: Proposal) -> list[Span]:
        steps = (self._step(turn) for turn in proposal.support)
        return [span for step in steps if step is not None for span in spans_of(step)]

    def _near(self, skill: Skill) -> list[Skill]:
        """What could stand in the same prompt."""
        view = self._shelf.view
        found = view.index.search(f"{skill.trigger}\n{skill.body}", 8, frozenset((skill.scope,)) if skill.scope else frozenset())
        return [one.skill for one in found if one.skill.name != skill.name]

    def scrub(self, proposal: Proposal) -> Proposal:
        """The proposal without secrets, for what is kept of it."""
        skill = proposal.skill
        trigger, body = self._redactor.text(skill.trigger).text, self._redactor.text(skill.body).text
        if (trigger, body) == (skill.trigger, skill.body):
            return proposal
        return replace(proposal, skill=replace(skill, trigger=trigger, body=body))
