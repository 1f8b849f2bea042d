"""Candidates on trial: asked and weighed by the real gate, as the slow loop does it. `poison` is
the command.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.house_rules.pools import Split
from benchmarks.house_rules.rules import RULES, Group, rules_of
from benchmarks.house_rules.tasks import Task, make_tasks
from benchmarks.poison_kinds import Dose, Kind, Poisoner, is_finite
from benchmarks.poison_report import Outcomes, live_trials
from benchmarks.poison_tasks import Asking, Golden, encode
from metaclaw.domain.ids import SkillName
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.lora import Adapter
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.errors import TrainingError
from metaclaw.training import (
    AnswerPair,
    Evidence,
    GateRuling,
    GoldenScore,
    compare_golden,
    judge_candidate,
)

_HELD_OUT_SEED: Final = 5_000
"""Held-out questions of a trial are others than those of any house-rules run."""
_SMALL_KINDS: Final = (
    Kind.NOISE_STRONG,
    Kind.FLIPPED,
    Kind.NOT_A_NUMBER,
    Kind.IDENTICAL,
    Kind.SWAPPED,
    Kind.HONEST,
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is."""

    settings: Asking
    dose: Dose
    kinds: tuple[Kind, ...]
    held_out: int
    kl_prompts: int
    replays: int
    golden_always: bool


_HOUSE: Final = rules_of(Group.HOUSE)
LARGE_SCALE: Final = Scale(
    Asking(_HOUSE, 32, 16, 40),
    Dose(),
    tuple(Kind),
    held_out=200,
    kl_prompts=64,
    replays=20,
    golden_always=True,
)
SMALL_SCALE: Final = Scale(
    Asking((RULES["metadata"],), 4, 12, 18),
    Dose(4, 2, 8, 1e-3),
    _SMALL_KINDS,
    held_out=40,
    kl_prompts=8,
    replays=20,
    golden_always=False,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a version said to the held-out questions of one seed, and whether that was right."""

    rollouts: tuple[Rollout, ...]
    passed: tuple[bool, ...]


class Bench:
    """One learner that is given one adapter after another."""

    def __init__(self, folder: Path, scale: Scale, learner: Learner) -> None:
        self.scale, self.learner = scale, learner
        self.vocabulary = Vocabulary(folder)
        self.golden = Golden(folder, self.vocabulary)

    def questions(self, seed: int) -> list[Task]:
        """What the candidates of one seed are asked."""
        return make_tasks(
            self.scale.settings.rules, Split.HELD_OUT, _HELD_OUT_SEED + seed, self.scale.held_out
        )

    def measure(self, adapter: Adapter, tasks: Sequence[Task], seed: int) -> Measured:
        """Its answers, drawn as they are served."""
        settings = self.scale.settings
        self.learner.adopt(adapter)
        prompts = encode(self.vocabulary, tasks)
        drawn = [
            group[0]
            for group in self.learner.sample(
                prompts, Drawing(1, settings.max_tokens, settings.temperature, seed)
            )
        ]
        passed = [
            one.is_whole and task.is_exact(one.text) for task, one in zip(tasks, drawn, strict=True)
        ]
        return Measured(tuple(drawn), tuple(passed))

    def golden_score(self, adapter: Adapter) -> GoldenScore:
        """Passes and likelihoods on the golden set."""
        self.learner.adopt(adapter)
        return self.golden.take(self.learner)

    def distance(self, measured: Measured, tasks: Sequence[Task]) -> float:
        """From the untrained weights, which the learner must have, in nats a token: the k3 estimate
        that training reports.
        """
        count = self.scale.kl_prompts
        prompts = encode(self.vocabulary, tasks[:count])
        pairs = [
            (prompt, one.tokens_T) for prompt, one in zip(prompts, measured.rollouts, strict=False)
        ]
        scored = zip(measured.rollouts, self.learner.score(pairs), strict=False)
        gaps = [
            base - own
            for one, scores in scored
            for own, base in zip(one.logprobs_T, scores, strict=True)
        ]
        return math.fsum(math.exp(min(gap, 50.0)) - gap - 1.0 for gap in gaps) / len(gaps)


class Judged:
    """The trials of one seed: what was measured of each candidate, and what the gate makes of
    it.
    """

    def __init__(
        self, bench: Bench, poisoner: Poisoner, golden: GoldenScore | None, seed: int
    ) -> None:
        self._bench, self._poisoner, self._golden, self._seed = bench, poisoner, golden, seed
        self._tasks = bench.questions(seed)
        self._serving = bench.measure(poisoner.serving, self._tasks, seed)

    def trials(self, kind: Kind) -> list[dict[str, object]]:
        """A record for every candidate of a kind."""
        # All are made before one is measured: that changes the learner's weights.
        adapters = list(self._poisoner.make(kind, self._seed))
        measured = [self._measured(adapter) for adapter in adapters]
        weighed = [
            self._weighed(adapter, found) for adapter, found in zip(adapters, measured, strict=True)
        ]
        self._bench.learner.adopt(None)
        return [
            {
                "made": kind,
                "aim": kind.aim,
                "seed": self._seed,
                "strength": strength,
                **ruled,
                **self._lived(f"{kind} {strength}", found),
            }
            for strength, (ruled, found) in enumerate(zip(weighed, measured, strict=True))
        ]

    def _measured(self, adapter: Adapter) -> Measured | None:
        """None for weights that give no answer."""
        if not is_finite(adapter):
            return None
        try:
            return self._bench.measure(adapter, self._tasks, self._seed)
        except (TrainingError, ValueError) as error:
            print(f"  not drawn from: {error}", file=sys.stderr)
            return None

    def _weighed(self, adapter: Adapter, measured: Measured | None) -> dict[str, object]:
        if measured is None:
            return {"is_refused": True, "reasons": ["a weight is not a finite number"]}
        answers = zip(measured.passed, self._serving.passed, self._tasks, strict=True)
        # Whether an answer is exactly right is the strict measure as well.
        pairs = [
            AnswerPair(
                float(mine),
                float(theirs),
                (SkillName(RULES[task.rule].skill),),
                float(mine),
                float(theirs),
            )
            for mine, theirs, task in answers
        ]
        evidence = Evidence(pairs, is_all=True)
        if (
            self._bench.scale.golden_always
            or judge_candidate(evidence).ruling is GateRuling.UNDECIDED
        ):
            self._golden = self._golden or self._bench.golden_score(self._poisoner.serving)
            evidence = replace(
                evidence,
                golden_untrained=self._golden,
                golden_candidate=self._bench.golden_score(adapter),
            )
        return _ruled(evidence)

    def _lived(self, name: str, measured: Measured | None) -> dict[str, object]:
        """What its answers were worth, its distance to the untrained weights (which the learner has
        now), and how it fares live.
        """
        if measured is None:
            return {"kl": None, "share": None, "serving_share": _share(self._serving), "live": []}
        rules = [task.rule for task in self._tasks]
        canary, serving = (
            Outcomes.of(rules, measured.passed),
            Outcomes.of(rules, self._serving.passed),
        )
        live = live_trials(canary, serving, self._bench.scale.replays, f"{name} {self._seed}")
        kl = self._bench.distance(measured, self._tasks)
        return {
            "kl": kl,
            "share": _share(measured),
            "serving_share": _share(self._serving),
            "live": live,
        }


def _share(measured: Measured) -> float:
    return sum(measured.passed) / len(measured.passed)


def _ruled(evidence: Evidence) -> dict[str, object]:
    decision = judge_candidate(evidence)
    untrained, candidate = evidence.golden_untrained, evidence.golden_candidate
    points = (
        None
        if untrained is None or candidate is None
        else compare_golden(untrained, candidate).points
    )
    return {
        "is_refused": decision.ruling is not GateRuling.PROMOTE,
        "ruling": decision.ruling,
        "reasons": list(decision.report.reasons),
        "golden_points": points,
    }
