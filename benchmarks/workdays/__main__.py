"""Workdays with a real model and real gradients: a person corrects, skills come of it, weights are taught at night.

    python -m benchmarks.workdays --device cuda --course two-rules --seeds 0 1 2 --parallel 12    # one GPU
    python -m benchmarks.workdays --small                                                        # two CPU cores

On a GPU machine with torch, tokenizers, safetensors, numpy and jinja2 and no package index, from a bare checkout. The second line
looks whether everything is there, the third is the run, the last makes one file of all records, and the tables from it:

    export PYTHONPATH=src:FOLDER_WITH_GGUF_PACKAGE; where="--device cuda --model /tmp/model --gguf PART1 PART2"
    python -m benchmarks.workdays $where --conditions full --days 2 --steps 4 --no-golden --out /tmp/look
    timeout 540 python -m benchmarks.workdays $where --threads 2 --seeds 0 1 2 --parallel 8 --out /tmp/workdays
    cat /tmp/workdays/*.jsonl > records.jsonl; python -m benchmarks.workdays --report --out records.jsonl

Conditions: *baseline* (no skills, no training), *skills* (what the person says becomes skills), *RL only* (training at night),
*full* (both). Every seed is a stream of days of its own; at the end come held-out days. Every day, every
step and the end are lines of JSON under --out, written as they come; the tables are made from those lines.
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

from benchmarks.workdays.doors import open_doors

open_doors()

from benchmarks.workdays.report import goals, read_records, skills_alone, write_report  # noqa: E402
from benchmarks.workdays.settings import PRESETS, SMALL, Condition, Days, Flush, Settings, Support, Writer  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
_ORDER = (Condition.FULL, Condition.RL, Condition.SKILLS, Condition.BASELINE)
"""The longest first: so the last to end has not begun last."""
_OVERRIDES = {
    "days": int,
    "questions": int,
    "held-out-days": int,
    "early-days": int,
    "batches": int,
    "max-tokens": int,
    "max-prompt-tokens": int,
    "prompts": int,
    "group": int,
    "steps": int,
    "rank": int,
    "learning-rate": float,
    "warm-up-steps": int,
    "piece-prompts": int,
    "temperature": float,
    "rehearsal": float,
    "rehearsed-prompts": int,
    "rehearsed-questions": int,
    "cool-down": float,
    "flush": Flush,
    "support": Support,
    "file-share": float,
    "writer": Writer,
    "shown": int,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Settings that are not given stay None."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.workdays", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="fewer days, questions and rollouts, for two CPU cores")
    parser.add_argument(
        "--course",
        type=Days,
        choices=list(Days),
        metavar="COURSE",
        help=f"the days, with the settings that go with them: {', '.join(Days)} [part-two]",
    )
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
        help=f"some of {', '.join(Condition)}",
    )
    parser.add_argument("--parallel", type=int, default=1, help="so many runs at once, each a process of its own [1]")
    parser.add_argument(
        "--minutes", type=float, help="a run that has taken so long teaches no more and goes on to the held-out days"
    )
    parser.add_argument("--model", type=Path, default=ROOT / ".cache" / "engine" / "smollm2-135m-instruct", help="model folder")
    parser.add_argument(
        "--gguf", type=Path, nargs="+", default=[], help="make the model folder from this file, or its parts in order"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "workdays",
        help="where records go; with --report also a file of them",
    )
    parser.add_argument("--keep", action="store_true", help="write each trained adapter beside its records")
    parser.add_argument(
        "--golden", action=argparse.BooleanOptionalAction, help="serve no weights that lose on the golden set [not with --small]"
    )
    parser.add_argument(
        "--examples", action=argparse.BooleanOptionalAction, help="show both forms of an answer before each question"
    )
    parser.add_argument("--report", action="store_true", help="run nothing: make the tables from the records in --out")
    parser.add_argument("--assert-goals", action="store_true", help="exit status 1 where a goal is missed")
    parser.add_argument("--mute", action="store_true", help=argparse.SUPPRESS)
    for name, kind in _OVERRIDES.items():
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def settings_of(given: argparse.Namespace) -> Settings:
    """The preset with what was given put in its place."""
    names = [name.replace("-", "_") for name in (*_OVERRIDES, "golden", "minutes", "examples")]
    changes = {name: value for name in names if (value := getattr(given, name)) is not None}
    return replace(SMALL if given.small else PRESETS[given.course or Days.PART_TWO], **changes)


def main(arguments: Sequence[str] | None = None) -> int:
    said = list(sys.argv[1:] if arguments is None else arguments)
    given = parse(said)
    if not given.report:
        from benchmarks.house_rules.model import find_model

        find_model(given.model, given.gguf)
        given.out.mkdir(parents=True, exist_ok=True)
        jobs = [(condition, seed) for condition in _ORDER if condition in (given.conditions or _ORDER) for seed in given.seeds]
        status = _run_beside(said, given.parallel, jobs) if given.parallel > 1 and len(jobs) > 1 else _run_here(given, jobs)
        # What has come to its end is told of, whatever became of the others.
        return status if given.mute else max(status, _tell(given))
    return _tell(given)


def _tell(given: argparse.Namespace) -> int:
    runs = read_records(given.out)
    met = goals(runs)
    lines = [write_report(runs), skills_alone(runs), *(f"{'met' if is_met else 'MISSED'}: {goal}" for goal, is_met in met.items())]
    text = "\n".join(line for line in lines if line)
    if given.out.is_dir():
        (given.out / "report.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 1 if given.assert_goals and not (met and all(met.values())) else 0


def _run_here(given: argparse.Namespace, jobs: Sequence[tuple[Condition, int]]) -> int:
    from benchmarks.house_rules.run import Machine, write_line
    from benchmarks.workdays.course import make_course
    from benchmarks.workdays.run import Run

    dtype = given.dtype or ("bfloat16" if given.device.startswith("cuda") else "float32")
    machine = Machine(given.model, given.device, dtype, given.threads)
    for condition, seed in jobs:
        path = _records(given, condition, seed)
        path.unlink(missing_ok=True)
        began = time.perf_counter()
        settings = settings_of(given)
        run = Run(condition, seed, settings, make_course(seed, settings.course), machine, partial(write_line, path))
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
    own = ["--parallel", "1", "--seeds", str(seed), "--conditions", condition, "--mute"]
    command = [sys.executable, "-m", "benchmarks.workdays", *said, *own]
    return subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.DEVNULL).returncode


def _records(given: argparse.Namespace, condition: Condition, seed: int) -> Path:
    out: Path = given.out
    return out / f"{condition.replace(' ', '-')}-{seed}.jsonl"


if __name__ == "__main__":
    sys.exit(main())
