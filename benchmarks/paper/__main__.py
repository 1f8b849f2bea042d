"""The paper's experiment through the running program.

    make paper                                                        # small: the embedded model, one seed, two CPU cores
    python -m benchmarks.paper --parts table --model FOLDER --seeds 0 1 2 --minutes 8 --device cuda --parallel 9
    python -m benchmarks.paper --plan FILE --parallel 20              # runs of several models and parts at the same time
    python -m benchmarks.paper --report --out DIR                     # the tables once more

Parts: *table* (baseline, skills only, weights only, full, and what each loop does for the other),
*curve* (do weights that were taught rules follow new ones), *habits* (violations without the rule
in the prompt). Each line of a plan has the options of a call; all its runs are made at the same
time, `--parallel` at once. A run ends by itself after `--minutes`. Records are appended to a file
for each part in `--out` as they are made, and a later run of the same name takes the place of an
earlier one, so nothing is lost if the program is killed.

All that trains, rewards or judges weights is the program's own. In the table, a scripted model
behind the proxy judges answers by the benchmark's checkers; it writes the skills of the row
*scripted*, those of *itself* are written by the model that is measured. Curve and habits have no
judge: rules are checked by programs that grade parts of an answer."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.home import Machine
from benchmarks.paper import curve, habits, workdays
from benchmarks.paper.course import COURSES
from benchmarks.paper.report import read_runs, write_report
from benchmarks.paper.stage import NUMBERS, Settings
from benchmarks.paper.workdays import Exchange, Writer
from benchmarks.program_runs import (
    RunJob,
    add_number_options,
    add_run_options,
    machine_of,
    run_jobs,
)

_DEFAULT: Final = Settings()
Jobs = list[tuple[RunJob, Machine]]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", nargs="+", choices=list(_PARTS), default=list(_PARTS))
    parser.add_argument("--plan", type=Path, help="a file with the options of a call in each line")
    parser.add_argument("--name", help="of the model in records [its folder's]")
    parser.add_argument("--course", choices=list(COURSES), default=_DEFAULT.course)
    parser.add_argument(
        "--arms",
        nargs="+",
        type=Writer,
        choices=list(Writer),
        metavar="ARM",
        default=list(Writer),
        help="of the table, by who writes the skills: scripted, itself, nobody [all]",
    )
    parser.add_argument(
        "--counts",
        nargs="+",
        type=int,
        default=curve.COUNTS,
        help="of the curve: after so many taught rules [1 2 4 8]",
    )
    add_number_options(parser, {name: getattr(_DEFAULT, name) for name in NUMBERS})
    add_run_options(parser, "paper")
    return parser.parse_args(arguments)


def jobs_of(given: argparse.Namespace, exchange: Exchange) -> Jobs:
    """The runs of one call."""
    numbers = {name: getattr(given, name) for name in NUMBERS}
    settings = Settings(**numbers, course=given.course, device=given.device, sets=tuple(given.sets))
    machine = machine_of(given)
    machine = replace(machine, model=machine.model.resolve(), is_embedded=False)
    found: Jobs = []
    for part in given.parts:
        for condition, go in _PARTS[part](given, settings, exchange):
            course = f"{part} {given.name or given.model.name}"
            found += [(RunJob(course, condition, seed, go, part), machine) for seed in given.seeds]
    return found


Go = Callable[..., None]


def _table(
    given: argparse.Namespace, settings: Settings, exchange: Exchange
) -> list[tuple[str, Go]]:
    others = [writer for writer in workdays.WRITERS if writer in given.arms]
    return [
        (writer, partial(workdays.run, writer, others, settings, exchange)) for writer in given.arms
    ]


def _curve(
    given: argparse.Namespace, settings: Settings, exchange: Exchange
) -> list[tuple[str, Go]]:
    return [("curve", partial(curve.run, given.counts, settings))]


def _habits(
    given: argparse.Namespace, settings: Settings, exchange: Exchange
) -> list[tuple[str, Go]]:
    return [("habits", partial(habits.run, settings))]


_PARTS: Final = {"table": _table, "curve": _curve, "habits": _habits}


def planned(words: Sequence[str], plan: Path) -> list[argparse.Namespace]:
    """The calls of a plan: each line's options behind those of the command, with variables of the
    environment in them.
    """
    text = os.path.expandvars(plan.read_text("utf-8"))
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [parse([*words, *line]) for line in lines if line]


def main(arguments: Sequence[str] | None = None) -> int:
    given, exchange = parse(arguments), Exchange()
    if given.report:
        print(write_report(read_runs(given.out)))
        return 0
    words = sys.argv[1:] if arguments is None else arguments
    calls = [given] if given.plan is None else planned(words, given.plan)
    jobs = [job for call in calls for job in jobs_of(call, exchange)]
    status = run_jobs(given.out, given.parallel, jobs)
    print(write_report(read_runs(given.out)))
    return status


if __name__ == "__main__":
    sys.exit(main())
