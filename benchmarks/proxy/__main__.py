"""`python -m benchmarks.proxy`: the command line of the proxy benchmark."""

import argparse
import shlex
import sys
from pathlib import Path

from . import peers, results
from .goals import BEFORE, OURS, judge
from .harness import Options, measure
from .report import goal_lines, markdown, measurements
from .suites import QUICK, SUITES
from .toolchain import MissingToolError

_PEERS = tuple(peers.REQUIREMENTS)
_TARGETS = ("direct", "nginx", "ours")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="about a minute: one round of short slots, fewer suites",
    )
    parser.add_argument(
        "--peers",
        default="all",
        help=f"all, none, or some of {','.join(_PEERS)}; what is not installed is left out",
    )
    parser.add_argument(
        "--install-peers",
        action="store_true",
        help="install the peers into their own environments, then stop",
    )
    parser.add_argument(
        "--targets", type=_names, default=_TARGETS, help=f"which of {','.join(_TARGETS)} [all]"
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="PROGRAM",
        help="a metaclaw of another version, to be measured beside ours",
    )
    parser.add_argument(
        "--suites", type=_names, help=f"which of {','.join(suite.name for suite in SUITES)}"
    )
    parser.add_argument("--rounds", type=int, help="how often every slot is measured [5, quick 1]")
    parser.add_argument("--seconds", type=float, help="length of a slot [2, quick 1]")
    parser.add_argument(
        "--cold-starts", type=int, help="how often every target is started [3, quick 1]"
    )
    parser.add_argument("--skills", type=int, default=1000, help="size of the skill library [1000]")
    parser.add_argument(
        "--memory-requests",
        type=int,
        help="requests of the memory test [50000, quick 5000], 0 leaves it out",
    )
    parser.add_argument(
        "--budget", type=float, default=600.0, help="no new round after this many seconds [600]"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write everything measured")
    parser.add_argument("--markdown", type=Path, metavar="OUT", help="write the report")
    parser.add_argument(
        "--from-json", type=Path, metavar="FILE", help="measure nothing: report on an earlier run"
    )
    parser.add_argument(
        "--assert-goals",
        action="store_true",
        help="exit with 1 if a goal is missed, or if ours could not be measured",
    )
    return parser


def _chosen_peers(text: str) -> tuple[str, ...]:
    return {"all": _PEERS, "none": ()}.get(text, _names(text))


def _options(given: argparse.Namespace) -> Options:
    quick: bool = given.quick

    def default(value: float | None, full: float, short: float) -> float:
        if value is not None:
            return value
        return short if quick else full

    return Options(
        targets=(*given.targets, *([BEFORE] if given.before else []), *_chosen_peers(given.peers)),
        suites=given.suites or (QUICK if quick else [suite.name for suite in SUITES]),
        rounds=int(default(given.rounds, 5, 1)),
        seconds=default(given.seconds, 2, 1),
        cold_starts=int(default(given.cold_starts, 3, 1)),
        skills=given.skills,
        memory_requests=int(default(given.memory_requests, 50_000, 5_000)),
        overload_s=2 if quick else 6,
        patience_s=0 if quick else 2,
        budget_s=given.budget,
        command=shlex.join(["python", "-m", "benchmarks.proxy", *sys.argv[1:]]),
        before=given.before,
    )


def _refuse_unknown(options: Options, parser: argparse.ArgumentParser) -> None:
    for chosen, known in (
        (options.targets, (*_TARGETS, BEFORE, *_PEERS)),
        (options.suites, [suite.name for suite in SUITES]),
    ):
        unknown = [name for name in chosen if name not in known]
        if unknown:
            parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _report(run: results.Run, given: argparse.Namespace) -> int:
    if given.json:
        results.save(run, given.json)
    if given.markdown:
        given.markdown.parent.mkdir(parents=True, exist_ok=True)
        given.markdown.write_text(markdown(run))
    goals = judge(run)
    print(measurements(run))
    print("\n".join(goal_lines(goals)))
    missed = OURS not in run.targets or any(goal.met is False for goal in goals)
    return 1 if given.assert_goals and missed else 0


def main() -> int:
    """Measures or re-reads a run, prints the report, and judges it."""
    parser = _arguments()
    given = parser.parse_args()
    if given.install_peers:
        for name in _chosen_peers(given.peers):
            _say(f"installing {name} into {peers.ENVIRONMENTS / name}")
            peers.install(name)
        return 0
    if given.from_json:
        return _report(results.load(given.from_json), given)
    options = _options(given)
    _refuse_unknown(options, parser)
    try:
        run = measure(options, _say)
    except MissingToolError as problem:
        _say(str(problem))
        return 2
    return _report(run, given)


if __name__ == "__main__":
    sys.exit(main())
