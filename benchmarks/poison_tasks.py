"""What poisoned weights are made with and asked: house-rule questions in tokens, their grades, the
golden set.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol

from tokenizers import Tokenizer

from benchmarks.house_rules.driver import SYSTEM
from benchmarks.house_rules.pools import Split
from benchmarks.house_rules.rules import RULES, Rule
from benchmarks.house_rules.tasks import Task, make_tasks
from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Adam, Datum, Drawing, Loss, PieceStats, Rollout, StepStats
from metaclaw.engine.prompt import build_prompt
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.skills import parse_skill, render_block
from metaclaw.training.golden import GoldenScore, golden_items, reference_pairs

_BUDGET_TOKENS: Final = 1500
_AT_A_TIME: Final = 64
ORDINARY: Final = tuple(
    [("user", asked.format(thing))]
    for thing in (
        "a lighthouse",
        "the tides",
        "honey bees",
        "glaciers",
        "a violin",
        "tea",
        "the moon",
        "sleep",
        "coral reefs",
        "jazz",
    )
    for asked in (
        "Tell me something about {}.",
        "Explain {} to a child.",
        "Write two sentences about {}.",
        "Why do we need {}?",
    )
)
"""Questions that have nothing to do with any rule."""


class Policy(Protocol):
    """What is needed of `engine.training.learner.Learner`."""

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]: ...
    def score(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> list[tuple[float, ...]]: ...
    def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats: ...
    def apply(self, adam: Adam, normaliser: float) -> StepStats: ...


@dataclass(frozen=True, slots=True)
class Asking:
    """Which rules are asked about, and how answers are drawn."""

    rules: tuple[Rule, ...]
    prompts: int
    group: int
    max_tokens: int
    temperature: float = 1.0


def endless(rules: Sequence[Rule], split: Split, seed: int) -> Iterator[Task]:
    """Tasks without end."""
    for number in count():
        yield from make_tasks(rules, split, seed + number, _AT_A_TIME)


def encode(vocabulary: Vocabulary, tasks: Sequence[Task]) -> list[tuple[int, ...]]:
    """The tokens of each task's prompt, with the rule's skill in it."""
    return [
        tuple(
            vocabulary.render([("system", SYSTEM + _block(task.rule)), ("user", task.question)], "")
        )
        for task in tasks
    ]


@cache
def _block(rule: str) -> str:
    return render_block([parse_skill(RULES[rule].skill_file, rule)], _BUDGET_TOKENS).text


def reward(task: Task, text: str) -> float:
    """The grade that the rule's own check gives."""
    functions = _functions(task.rule)
    return float(functions["grade"](text, functions["read"](task.question)))


@cache
def _functions(rule: str) -> dict[str, Any]:
    """The functions of the check, without the lines that read standard input."""
    found: dict[str, Any] = {}
    exec(RULES[rule].program.partition("given = ")[0], found)
    return found


def pieces(data: Sequence[Datum], prompts: int) -> list[list[Datum]]:
    """The data cut behind every so many prompts."""
    cut: list[list[Datum]] = []
    turns: list[TurnId] = []
    for datum in data:
        if datum.turn not in turns[-1:]:
            if len(turns) % prompts == 0:
                cut.append([])
            turns.append(datum.turn)
        cut[-1].append(datum)
    return cut


class Golden:
    """The golden set in this model's tokens."""

    def __init__(self, folder: Path, vocabulary: Vocabulary) -> None:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._items = golden_items()
        self._vocabulary = vocabulary
        self._room = [item.request.sampling.max_tokens or 1 for item in self._items]
        self._pairs = reference_pairs(
            self._items,
            lambda request: vocabulary.render(build_prompt(request).turns, ""),
            lambda text: tokenizer.encode(text).ids,
        )

    def take(self, policy: Policy) -> GoldenScore:
        """Passes and likelihoods under the policy's present weights."""
        drawn = policy.sample(
            [prompt for prompt, _ in self._pairs], Drawing(1, max(self._room), temperature=0.0)
        )
        texts = [
            self._vocabulary.decode(group[0].tokens_T[:room])
            for group, room in zip(drawn, self._room, strict=True)
        ]
        passed = {
            item.name: item.passes(text) for item, text in zip(self._items, texts, strict=True)
        }
        scores = zip(self._items, policy.score(self._pairs), strict=True)
        return GoldenScore(
            passed, {item.name: math.fsum(values) / len(values) for item, values in scores}
        )
