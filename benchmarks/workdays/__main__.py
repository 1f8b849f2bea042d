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
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.house_rules.report import read_records, write_report
from benchmarks.program_runs import RunJob, add_number_options, add_run_options, run_all
from benchmarks.workdays.course import COURSES
from benchmarks.workdays.driver import NUMBERS, Condition, Settings, run

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
    add_number_options(parser, {name: getattr(_DEFAULT, name) for name in NUMBERS})
    add_run_options(parser, "workdays")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    numbers = {name: getattr(given, name) for name in NUMBERS}
    settings = Settings(**numbers, device=given.device, sets=tuple(given.sets))
    jobs = [
        RunJob(given.course, condition, seed, partial(run, condition, settings))
        for condition in _ORDER
        if condition in given.conditions
        for seed in given.seeds
    ]
    status = 0 if given.report else run_all(given, jobs)
    print(write_report(read_records(given.out)))
    return status


if __name__ == "__main__":
    sys.exit(main())
