"""The rule-follower: a simulated model that keeps a house rule with a known probability, by what
skills in its prompt say of it.

It knows every item of a generated benchmark by its question, and answers with the reference or a
near miss. It plays three roles: the agent's model, the judge (who hears in the person's next words
whether it was right), and the evolver (who writes down the rules of the items that failed). Chance
is drawn from the seed and the question alone, so an answer depends on nothing that was asked
before, and two conditions meet the same luck: they differ exactly where a skill makes the
difference."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from metaclaw_bench.agent.direct import with_files
from metaclaw_bench.json_types import Json
from metaclaw_bench.simulated.listener import unheard
from metaclaw_bench.simulated.model import Call, Prompt, Purpose, Said, Thought, last_words
from metaclaw_bench.simulated.skills import RuleText, Telling, Writing, written
from metaclaw_bench.simulated.verdicts import bare, judged
from metaclaw_bench.workdays.model import Answer, Item

_MOST_SKILLS: Final = 3


@dataclass(frozen=True, slots=True)
class Habits:
    """With which probability a rule is kept: where a skill tells it, tells half of it, tells the
    contrary, or nothing does. `plain` is for rounds that ask for no rule at all."""

    told: float = 0.95
    untold: float = 0.1
    misled: float = 0.02
    plain: float = 0.9

    def chance(self, telling: Telling) -> float:
        """The probability to keep a rule of which this is told."""
        match telling:
            case Telling.WHOLE:
                return self.told
            case Telling.HALF:
                return (self.told + self.untold) / 2
            case Telling.CONTRARY:
                return self.misled
            case Telling.NOTHING | Telling.UNRELATED:
                return self.untold


class Follower:
    """A `SimulatedModel` for the items of a generated benchmark. It reads no rules out of messages,
    so that a run measures what the evolver writes."""

    heard = staticmethod(unheard)

    def __init__(
        self,
        items: Iterable[Item],
        lore: Iterable[RuleText],
        *,
        seed: int,
        habits: Habits = Habits(),  # noqa: B008 (frozen)
        writing: Writing = Writing.STRONG,
    ) -> None:
        self._items = {bare(item.round.question): item for item in items}
        self._lore = {one.rule: one for one in lore}
        self._seed = seed
        self._habits = habits
        self._writing = writing

    def answer(self, prompt: Prompt) -> Thought:
        """What it says in the role it is asked in."""
        match prompt.purpose:
            case Purpose.JUDGE:
                return Said(json.dumps(judged(prompt.text, self._items, self._tried)))
            case Purpose.EVOLVE:
                return Said(json.dumps({"skills": self._proposed(prompt.text)}))
            case _:
                return self._worked(prompt)

    def done(self, item: Item, placed: str) -> Answer:
        """How it answers an item with this text of skills before it."""
        lore = [self._lore[rule] for rule in item.rules if rule in self._lore]
        keeps = all(
            self._luck(item, one.rule)
            < self._habits.chance(one.told_in(placed, one.form_in(_said_of(item))))
            for one in lore
        )
        if keeps and (lore or self._luck(item, "plain") < self._habits.plain):
            return item.reference
        return self._chance(item, "miss").choice(item.near_misses) if item.near_misses else Answer()

    def _worked(self, prompt: Prompt) -> Said:
        spoken = last_words(prompt)
        item = None if spoken is None else self._asked(spoken[1])
        if spoken is None or item is None:
            return Said("Understood.")
        answer = self.done(item, prompt.placed)
        if "write" not in prompt.tools:
            return Said(with_files(answer.text, answer.files))
        if answer.files and not any(message.calls for message in prompt.messages[spoken[0] :]):
            return Said(
                "",
                tuple(
                    Call("write", {"path": path, "content": text})
                    for path, text in answer.files.items()
                ),
            )
        return Said(answer.text or "Done.")

    def _asked(self, message: str) -> Item | None:
        """The item a message asks for: its question stands at the message's end, behind whatever
        was said about the last one.
        """
        words = bare(message)
        found = self._items.get(words)
        if found is not None:
            return found
        return max(
            (item for question, item in self._items.items() if words.endswith(f" {question}")),
            key=lambda item: len(item.round.question),
            default=None,
        )

    def _tried(self, meant: Sequence[Item], answer: str) -> bool:
        return any(_is_in(item.reference, answer) for item in meant)

    def _proposed(self, prompt: str) -> list[Json]:
        """Skills for the rules of the items in the evidence, the commonest first; none for what is
        written already.
        """
        words = bare(prompt)
        failed = [item for question, item in self._items.items() if question in words]
        rules = Counter(rule for item in failed for rule in item.rules if rule in self._lore)
        commonest = [
            self._lore[rule]
            for rule, _ in sorted(rules.items(), key=lambda pair: (-pair[1], pair[0]))
        ]
        new = [one for one in commonest if f"name: {one.name} (" not in prompt][:_MOST_SKILLS]
        return [
            self._written(one, next(item for item in reversed(failed) if one.rule in item.rules))
            for one in new
        ]

    def _written(self, lore: RuleText, failed: Item) -> dict[str, Json]:
        telling = written(self._writing, Random(f"{self._seed} writes {lore.rule}"))
        return lore.skill(lore.form_in(_said_of(failed)), telling)

    def _luck(self, item: Item, what: str) -> float:
        return self._chance(item, what).random()

    def _chance(self, item: Item, what: str) -> Random:
        return Random(f"{self._seed}\0{what}\0{item.round.question}")


def _said_of(item: Item) -> str:
    """Everything that is said about answers to an item: there the rule it asks for stands in its
    form.
    """
    feedback = item.round.feedback
    return "\n".join((feedback.correct, feedback.incorrect, *feedback.options.values()))


def _is_in(reference: Answer, answer: str) -> bool:
    """Whether an answer says and writes all of a reference; files stand in it as they are, or as a
    JSON string.
    """
    shown = (answer, answer.replace("\\/", "/"))
    files = all(
        any(text in one or json.dumps(text)[1:-1] in one for one in shown)
        for text in reference.files.values()
    )
    return files and reference.text in answer
