"""It learns, for real: a 135M model learns five house rules by reinforcement, with and without the skill that states the rule.

    python -m benchmarks.house_rules --device cuda --seeds 0 1 2 --parallel 3      # one GPU
    python -m benchmarks.house_rules --small                                      # two CPU cores, one rule

Conditions: *base* (no skill, no training), *skills only* (the skill in the prompt), *RL only* (training without the skill), *full*
(training with the skill in the prompt). Questions of the exam share no entity with those of the training; an answer counts if it is
exactly right. Every step is a line of JSON under --out; the tables are made from those lines.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.house_rules.doors import open_doors

open_doors()

from benchmarks.house_rules.report import goals, read_records, write_report  # noqa: E402
from benchmarks.house_rules.rules import Rule  # noqa: E402
from benchmarks.house_rules.settings import CONDITIONS, LARGE, SMALL, Condition, Settings  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
_OVERRIDES = {
    "steps": int,
    "minutes": float,
    "prompts": int,
    "group": int,
    "max-tokens": int,
    "rank": int,
    "learning-rate": float,
    "temperature": float,
    "kl": float,
    "rehearsal": float,
    "rehearsed-prompts": int,
    "enough": float,
    "held-out": int,
    "look-every": int,
    "piece-prompts": int,
    "settle-steps": int,
    "settle-every": int,
    "settle-at": float,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Settings that are not given stay None."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.house_rules", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="one rule and few rollouts, for two CPU cores")
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="[bfloat16 on cuda, else float32]")
    parser.add_argument("--threads", type=int, help="CPU threads of each run [torch's choice]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--conditions",
        nargs="+",
        type=Condition,
        choices=list(Condition),
        metavar="CONDITION",
        help=f"some of {', '.join(Condition)} [all; with --small all but RL only]",
    )
    parser.add_argument("--rules", nargs="+", type=Rule, choices=list(Rule), metavar="RULE", help="[all; metadata with --small]")
    parser.add_argument("--parallel", type=int, default=1, help="so many runs at once, each a process of its own [1]")
    parser.add_argument("--model", type=Path, default=ROOT / ".cache" / "engine" / "smollm2-135m-instruct", help="model folder")
    parser.add_argument(
        "--gguf", type=Path, nargs="+", default=[], help="make the model folder from this file, or from its parts in order"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "house_rules", help="where records go")
    parser.add_argument("--keep", action="store_true", help="write each trained adapter beside its records")
    parser.add_argument(
        "--golden", action=argparse.BooleanOptionalAction, help="the golden set before and after [not with --small]"
    )
    parser.add_argument("--report", action="store_true", help="run nothing: make the tables from the records in --out")
    parser.add_argument("--assert-goals", action="store_true", help="exit status 1 where a goal is missed")
    for name, kind in _OVERRIDES.items():
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def settings_of(given: argparse.Namespace) -> Settings:
    """The preset with what was given put in its place."""
    names = [name.replace("-", "_") for name in (*_OVERRIDES, "golden")]
    changes = {name: value for name in names if (value := getattr(given, name)) is not None}
    preset = replace(SMALL if given.small else LARGE, **changes)
    return replace(preset, rules=tuple(given.rules)) if given.rules else preset


def main(arguments: Sequence[str] | None = None) -> int:
    said = list(sys.argv[1:] if arguments is None else arguments)
    given = parse(said)
    if not given.report:
        from benchmarks.house_rules.model import find_model

        find_model(given.model, given.gguf)
        given.out.mkdir(parents=True, exist_ok=True)
        jobs = [(condition, seed) for seed in given.seeds for condition in given.conditions or CONDITIONS[given.small]]
        status = _run_beside(said, given.parallel, jobs) if given.parallel > 1 and len(jobs) > 1 else _run_here(given, jobs)
        if status:
            return status
    runs = read_records(given.out)
    print(write_report(runs))
    met = goals(runs)
    for goal, is_met in met.items():
        print(f"{'met' if is_met else 'MISSED'}: {goal}")
    return 1 if given.assert_goals and not all(met.values()) else 0


def _run_here(given: argparse.Namespace, jobs: Sequence[tuple[Condition, int]]) -> int:
    from benchmarks.house_rules.run import Machine, Run, write_line

    dtype = given.dtype or ("bfloat16" if given.device.startswith("cuda") else "float32")
    machine = Machine(given.model, given.device, dtype, given.threads)
    for condition, seed in jobs:
        path = _records(given, condition, seed)
        path.unlink(missing_ok=True)
        began = time.perf_counter()
        run = Run(condition, seed, settings_of(given), machine, partial(write_line, path))
        run.go()
        if given.keep and condition.learns:
            run.keep(path.with_suffix(".adapter"))
        print(f"{condition}, seed {seed}: done in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return 0


def _run_beside(said: Sequence[str], parallel: int, jobs: Sequence[tuple[Condition, int]]) -> int:
    """Each job as a command of its own: one run leaves gaps on a GPU that others fill."""
    with ThreadPoolExecutor(parallel) as pool:
        return max(pool.map(partial(_run_apart, said), jobs))


def _run_apart(said: Sequence[str], job: tuple[Condition, int]) -> int:
    condition, seed = job
    # Of an option that is given twice the last counts.
    own = ["--parallel", "1", "--seeds", str(seed), "--conditions", condition]
    command = [sys.executable, "-m", "benchmarks.house_rules", *said, *own]
    return subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.DEVNULL).returncode


def _records(given: argparse.Namespace, condition: Condition, seed: int) -> Path:
    out: Path = given.out
    return out / f"{condition.replace(' ', '-')}-{seed}.jsonl"


if __name__ == "__main__":
    sys.exit(main())
