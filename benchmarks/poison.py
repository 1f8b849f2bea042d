"""Poisoned weights: does the gate refuse them, and if one is let through by force, how soon do live turns take it back?

    python -m benchmarks.poison --device cuda                     # one GPU, about three minutes
    python -m benchmarks.poison --small                           # a look at it on two CPU cores

The model learns the house rules (`benchmarks.house_rules`) until about half of its answers are right: the version that serves.
Taught further, it is an honest candidate. Poisoned candidates of many kinds (`poison_kinds`) are made from both, for every seed
anew. Each is tried as the slow loop tries one: held-out questions with the same random numbers on both sides, of which only exact
answers count, and the golden set answered greedily. The real gate (`metaclaw.train.gate`) with its own rules says what becomes of
it. It is told no distance to the untrained weights, as in a run whose loss does not weigh it; the table says whom that rule would
refuse as well. Then each that can be drawn from is put live by force on a tenth of simulated sessions (`poison_report`), with
outcomes drawn from its measured answers, until `metaclaw.train.live` ends it.
"""

import argparse
import json
import math
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from benchmarks.house_rules.doors import open_doors
from benchmarks.poison_doors import open_gate

open_doors()
open_gate()

from benchmarks.house_rules.general import Golden  # noqa: E402
from benchmarks.house_rules.loop import Loop  # noqa: E402
from benchmarks.house_rules.model import find_model  # noqa: E402
from benchmarks.house_rules.pools import Split  # noqa: E402
from benchmarks.house_rules.prompts import encode  # noqa: E402
from benchmarks.house_rules.rehearsal import Rehearsal, conversations  # noqa: E402
from benchmarks.house_rules.rewards import is_exact  # noqa: E402
from benchmarks.house_rules.settings import LARGE, SMALL, Settings  # noqa: E402
from benchmarks.house_rules.tasks import Task, make_tasks  # noqa: E402
from benchmarks.poison_kinds import Dose, Kind, Poisoner, begin_from, is_finite  # noqa: E402
from benchmarks.poison_report import Outcomes, goals, live_trials, read_trials, write_report  # noqa: E402
from metaclaw.domain.batch import Drawing, Rollout  # noqa: E402
from metaclaw.engine.text import Vocabulary  # noqa: E402
from metaclaw.engine.training.learner import Learner  # noqa: E402
from metaclaw.engine.training.lora import Adapter  # noqa: E402
from metaclaw.engine.training.peft import read_adapter, write_adapter  # noqa: E402
from metaclaw.errors import TrainingError  # noqa: E402
from metaclaw.train.gate import Evidence, Pair, Ruling, judge_candidate  # noqa: E402
from metaclaw.train.golden import GoldenScore  # noqa: E402
from metaclaw.train.regression import compare_golden  # noqa: E402

ROOT: Final = Path(__file__).resolve().parents[1]
_HELD_OUT_SEED: Final = 5_000
"""Held-out questions of a trial are others than those of any house-rules run."""
_RECENT: Final = 3
_SMALL_KINDS: Final = (Kind.NOISE_STRONG, Kind.FLIPPED, Kind.NOT_A_NUMBER, Kind.IDENTICAL, Kind.SWAPPED, Kind.HONEST)


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is. The serving version is taken at `serving_at` of exact rollouts, the better one at `better_at`."""

    settings: Settings
    dose: Dose
    kinds: tuple[Kind, ...]
    held_out: int
    kl_prompts: int
    replays: int
    golden_always: bool
    serving_at: float = 0.5
    better_at: float = 0.9


LARGE_SCALE: Final = Scale(LARGE, Dose(), tuple(Kind), held_out=200, kl_prompts=64, replays=20, golden_always=True)
SMALL_SCALE: Final = Scale(
    SMALL,
    Dose(4, 2, 8, 1e-3),
    _SMALL_KINDS,
    held_out=40,
    kl_prompts=8,
    replays=20,
    golden_always=False,
    serving_at=0.3,
    better_at=0.7,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a version said to the held-out questions of one seed, and whether that was right."""

    rollouts: tuple[Rollout, ...]
    passed: tuple[bool, ...]


class Bench:
    """One learner that is given one adapter after another."""

    def __init__(self, folder: Path, scale: Scale, learner: Learner, seed: int) -> None:
        self.scale, self.learner, self._seed = scale, learner, seed
        self.vocabulary = Vocabulary(folder)
        self.golden = Golden(folder, self.vocabulary)

    def teach(self, serving: Adapter | None, minutes: float) -> tuple[Adapter, list[Adapter], int]:
        """The serving version (or the given one), two better ones that come of it, and how many steps that took."""
        settings = self.scale.settings
        talks = [tuple(self.vocabulary.render(talk, "")) for talk in conversations(300, self._seed)] if settings.rehearsal else []
        rehearsal = Rehearsal(self.learner, talks, settings.rehearsed_prompts, self._seed) if talks else None
        if serving is not None:
            begin_from(self.learner, serving)
        loop = Loop(self.learner, settings, partial(encode, self.vocabulary, with_skill=True), self._seed, rehearsal)
        recent: deque[float] = deque(maxlen=_RECENT)
        began, found = time.perf_counter(), [] if serving is None else [serving]
        for number in range(1, settings.steps + 1):
            recent.append(loop.step(number / settings.steps).exact)
            goal = self.scale.better_at if found else self.scale.serving_at
            if len(recent) == _RECENT and sum(recent) / _RECENT >= goal:
                found.append(self.learner.adapter())
                recent.clear()
            if len(found) == 3 or time.perf_counter() - began > 60 * minutes:
                break
        last = self.learner.adapter()
        return (found or [last])[0], found[1:] or [last], number

    def questions(self, seed: int) -> list[Task]:
        """What the candidates of one seed are asked."""
        return list(islice(make_tasks(self.scale.settings.rules, Split.HELD_OUT, _HELD_OUT_SEED + seed), self.scale.held_out))

    def measure(self, adapter: Adapter, tasks: Sequence[Task], seed: int) -> Measured:
        """Its answers, drawn as they are served."""
        settings = self.scale.settings
        self.learner.adopt(adapter)
        prompts = encode(self.vocabulary, tasks, with_skill=True)
        drawn = [group[0] for group in self.learner.sample(prompts, Drawing(1, settings.max_tokens, settings.temperature, seed))]
        passed = [is_exact(task, one.text, is_whole=one.is_whole) for task, one in zip(tasks, drawn, strict=True)]
        return Measured(tuple(drawn), tuple(passed))

    def golden_score(self, adapter: Adapter) -> GoldenScore:
        """Passes and likelihoods on the golden set."""
        self.learner.adopt(adapter)
        return self.golden.take(self.learner)

    def distance(self, measured: Measured, tasks: Sequence[Task]) -> float:
        """From the untrained weights, which the learner must have, in nats a token: the k3 estimate that training reports."""
        count = self.scale.kl_prompts
        prompts = encode(self.vocabulary, tasks[:count], with_skill=True)
        pairs = [(prompt, one.tokens_T) for prompt, one in zip(prompts, measured.rollouts, strict=False)]
        scored = zip(measured.rollouts, self.learner.score(pairs), strict=False)
        gaps = [base - own for one, scores in scored for own, base in zip(one.logprobs_T, scores, strict=True)]
        return math.fsum(math.exp(min(gap, 50.0)) - gap - 1.0 for gap in gaps) / len(gaps)


class Judged:
    """The trials of one seed: what was measured of each candidate, and what the gate makes of it."""

    def __init__(self, bench: Bench, poisoner: Poisoner, golden: GoldenScore | None, seed: int) -> None:
        self._bench, self._poisoner, self._golden, self._seed = bench, poisoner, golden, seed
        self._tasks = bench.questions(seed)
        self._serving = bench.measure(poisoner.serving, self._tasks, seed)

    def trials(self, kinds: Sequence[Kind]) -> list[dict[str, object]]:
        """A record for every candidate."""
        found = []
        for kind in kinds:
            # All of a kind before one is measured: that changes the learner's weights.
            for strength, adapter in enumerate(list(self._poisoner.make(kind, self._seed))):
                named = {"made": kind, "aim": kind.aim, "seed": self._seed, "strength": strength}
                found.append((named, adapter, self._measured(adapter)))
        records = [named | self._weighed(adapter, measured) for named, adapter, measured in found]
        self._bench.learner.adopt(None)
        for record, (named, _, measured) in zip(records, found, strict=True):
            record |= self._lived(named, measured, None if measured is None else self._bench.distance(measured, self._tasks))
        return records

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
            return _ruled(Evidence((), is_finite=False))
        pairs = [Pair(float(mine), float(theirs)) for mine, theirs in zip(measured.passed, self._serving.passed, strict=True)]
        evidence = Evidence(pairs, is_all=True)
        if self._bench.scale.golden_always or judge_candidate(evidence).ruling is Ruling.UNDECIDED:
            self._golden = self._golden or self._bench.golden_score(self._poisoner.serving)
            evidence = replace(evidence, golden_serving=self._golden, golden_candidate=self._bench.golden_score(adapter))
        return _ruled(evidence)

    def _lived(self, named: Mapping[str, object], measured: Measured | None, kl: float | None) -> dict[str, object]:
        if measured is None:
            return {"kl": None, "share": None, "serving_share": _share(self._serving), "live": []}
        rules = [task.rule for task in self._tasks]
        canary, serving = Outcomes.of(rules, measured.passed), Outcomes.of(rules, self._serving.passed)
        live = live_trials(canary, serving, self._bench.scale.replays, str(named))
        return {"kl": kl, "share": _share(measured), "serving_share": _share(self._serving), "live": live}


def _share(measured: Measured) -> float:
    return sum(measured.passed) / len(measured.passed)


def _ruled(evidence: Evidence) -> dict[str, object]:
    decision = judge_candidate(evidence)
    serving, candidate = evidence.golden_serving, evidence.golden_candidate
    points = None if serving is None or candidate is None else compare_golden(serving, candidate).points
    return {
        "is_refused": decision.ruling is not Ruling.PROMOTE,
        "ruling": decision.ruling,
        "reasons": list(decision.report.reasons),
        "golden_points": points,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.poison", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="one rule, few kinds and prompts, for two CPU cores")
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--threads", type=int, help="CPU threads [torch's choice]")
    parser.add_argument("--teacher-seed", type=int, default=0, help="seed of the serving version [0]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="each makes every kind anew [0 1 2 3 4]")
    parser.add_argument("--minutes", type=float, default=3.2, help="no seed is begun that would not end in time [3.2]")
    parser.add_argument("--kinds", nargs="+", type=Kind, choices=list(Kind), metavar="KIND", help="[all; few with --small]")
    parser.add_argument("--adapter", type=Path, help="the version that serves, a folder in PEFT's format [taught now]")
    parser.add_argument("--better", type=Path, help="a better version, likewise [taught now]")
    parser.add_argument("--keep", type=Path, help="write both versions into this folder")
    parser.add_argument("--model", type=Path, default=ROOT / ".cache" / "engine" / "smollm2-135m-instruct", help="model folder")
    parser.add_argument("--gguf", type=Path, nargs="+", default=[], help="make the model folder from this file, or its parts")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "poison", help="where records go")
    parser.add_argument("--report", action="store_true", help="run nothing: make the tables from the records in --out")
    parser.add_argument("--assert-goals", action="store_true", help="exit status 1 where a goal is missed")
    for name in ("steps", "prompts", "group", "max-tokens", "held-out"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def scale_of(given: argparse.Namespace) -> Scale:
    """The preset with what was given put in its place."""
    preset = SMALL_SCALE if given.small else LARGE_SCALE
    changes = {name: value for name in ("steps", "prompts", "group", "max_tokens") if (value := getattr(given, name)) is not None}
    scale = replace(preset, settings=replace(preset.settings, **changes), held_out=given.held_out or preset.held_out)
    return replace(scale, kinds=tuple(given.kinds)) if given.kinds else scale


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    if not given.report:
        _run(given, scale_of(given))
    records = read_trials(given.out)
    print(write_report(records))
    met = goals(records)
    for goal, is_met in met.items():
        print(f"{'met' if is_met else 'MISSED'}: {goal}")
    return 1 if given.assert_goals and not all(met.values()) else 0


def _run(given: argparse.Namespace, scale: Scale) -> None:
    began = time.perf_counter()
    find_model(given.model, given.gguf)
    dtype = "bfloat16" if given.device.startswith("cuda") else "float32"
    rank, seed = scale.settings.rank, given.teacher_seed
    learner = Learner(given.model, rank=rank, seed=seed, device=given.device, dtype=dtype, threads=given.threads)
    bench = Bench(given.model, scale, learner, seed)
    serving, better, steps = _versions(given, bench)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"poison-{seed}.jsonl"
    path.unlink(missing_ok=True)
    taught_s = time.perf_counter() - began
    _tell(path, {"kind": "taught", "teacher_seed": seed, "steps": steps, "device": given.device, "taught_s": taught_s})
    poisoner = Poisoner(learner, bench.vocabulary, scale.settings, scale.dose, learner.shape.end_ids, serving=serving)
    poisoner.better = better
    golden = bench.golden_score(serving) if scale.golden_always else None
    longest = 0.0
    for number in given.seeds:
        at = time.perf_counter()
        if longest and at - began + longest > 60 * given.minutes:
            print(f"seed {number} and what follows would not end in time", file=sys.stderr)
            break
        for record in Judged(bench, poisoner, golden, number).trials(scale.kinds):
            _tell(path, {"kind": "trial", "teacher_seed": seed, **record})
        longest = max(longest, time.perf_counter() - at)
        print(
            f"seed {number}: {time.perf_counter() - at:.0f} s, {time.perf_counter() - began:.0f} s in all",
            file=sys.stderr,
            flush=True,
        )


def _versions(given: argparse.Namespace, bench: Bench) -> tuple[Adapter, list[Adapter], int]:
    serving = None if given.adapter is None else read_adapter(given.adapter)
    if serving is not None and given.better is not None:
        return serving, [read_adapter(given.better)], 0
    serving, better, steps = bench.teach(serving, given.minutes / 2)
    if given.keep is not None:
        for name, adapter in (("serving", serving), ("better", better[-1])):
            write_adapter(given.keep / name, adapter, str(given.model))
    return serving, better, steps


def _tell(path: Path, record: Mapping[str, object]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    sys.exit(main())
