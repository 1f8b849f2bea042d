"""Nights: which turns may train, by the product's own predicate, and so many GRPO steps on their prompts."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.house_rules.loop import Clock, Policy, pieces
from benchmarks.house_rules.rehearsal import Rehearsal
from benchmarks.house_rules.settings import learning_rate
from benchmarks.workdays.house import House
from benchmarks.workdays.rewards import reward
from benchmarks.workdays.settings import Flush, Settings
from benchmarks.workdays.turns import PROVIDER, Asked, Score
from metaclaw.domain.batch import Adam, Datum, Drawing, Loss, LossKind, PieceStats, Rollout
from metaclaw.domain.eligibility import Rejection, Role, RoleKind, Standing, rejection
from metaclaw.domain.ids import TurnId
from metaclaw.train.advantages.group import group_advantages
from metaclaw.train.scored import Scored

MAX_LAG: Final = 3
"""The product's default (`policy.max_lag`)."""
_LEAST_NEED: Final = 0.15
_STREAMS: Final = 1_000_003
"""Keeps the random numbers of one seed's steps apart from another's."""


@dataclass(slots=True)
class Ledger:
    """All turns of a run, and what is known of them beside themselves."""

    turns: list[Asked] = field(default_factory=list)
    support: dict[TurnId, int] = field(default_factory=dict)
    """Turns that taught a skill, with the generation they led to."""
    taught: set[TurnId] = field(default_factory=set)

    def standing(self, asked: Asked, *, is_aged: bool) -> Standing:
        """What is known of a turn."""
        turn = asked.question.turn
        role = Role(RoleKind.SUPPORT, self.support[turn]) if turn in self.support else None
        return Standing(asked.verdict, role, turn in self.taught, is_aged=is_aged)


def eligible(ledger: Ledger, house: House | None, version: int, flush: Flush) -> tuple[list[Asked], Counter[Rejection]]:
    """The turns that may train now, and why how many others may not."""
    generation = house.view.generation if house else 0
    found: list[Asked] = []
    refused: Counter[Rejection] = Counter()
    for asked in ledger.turns:
        is_older = asked.stamp.generation < generation
        is_aged = is_older and not (flush is Flush.SELECTIVE and _is_as_today(asked, house))
        reason = rejection(asked, ledger.standing(asked, is_aged=is_aged), generation, version, MAX_LAG, PROVIDER)
        if reason is None:
            found.append(asked)
        else:
            refused[reason] += 1
    return found, refused


def _is_as_today(asked: Asked, house: House | None) -> bool:
    """Whether its skills are still in force, and nothing that came into force since belongs to it."""
    if house is None:
        return True
    fitting = {skill.name for skill in house.find(asked.question.text, asked.question.scope)}
    placed = set(asked.stamp.skills)
    return fitting <= placed and all(house.view.get(name) is not None for name in placed)


@dataclass(frozen=True, slots=True)
class Taught:
    """What one step looked like. Numbers are means over its rollouts; `taught` is how many rollouts had something to say."""

    number: int
    prompts: int
    reward: float
    passed: float
    files_passed: float | None
    length: float
    entropy: float | None
    grad_norm: float | None
    learning_rate: float
    taught: int
    drawn_tokens: int


class Teacher:
    """Makes the steps of all nights, one at a time."""

    def __init__(self, policy: Policy, settings: Settings, score: Score, seed: int, rehearsal: Rehearsal | None) -> None:
        self._policy, self._settings, self._score = policy, settings, score
        self._seed, self._rehearsal = seed, rehearsal
        self._chance = random.Random(seed)
        self._right: dict[TurnId, float] = {}
        self._steps = 0
        self.clock = Clock()

    def step(self, lessons: Sequence[Asked], progress: float) -> Taught:
        """Draw, score, learn. A step in which no group has anything to say changes nothing."""
        self._steps += 1
        settings, clock = self._settings, self.clock
        chosen = self._choose(lessons)
        with clock.phase("sample"):
            drawing = Drawing(settings.group, settings.max_tokens, settings.temperature, self._seed * _STREAMS + self._steps)
            groups = self._policy.sample([lesson.prompt for lesson in chosen], drawing)
        with clock.phase("score"):
            scored = [self._scored(lesson, group) for lesson, group in zip(chosen, groups, strict=True)]
            data = group_advantages(scored).data
        rate = learning_rate(settings, self._steps, progress)
        stats, norm = self._learn(data, rate) if data else ([], None)
        of_files = [self._right[lesson.question.turn] for lesson in chosen if not lesson.question.is_choice]
        lengths = [len(rollout.tokens_T) for group in groups for rollout in group]
        return Taught(
            number=self._steps,
            prompts=len(chosen),
            reward=_mean([worth for group in scored for worth in group.rewards_G if worth is not None]),
            passed=_mean([self._right[lesson.question.turn] for lesson in chosen]),
            files_passed=_mean(of_files) if of_files else None,
            length=_mean(lengths),
            entropy=_weighted(stats),
            grad_norm=norm,
            learning_rate=rate,
            taught=len(data),
            drawn_tokens=sum(lengths),
        )

    def _choose(self, lessons: Sequence[Asked]) -> list[Asked]:
        """As many prompts as a step takes, a share of them about files where there are so many, and rather those that go wrong;
        with fewer lessons, some of them several times."""

        def key(lesson: Asked) -> float:
            need = max(_LEAST_NEED, 1.0 - self._right.get(lesson.question.turn, 0.0))
            return float(self._chance.random() ** (1.0 / need))

        most = self._settings.prompts
        by_need = sorted(lessons, key=key, reverse=True)
        files = [lesson for lesson in by_need if not lesson.question.is_choice]
        kept = (files * 2)[: round(most * self._settings.file_share)]
        chosen = kept + [lesson for lesson in by_need if lesson not in kept]
        return (chosen * -(-most // len(chosen)))[:most]

    def _scored(self, lesson: Asked, rollouts: Sequence[Rollout]) -> Scored:
        # Towards the end most rollouts of a group say the same.
        worth = {
            (text, is_whole): reward(self._score, lesson.question, text, is_whole=is_whole)
            for text, is_whole in {(one.text, one.is_whole) for one in rollouts}
        }
        found = [worth[one.text, one.is_whole] for one in rollouts]
        self._right[lesson.question.turn] = _mean([passed for _, passed in found])
        return Scored(lesson.question.turn, lesson.prompt, tuple(rollouts), tuple(value for value, _ in found))

    def _learn(self, data: Sequence[Datum], rate: float) -> tuple[list[PieceStats], float | None]:
        tokens = sum(len(datum.tokens_T) for datum in data)
        with self.clock.phase("accumulate"):
            loss = Loss(LossKind.PPO)
            stats = [self._policy.accumulate(piece, loss) for piece in pieces(data, self._settings.piece_prompts)]
        if self._rehearsal is not None:
            with self.clock.phase("rehearse"):
                self._rehearsal.accumulate(self._policy, self._settings.rehearsal * tokens)
        with self.clock.phase("apply"):
            return stats, self._policy.apply(Adam(learning_rate=rate), float(tokens)).grad_norm


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _weighted(stats: Sequence[PieceStats]) -> float | None:
    known = [(one.entropy, one.tokens) for one in stats if one.entropy is not None]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None
