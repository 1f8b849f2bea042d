"""An evolver that stands for a capable one, scripted: what a person said twice after files went wrong, with those tasks done right.

    the rule in the person's words
    task that went wrong -> its files as they should have been

A language model that has read the correction can do such a task right; here the generator's reference says how, so what is
measured is what the small model makes of a good skill, not how good an evolver is. Only days that are learned from are looked at. A
rule that is said anew in another way takes the place of what was written before. The rules hold whatever the task is (`applies:
always`), as an evolver that knows the house would say, for a task's words seldom show which of them it asks for.
"""

from collections.abc import Iterator
from typing import Final

from benchmarks.workdays.turns import Asked, in_words
from metaclaw.domain.candidate import Change, Proposal
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.skills.rule import ALWAYS
from metaclaw_bench.workdays.demands import Rule

WRITTEN_BY: Final = "scripted evolver"
ENOUGH: Final = 2
_LANGUAGE: Final = "en"


class Evolver:
    """Remembers what went wrong until there is enough of it to write. `shown` says how many tasks a skill shows done right."""

    def __init__(self, shown: int = 1) -> None:
        self._shown = shown
        self._failures: dict[str, list[Asked]] = {}
        self._written: dict[str, tuple[str, SkillName]] = {}

    def hear(self, asked: Asked) -> tuple[Proposal, ...]:
        """What is to be written after this answer: at most one skill for each rule that it broke."""
        if asked.passed or asked.question.is_choice:
            return ()
        return tuple(proposal for rule, words in _told(asked) if (proposal := self._of_rule(rule, words, asked)) is not None)

    def _of_rule(self, rule: Rule, words: str, asked: Asked) -> Proposal | None:
        known = self._written.get(rule.id)
        if known is not None and known[0] == words:
            return None
        failures = self._failures.setdefault(words, [])
        failures.append(asked)
        if len(failures) < ENOUGH:
            return None
        plainest = sorted(failures, key=lambda one: (len(one.question.item.rules), len(one.question.text)))[:ENOUGH]
        name = SkillName(f"house-{rule.id.replace('_', '-')}" + ("" if known is None else "-anew"))
        self._written[rule.id] = (words, name)
        skill = Skill(
            name,
            f"When a task has to do with {rule.topic(_LANGUAGE)}.",
            _body(words, plainest[: self._shown]),
            extra={"applies": ALWAYS},
            author=Authorship.EVOLVER,
        )
        return Proposal(
            skill,
            Change.NEW if known is None else Change.EDIT,
            () if known is None else (known[1],),
            tuple(one.question.turn for one in plainest),
            rule.id,
            WRITTEN_BY,
        )


def _told(asked: Asked) -> Iterator[tuple[Rule, str]]:
    """The rules that the person names when this goes wrong, each in their words."""
    item = asked.question.item
    for rule in item.book.values():
        for variant in rule.variants:
            if (words := rule.says(variant, _LANGUAGE)) in item.round.feedback.incorrect:
                yield rule, words


def _body(words: str, failures: list[Asked]) -> str:
    done_right = "\n".join(f"{one.question.text} -> {in_words(one.question.item.reference)}" for one in failures)
    return f"{words}\nExamples:\n{done_right}"
