"""Tokens per second of the embedded model against plain `transformers.generate` on the same
weights, in one interleaved run.

    python benchmarks/engine.py [--json] [--rounds 3] [--tokens 64] [--threads 2] [--wait-policy
    passive|active]

Every contestant answers the same eight prompts greedily and in the same dtype, so their tokens can
be compared too. Each runs in a process of its own with the same threads and is idle while another
is measured. There are two workloads: `equal`, eight answers of the same length (which is when a
padded batch wastes nothing), and `mixed`, short and long answers that end where the model ends
them, as requests do. Only tokens of answers count, not padding. Each round's prompts begin with a
sentence of their own, so that no prefix is left in our cache from the round before."""

import argparse
import asyncio
import importlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO

from metaclaw.domain.chat import ChatRequest, End, Message, Role, Sampling, Text, Wire
from metaclaw.engine import MODEL_ID, EmbeddedModel

LONG = (
    "Write a long story about a lobster who learns to sail.",
    "Explain how a bicycle stays upright, in detail.",
    "List the planets and describe each one.",
    (
        "Describe a day in the life of a lighthouse keeper. Mention the weather, the lamp, the"
        " ships and the keeper's dog."
    ),
    "What is a database index? Explain it to a new colleague with examples.",
    (
        "Tell me about the history of bread from the first grain to the sliced loaf, with dates"
        " where you know them."
    ),
    (
        "Give me advice for learning the piano as an adult who has little time, no teacher and"
        " impatient neighbours."
    ),
    "How does a sailing boat move against the wind?",
)
SHORT = (
    "What is the capital of France?",
    "Say hello.",
    "What colour is the sky?",
    "Is ice cold? Answer yes or no.",
)
WORKLOADS = {"equal": LONG, "mixed": (*LONG[:4], *SHORT)}
BATCH, ONE_BY_ONE = "one padded batch of 8", "one after another"
# Two-sided 95 % points of Student's t by degrees of freedom; beyond the table the normal value is
# close enough.
STUDENT_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)

Answers = list[list[int]]


def opening(seed: int) -> str:
    """A system text that no other round begins with."""
    return f"{seed * 7919 % 100_003}: you are an assistant who writes at length."


@dataclass
class Contestant:
    """Somebody who can answer a workload once, and what was measured of it, by workload."""

    name: str
    answer: Callable[[str, int], Answers]
    pid: int
    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in WORKLOADS})
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in WORKLOADS})
    answers: dict[str, Answers] = field(default_factory=dict)

    def measure(self, workload: str, seed: int) -> None:
        """One round: wall-clock rate, and processor time per token."""
        cpu, began = cpu_seconds(self.pid), time.perf_counter()
        self.answers[workload] = self.answer(workload, seed)
        count = sum(map(len, self.answers[workload]))
        self.rates[workload].append(count / (time.perf_counter() - began))
        self.cpu_s[workload].append((cpu_seconds(self.pid) - cpu) / count)


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def baseline_worker(folder: Path, tokens: int, threads: int) -> None:
    """Answer lines on standard input with `transformers.generate`, as its documentation shows
    it.
    """
    import torch

    transformers = importlib.import_module("transformers")
    torch.set_num_threads(threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ends = set(model.generation_config.eos_token_id)

    def generate(workload: str, seed: int, questions: Sequence[str]) -> Answers:
        messages = [
            [{"role": "system", "content": opening(seed)}, {"role": "user", "content": text}]
            for text in questions
        ]
        inputs = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        shortest = tokens if workload == "equal" else 0
        out = model.generate(
            **inputs, do_sample=False, max_new_tokens=tokens, min_new_tokens=shortest
        )
        return [_until_end(row, ends) for row in out[:, inputs["input_ids"].shape[1] :].tolist()]

    generate("equal", 0, LONG[:1])
    print("[]", flush=True)
    for line in sys.stdin:
        how, workload, seed = line.strip().split("\t")
        groups = (
            [WORKLOADS[workload]] if how == BATCH else [(text,) for text in WORKLOADS[workload]]
        )
        answers = [answer for group in groups for answer in generate(workload, int(seed), group)]
        print(json.dumps(answers), flush=True)


def _until_end(row: list[int], ends: set[int]) -> list[int]:
    return next((row[: place + 1] for place, token in enumerate(row) if token in ends), row)


def start_baseline(folder: Path, options: argparse.Namespace) -> list[Contestant]:
    """A process with `transformers`, which is two contestants."""
    command = [
        sys.executable,
        __file__,
        "--worker",
        str(folder),
        "--tokens",
        str(options.tokens),
        "--threads",
        str(options.threads),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    sender, receiver = _open(process.stdin), _open(process.stdout)

    def ask(how: str, workload: str, seed: int) -> Answers:
        sender.write(f"{how}\t{workload}\t{seed}\n")
        sender.flush()
        answers: Answers = json.loads(receiver.readline())
        return answers

    receiver.readline()
    return [
        Contestant(f"transformers, {how}", partial(ask, how), process.pid)
        for how in (BATCH, ONE_BY_ONE)
    ]


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def start_ours(
    folder: Path, options: argparse.Namespace, runner: asyncio.Runner, *, one_by_one: bool
) -> Contestant:
    """Our engine behind its client, as the proxy uses it."""

    async def answer_all(prompts: Sequence[str], seed: int) -> Answers:
        if one_by_one:
            return [await _answer(model, text, seed, options.tokens) for text in prompts]
        return list(
            await asyncio.gather(*(_answer(model, text, seed, options.tokens) for text in prompts))
        )

    model = EmbeddedModel(folder, threads=options.threads)
    runner.run(model.start())
    runner.run(answer_all(LONG[:1], 0))
    assert model.pid is not None
    name = f"metaclaw, {ONE_BY_ONE if one_by_one else '8 at once'}"
    return Contestant(
        name, lambda workload, seed: runner.run(answer_all(WORKLOADS[workload], seed)), model.pid
    )


async def _answer(model: EmbeddedModel, text: str, seed: int, tokens: int) -> list[int]:
    messages = (Message(Role.SYSTEM, (Text(opening(seed)),)), Message(Role.USER, (Text(text),)))
    request = ChatRequest(
        Wire.CHAT, MODEL_ID, messages, sampling=Sampling(temperature=0.0, max_tokens=tokens)
    )
    end = [delta async for delta in model.generate(request)][-1]
    assert isinstance(end, End)
    assert end.tokens is not None
    return list(end.tokens.sampled_ids)


def run(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """All rounds, and what came of them."""
    facts = machine()
    with asyncio.Runner() as runner:
        contestants = [
            start_ours(folder, options, runner, one_by_one=one_by_one)
            for one_by_one in (False, True)
        ]
        contestants += start_baseline(folder, options)
        for seed in range(1, options.rounds + 1):
            for workload in WORKLOADS:
                shift = seed % len(contestants)
                for contestant in contestants[shift:] + contestants[:shift]:
                    contestant.measure(workload, seed)
                    print(
                        f"round {seed} {workload}: {contestant.name}:"
                        f" {contestant.rates[workload][-1]:.1f} tokens/s",
                        file=sys.stderr,
                    )
    settings = {
        name: getattr(options, name) for name in ("rounds", "tokens", "threads", "wait_policy")
    }
    return {
        "machine": facts,
        "settings": settings,
        "rows": [row for name in WORKLOADS for row in _rows(name, contestants)],
    }


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "processor": next(
            (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
            platform.machine(),
        ),
        "cores": len(os.sched_getaffinity(0)),
        "load_average_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def _rows(workload: str, contestants: list[Contestant]) -> list[dict[str, object]]:
    ours = contestants[0]
    return [
        {
            "workload": workload,
            "name": contestant.name,
            "tokens": sum(map(len, contestant.answers[workload])),
            "tokens_per_s": mean_and_interval(contestant.rates[workload]),
            "cpu_ms_per_token": 1000 * mean_and_interval(contestant.cpu_s[workload])[0],
            "ours_is_faster_by": mean_and_interval(
                _ratios(ours.rates[workload], contestant.rates[workload])
            ),
            "ours_needs_less_cpu_by": mean_and_interval(
                _ratios(contestant.cpu_s[workload], ours.cpu_s[workload])
            ),
            "same_tokens": _agreement(ours.answers[workload], contestant.answers[workload]),
        }
        for contestant in contestants
    ]


def _ratios(above: list[float], below: list[float]) -> list[float]:
    return [one / two for one, two in zip(above, below, strict=True)]


def mean_and_interval(values: list[float]) -> tuple[float, float, float]:
    """Geometric mean and its 95 % interval."""
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), math.exp(mean), math.exp(mean)
    student = STUDENT_T[len(logs) - 2] if len(logs) - 2 < len(STUDENT_T) else 1.96
    half = student * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _agreement(left: Answers, right: Answers) -> float:
    pairs = [
        (one, two)
        for mine, theirs in zip(left, right, strict=True)
        for one, two in zip(mine, theirs, strict=False)
    ]
    return sum(one == two for one, two in pairs) / len(pairs)


def show(result: dict[str, object]) -> None:
    """The result as a Markdown table."""
    print(f"{result['machine']}\n{result['settings']}\n")
    print(
        "| workload | contestant | tokens/s (95 %) | CPU ms/token | ours is faster by (95 %) |"
        " needs less CPU by | same tokens |"
    )
    print("|---|---|---|---|---|---|---|")
    rows = result["rows"]
    assert isinstance(rows, list)
    for row in rows:
        rate, ratio, cpu = (
            row["tokens_per_s"],
            row["ours_is_faster_by"],
            row["ours_needs_less_cpu_by"],
        )
        print(
            f"| {row['workload']} | {row['name']} | {rate[0]:.1f} ({rate[1]:.1f}-{rate[2]:.1f}) |"
            f" {row['cpu_ms_per_token']:.1f} | {ratio[0]:.2f} ({ratio[1]:.2f}-{ratio[2]:.2f}) |"
            f" {cpu[0]:.2f} | {row['same_tokens']:.0%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer, at most")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--wait-policy",
        choices=("passive", "active"),
        default="passive",
        help="OpenMP's, for everybody",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(__file__).resolve().parents[1] / ".cache" / "engine" / MODEL_ID,
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        baseline_worker(options.worker, options.tokens, options.threads)
        return
    os.environ["OMP_WAIT_POLICY"] = options.wait_policy
    result = run(options.folder, options)
    print(json.dumps(result, indent=2)) if options.json else show(result)


if __name__ == "__main__":
    main()
