"""Does the running program learn? Rules are taught to weights through public interfaces alone, and
held-out questions asked.

    python -m benchmarks.house_rules                                                    # the five house rules, this machine
    python -m benchmarks.house_rules --rules metadata --minutes 20                       # one rule, two CPU cores
    python -m benchmarks.house_rules --seeds 0 1 2 3 4 --parallel 5 --device cuda        # one GPU
    python -m benchmarks.house_rules --families dev --seeds 0 --parallel 5 --device cuda # new rules, each taught alone
    python -m benchmarks.house_rules --own FOLDER                                        # a rule of your own
    python -m benchmarks.house_rules --report --out DIR                                  # the tables once more

For every seed and condition a program is started in a home of its own: `metaclaw start --mode rl`,
a SKILL.md for each rule with a graded `program:` check, chats of the training split at temperature
1, `metaclaw policy train`; when the new version was judged, the held-out questions are asked
greedily. An answer counts if it is exactly right. Conditions: *base* (no skill, no training),
*skills* (no training), *full* (both). All that trains, rewards or judges is the program's own, with
its default settings unless `--set` changes them."""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.home import Machine, engine_threads, find_model
from benchmarks.house_rules.courses import Course, course_of, read_course
from benchmarks.house_rules.driver import Condition, Run, Settings
from benchmarks.house_rules.report import read_records, write_report
from benchmarks.house_rules.rules import RULES, Group, rules_of

ROOT = Path(__file__).resolve().parents[2]
_DEFAULT = Settings()
_ORDER = (Condition.FULL, Condition.SKILLS, Condition.BASE)
"""The longest first."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.house_rules",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rules",
        nargs="+",
        choices=list(RULES),
        metavar="RULE",
        help="taught together [the five house rules]",
    )
    parser.add_argument(
        "--families",
        nargs="+",
        choices=[*RULES, Group.DEV, Group.HELD_BACK],
        metavar="FAMILY",
        help=f"each taught alone: {Group.DEV}, {Group.HELD_BACK}, or names of rules",
    )
    parser.add_argument(
        "--own",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="your own rules, each taught alone: see `courses.py`",
    )
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
        "--chats", type=int, default=_DEFAULT.chats, help=f"for each rule [{_DEFAULT.chats}]"
    )
    parser.add_argument(
        "--questions",
        type=int,
        default=_DEFAULT.questions,
        help=f"held out, for each rule [{_DEFAULT.questions}]",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=_DEFAULT.max_tokens,
        help=f"of a chat [{_DEFAULT.max_tokens}]",
    )
    parser.add_argument(
        "--at-once", type=int, default=_DEFAULT.at_once, help=f"chats at once [{_DEFAULT.at_once}]"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=_DEFAULT.minutes,
        help="a run that has taken so long waits no more for training [8]",
    )
    parser.add_argument(
        "--mode", choices=("rl", "auto"), default=_DEFAULT.mode, help="as for `metaclaw start` [rl]"
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
        help="make the model folder from this file, or its parts in order",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "house_rules",
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


def courses_of(given: argparse.Namespace) -> list[Course]:
    """What is taught: some rules together, or families one by one."""
    if given.own:
        return [read_course(folder) for folder in given.own]
    if not given.families:
        rules = tuple(RULES[name] for name in given.rules) if given.rules else rules_of(Group.HOUSE)
        return [course_of("+".join(given.rules) if given.rules else "house", rules)]
    groups = {Group.DEV: rules_of(Group.DEV), Group.HELD_BACK: rules_of(Group.HELD_BACK)}
    found = [
        rule
        for name in given.families
        for rule in groups.get(name, (RULES.get(name),))
        if rule is not None
    ]
    return [course_of(rule.name, (rule,)) for rule in dict.fromkeys(found)]


def settings_of(given: argparse.Namespace) -> Settings:
    """The numbers that were given."""
    names = ("chats", "questions", "max_tokens", "at_once", "minutes", "mode", "device")
    return Settings(**{name: getattr(given, name) for name in names}, sets=tuple(given.sets))


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
        (course, condition, seed)
        for condition in _ORDER
        if condition in given.conditions
        for course in courses_of(given)
        for seed in given.seeds
    ]
    with ThreadPoolExecutor(given.parallel) as pool:
        return max(pool.map(partial(_one, given, machine), jobs))


def _one(given: argparse.Namespace, machine: Machine, job: tuple[Course, Condition, int]) -> int:
    course, condition, seed = job
    path = given.out / f"{course.name}-{condition}-{seed}.jsonl"
    path.unlink(missing_ok=True)
    write = partial(_append, path)
    began = time.monotonic()
    try:
        Run(course, condition, seed, settings_of(given), machine, write).go()
    except Exception as error:  # one run that fails must not end the others
        write(
            {
                "kind": "failed",
                "course": course.name,
                "condition": condition,
                "seed": seed,
                "error": f"{type(error).__name__}: {error}",
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
