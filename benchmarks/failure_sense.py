"""The sense of failure on labelled turns: AUROC, calibration, how often a judge is needed, each
detector's precision and recall.

    python -m benchmarks.failure_sense [--split test|train] [--fit] [--errors] [--json]
    [--assert-goals]

The turns in `failure_sense_cases/` were written for this project. Rules and weights were made
looking at the training turns alone; no family of turns is in both splits. Intervals (95 %) come
from drawing whole families again. Turns that detectors leave undecided go to a SIMULATED judge,
whose accuracy is stated below: it stands for a model that nobody has measured here."""

import argparse
import hashlib
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.failure_sense_cases.cases import Case, load
from benchmarks.failure_sense_cases.fit import fit
from benchmarks.verdict_measures import Pairs, auroc, ece
from metaclaw.domain.chat import Message, Role, Text, ToolResult
from metaclaw.domain.turn import Step
from metaclaw.domain.verdict import Fault, Outcome, Verdict, Votes
from metaclaw.outcome import (
    Calibration,
    Sensed,
    fit_isotonic,
    raw_score,
    sense,
    verdict,
)

WEIGHTS = Path(__file__).parents[1] / "src" / "metaclaw" / "outcome" / "weights.json"
GOALS = {"auroc": (">=", 0.90), "ece": ("<=", 0.05), "judged": ("<=", 0.20)}
FRESH = "fresh"
_ROUNDS = 1_000


@dataclass(frozen=True, slots=True)
class MetricInterval:
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(
    metric: Callable[[Pairs], float | None],
    clusters: Sequence[Pairs],
    *,
    rounds: int = 1_000,
    seed: int = 0,
) -> MetricInterval | None:
    """A metric with its bootstrap interval, or None. Whole clusters are drawn, since pairs of one
    cluster are correlated.
    """
    value = metric([pair for cluster in clusters for pair in cluster])
    if value is None:
        return None
    rng = random.Random(seed)
    drawn = []
    for _ in range(rounds):
        sample = [pair for cluster in rng.choices(clusters, k=len(clusters)) for pair in cluster]
        if (one := metric(sample)) is not None:
            drawn.append(one)
    if not drawn:
        return MetricInterval(value, value, value)
    drawn.sort()
    return MetricInterval(
        value, drawn[int(0.025 * len(drawn))], drawn[min(len(drawn) - 1, int(0.975 * len(drawn)))]
    )


@dataclass(frozen=True, slots=True)
class SimulatedJudge:
    """Votes drawn by chance around the label. Votes on one turn err together, as those of one model
    do.
    """

    accuracy: float = 0.80
    agreement: float = 0.90
    unreadable: float = 0.05
    votes: int = 3
    seed: int = 17

    def judge(self, case: Case) -> Votes:
        """What this judge would have said about a turn."""
        rng = random.Random(hashlib.sha256(f"{self.seed}:{case.row.id}".encode()).digest())
        says_failed = case.failed if rng.random() < self.accuracy else not case.failed
        passed = failed = unknown = 0
        for _ in range(self.votes):
            if rng.random() < self.unreadable:
                unknown += 1
            elif says_failed == (rng.random() < self.agreement):
                failed += 1
            else:
                passed += 1
        return Votes(passed, failed, unknown, model="simulated")


@dataclass(frozen=True, slots=True)
class Judged:
    """One turn with everything that was found out about it."""

    case: Case
    sensed: Sensed
    votes: Votes | None
    verdict: Verdict

    @property
    def p_fail(self) -> float:
        """The probability that the agent failed: the verdict's, or the detectors' where the verdict
        states none.
        """
        return self.sensed.p_fail if self.verdict.p_fail is None else self.verdict.p_fail

    @property
    def says(self) -> str:
        """The verdict in the labels' words, or unknown."""
        return (
            "environment" if self.verdict.fault is Fault.ENVIRONMENT else str(self.verdict.outcome)
        )


def run(cases: Sequence[Case], judge: SimulatedJudge, calibration: Calibration) -> list[Judged]:
    """The whole cascade over some turns."""
    found = []
    for case in cases:
        sensed = sense(case.step, case.later)
        votes = judge.judge(case) if sensed.verdict is None else None
        found.append(Judged(case, sensed, votes, verdict(case.step, sensed, votes, calibration)))
    return found


def calibrated(judge: SimulatedJudge) -> Calibration:
    """The judge's calibration, learned from the training turns it was asked about."""
    asked = [one for one in run(load("train"), judge, Calibration()) if one.votes is not None]
    pairs = [
        (score, one.case.failed)
        for one in asked
        if (score := raw_score(one.sensed, one.votes)) is not None
    ]
    return Calibration(judged=fit_isotonic(pairs))


def clusters(found: Sequence[Judged], *, alone: bool = False) -> list[Pairs]:
    """Probabilities and labels, by family; `alone` without the judge."""
    families: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for one in found:
        families[one.case.row.family].append(
            (one.sensed.p_fail if alone else one.p_fail, one.case.failed)
        )
    return list(families.values())


@dataclass(frozen=True, slots=True)
class DetectorFacts:
    """How one detector did. Precision: of the turns it spoke about, the share it was right about;
    recall: of those it ought to.
    """

    fired: int
    precision: MetricInterval | None
    expected: int
    recall: MetricInterval | None


def _share(pairs: Pairs) -> float | None:
    return sum(hit for _, hit in pairs) / len(pairs) if pairs else None


def detector_facts(found: Sequence[Judged], name: str, rounds: int) -> DetectorFacts:
    """One detector's precision and recall with intervals."""
    spoke: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    ought: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for one in found:
        heard = [signal for signal in one.sensed.signals if signal.detector.split(".")[0] == name]
        row = one.case.row
        if heard:
            spoke[row.family].append(
                (0.0, all(_agrees(signal.evidence, signal.fault, row.label) for signal in heard))
            )
        if name in row.expect:
            ought[row.family].append((0.0, bool(heard)))
    return DetectorFacts(
        sum(map(len, spoke.values())),
        interval(_share, list(spoke.values()), rounds=rounds) if spoke else None,
        sum(map(len, ought.values())),
        interval(_share, list(ought.values()), rounds=rounds) if ought else None,
    )


def _agrees(evidence: float, fault: Fault, label: str) -> bool:
    if fault is Fault.ENVIRONMENT:
        return label == "environment"
    return (evidence > 0) == (label == "fail")


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is printed about one split."""

    turns: int
    families: int
    auroc: MetricInterval | None
    ece: MetricInterval | None
    auroc_alone: MetricInterval | None
    ece_alone: MetricInterval | None
    judged: MetricInterval | None
    wrong: MetricInterval | None
    unknown: float
    confusion: dict[str, dict[str, int]]
    detectors: dict[str, DetectorFacts]


def measure(found: Sequence[Judged], rounds: int = _ROUNDS) -> Facts:
    """The facts about some judged turns."""
    whole, alone = clusters(found), clusters(found, alone=True)
    confusion: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in found:
        confusion[one.case.row.label][one.says] += 1
    names = sorted(
        {signal.detector.split(".")[0] for one in found for signal in one.sensed.signals}
    )
    return Facts(
        len(found),
        len(whole),
        interval(auroc, whole, rounds=rounds),
        interval(ece, whole, rounds=rounds),
        interval(auroc, alone, rounds=rounds),
        interval(ece, alone, rounds=rounds),
        _share_by_family(found, [one.votes is not None for one in found], rounds),
        _share_by_family(
            found, [one.votes is None and one.says != one.case.row.label for one in found], rounds
        ),
        sum(one.verdict.outcome is Outcome.UNKNOWN for one in found) / len(found),
        {label: dict(says) for label, says in confusion.items()},
        {name: detector_facts(found, name, rounds) for name in names},
    )


def _share_by_family(
    found: Sequence[Judged], hits: Sequence[bool], rounds: int
) -> MetricInterval | None:
    families: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for one, hit in zip(found, hits, strict=True):
        families[one.case.row.family].append((0.0, hit))
    return interval(_share, list(families.values()), rounds=rounds)


def long_step(cases: Sequence[Case], size: int = 20_000) -> Step:
    """A step whose results hold that many characters of ordinary output."""
    lines = "\n".join(
        f"src/module_{n}.py:{n}: handle(request, response)  # error path {n}"
        for n in range(size // 60)
    )
    base = next(case.step for case in cases if case.step.calls and case.step.results)
    result = ToolResult(base.calls[0].id, (Text(lines[:size]),))
    message = Message(Role.TOOL, (result,))
    fields = {name: getattr(base, name) for name in Step.__slots__}
    return Step(**{**fields, "after": (message,), "said_after": None})


def time_us(steps: Sequence[Step], rounds: int = 5) -> tuple[float, float]:
    """Median and 99th percentile of one thread's time for sensing, in microseconds."""
    times = []
    for _ in range(rounds):
        for step in steps:
            begun = time.thread_time_ns()
            sense(step)
            times.append((time.thread_time_ns() - begun) / 1_000)
    times.sort()
    return times[len(times) // 2], times[int(0.99 * len(times))]


def missed(facts: Facts) -> list[str]:
    """The goals that are not met."""
    values = {"auroc": facts.auroc, "ece": facts.ece, "judged": facts.judged}
    lines = []
    for name, (relation, bound) in GOALS.items():
        value = values[name]
        if value is None or not (
            value.value >= bound if relation == ">=" else value.value <= bound
        ):
            lines.append(f"{name} {relation} {bound}: {value}")
    return lines


def print_facts(facts: Facts, split: str, judge: SimulatedJudge) -> None:
    """The facts as Markdown."""
    print(
        f"{split} split: {facts.turns} turns of {facts.families} families; 95 % intervals over"
        " families\n"
    )
    print("| | detectors alone | with the simulated judge |\n|---|---|---|")
    print(f"| AUROC, agent's failure against the rest | {facts.auroc_alone} | {facts.auroc} |")
    print(f"| expected calibration error | {facts.ece_alone} | {facts.ece} |")
    print(f"| share of turns sent to the judge | | {facts.judged} |")
    print(f"| detectors' verdicts that are wrong, share of all turns | {facts.wrong} | |")
    print(f"| unknown in the end | | {facts.unknown:.3f} |\n")
    print(
        f"simulated judge: right about {judge.accuracy:.0%} of turns, {judge.votes} votes that"
        f" agree with it {judge.agreement:.0%} of the time, {judge.unreadable:.0%} unreadable, seed"
        f" {judge.seed}\n"
    )
    print("| label | says pass | says fail | says environment | unknown |\n|---|---|---|---|---|")
    for label in ("pass", "fail", "environment"):
        says = facts.confusion.get(label, {})
        print(
            f"| {label} | "
            + " | ".join(
                str(says.get(one, 0)) for one in ("pass", "fail", "environment", "unknown")
            )
            + " |"
        )
    print("\n| detector | spoke | precision | ought to | recall |\n|---|---|---|---|---|")
    for name, one in facts.detectors.items():
        print(
            f"| {name} | {one.fired} | {one.precision or '–'} | {one.expected} |"
            f" {one.recall or '–'} |"
        )


def print_fresh(facts: Facts) -> None:
    """The part of the held-out turns that is least touched by hindsight."""
    print(
        f"\nof these, {facts.turns} turns of {facts.families} families were written after rules and"
        " weights had been frozen:"
    )
    print(
        f"AUROC {facts.auroc}, ECE {facts.ece}, sent to the judge {facts.judged}, detectors'"
        f" verdicts wrong {facts.wrong}"
    )


def print_errors(found: Sequence[Judged]) -> None:
    """What the detectors got wrong or left open."""
    for one in found:
        row = one.case.row
        said = "undecided" if one.votes is not None else one.says
        if said != row.label:
            heard = " ".join(signal.detector for signal in one.sensed.signals)
            print(
                f"{row.id}: {row.label}, but {said} ({one.sensed.p_fail:.2f}) by"
                f" {heard or 'nothing'}: {row.then or ''}"
            )


def main() -> int:
    """Fit if asked to, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failure_sense",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--split", choices=("test", "train"), default="test")
    parser.add_argument(
        "--fit",
        action="store_true",
        help="fit the weights on the training turns first, and write them",
    )
    parser.add_argument(
        "--errors",
        action="store_true",
        help="show what went wrong; training turns only, so that nobody tunes on the others",
    )
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.add_argument(
        "--assert-goals", action="store_true", help="exit with 1 where a goal is missed"
    )
    given = parser.parse_args()
    if given.errors and given.split != "train":
        parser.error("--errors shows training turns only: add --split train")
    if given.fit:
        print(f"fitted on {fit(load('train'), WEIGHTS).fitted_on}; run again to measure")
        return 0
    judge = SimulatedJudge()
    cases = load(given.split)
    found = run(cases, judge, calibrated(judge))
    facts = measure(found)
    if given.json:
        print(json.dumps(asdict(facts)))
    else:
        print_facts(facts, given.split, judge)
        if fresh := [one for one in found if one.case.row.group == FRESH]:
            print_fresh(measure(fresh))
        (p50, p99), (long_p50, long_p99) = (
            time_us([case.step for case in cases]),
            time_us([long_step(cases)] * 40),
        )
        print(
            f"\nsense(): p50 {p50:.0f} µs, p99 {p99:.0f} µs; with 20 kB of output p50"
            f" {long_p50:.0f} µs, p99 {long_p99:.0f} µs"
        )
    if given.errors:
        print_errors(found)
    lines = missed(facts)
    for line in lines:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if lines and given.assert_goals else 0


if __name__ == "__main__":
    sys.exit(main())
