"""The gate by simulation: how long live trials take and how often they are wrong, and what becomes
of planted candidates.

    python -m benchmarks.gate [--seeds 5] [--judge-error 0.05] [--share 0.67] [--json]
    [--assert-goals]

**Trials.** A skill with an effect of -30, 0 or +30 points on matching tasks that passed a replay is
placed on a random share of them. Pass rates without the skill go from 30 to 90 % (for +30: 10 to 65
%); `--seeds` × 200 trials for each. Goals: of skills worse by 30 points at most 10 % kept, and
withdrawn after 12 tasks (median) at most; of skills better by 30 at least 80 % kept, decided after
20 tasks (median) at most; each at every baseline with a perfect judge, and at the mean of the
baselines with one that is wrong in 5 % of outcomes. Every trial ends.

**Candidates.** Those of `gate_candidates/` (helpful, useless, harmful) come in random order through
the real gate. Simulated are the policy and the judge:

- A recorded turn has a difficulty of its own, normal with standard deviation 0.5 in log-odds.
  Failures were recorded because the turn failed without the skill, similar turns because it passed.
- A replayed outcome is judged wrongly with probability 0.05 and not at all with 0.08; a live one
  with 0.05 and 0.30.
- There are 1 to 3 recorded failures of a candidate's kind and 4 similar turns that passed. Live
  tasks are of the failing kind with the candidate's `share`.
- A replay takes 25,000 tokens.

Beside it stand: no gate, the draft checks alone, and `shadow`. Intervals are Student's over seeds
(95 %). A false commit is a useless or harmful skill among those that went live. A useless skill
costs room in prompts and nothing else; the gate decides by expected loss and lets some of them
through."""

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

from metaclaw.config import SkillsConfig
from metaclaw.domain.candidate import Change, Probe, ProbeKind, Proposal, ReplayCost, ReplayResult
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.verdict import Belief, Outcome, PassRate
from metaclaw.skills import (
    MOST_DECIDED,
    Gate,
    GateMode,
    IndexLibrary,
    LiveTask,
    Replaying,
    SkillIndex,
    TrialDecision,
    judge_trial,
    trial_prior,
)

Kind = Literal["helpful", "useless", "harmful"]
KINDS: tuple[Kind, ...] = ("helpful", "useless", "harmful")
WAYS = ("off", "lint", "shadow", "full")
_FOLDER = Path(__file__).with_name("gate_candidates")
_DIFFICULTY = 0.5
_WRONG = 0.05
_SHARE = SkillsConfig().canary_share
_UNKNOWN_REPLAYED, _UNKNOWN_LIVE = 0.08, 0.30
_PASSING_PROBES = 4
_LIVE_TASKS = 100
_TRIALS = 200
_REPLAY_TOKENS = 25_000
_BASELINES = {
    -0.3: (0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    0.0: (0.3, 0.5, 0.7, 0.9),
    0.3: (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65),
}
_ONE_FIXED = Belief(PassRate(passed=0.5), PassRate(failed=0.5))
_STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
_GOALS = {"harmful_share": 0.15, "recall": 0.6}


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
        return self.share * (self.failing[1] - self.failing[0]) + (1 - self.share) * (
            self.passing[1] - self.passing[0]
        )


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
        skill = Skill(
            SkillName(entry["name"]),
            entry["trigger"],
            entry["body"].strip(),
            author=Authorship.EVOLVER,
        )
        failing, passing = entry["failing"], entry["passing"]
        yield Planted(
            skill, kind, (failing[0], failing[1]), (passing[0], passing[1]), entry["share"]
        )


class World:
    """The simulated policy and judge, for one candidate."""

    def __init__(
        self,
        planted: Planted,
        rng: random.Random,
        judge_error: float = _WRONG,
        share: float = _SHARE,
    ) -> None:
        self._planted = planted
        self._judge_error = judge_error
        self._share = share
        self._rng = rng
        failing = rng.randint(1, 3)
        kinds = [ProbeKind.FAILING] * failing + [ProbeKind.PASSING] * _PASSING_PROBES
        self.probes = [
            Probe(TurnId(f"{planted.skill.name}-{number}"), kind)
            for number, kind in enumerate(kinds)
        ]
        self._difficulty = {probe.turn: rng.gauss(0.0, _DIFFICULTY) for probe in self.probes}

    async def estimate(self, probe: Probe, skill: Skill) -> ReplayCost:
        """The tokens of one replay."""
        return ReplayCost(_REPLAY_TOKENS)

    async def replay(
        self, probe: Probe, skill: Skill, replaces: Sequence[SkillName], seed: int, limit: int
    ) -> ReplayResult:
        """One replay with the skill."""
        rate = (
            self._planted.failing if probe.kind is ProbeKind.FAILING else self._planted.passing
        )[1]
        outcome = self._outcome(rate, self._difficulty[probe.turn], _UNKNOWN_REPLAYED)
        return ReplayResult(probe, outcome, _REPLAY_TOKENS)

    def live(self) -> Iterator[LiveTask]:
        """Matching tasks, a random share of which get the skill."""
        for _ in range(_LIVE_TASKS):
            rates = (
                self._planted.failing
                if self._rng.random() < self._planted.share
                else self._planted.passing
            )
            placed = self._rng.random() < self._share
            outcome = self._outcome(rates[placed], self._rng.gauss(0.0, _DIFFICULTY), _UNKNOWN_LIVE)
            yield LiveTask(placed, self._share, outcome)

    def _outcome(self, rate: float, difficulty: float, unknown: float) -> Outcome:
        if self._rng.random() < unknown:
            return Outcome.UNKNOWN
        odds = exp(log(rate / (1 - rate)) + difficulty)
        passed = self._rng.random() < odds / (1 + odds)
        is_wrong = self._rng.random() < self._judge_error
        return Outcome.PASS if passed != is_wrong else Outcome.FAIL


async def run(
    way: str,
    candidates: Sequence[Planted],
    seed: int,
    judge_error: float = _WRONG,
    share: float = _SHARE,
) -> Result:
    """All candidates, one after another, by one way of committing."""
    rng = random.Random(seed)
    order = rng.sample(list(candidates), len(candidates))
    result, index = Result(), SkillIndex()
    for planted in order:
        world = World(planted, random.Random(rng.random()), judge_error, share)
        if await _by_gate(way, world, planted, index, result):
            result.live[planted.kind] += 1
            index = index.changed([planted.skill])
    return result


async def _by_gate(
    way: str, world: World, planted: Planted, index: SkillIndex, result: Result
) -> bool:
    proposal = Proposal(planted.skill, Change.NEW, (), (TurnId("taught"),), "planted", "benchmark")
    replaying = Replaying(world.probes, "simulated")
    admission = await Gate(GateMode(way), world).admit(proposal, IndexLibrary(index), replaying)
    certificate = admission.certificate
    if certificate is not None:
        result.trials += len(certificate.replays)
        result.tokens += certificate.tokens
    if not admission.is_in_force or admission.state is SkillState.LIVE:
        return admission.is_in_force
    report = judge_trial(list(world.live()), trial_prior(certificate))
    result.canaries += 1
    result.canary_turns += report.counts.decided + report.counts.unknown
    return report.decision is TrialDecision.PROMOTE


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """Trials of skills with one effect, over all baselines: the shares kept, and tasks until the
    decision.
    """

    kept_at: tuple[float, ...]
    tasks_at: tuple[int, ...]
    withdrawn_at: tuple[int, ...]
    longest: int
    kept: float
    median_tasks: int
    median_withdrawn: int


def simulate_trials(
    effect: float,
    *,
    seeds: int,
    judge_error: float = 0.0,
    share: float = _SHARE,
    prior: Belief = _ONE_FIXED,
    seed: int = 0,
) -> TrialFigures:
    """So many trials at each baseline, after one replay that fixed the failure."""
    rng = random.Random(f"{seed} {effect}")
    kept_at, tasks, withdrawn = list[float](), list[list[int]](), list[list[int]]()
    for baseline in _BASELINES[effect]:
        ends = [
            _simulated(rng, baseline, baseline + effect, judge_error, share, prior)
            for _ in range(seeds)
        ]
        kept_at.append(sum(is_kept for is_kept, _ in ends) / seeds)
        tasks.append([number for _, number in ends])
        withdrawn.append([number for is_kept, number in ends if not is_kept])
    return TrialFigures(
        tuple(kept_at),
        tuple(map(_median, tasks)),
        tuple(map(_median, withdrawn)),
        max(map(max, tasks)),
        statistics.fmean(kept_at),
        _median([number for some in tasks for number in some]),
        _median([number for some in withdrawn for number in some]),
    )


def _simulated(
    rng: random.Random, without: float, with_skill: float, error: float, share: float, prior: Belief
) -> tuple[bool, int]:
    """One trial to its end: whether the skill was kept, and after how many tasks."""
    tasks = []
    for _ in range(MOST_DECIDED):
        placed = rng.random() < share
        passed = (rng.random() < (with_skill if placed else without)) != (rng.random() < error)
        tasks.append(LiveTask(placed, share, Outcome.PASS if passed else Outcome.FAIL))
    report = judge_trial(tasks, prior)
    return report.decision is TrialDecision.PROMOTE, report.counts.decided


def _median(numbers: Sequence[int]) -> int:
    return int(statistics.median(numbers)) if numbers else 0


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval over seeds (Student); the mean alone where there is one seed."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, mean, mean
    half = _STUDENT.get(len(values) - 1, 1.96) * statistics.stdev(values) / sqrt(len(values))
    return mean, max(0.0, mean - half), mean + half


def measure(
    seeds: int, judge_error: float = _WRONG, share: float = _SHARE
) -> dict[str, dict[str, object]]:
    """Every way on every seed."""
    candidates = load_candidates()
    planted = {kind: sum(one.kind == kind for one in candidates) for kind in KINDS}
    facts: dict[str, dict[str, object]] = {}
    for way in WAYS:
        results = [
            anyio.run(run, way, candidates, seed, judge_error, share) for seed in range(seeds)
        ]
        harmful = sum(one.live["harmful"] for one in results)
        facts[way] = {
            "false_commits": interval([one.false_commits for one in results]),
            "harmful": harmful,
            "harmful_planted": planted["harmful"] * seeds,
            "harmful_share": harmful / (planted["harmful"] * seeds),
            "useless": interval([float(one.live["useless"]) for one in results]),
            "useless_planted": planted["useless"],
            "recall": interval([one.live["helpful"] / planted["helpful"] for one in results]),
            "trials_each": statistics.fmean(one.trials / len(candidates) for one in results),
            "tokens_each": statistics.fmean(one.tokens / len(candidates) for one in results),
            "canary_turns_each": statistics.fmean(
                one.canary_turns / max(1, one.canaries) for one in results
            ),
        }
    return facts


def measure_trials(seeds: int, share: float = _SHARE) -> dict[str, dict[str, object]]:
    """Trials of each effect, with a perfect judge and with one that is wrong now and then;
    intervals over seeds.
    """
    facts: dict[str, dict[str, object]] = {}
    for effect in _BASELINES:
        for error in (0.0, _WRONG):
            runs = [
                simulate_trials(effect, seeds=_TRIALS, judge_error=error, share=share, seed=seed)
                for seed in range(seeds)
            ]
            facts[f"{100 * effect:+.0f} points, judge wrong in {error:.0%}"] = {
                "kept": interval([one.kept for one in runs]),
                "kept_at": [
                    round(statistics.fmean(column), 3)
                    for column in zip(*(one.kept_at for one in runs), strict=True)
                ],
                "tasks": interval([float(one.median_tasks) for one in runs]),
                "tasks_at": [
                    _median(column) for column in zip(*(one.tasks_at for one in runs), strict=True)
                ],
                "withdrawn": interval([float(one.median_withdrawn) for one in runs]),
                "withdrawn_at": [
                    _median(column)
                    for column in zip(*(one.withdrawn_at for one in runs), strict=True)
                ],
                "longest": max(one.longest for one in runs),
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
        out(
            f"{'yes' if is_met else 'NO '} {what} {number:.3f}"
            f" ({'at least' if what == 'recall' else 'at most'} {bound:g})"
        )
    return all(met)


def judge_trials(facts: dict[str, dict[str, object]], out: Callable[[str], None]) -> bool:
    """Say of each goal for trials whether it is met: at every baseline with a perfect judge, at
    their mean with a noisy one.
    """
    met = []
    for name, one in facts.items():
        is_exact = name.endswith("0%")
        kept, tasks, withdrawn = (
            _numbers(one[f"{what}_at"]) if is_exact else _numbers(one[what])[:1]
            for what in ("kept", "tasks", "withdrawn")
        )
        goals = {
            "-30": (
                ("kept at most 10 %", max(kept) <= 0.10),
                ("withdrawn after 12 tasks at most", max(withdrawn) <= 12),
            ),
            "+30": (
                ("kept at least 80 %", min(kept) >= 0.80),
                ("decided after 20 tasks at most", max(tasks) <= 20),
            ),
        }.get(name.split()[0], (("every trial ends", float(str(one["longest"])) <= _LIVE_TASKS),))
        for what, is_met in goals:
            met.append(is_met)
            out(f"{'yes' if is_met else 'NO '} {name}: {what}")
    return all(met)


def _numbers(value: object) -> list[float]:
    return [float(one) for one in value] if isinstance(value, tuple | list) else []


def show_trials(facts: dict[str, dict[str, object]]) -> None:
    """The table for people."""
    print(
        f"{'effect':>32} {'kept %':>22} {'tasks to the end':>22} {'tasks until withdrawn':>22}"
        f" {'longest':>8}"
    )
    for name, one in facts.items():
        spreads = [
            _spread(one[what], scale)
            for what, scale in (("kept", 100), ("tasks", 1), ("withdrawn", 1))
        ]
        print(
            f"{name:>32} "
            + " ".join(f"{spread:>22}" for spread in spreads)
            + f" {one['longest']:>8}"
        )
    print("medians over baselines; mean [95 % interval over seeds]\n")


def show(facts: dict[str, dict[str, object]]) -> None:
    """The table for people."""
    heads = (
        ("way", 8),
        ("false commits", 24),
        ("harmful live", 13),
        ("useless live", 18),
        ("recall", 24),
    )
    print(
        *(f"{head:>{size}}" for head, size in (*heads, ("replays", 7), ("tokens", 8), ("tasks", 7)))
    )
    for way, one in facts.items():
        false, useless, recall = (
            _spread(one[what], scale)
            for what, scale in (("false_commits", 100), ("useless", 1), ("recall", 100))
        )
        cost = (
            f"{one['trials_each']:7.1f} {one['tokens_each']:8.0f} {one['canary_turns_each']:7.0f}"
        )
        harmful = f"{one['harmful']} of {one['harmful_planted']}"
        print(f"{way:>8} {false:>22} % {harmful:>13} {useless:>18} {recall:>22} % {cost}")
    print("replays and tokens a candidate; matching tasks a trial; mean [95 % interval over seeds]")


def _spread(value: object, scale: float) -> str:
    if not isinstance(value, tuple):
        raise TypeError(f"{value!r} is no interval")
    mean, low, high = (scale * one for one in value)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--judge-error", type=float, default=_WRONG)
    parser.add_argument(
        "--share",
        type=float,
        default=_SHARE,
        help="of the matching turns that get a skill on trial",
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--assert-goals", action="store_true")
    arguments = parser.parse_args()
    trials = measure_trials(arguments.seeds, arguments.share)
    facts = measure(arguments.seeds, arguments.judge_error, arguments.share)
    if arguments.json:
        print(
            json.dumps(
                {
                    "seeds": arguments.seeds,
                    "judge_error": arguments.judge_error,
                    "share": arguments.share,
                    "trials": trials,
                    "ways": facts,
                },
                indent=2,
            )
        )
    else:
        show_trials(trials)
        show(facts)
    met = [
        found(one, lambda line: print(line, file=sys.stderr))
        for found, one in ((judge_trials, trials), (judge, facts))
    ]
    is_met = all(met)
    return 1 if arguments.assert_goals and not is_met else 0


if __name__ == "__main__":
    sys.exit(main())
