"""Working days through the running program: what the person says becomes skills, and at night
weights are trained.

    python -m benchmarks.workdays --seeds 0 1 2 3 4 --parallel 5 --device cuda      # one GPU, two rules
    python -m benchmarks.workdays --course one-rule --minutes 40                    # two CPU cores
    python -m benchmarks.workdays --report --out DIR                                # the tables once more

For every seed and condition a program is started in a home of its own. A day's questions are asked
at temperature 1, each in a session; the person says what was wrong (`/api/feedback`) until a skill
for the rule stands in the prompt. A scripted model behind the proxy judges by the benchmark's
checkers, ranks answers by how much of the task they do, and writes the skills. After some days
`metaclaw policy train` runs until the new version was judged. At the end held-out days are asked
greedily. Conditions: *baseline* (no skills, no training), *skills*, *full*. Accuracy is the
published one: partial credit for choices, all or nothing for files.

The person sets their own learning budget (`learning.daily_tokens`, a billion): every answer in
training is ranked by the judge, which is scripted here and costs nothing. With the default of
300,000 tokens a day the program would plan runs of a few small steps."""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.home import Machine, engine_threads, find_model
from benchmarks.house_rules.report import read_records, write_report
from benchmarks.workdays.course import COURSES, make_course
from benchmarks.workdays.driver import Condition, Run, Settings

ROOT = Path(__file__).resolve().parents[2]
_DEFAULT = Settings()
_ORDER = (Condition.FULL, Condition.SKILLS, Condition.BASELINE)
"""The longest first."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.workdays",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--course", choices=list(COURSES), default="two-rules")
    parser.add_argument(
        "--conditions",
        nargs="+",
        type=Condition,
        choices=list(Condition),
        metavar="CONDITION",
        default=_ORDER,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--parallel", type=int, default=1, help="so many programs at once [1]")
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default=_DEFAULT.device,
        help="where weights are trained",
    )
    parser.add_argument(
        "--days", type=int, default=_DEFAULT.days, help=f"at most [{_DEFAULT.days}]"
    )
    parser.add_argument(
        "--night-every",
        type=int,
        default=_DEFAULT.night_every,
        help=f"days [{_DEFAULT.night_every}]",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=_DEFAULT.max_tokens,
        help=f"of an answer [{_DEFAULT.max_tokens}]",
    )
    parser.add_argument(
        "--at-once", type=int, default=_DEFAULT.at_once, help=f"chats at once [{_DEFAULT.at_once}]"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=_DEFAULT.minutes,
        help=f"a run that has taken so long trains no more [{_DEFAULT.minutes:g}]",
    )
    parser.add_argument(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="as for `metaclaw start`",
    )
    parser.add_argument(
        "--threads", type=int, help="of the serving engine of each program [all of them, shared]"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the Python that runs the program [this one]"
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=ROOT / ".cache" / "engine" / "smollm2-135m-instruct",
        help="model folder",
    )
    parser.add_argument(
        "--gguf",
        type=Path,
        nargs="+",
        default=[],
        help="make the model folder from this file, or its parts",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "workdays",
        help="where records go",
    )
    parser.add_argument(
        "--keep", type=Path, help="make the homes in this folder and leave them there"
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="run nothing: make the tables from the records in --out",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    status = 0 if given.report else _run(given)
    print(write_report(read_records(given.out)))
    return status


def _run(given: argparse.Namespace) -> int:
    given.out.mkdir(parents=True, exist_ok=True)
    threads = given.threads if given.threads is not None else engine_threads(given.parallel)
    machine = Machine(find_model(given.model, given.gguf), given.python, threads, given.keep)
    jobs = [
        (condition, seed)
        for condition in _ORDER
        if condition in given.conditions
        for seed in given.seeds
    ]
    with ThreadPoolExecutor(given.parallel) as pool:
        return max(pool.map(partial(_one, given, machine), jobs))


def _one(given: argparse.Namespace, machine: Machine, job: tuple[Condition, int]) -> int:
    condition, seed = job
    path = given.out / f"{given.course}-{condition}-{seed}.jsonl"
    path.unlink(missing_ok=True)
    write = partial(_append, path)
    names = ("days", "night_every", "max_tokens", "at_once", "minutes", "device")
    settings = Settings(**{name: getattr(given, name) for name in names}, sets=tuple(given.sets))
    began = time.monotonic()
    try:
        Run(make_course(given.course, seed), condition, seed, settings, machine, write).go()
    except Exception as error:  # one run that fails must not end the others
        write(
            {
                "kind": "failed",
                "course": given.course,
                "condition": condition,
                "seed": seed,
                "error": repr(error),
            }
        )
        print(
            f"{path.stem}: failed after {time.monotonic() - began:.0f} s: {error}",
            file=sys.stderr,
            flush=True,
        )
        return 1
    print(f"{path.stem}: done in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return 0


def _append(path: Path, record: Mapping[str, object]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    sys.exit(main())
