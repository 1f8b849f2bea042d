"""What a stage owes: one file, of a form that its prompt tells, and by a house rule that it is told
only once it has broken it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from metaclaw_bench.research.forms import ContractError
from metaclaw_bench.research.stages import Stage

Files: TypeAlias = Mapping[str, str]
"""What the stages have written so far, by file name."""

Test: TypeAlias = Callable[[str, Files], None]
"""Looks at a file that a stage wrote, beside what was there before. Raises ContractError with what
is wrong.
"""


@dataclass(frozen=True, slots=True)
class Broken:
    """A contract was broken: what is wrong, and the rule that would have prevented it."""

    why: str
    rule: str


@dataclass(frozen=True, slots=True)
class Contract:
    """A stage's contract.

    `task` and `form` stand in its prompt; `rule`, a standing instruction in one sentence, does not:
    it is what there is to learn. `form_rule` is the same for somebody who broke the form. Both
    begin with "when you …" so that it is clear what they are for."""

    stage: Stage
    makes: str
    needs: tuple[str, ...]
    task: str
    form: str
    has_form: Test
    form_rule: str
    keeps_rule: Test
    rule: str

    def broken_by(self, text: str, files: Files) -> Broken | None:
        """Why this file does not fulfil the contract, or None."""
        for test, rule in ((self.has_form, self.form_rule), (self.keeps_rule, self.rule)):
            try:
                test(text, files)
            except ContractError as error:
                return Broken(str(error), rule)
        return None


def no_rule(text: str, files: Files) -> None:
    """For stages that the program does by itself: there is nobody to learn a rule."""
