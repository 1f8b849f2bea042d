"""The gate on planted candidates: what goes live, what should not have, what was missed, and what it cost.

    python -m benchmarks.gate [--seeds 5] [--judge-error 0.05] [--share 0.8] [--json] [--assert-goals]

The candidates of `gate_candidates/` (helpful, useless, harmful) come in random order, each with its known effect on a simulated
policy; the gate is the real one: draft checks, shadow, canary. Simulated are only the policy and the judge:

- A recorded turn has a difficulty of its own, normal with standard deviation 0.5 in log-odds, the same without and with the skill.
- A replayed outcome is judged wrongly with probability 0.05 and not at all with 0.08; a live one with 0.05 and 0.30.
- There are 3 to 6 recorded failures of a candidate's kind and 8 similar turns that passed. Live turns are of the failing kind with
  the candidate's `share`; four of five matching turns get the skill (`skills.canary_share`).
- A replay costs 700 to 2,700 tokens a side.

Beside it stand: no gate, the draft checks alone, shadow alone, and "keep it if the score went up" on 8 paired replays.
Intervals are Student's over seeds (95 %). A false commit is a useless or harmful skill among those that went live.
"""

import argparse
import json
import random
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from pathlib import Path
from typing import Literal

import anyio

from metaclaw.config.tree import SkillsConfig
from metaclaw.domain.candidate import Change, Probe, ProbeKind, Proposal, Trial
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate import CanaryDecision, Gate, GateMode, IndexLibrary, LiveTrial, judge_canary
from metaclaw.skills.index import SkillIndex

Kind = Literal["helpful", "useless", "harmful"]
KINDS: tuple[Kind, ...] = ("helpful", "useless", "harmful")
WAYS = ("off", "lint", "score", "shadow", "full")
_FOLDER = Path(__file__).with_name("gate_candidates")
_DIFFICULTY = 0.5
_WRONG = 0.05
_SHARE = SkillsConfig().canary_share
_UNKNOWN_REPLAYED, _UNKNOWN_LIVE = 0.08, 0.30
_PASSING_PROBES = 8
_LIVE_TURNS = 2_000
_SCORED_ON = 8
_STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
_GOALS = {"false_commits": 0.05, "harmful": 0.0, "recall": 0.70}


@dataclass(frozen=True, slots=True)
class Planted:
    """A candidate and its known effect: P(pass) without and with it."""

    skill: Skill
    kind: Kind
    failing: tuple[float, float]
    passing: tuple[float, float]
    share: float

    @property
    def live_effect(self) -> float:
        """What it does to the pass rate of the live turns it matches."""
        return self.share * (self.failing[1] - self.failing[0]) + (1 - self.share) * (self.passing[1] - self.passing[0])


@dataclass(slots=True)
class Result:
    """What one way of committing came to in one run."""

    live: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    trials: int = 0
    tokens: int = 0
    canary_turns: int = 0
    canaries: int = 0

    @property
    def false_commits(self) -> float:
        """Useless and harmful ones among all that went live; 0 where nothing did."""
        all_live = sum(self.live.values())
        return (self.live["useless"] + self.live["harmful"]) / all_live if all_live else 0.0


def load_candidates() -> list[Planted]:
    """All of them, as they lie in the repository."""
    return [planted for kind in KINDS for planted in _load(kind)]


def _load(kind: Kind) -> Iterator[Planted]:
    for entry in tomllib.loads((_FOLDER / f"{kind}.toml").read_text())["candidate"]:
        skill = Skill(SkillName(entry["name"]), entry["trigger"], entry["body"].strip(), author=Authorship.EVOLVER)
        failing, passing = entry["failing"], entry["passing"]
        yield Planted(skill, kind, (failing[0], failing[1]), (passing[0], passing[1]), entry["share"])


class World:
    """The simulated policy and judge, for one candidate."""

    def __init__(self, planted: Planted, rng: random.Random, judge_error: float = _WRONG, share: float = _SHARE) -> None:
        self._planted = planted
        self._judge_error = judge_error
        self._share = share
        self._rng = rng
        failing = rng.randint(3, 6)
        kinds = [ProbeKind.FAILING] * failing + [ProbeKind.PASSING] * _PASSING_PROBES
        self.probes = [Probe(TurnId(f"{planted.skill.name}-{number}"), kind) for number, kind in enumerate(kinds)]
        self._difficulty = {probe.turn: rng.gauss(0.0, _DIFFICULTY) for probe in self.probes}

    async def trial(self, probe: Probe, skill: Skill, replaces: Sequence[SkillName], seed: int) -> Trial:
        """One paired replay."""
        rates = self._planted.failing if probe.kind is ProbeKind.FAILING else self._planted.passing
        without, with_skill = (self._outcome(rate, self._difficulty[probe.turn], _UNKNOWN_REPLAYED) for rate in rates)
        return Trial(probe, seed, without, with_skill, tokens=2 * self._rng.randint(700, 2_700))

    def live(self) -> Iterator[LiveTrial]:
        """Matching turns, a random share of which get the skill."""
        for _ in range(_LIVE_TURNS):
            rates = self._planted.failing if self._rng.random() < self._planted.share else self._planted.passing
            placed = self._rng.random() < self._share
            outcome = self._outcome(rates[placed], self._rng.gauss(0.0, _DIFFICULTY), _UNKNOWN_LIVE)
            yield LiveTrial(placed, self._share, outcome)

    def _outcome(self, rate: float, difficulty: float, unknown: float) -> Outcome:
        if self._rng.random() < unknown:
            return Outcome.UNKNOWN
        odds = exp(log(rate / (1 - rate)) + difficulty)
        passed = self._rng.random() < odds / (1 + odds)
        is_wrong = self._rng.random() < self._judge_error
        return Outcome.PASS if passed != is_wrong else Outcome.FAIL


async def run(way: str, candidates: Sequence[Planted], seed: int, judge_error: float = _WRONG, share: float = _SHARE) -> Result:
    """All candidates, one after another, by one way of committing."""
    rng = random.Random(seed)
    order = rng.sample(list(candidates), len(candidates))
    result, index = Result(), SkillIndex()
    for planted in order:
        world = World(planted, random.Random(rng.random()), judge_error, share)
        goes_live = await (_by_score(world, planted, result) if way == "score" else _by_gate(way, world, planted, index, result))
        if goes_live:
            result.live[planted.kind] += 1
            index = index.changed([planted.skill])
    return result


async def _by_gate(way: str, world: World, planted: Planted, index: SkillIndex, result: Result) -> bool:
    proposal = Proposal(planted.skill, Change.NEW, (), (TurnId("taught"),), "planted", "benchmark")
    admission = await Gate(GateMode(way), world).admit(proposal, IndexLibrary(index), world.probes, model="simulated")
    certificate = admission.certificate
    if certificate is not None:
        result.trials += certificate.wins + certificate.losses + certificate.ties + certificate.undecided
        result.tokens += certificate.tokens
    if not admission.is_in_force or admission.state is SkillState.LIVE:
        return admission.is_in_force
    report = judge_canary(list(world.live()))
    result.canaries += 1
    result.canary_turns += report.counts.decided
    return report.decision is CanaryDecision.PROMOTE


async def _by_score(world: World, planted: Planted, result: Result) -> bool:
    """Keep it if more replays passed with it than without."""
    failing, passing = ([one for one in world.probes if one.kind is kind] for kind in (ProbeKind.FAILING, ProbeKind.PASSING))
    chosen = [(failing if number % 2 else passing)[number // 2 % len(failing)] for number in range(_SCORED_ON)]
    trials = [await world.trial(probe, planted.skill, (), seed) for seed, probe in enumerate(chosen)]
    result.trials += len(trials)
    result.tokens += sum(trial.tokens for trial in trials)
    passes = [sum(getattr(trial, side) is Outcome.PASS for trial in trials) for side in ("without", "with_skill")]
    return passes[1] > passes[0]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval over seeds (Student); the mean alone where there is one seed."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, mean, mean
    half = _STUDENT.get(len(values) - 1, 1.96) * statistics.stdev(values) / sqrt(len(values))
    return mean, max(0.0, mean - half), mean + half


def measure(seeds: int, judge_error: float = _WRONG, share: float = _SHARE) -> dict[str, dict[str, object]]:
    """Every way on every seed."""
    candidates = load_candidates()
    planted = {kind: sum(one.kind == kind for one in candidates) for kind in KINDS}
    facts: dict[str, dict[str, object]] = {}
    for way in WAYS:
        results = [anyio.run(run, way, candidates, seed, judge_error, share) for seed in range(seeds)]
        facts[way] = {
            "false_commits": interval([one.false_commits for one in results]),
            "harmful": sum(one.live["harmful"] for one in results),
            "harmful_planted": planted["harmful"] * seeds,
            "useless": interval([float(one.live["useless"]) for one in results]),
            "useless_planted": planted["useless"],
            "recall": interval([one.live["helpful"] / planted["helpful"] for one in results]),
            "trials_each": statistics.fmean(one.trials / len(candidates) for one in results),
            "tokens_each": statistics.fmean(one.tokens / len(candidates) for one in results),
            "canary_turns_each": statistics.fmean(one.canary_turns / max(1, one.canaries) for one in results),
        }
    return facts


def judge(facts: dict[str, dict[str, object]], out: Callable[[str], None]) -> bool:
    """Say of each goal whether the full gate meets it."""
    full = facts["full"]
    met = []
    for what, bound in _GOALS.items():
        value = full[what]
        number = value[0] if isinstance(value, tuple | list) else float(str(value))
        is_met = number >= bound if what == "recall" else number <= bound
        met.append(is_met)
        out(f"{'yes' if is_met else 'NO '} {what} {number:.3f} ({'at least' if what == 'recall' else 'at most'} {bound:g})")
    return all(met)


def show(facts: dict[str, dict[str, object]]) -> None:
    """The table for people."""
    heads = (("way", 8), ("false commits", 24), ("harmful live", 13), ("useless live", 18), ("recall", 24))
    print(*(f"{head:>{size}}" for head, size in (*heads, ("trials", 7), ("tokens", 8), ("canary", 7))))
    for way, one in facts.items():
        false, useless, recall = (
            _spread(one[what], scale) for what, scale in (("false_commits", 100), ("useless", 1), ("recall", 100))
        )
        cost = f"{one['trials_each']:7.1f} {one['tokens_each']:8.0f} {one['canary_turns_each']:7.0f}"
        harmful = f"{one['harmful']} of {one['harmful_planted']}"
        print(f"{way:>8} {false:>22} % {harmful:>13} {useless:>18} {recall:>22} % {cost}")
    print("trials and tokens a candidate; decided turns a canary; mean [95 % interval over seeds]")


def _spread(value: object, scale: float) -> str:
    if not isinstance(value, tuple):
        raise TypeError(f"{value!r} is no interval")
    mean, low, high = (scale * one for one in value)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--judge-error", type=float, default=_WRONG)
    parser.add_argument("--share", type=float, default=_SHARE, help="of the matching turns that get a skill on trial")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--assert-goals", action="store_true")
    arguments = parser.parse_args()
    facts = measure(arguments.seeds, arguments.judge_error, arguments.share)
    if arguments.json:
        print(
            json.dumps(
                {"seeds": arguments.seeds, "judge_error": arguments.judge_error, "share": arguments.share, "ways": facts}, indent=2
            )
        )
    else:
        show(facts)
    is_met = judge(facts, out=lambda line: print(line, file=sys.stderr))
    return 1 if arguments.assert_goals and not is_met else 0


if __name__ == "__main__":
    sys.exit(main())
