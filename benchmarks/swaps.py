"""Weights swapped under load: versions are loaded, flipped to and let go while clients stream
answers without a pause.

    python -m benchmarks.swaps [--swaps 200] [--blocks 10] [--clients 3] [--tokens 32] [--threads N]
    [--json] [--assert-goals]

The real engine process with the real model and two adapters (random, small, of visible effect) that
take turns: every swap loads the next version beside the serving one, flips to it, and lets the one
before last go, so that the last two are kept. A client asks with the version that serves when its
answer begins, and asks again as soon as it is whole. Blocks of swaps, back to back, alternate with
blocks in which nothing is swapped (*idle*) and everything else, the probing of *flip* included,
goes on.

An answer is *failed* if it raised, *cut* if it came without its end or short, and *mixed* if its
version's weights alone, run in this process over the same text after the measurement, do not give
every one of its log-probabilities. The other adapter's weights are tried on the same answers: by
how much they miss shows that the check can fail. No prompt's beginning is in a cache: there are
more prompts than slots, and they differ from their first words.

*Flip* is from naming the new version to the first token of an answer that is asked of it at once,
beside the clients' own. Times of tokens are taken where the proxy would take them: at this side of
the pipe. Memory is that of the engine process."""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine import machine
from benchmarks.swaps_world import Answer, Record, Serving, ask, clients, make_adapter
from metaclaw.domain.policy import Weights
from metaclaw.engine import MODEL_ID, EmbeddedModel

TOLERANCE = 1e-3
"""Between the log-probabilities of an answer made in company and of the same text scored alone, in
single precision.
"""
GOALS = {"failed": 0.0, "cut": 0.0, "mixed": 0.0, "first_token_p99_ratio": 1.5}


@dataclass(frozen=True)
class Options:
    """How much of it there is. `effect` is the size of the adapters' changes relative to the
    weights.
    """

    folder: Path
    swaps: int = 200
    blocks: int = 10
    clients: int = 3
    tokens: int = 32
    idle_answers: int = 40
    threads: int | None = None
    effect: float = 0.1


@dataclass(frozen=True)
class Verdict:
    """Which answers are not their version's, and by how much the other version's weights miss those
    that are, at least.
    """

    mixed: int
    distinct: int
    others_miss_by: float


async def run(options: Options, adapters: Sequence[Weights], record: Record) -> None:
    """All blocks, with an engine process of their own. What happens is added to `record`."""
    model = EmbeddedModel(options.folder, convert=False, threads=options.threads)
    await model.start()
    try:
        serving = Serving(model, adapters, record)
        await ask(model, serving, 0, 2)
        _note_memory(record, model, "model alone")
        await serving.swap()
        async with clients(options.clients, model, serving, options.tokens, record):
            await _measure(serving, model, options, record)
        await _let_go(model, serving, record)
    finally:
        await model.aclose()


async def _measure(
    serving: Serving, model: EmbeddedModel, options: Options, record: Record
) -> None:
    """Idle blocks and blocks of swaps in turn, an idle one at both ends."""
    done = 0
    for block in range(options.blocks):
        await _idle(serving, options, record)
        serving.is_swapping = True
        for _ in range(done, options.swaps * (block + 1) // options.blocks):
            await serving.swap()
            done += 1
        serving.is_swapping = False
        _note_memory(record, model, "model and two versions, under load")
        print(
            f"{done} swaps, {len(record.answers)} answers, {len(record.failures)} failed",
            file=sys.stderr,
        )
    await _idle(serving, options, record)


async def _idle(serving: Serving, options: Options, record: Record) -> None:
    """Nothing is swapped, but everything else is as it is while it is: one more answer of one token
    after every pause of a load.
    """
    until = record.ended + options.clients + options.idle_answers
    while record.ended < until:
        await asyncio.sleep(statistics.median(record.load_s))
        await serving.probe()


async def _let_go(model: EmbeddedModel, serving: Serving, record: Record) -> None:
    _note_memory(record, model, "model and two versions, at rest")
    await model.unload(serving.version - 1)
    _note_memory(record, model, "model and one version, at rest")
    await model.unload(serving.version)
    _note_memory(record, model, "model alone, afterwards")


def _note_memory(record: Record, model: EmbeddedModel, when: str) -> None:
    """The engine process's resident pages, in MiB (Linux)."""
    lines = Path(f"/proc/{model.pid}/status").read_text().splitlines()
    sizes = {
        name: int(rest.split()[0]) // 1024
        for name, _, rest in (line.partition(":") for line in lines)
        if name.startswith("Rss")
    }
    record.memory[when] = {"anonymous": sizes["RssAnon"], "file": sizes["RssFile"]}


def judge(options: Options, adapters: Sequence[Weights], answers: Sequence[Answer]) -> Verdict:
    """Score every distinct answer by its own version's weights, and by the other's, run alone and
    here.
    """
    import torch

    from benchmarks.scoring import load_model, score
    from metaclaw.engine.training.lora import read_adapter

    torch.set_num_threads(1)
    base = load_model(options.folder)
    truths = [base.with_adapter(read_adapter(Path(weights.adapter))) for weights in adapters]
    scored: dict[tuple[int, tuple[int, ...]], list[list[float]]] = {}
    mixed, nearest = 0, float("inf")
    for answer in answers:
        tokens, own = answer.tokens, answer.version % len(adapters)
        key = (own, tokens.prompt_ids + tokens.sampled_ids)
        if key not in scored:
            scored[key] = [score(truth, tokens.prompt_ids, tokens.sampled_ids) for truth in truths]
        misses = [_miss(tokens.logprobs, score) for score in scored[key]]
        mixed += misses[own] > TOLERANCE
        nearest = min(nearest, *(miss for number, miss in enumerate(misses) if number != own))
    return Verdict(mixed, len(scored), nearest)


def _miss(left: Sequence[float], right: Sequence[float]) -> float:
    return max(abs(one - two) for one, two in zip(left, right, strict=True))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def summarise(record: Record, verdict: Verdict) -> dict[str, object]:
    """Counts, times in milliseconds, memory in MiB."""
    groups = {
        name: [answer for answer in record.answers if answer.is_swapping is swapping]
        for name, swapping in (("idle", False), ("swapping", True))
    }
    times = {
        name: {
            "answers": len(group),
            "first_token_ms": _spread([answer.first_s for answer in group]),
            "token_gap_ms": _spread([gap for answer in group for gap in answer.gaps_s]),
        }
        for name, group in groups.items()
    }
    first = {
        name: percentile([answer.first_s for answer in group], 0.99)
        for name, group in groups.items()
    }
    return {
        "swaps": len(record.load_s) - 1,
        "answers": len(record.answers),
        "failed": len(record.failures),
        "cut": record.cut,
        "mixed": verdict.mixed,
        "distinct_answers": verdict.distinct,
        "other_weights_miss_by_at_least": round(verdict.others_miss_by, 3),
        "first_token_p99_ratio": round(first["swapping"] / first["idle"], 2),
        "times": times,
        "load_ms": _spread(record.load_s[1:]),
        "flip_to_first_token_ms": _spread(record.flip_s[1:]),
        "memory_mib": record.memory,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(values, share) * 1000, 1) for name, share in shares.items()}


def show(facts: dict[str, object]) -> None:
    """One line for each fact."""
    for name, value in facts.items():
        print(f"{name}: {json.dumps(value)}")


def is_met(facts: dict[str, object]) -> bool:
    """Say which goals are missed; whether none is."""
    missed = [name for name, most in GOALS.items() if float(str(facts[name])) > most]
    for name in missed:
        print(f"missed: {name} is {facts[name]}, not at most {GOALS[name]:g}", file=sys.stderr)
    return not missed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument(
        "--assert-goals", action="store_true", help="exit status 1 where a goal is missed"
    )
    parser.add_argument("--swaps", type=int, default=Options.swaps)
    parser.add_argument("--blocks", type=int, default=Options.blocks)
    parser.add_argument("--clients", type=int, default=Options.clients)
    parser.add_argument(
        "--tokens", type=int, default=Options.tokens, help="tokens per answer, at most"
    )
    parser.add_argument(
        "--idle-answers", type=int, default=Options.idle_answers, help="answers per idle block"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(__file__).resolve().parents[1] / ".cache" / "engine" / MODEL_ID,
    )
    given = vars(parser.parse_args())
    as_json, asserts = given.pop("json"), given.pop("assert_goals")
    options = Options(**given)
    from metaclaw.engine.convert import ensure_model

    if options.folder.name == MODEL_ID:
        ensure_model(options.folder, lambda share: None)
    before = machine()
    with tempfile.TemporaryDirectory() as place:
        adapters = [
            make_adapter(options.folder, Path(place) / str(seed), seed, options.effect)
            for seed in (0, 1)
        ]
        record = Record()
        asyncio.run(run(options, adapters, record))
        facts = {"machine": before, "load_average_after": os.getloadavg()[0]} | summarise(
            record, judge(options, adapters, record.answers)
        )
    print(json.dumps(facts, indent=2)) if as_json else show(facts)
    return 1 if not is_met(facts) and asserts else 0


if __name__ == "__main__":
    sys.exit(main())
