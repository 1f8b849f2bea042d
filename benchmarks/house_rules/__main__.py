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
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.house_rules.courses import Course, course_of, read_course
from benchmarks.house_rules.driver import NUMBERS, Condition, Settings, run
from benchmarks.house_rules.report import read_records, write_report
from benchmarks.house_rules.rules import RULES, Group, rules_of
from benchmarks.program_runs import RunJob, add_number_options, add_run_options, run_all

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
    parser.add_argument(
        "--mode", choices=("rl", "auto"), default=_DEFAULT.mode, help="as for `metaclaw start` [rl]"
    )
    add_number_options(parser, {name: getattr(_DEFAULT, name) for name in NUMBERS})
    add_run_options(parser, "house_rules")
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
    numbers = {name: getattr(given, name) for name in NUMBERS}
    return Settings(**numbers, mode=given.mode, device=given.device, sets=tuple(given.sets))


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    settings = settings_of(given)
    jobs = [
        RunJob(course.name, condition, seed, partial(run, course, condition, settings))
        for condition in _ORDER
        if condition in given.conditions
        for course in courses_of(given)
        for seed in given.seeds
    ]
    status = 0 if given.report else run_all(given, jobs)
    print(write_report(read_records(given.out)))
    return status


if __name__ == "__main__":
    sys.exit(main())
