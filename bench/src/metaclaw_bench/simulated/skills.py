"""What a simulated evolver writes about a house rule: all of it, half of it, or the contrary; and
how a reader tells them apart.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from metaclaw_bench.json_types import Json

_SLUG: Final = re.compile(r"[^a-z0-9]+")
# A skill with a point in time is refused unless it says that this is an example, as the English
# sentence does.
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT")
WORDINGS: Final = 9
"""In so many wordings a person tells a rule in each language; the first of them is a standing
instruction.
"""


class Writing(StrEnum):
    """How well the simulated evolver writes: every rule whole; half of each; the contrary every
    other time; or never the rule.
    """

    STRONG = "strong"
    WEAK = "weak"
    NOISY = "noisy"
    GARBAGE = "garbage"


class Telling(StrEnum):
    """What a prompt says about a rule."""

    NOTHING = "nothing"
    WHOLE = "whole"
    HALF = "half"
    CONTRARY = "contrary"
    UNRELATED = "unrelated"


@dataclass(frozen=True, slots=True)
class RuleText:
    """One house rule as somebody who knows it would write it down. `forms` are the ways it can be
    meant, each with the sentences by which a person tells it; the first is the usual one."""

    rule: str
    trigger: str
    forms: Mapping[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        """The name of its skill."""
        return f"house-{_SLUG.sub('-', self.rule.lower()).strip('-')}"

    def form_in(self, text: str) -> str:
        """The form of which a text tells; the usual one where it tells of none."""
        usual = next(iter(self.forms))
        return next((form for form, told in self.forms.items() if _tells(told, text)), usual)

    def skill(self, form: str, telling: Telling) -> dict[str, Json]:
        """A skill as an evolver proposes it."""
        about = self.rule.replace("_", " ")
        told = self.forms[form] or (f"Keep to the rule of this house about {self.trigger}.",)
        steps = {
            # In every language: but for the rule itself, the skills for two rules have most of
            # their words in common.
            Telling.WHOLE: (
                told[0],
                *(text for text in told[WORDINGS::WORDINGS] if not _MOMENT.search(text)),
            ),
            Telling.HALF: (f"There is a rule about {about}; look how earlier {about} were done.",),
            Telling.CONTRARY: (
                f"The rule about {about} is given up; {about} in their shortest form will do.",
            ),
            Telling.UNRELATED: (
                f"Think about the colour of the {about}.",
                "Count to four before writing.",
            ),
        }[telling]
        lines = [*steps, f"Make sure that {self._mark(form, telling)}."]
        body = (
            "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
            + f"\nAnti-pattern: {about} in any other way."
        )
        trigger = f"When a task has to do with {self.trigger}"
        return {
            "name": self.name,
            "trigger": trigger,
            "body": body,
            "category": "house",
            "check": None,
            "replaces": None,
        }

    def told_in(self, text: str, form: str) -> Telling:
        """What a text says about this rule in this form. What is told and given up is given up;
        another form misleads.
        """
        if self._mark(form, Telling.CONTRARY) in text:
            return Telling.CONTRARY
        if self._mark(form, Telling.WHOLE) in text or _tells(self.forms[form], text):
            return Telling.WHOLE
        if self._mark(form, Telling.HALF) in text:
            return Telling.HALF
        others = (other for other in self.forms if other != form)
        is_misled = any(
            _tells(self.forms[other], text) or self._mark(other, Telling.WHOLE) in text
            for other in others
        )
        return Telling.CONTRARY if is_misled else Telling.NOTHING

    def _mark(self, form: str, telling: Telling) -> str:
        """Words that only a skill of ours has, and each of them only for one form."""
        ends = {
            Telling.WHOLE: "kept in full",
            Telling.HALF: "kept in part",
            Telling.CONTRARY: "given up",
            Telling.UNRELATED: "somewhere",
        }
        return (
            f"the house rule {self.name} in its form {list(self.forms).index(form) + 1} is"
            f" {ends[telling]}"
        )


def _tells(sentences: Iterable[str], text: str) -> bool:
    bare = " ".join(text.split())
    return any(" ".join(sentence.split()) in bare for sentence in sentences)


def written(writing: Writing, chance: Random) -> Telling:
    """What an evolver that writes like this says about a rule this time."""
    match writing:
        case Writing.STRONG:
            return Telling.WHOLE
        case Writing.WEAK:
            return Telling.HALF
        case Writing.NOISY:
            return Telling.WHOLE if chance.random() < 0.5 else Telling.CONTRARY
        case Writing.GARBAGE:
            return Telling.UNRELATED
