"""A simulated researcher: it fulfils every stage's contract with a known probability, a higher one
where its prompt has the rule.

It is no model and never called one. What it writes is right or breaks one house rule; whether, is
drawn from the seed, the stage, the topic and how often it was asked, so the same prompt gets the
same answer and two conditions meet the same luck."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from metaclaw_bench.http_client import ModelError
from metaclaw_bench.research.asking import Reply
from metaclaw_bench.research.contracts import CONTRACTS
from metaclaw_bench.research.contracts.experiments import MORE_VALUES_RULE
from metaclaw_bench.research.prompts import Message, is_told, stage_of
from metaclaw_bench.research.references import refined, write
from metaclaw_bench.research.stages import Stage
from metaclaw_bench.simulated.model import (
    Broken,
    Prompt,
    Purpose,
    Said,
    SimulatedModel,
    Thought,
    without_placed,
)
from metaclaw_bench.simulated.model import Message as Shown

_TOPIC: Final = re.compile(r"^Topic: (.+)$", re.MULTILINE)
_NAMES: Final = {
    name for contract in CONTRACTS.values() for name in (contract.makes, *contract.needs)
}
_FILE: Final = re.compile(rf"^### ({'|'.join(map(re.escape, sorted(_NAMES)))})\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Habits:
    """With which probability a rule is kept: where it stands in the prompt, and where it does
    not.
    """

    told: float = 0.95
    untold: float = 0.4


@dataclass(frozen=True, slots=True)
class Researcher:
    """A simulated model for the stages. As a judge it says that it does not know, as an evolver it
    writes nothing: what is learned in front of it is learned from the words of the pipeline
    alone."""

    seed: int = 0
    habits: Habits = Habits()

    def answer(self, prompt: Prompt) -> Thought:
        """What it says in the role it is asked in."""
        match prompt.purpose:
            case Purpose.JUDGE:
                return Said(
                    json.dumps(
                        {
                            "outcome": "unknown",
                            "score": 0,
                            "reason": "a simulated researcher is no judge",
                        }
                    )
                )
            case Purpose.EVOLVE:
                return Said(json.dumps({"skills": []}))
            case _:
                return self._worked(prompt.messages)

    def _worked(self, messages: Sequence[Shown]) -> Thought:
        asked = [message.text for message in messages if message.role == "user"]
        system = (
            without_placed(messages[0].text) if messages and messages[0].role == "system" else ""
        )
        stage = stage_of(system)
        if stage is None or not asked:
            return Broken(400)
        topic = topic_of(asked[0])
        told = [message.text for message in messages if message.role != "assistant"]
        luck = f"{self.seed}\0{int(stage)}\0{topic}\0{len(asked)}"
        by_rule = Random(f"{luck}\0rule").random() < self._chance(CONTRACTS[stage].rule, told)
        files = material_in(system)
        if stage is Stage.ITERATIVE_REFINE:
            is_thorough = Random(f"{luck}\0thorough").random() < self._chance(
                MORE_VALUES_RULE, told
            )
            return Said(refined(files, by_rule=by_rule, is_thorough=is_thorough))
        return Said(write(stage, topic, files, by_rule=by_rule))

    def _chance(self, rule: str, told: list[str]) -> float:
        return self.habits.told if is_told(rule, told) else self.habits.untold


@dataclass(frozen=True, slots=True)
class DirectResearcher:
    """The researcher without a proxy or a network in between, for a run in one process."""

    mind: SimulatedModel

    async def ask(
        self, messages: Sequence[Message], session: str, *, is_last: bool = False
    ) -> Reply:
        """What it says."""
        thought = self.mind.answer(
            Prompt(tuple(Shown(message.role, message.text) for message in messages))
        )
        if isinstance(thought, Broken):
            raise ModelError(
                "this is no stage that the simulated researcher knows", status=thought.status
            )
        return Reply(thought.text)


def topic_of(asked: str) -> str:
    """The topic in a stage's task."""
    found = _TOPIC.search(asked)
    return found[1] if found else ""


def material_in(system: str) -> dict[str, str]:
    """The files that stand in a stage's system text."""
    _, *pieces = _FILE.split(system)
    return {
        name: text.rstrip("\n") + "\n" for name, text in zip(pieces[::2], pieces[1::2], strict=True)
    }
