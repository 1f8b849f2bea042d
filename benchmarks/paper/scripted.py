"""The model behind the proxy that judges and writes skills: the benchmark's own checkers, and a
script instead of an evolver.

A skill is the rule in the person's words with a task that went wrong done right. A language model
that has read the correction could write it; here the generator's reference says how. So this
measures what the small model makes of a good skill, not the evolver. Each rule is written once."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from metaclaw_bench.json_types import Json
from metaclaw_bench.questions import ChoiceCheck
from metaclaw_bench.simulated.model import Prompt, Purpose, Said, Thought
from metaclaw_bench.simulated.rule_judge import RuleJudge
from metaclaw_bench.simulated.verdicts import bare
from metaclaw_bench.workdays import Answer, Files, Item
from metaclaw_bench.workdays.demands import Rule

_LANGUAGE: Final = "en"
_MOST_EXAMPLES: Final = 3


class ScriptedModel(RuleJudge):
    """Judges as the checkers do, and writes a skill for each rule that a person had to name."""

    def __init__(self, items: Sequence[Item], before: Mapping[str, Files]) -> None:
        super().__init__(items, before)
        self._known = {bare(item.round.question): item for item in items}
        self._written: set[str] = set()

    def forget(self) -> None:
        """Write every rule once more."""
        self._written.clear()

    def answer(self, prompt: Prompt) -> Thought:
        """What it says in the role it is asked in."""
        if prompt.purpose is not Purpose.EVOLVE:
            return super().answer(prompt)
        words = bare(prompt.text)
        broken = [
            item
            for question, item in self._known.items()
            if question in words and item.round.feedback.incorrect
        ]
        skills = skills_for(broken, self._written)
        return Said(json.dumps({"skills": skills}))


def skills_for(items: Sequence[Item], written: set[str]) -> list[Json]:
    """One skill for each rule that these tasks, which went wrong, ask for; the plainest task shows
    it. `written` grows.
    """
    by_rule: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda one: (len(one.rules), len(one.round.question))):
        if not isinstance(item.round.check, ChoiceCheck):
            for rule, _ in told(item):
                by_rule.setdefault(rule.id, []).append(item)
    new = {rule: found for rule, found in by_rule.items() if rule not in written}
    written.update(new)
    return [_skill(rule, found) for rule, found in new.items()]


def told(item: Item) -> list[tuple[Rule, str]]:
    """The rules that the person names when this goes wrong, each in their words."""
    incorrect = item.round.feedback.incorrect
    found = [
        (rule, rule.says(variant, _LANGUAGE))
        for rule in item.book.values()
        for variant in rule.variants
    ]
    return [(rule, words) for rule, words in found if words in incorrect]


def skill_name(rule: Rule) -> str:
    """The name of the skill for a rule."""
    return f"house-{rule.id.replace('_', '-')}"


def _skill(rule_id: str, items: Sequence[Item]) -> Json:
    rule, words = next(pair for pair in told(items[0]) if pair[0].id == rule_id)
    question = items[0].round.question
    return {
        "name": skill_name(rule),
        "trigger": (
            f"When a file is to be written, and {rule.topic(_LANGUAGE)} stand in it or in its name."
        ),
        "body": f"{words}\nExample:\n{question} -> {in_words(items[0].reference)}",
        "category": "house",
        "examples": list[Json](item.round.question for item in items[:_MOST_EXAMPLES]),
        "check": None,
    }


def in_words(answer: Answer) -> str:
    """A reference answer as a model is to write it."""
    files = "\n".join(f"FILE {path}\n{contents.strip()}" for path, contents in answer.files.items())
    return "\n".join(part for part in (answer.text.strip(), files) if part)
