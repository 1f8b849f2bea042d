"""Pausing and resuming the trainer: how soon the processor is free, and whether a run that is cut
ends as one that is not.

    python -m benchmarks.pause [--trials 120] [--cuts 100] [--seed 0] [--json] [--assert-goals]

The real 135M model is trained in its own process, as the program does it: drawing, accumulating,
stepping, without end.

- **Stopping.** At random moments training is paused. *Free* is the moment after which the trainer's
  process group uses less than 0.1 ms of processor time any more (its processor clock is read
  without pause until it has stood still for 20 ms); *hold* is how long the call itself takes, which
  is all that a request waits for.
- **Cuts.** A run of three steps is cut at random moments: `kill -9` (70 %), cancelled as when a
  window shuts for good (15 %), or stopped for a while and let go on (15 %); after the first two it
  is opened again and goes on from what `open` says was on disk. The finished adapter is compared
  with that of the same run left alone. What a step draws is drawn again after a cut, so the
  comparison also shows that drawing is repeatable.

Rollouts are short so that a step takes about a second on two cores: cuts hit every phase, and each
run is cut many times."""

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metaclaw.domain.ids import TurnId
from metaclaw.domain.training import Adam, Datum, Drawing, Loss
from metaclaw.engine import MODEL_ID
from metaclaw.engine.trainer import EmbeddedTrainer, TrainingPause
from metaclaw.errors import TrainingError
from metaclaw.ports import RunPlan

GOALS = {"free_p99_ms": 1000.0, "hold_p99_ms": 1.0, "largest_difference": 1e-5}
STEPS, PIECES = 3, 2
_PROMPTS = [tuple(random.Random(number).choices(range(100, 20_000), k=16)) for number in range(2)]
_QUIET_S, _LONGEST_S = 0.02, 5.0
_SPENT_S = 1e-4
_EARLY = 0.1
"""The share of cuts that may hit a process which is still starting."""
_PHASES = ("drawing", "accumulating", "stepping")
_KINDS, _SHARES = ("kill", "cancel", "stop"), (0.70, 0.15, 0.15)


@dataclass(slots=True)
class Work:
    """A run that is always the same, and where in it the trainer is."""

    trainer: EmbeddedTrainer
    folder: Path
    steps: int = STEPS
    phase: str = "opening"
    pieces_done: int = 0
    opened: list[tuple[int, int]] = field(default_factory=list)

    async def complete(self) -> Path:
        """Go on from wherever the run is to its end; the kept adapter."""
        self.phase = "opening"
        progress = await self.trainer.open(RunPlan("pause", None, 16, 5, self.folder))
        self.opened.append((progress.steps, progress.pieces))
        for step in range(progress.steps, self.steps):
            await self._step(step, progress.pieces if step == progress.steps else 0)
        self.phase = "keeping"
        return Path((await self.trainer.keep("end")).adapter)

    async def _step(self, step: int, done: int) -> None:
        self.phase = "drawing"
        groups = await self.trainer.sample(_PROMPTS, Drawing(PIECES, 6, seed=step))
        for number in range(done, PIECES):
            self.phase = "accumulating"
            rollouts = [group[number] for group in groups]
            data = [
                Datum(
                    TurnId("turn"),
                    prompt,
                    one.tokens_T,
                    tuple((token % 5) - 2.0 for token in one.tokens_T),
                    one.logprobs_T,
                )
                for prompt, one in zip(_PROMPTS, rollouts, strict=True)
            ]
            await self.trainer.accumulate(data, Loss())
            self.pieces_done += 1
        self.phase = "stepping"
        await self.trainer.apply(Adam(learning_rate=1e-3), 50.0)


def until_free_s(pid: int, since: float) -> float:
    """From `since` to the moment after which the process used no processor time worth naming."""
    clock = ~pid << 3 | 2  # the processor clock of another process
    seen = [(time.perf_counter(), time.clock_gettime(clock))]
    changed = seen[0][0]
    while (now := time.perf_counter()) - changed < _QUIET_S and now - since < _LONGEST_S:
        used = time.clock_gettime(clock)
        if used != seen[-1][1]:
            changed = now
            seen.append((now, used))
    last = seen[-1][1]
    return max(0.0, next(at for at, used in seen if last - used < _SPENT_S) - since)


async def measure_stops(
    trainer: EmbeddedTrainer,
    training_pause: TrainingPause,
    root: Path,
    trials: int,
    chance: random.Random,
) -> dict[str, Any]:
    """Pause training at random moments of an endless run."""
    work = Work(trainer, root / "endless", steps=1_000_000)
    running = asyncio.create_task(work.complete())
    found: list[tuple[str, float, float]] = []
    while len(found) < trials:
        wanted = chance.choice(_PHASES)
        while work.phase != wanted and not running.done():
            await asyncio.sleep(0.001)
        await asyncio.sleep(chance.uniform(0.0, 0.2))
        if running.done() or trainer.pid is None:
            await running
            raise SystemExit("the endless run ended")
        started = time.perf_counter()
        training_pause.hold("benchmark")
        held_s = time.perf_counter() - started
        found.append((work.phase, held_s, until_free_s(trainer.pid, started)))
        training_pause.release("benchmark")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return {
        "trials": trials,
        "by_phase": dict(Counter(phase for phase, _, _ in found)),
        "hold_ms": spread([1000 * held for _, held, _ in found]),
        "free_ms": spread([1000 * free for _, _, free in found]),
    }


async def cut_once(
    work: Work, training_pause: TrainingPause, chance: random.Random, pace_s: float
) -> tuple[Path | None, str, str]:
    """Let the run go on for a random time and cut it: the adapter if it came to its end before,
    else how and where it was cut.
    """
    work.phase = "opening"
    running = asyncio.create_task(work.complete())
    is_early = chance.random() < _EARLY
    while (
        work.trainer.pid is None if is_early else work.phase == "opening"
    ) and not running.done():
        await asyncio.sleep(0.002)
    done, _ = await asyncio.wait([running], timeout=chance.uniform(0.0, pace_s))
    if done:
        return await running, "none", "end"
    kind, phase = chance.choices(_KINDS, _SHARES)[0], work.phase
    match kind:
        case "kill":
            assert work.trainer.pid is not None
            os.killpg(work.trainer.pid, signal.SIGKILL)
            with suppress(TrainingError):
                return await running, "kill", "end"
        case "cancel":
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        case _:
            training_pause.hold("benchmark")
            await asyncio.sleep(0.1)
            training_pause.release("benchmark")
            return await running, kind, phase
    return None, kind, phase


async def measure_cuts(
    trainer: EmbeddedTrainer,
    training_pause: TrainingPause,
    root: Path,
    cuts: int,
    chance: random.Random,
) -> dict[str, Any]:
    """Runs that are cut, until there were enough cuts; each is compared with the run that nobody
    disturbed.
    """
    started = time.perf_counter()
    reference = _copied(await Work(trainer, root / "whole").complete(), root / "reference")
    pace_s = time.perf_counter() - started
    kinds: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    differences: list[float] = []
    reused = redone = 0
    while kinds.total() < cuts:
        work = Work(trainer, root / f"run-{len(differences)}")
        adapter = None
        while adapter is None:
            adapter, kind, phase = await cut_once(work, training_pause, chance, 0.6 * pace_s)
            if kind != "none":
                kinds[kind] += 1
                phases[phase] += 1
                print(f"cut {kinds.total()}: {kind} while {phase}", file=sys.stderr)
        differences.append(largest_difference(reference, adapter))
        print(
            f"run {len(differences)}: opened at {work.opened}, difference {differences[-1]:.2e}",
            file=sys.stderr,
        )
        reused += sum(pieces for _, pieces in work.opened)
        redone += work.pieces_done - STEPS * PIECES
        await trainer.close(discard=True)
    return {
        "cuts": kinds.total(),
        "by_kind": dict(kinds),
        "by_phase": dict(phases),
        "runs": len(differences),
        "pieces_found_on_disk": reused,
        "pieces_done_again": redone,
        "largest_difference": max(differences),
    }


def _copied(adapter: Path, to: Path) -> Path:
    return Path(shutil.copytree(adapter, to))


def largest_difference(one: Path, other: Path) -> float:
    """The largest difference between two adapters, in units of the largest number in them."""
    from metaclaw.engine.training.lora import read_adapter

    mine, theirs = read_adapter(one), read_adapter(other)
    largest, most = 0.0, 0.0
    for module, pair in mine.pairs.items():
        for here, there in zip(pair, theirs.pairs[module], strict=True):
            largest = max(largest, float((here - there).abs().max()))
            most = max(most, float(here.abs().max()))
    return largest / most


def spread(values: Sequence[float]) -> dict[str, float]:
    """The middle and the tail."""
    ordered = sorted(values)
    at = {
        name: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
    return {**at, "max": ordered[-1], "mean": statistics.fmean(ordered)}


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for."""
    chance = random.Random(given.seed)
    training_pause = TrainingPause()
    root = Path(tempfile.mkdtemp(prefix="metaclaw-pause-"))
    trainer = EmbeddedTrainer(
        given.folder,
        root / "policies",
        training_pause=training_pause,
        threads=given.threads,
        device="cpu",
        nice=given.nice,
    )
    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }
    try:
        if given.trials:
            facts["stops"] = await measure_stops(
                trainer, training_pause, root, given.trials, chance
            )
        if given.cuts:
            facts["cuts"] = await measure_cuts(trainer, training_pause, root, given.cuts, chance)
    finally:
        await trainer.aclose()
        shutil.rmtree(root, ignore_errors=True)
    return {**facts, "goals": goals_met(facts)}


def goals_met(facts: dict[str, Any]) -> dict[str, bool]:
    """Which of the goals are met; those of what was not measured are left out."""
    met: dict[str, bool] = {}
    if stops := facts.get("stops"):
        met |= {
            f"{name}_p99_ms": stops[f"{name}_ms"]["p99"] <= GOALS[f"{name}_p99_ms"]
            for name in ("free", "hold")
        }
    if cuts := facts.get("cuts"):
        met["largest_difference"] = cuts["largest_difference"] <= GOALS["largest_difference"]
    return met


def report(facts: dict[str, Any]) -> None:
    """For people."""
    print(
        f"{facts['cores']} cores ({facts['machine']}), load average {facts['load_average']:.1f} at"
        " the beginning\n"
    )
    if stops := facts.get("stops"):
        print(
            f"{stops['trials']} stops while {stops['by_phase']}\n\n| ms | p50 | p99 | max"
            " |\n|---|---|---|---|"
        )
        for name, shown in (("hold_ms", "hold() returns"), ("free_ms", "processor free")):
            times = stops[name]
            print(f"| {shown} | {times['p50']:.3f} | {times['p99']:.3f} | {times['max']:.3f} |")
        print()
    if cuts := facts.get("cuts"):
        print(
            f"{cuts['cuts']} cuts {cuts['by_kind']} in {cuts['runs']} runs, while"
            f" {cuts['by_phase']}"
        )
        print(
            f"pieces found on disk {cuts['pieces_found_on_disk']}, done again"
            f" {cuts['pieces_done_again']}"
        )
        print(
            "largest difference from the run left alone, relative:"
            f" {cuts['largest_difference']:.2e}\n"
        )
    for name, is_met in facts["goals"].items():
        print(f"{'yes' if is_met else 'NO '}  {name} <= {GOALS[name]:g}")


def main() -> int:
    """Measure and report; 1 where a goal is missed and that matters."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pause", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument(
        "--trials", type=int, default=120, help="stops to measure; 0 leaves that out [120]"
    )
    parser.add_argument("--cuts", type=int, default=100, help="0 leaves that out [100]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--nice", type=int, default=19)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(__file__).resolve().parents[1] / ".cache" / "engine" / MODEL_ID,
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--assert-goals", action="store_true")
    given = parser.parse_args()
    facts = asyncio.run(measure(given))
    if given.json:
        print(json.dumps(facts, indent=2))
    else:
        report(facts)
    return 1 if given.assert_goals and not all(facts["goals"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
