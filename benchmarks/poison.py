"""Poisoned weights: does the gate refuse them, and if one is let through by force, how soon do live
turns take it back?

    python -m benchmarks.house_rules --conditions full --keep DIR                  # versions are in DIR/NAME/home/policies
    python -m benchmarks.poison --adapter FOLDER [--better FOLDER] --device cuda     # one GPU, about three minutes
    python -m benchmarks.poison --adapter FOLDER --small                            # a look at it on two CPU cores

`--adapter` is a version that the running program trained on the house rules: it serves. `--better`
is a later one that is really better, an honest candidate; without it the kinds made from it are
left out. Poisoned candidates of many kinds (`poison_kinds`) are made from both, for every seed
anew. Each is tried as the slow loop tries one: held-out questions with the same random numbers on
both sides, of which only exact answers count, and the golden set answered greedily. The real gate
(`metaclaw.training.gate`) with its own rules says what becomes of it. It is told no distance to the
untrained weights, as in a run whose loss does not weigh it; the table says whom that rule would
refuse as well. Then each that can be drawn from is put live by force on a tenth of simulated
sessions (`poison_report`), with outcomes drawn from its measured answers, until
`metaclaw.training.rollback` ends it."""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.home import find_model
from benchmarks.poison_kinds import Kind, Poisoner
from benchmarks.poison_report import goals, read_trials, write_report
from benchmarks.poison_trials import LARGE_SCALE, SMALL_SCALE, Bench, Judged, Scale
from benchmarks.program_runs import add_model_options
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.lora import read_adapter


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.poison",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--small", action="store_true", help="one rule, few kinds and prompts, for two CPU cores"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--threads", type=int, help="CPU threads [torch's choice]")
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[0, 1, 2, 3, 4],
        help="each makes every kind anew [0 1 2 3 4]",
    )
    parser.add_argument(
        "--minutes", type=float, help="after so many no further kind is begun [3; with --small 20]"
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        type=Kind,
        choices=list(Kind),
        metavar="KIND",
        help="[all; few with --small]",
    )
    parser.add_argument(
        "--adapter", type=Path, help="the version that serves, a folder in PEFT's format"
    )
    parser.add_argument("--better", type=Path, help="a better version, likewise")
    add_model_options(parser, "poison")
    parser.add_argument(
        "--assert-goals", action="store_true", help="exit status 1 where a goal is missed"
    )
    for name in ("prompts", "group", "max-tokens", "held-out"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.adapter is None and not given.report:
        parser.error("--adapter is needed: a version that the program trained")
    given.minutes = given.minutes or (20.0 if given.small else 3.0)
    return given


def scale_of(given: argparse.Namespace) -> Scale:
    """The preset with what was given put in its place."""
    preset = SMALL_SCALE if given.small else LARGE_SCALE
    changes = {
        name: value
        for name in ("prompts", "group", "max_tokens")
        if (value := getattr(given, name)) is not None
    }
    scale = replace(
        preset,
        settings=replace(preset.settings, **changes),
        held_out=given.held_out or preset.held_out,
    )
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
    serving = read_adapter(given.adapter)
    better = [] if given.better is None else [read_adapter(given.better)]
    learner = Learner(
        given.model,
        rank=serving.rank,
        seed=0,
        device=given.device,
        dtype=dtype,
        threads=given.threads,
    )
    bench = Bench(given.model, scale, learner)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "poison.jsonl"
    path.unlink(missing_ok=True)
    _tell(path, {"kind": "begin", "adapter": str(given.adapter), "device": given.device})
    poisoner = Poisoner(
        learner,
        bench.vocabulary,
        scale.settings,
        scale.dose,
        learner.shape.end_ids,
        serving=serving,
        better=better,
    )
    golden = bench.golden_score(serving) if scale.golden_always else None
    for number in given.seeds:
        judged = Judged(bench, poisoner, golden, number)
        for kind in scale.kinds:
            if time.perf_counter() - began > 60 * given.minutes:
                print(f"the time is over at seed {number}, {kind}", file=sys.stderr)
                return
            for record in judged.trials(kind):
                _tell(path, {"kind": "trial", **record})
        print(
            f"seed {number}: {time.perf_counter() - began:.0f} s in all",
            file=sys.stderr,
            flush=True,
        )


def _tell(path: Path, record: Mapping[str, object]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    sys.exit(main())
