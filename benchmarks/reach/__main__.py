"""Does what people say arrive? The running program, driven through its public interfaces.

    python -m benchmarks.reach [--only rules,skills,…] [--data FILE] [--json FILE] [--assert-goals]

SIMULATED is the model behind the proxy (`model.py`): it knows what each sentence of the data set
means, answers `listen`, `judge` and `evolve` as a capable model would, and repeats every injected
order as a rule. Everything else is the program as it is delivered, in a fresh home for each part,
with the default settings. People are told apart by `X-User-Id`; every request that is counted opens
a session of its own. A rule counts as reached when four of five of its words stand in what the
program added to the request that the provider got.

`held_out.json` is what counts: nothing may be tuned on it. `dev.json` is for development. Intervals
are Wilson's, 95 %."""

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.reach.data import HELD_OUT, load
from benchmarks.reach.figures import Figure, table
from benchmarks.reach.parts import PARTS, PROMPTS, Run
from benchmarks.reach.provider import TRAFFIC


def main(arguments: list[str] | None = None) -> int:
    """Measure the chosen parts, print the table, and say with the exit status whether every goal
    was met.
    """
    given = _parser().parse_args(arguments)
    run = Run(
        load(given.data, given.most),
        patience_s=given.patience,
        examples=not given.without_examples,
        checks=given.checks,
        feedback=given.feedback,
        delay_s=given.listen_delay,
        seed=given.seed,
        rules_in_force=given.rules,
        skills_in_library=given.skills,
        prompts=given.prompts,
    )
    measured: dict[str, list[Figure]] = {}
    seconds: dict[str, float] = {}
    for name in given.only:
        began = time.monotonic()
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        measured[name] = PARTS[name](run)
        seconds[name] = round(time.monotonic() - began, 1)
        if given.json:
            given.json.write_text(
                json.dumps(_report(given, run, measured, seconds), indent=1, ensure_ascii=False)
                + "\n"
            )
    figures = [figure for part in measured.values() for figure in part]
    print(table(figures))
    print()
    print(_spent_table(run))
    if run.unsettled:
        print(
            f"\nStill learning after {run.patience_s:g} s:"
            f" {', '.join(dict.fromkeys(run.unsettled))}."
        )
    return int(given.assert_goals and any(figure.is_met is False for figure in figures))


def _spent_table(run: Run) -> str:
    rows = ["| part | purpose | calls | tokens | of the traffic |", "|---|---|---:|---:|---:|"]
    for part, spent in run.spent.items():
        traffic = spent.get(TRAFFIC, {}).get("tokens", 0)
        for purpose, used in spent.items():
            of_traffic = f"{used['tokens'] / traffic:.0%}" if traffic else "–"
            rows.append(
                f"| {part} | {purpose} | {used['calls']:,} | {used['tokens']:,} | {of_traffic} |"
            )
    return "\n".join(rows)


def _report(
    given: argparse.Namespace,
    run: Run,
    measured: dict[str, list[Figure]],
    seconds: dict[str, float],
) -> dict[str, object]:
    parts = {
        name: {"seconds": seconds[name], "figures": [figure.as_json() for figure in figures]}
        for name, figures in measured.items()
    }
    settings = {
        "examples": run.examples,
        "checks": run.checks,
        "feedback": run.feedback,
        "seed": run.seed,
        "listen_delay_s": run.delay_s,
    }
    return {
        "data": given.data.name,
        "settings": settings,
        "parts": parts,
        "spent": run.spent,
        "unsettled": run.unsettled,
    }


def _parts(names: str) -> list[str]:
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in chosen if name not in PARTS]:
        raise argparse.ArgumentTypeError(
            f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}"
        )
    return chosen


def _sizes(words: str) -> list[int]:
    return [int(size) for size in words.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reach",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        type=_parts,
        default=list(PARTS),
        metavar="PART,…",
        help=f"some of {', '.join(PARTS)} [all]",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=HELD_OUT,
        metavar="FILE",
        help="a data set of the same form [held_out.json]",
    )
    parser.add_argument(
        "--most",
        type=int,
        metavar="N",
        help="at most this many records of each section, for a first look",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        metavar="S",
        help="longest wait for learning to finish [60]",
    )
    parser.add_argument(
        "--rules", type=int, default=300, metavar="N", help="rules in force in rules-300 [300]"
    )
    parser.add_argument(
        "--skills",
        type=int,
        default=500,
        metavar="N",
        help="skills in the library in skills-500 [500]",
    )
    parser.add_argument(
        "--prompts",
        type=_sizes,
        default=list(PROMPTS),
        metavar="N,…",
        help="agent prompts in cost, in tokens",
    )
    parser.add_argument(
        "--without-examples",
        action="store_true",
        help="the model gives no example requests with its rules",
    )
    parser.add_argument(
        "--checks", action="store_true", help="the evolver writes a check with its skills"
    )
    parser.add_argument(
        "--feedback", action="store_true", help="in cost, the person also marks the turn as failed"
    )
    parser.add_argument(
        "--listen-delay",
        type=float,
        default=0.0,
        metavar="S",
        help="how long the model takes to listen [0]",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="which lesson meets which prompt, and the prompts' words [0]",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every figure there, after each part"
    )
    parser.add_argument("--assert-goals", action="store_true", help="exit 1 where a goal is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
