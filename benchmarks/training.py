"""One training step of ours against TRL's `GRPOTrainer`: same model, prompts, group, length and
LoRA, in one interleaved run.

    python -m benchmarks.training [--install-peer] [--steps 5] [--prompts 4] [--group 8] [--tokens
    24] [--device cuda] [--json]

A step is: draw `group` answers to each prompt, score them, group-relative advantages, one gradient,
one AdamW step on a LoRA of all seven projections. Both run in single precision on a CPU and in
bfloat16 on a GPU. TRL has an environment of its own under `benchmarks/.peers/` (`--peer-python`
names another) and its fastest settings that change no result: no gradient checkpointing, no second
pass for old log-probabilities, no reference model. Each contestant runs in a process of its own and
stands still while the other one's step is measured; the first step of each warms up and is not
counted. Answers are drawn at temperature 1, so their lengths differ a little: the table says how
many tokens were drawn. `--no-peer` measures ours alone."""

import argparse
import importlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "benchmarks" / ".peers" / "trl"
REQUIREMENTS = ("torch==2.13.0", "trl==1.16.0", "peft", "transformers")
MODEL_ID = "smollm2-135m-instruct"
LEARNING_RATE = 1e-4
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SKILL = (
    "You work in a small workshop that keeps a diary. House rules, which hold for every answer:"
    " dates are written year first, with two digits for month and day; names of people come family"
    " name first, in capitals, then a comma; every note ends with the initials of who wrote it;"
    " amounts carry their unit; nothing is rounded without saying so. If a rule cannot be kept, say"
    " why."
)
QUESTIONS = (
    "Write a note about the delivery of oak boards that came on the third of May.",
    "Describe what has to be done before the lathe is used again, step by step.",
    "Tell the new colleague how we store varnish and what to look out for.",
    "Summarise last week's work on the big table for the customer, in a friendly tone.",
    "Explain why the saw was out of order and what the repair cost us.",
    "Write to the timber merchant that two of the beams were cracked.",
    "Plan the cleaning of the workshop for the coming month.",
    "Make a list of the tools that were lent out, with names and dates.",
)

Messages = list[dict[str, str]]


def conversations(count: int, *, with_skill: bool) -> list[Messages]:
    """As many prompts as are wanted, each different, with the house rules in front or without."""
    system = [{"role": "system", "content": SKILL}] if with_skill else []
    asked = (f"{QUESTIONS[number % len(QUESTIONS)]} (No. {number})" for number in range(count))
    return [[*system, {"role": "user", "content": text}] for text in asked]


def reward(text: str) -> float:
    """Cheap, graded and different for almost any two answers: how much of the text are digits and
    capitals.
    """
    return sum(letter.isdigit() or letter.isupper() for letter in text) / max(1, len(text))


def serve(
    step: Callable[[int], dict[str, float]],
    after: Callable[[], dict[str, float]],
    facts: dict[str, object],
) -> None:
    """A worker's life: say what it is, then make one step for each line that comes in; what comes
    after a step is not timed.
    """
    print(json.dumps(facts), flush=True)
    for number, _ in enumerate(sys.stdin):
        said = timed(partial(step, number))
        print(json.dumps(said | after()), flush=True)


def timed(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What a piece of work says of itself, and its wall and processor time."""
    began, cpu = time.perf_counter(), time.process_time()
    said = work()
    return {
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        **said,
        "peak_gb": peak_gb(),
    }


def peak_gb() -> float:
    """The most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def ours_worker(options: argparse.Namespace) -> None:
    """Our learner in this process, as the trainer process runs it."""
    import torch

    from metaclaw.domain.ids import TurnId
    from metaclaw.domain.training import Adam, Datum, Drawing, Loss
    from metaclaw.engine.training.learner import Learner
    from metaclaw.engine.training.packing import Pairs, pack
    from metaclaw.engine.vocabulary import Vocabulary

    dtype = "float32" if options.device == "cpu" else "bfloat16"
    learner = Learner(
        options.folder,
        rank=options.rank,
        seed=0,
        device=options.device,
        dtype=dtype,
        threads=options.threads,
    )
    vocabulary = Vocabulary(options.folder)
    prompts = [
        tuple(
            vocabulary.render([(message["role"], message["content"]) for message in messages], "")
        )
        for messages in conversations(options.prompts, with_skill=not options.plain)
    ]
    drawn: list[Pairs] = []
    backward = _Stopwatch(options.device)
    torch.Tensor.backward = backward.around(torch.Tensor.backward)  # type: ignore[method-assign]

    def step(number: int) -> dict[str, float]:
        clock = _Stopwatch(options.device)
        groups = clock.time(
            "sample",
            lambda: learner.sample(prompts, Drawing(options.group, options.tokens, seed=number)),
        )
        data = [
            Datum(
                TurnId(str(index)),
                prompt,
                rollout.tokens_T,
                (worth,) * len(rollout.tokens_T),
                rollout.logprobs_T,
            )
            for index, (prompt, group) in enumerate(zip(prompts, groups, strict=True))
            for rollout, worth in zip(
                group, advantages([reward(rollout.text) for rollout in group]), strict=True
            )
        ]
        tokens = sum(len(datum.tokens_T) for datum in data)
        backward.seconds.clear()
        clock.time("accumulate", lambda: learner.accumulate(data, Loss()))
        clock.time("optimise", lambda: learner.apply(Adam(LEARNING_RATE), float(tokens)))
        behind = sum(backward.seconds.values())
        drawn.append([(datum.prompt, datum.tokens_T) for datum in data])
        return {
            "tokens": tokens,
            "sample_s": clock.seconds["sample"],
            "forward_s": clock.seconds["accumulate"] - behind,
            "backward_s": behind,
            "optimise_s": clock.seconds["optimise"],
            **(
                {}
                if options.device == "cpu"
                else {"gpu_gb": torch.cuda.max_memory_allocated() / 1e9}
            ),
        }

    def rows() -> dict[str, float]:
        return {"rows": len(pack(drawn.pop(), torch.device("cpu")).ids)}

    facts = {
        "name": "metaclaw",
        "prompt_tokens": sum(map(len, prompts)),
        "torch": torch.__version__,
    }
    serve(step, rows, facts | limits(options))


def advantages(rewards: list[float]) -> list[float]:
    """Group-relative, as TRL's default has them."""
    mean, spread = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(value - mean) / (spread + 1e-4) for value in rewards]


class _Stopwatch:
    """Seconds by name; on a GPU until the work is really done."""

    def __init__(self, device: str) -> None:
        self.seconds: dict[str, float] = {}
        self._is_gpu = device != "cpu"

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        self._wait()
        began = time.perf_counter()
        done = work()
        self._wait()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        return done

    def around(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same function, timed."""
        return lambda *given, **named: self.time("backward", lambda: function(*given, **named))

    def _wait(self) -> None:
        if self._is_gpu:
            import torch

            torch.cuda.synchronize()


def limits(options: argparse.Namespace) -> dict[str, object]:
    """What this machine can do at best, measured here: products of large matrices, and reading and
    writing memory.
    """
    import torch

    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    size, length = (1536, 1 << 26) if options.device == "cpu" else (8192, 1 << 30)
    one, two = (torch.randn(size, size, device=options.device, dtype=dtype) for _ in range(2))
    source, target = (torch.empty(length, device=options.device) for _ in range(2))
    product = min(_seconds(options.device, lambda: one @ two) for _ in range(6))
    copy = min(_seconds(options.device, lambda: target.copy_(source)) for _ in range(6))
    return {"gflops": 2e-9 * size**3 / product, "gb_per_s": 8e-9 * length / copy}


def _seconds(device: str, work: Callable[[], object]) -> float:
    watch = _Stopwatch(device)
    watch.time("work", work)
    return watch.seconds["work"]


def peer_worker(options: argparse.Namespace) -> None:
    """TRL's trainer; it owns its loop, so a callback waits at the beginning of each step for its
    turn.
    """
    import torch

    datasets, peft, transformers, trl = (
        importlib.import_module(name) for name in ("datasets", "peft", "transformers", "trl")
    )
    torch.set_num_threads(options.threads)
    drawn: dict[str, float] = {}

    def score(
        completions: list[Messages], completion_ids: list[list[int]], **_: object
    ) -> list[float]:
        drawn["tokens"] = sum(map(len, completion_ids))
        return [reward(messages[-1]["content"]) for messages in completions]

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # its progress must not get into the answers
    asked = conversations(options.prompts, with_skill=not options.plain)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype=dtype)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder, padding_side="left")
    lengths = [
        len(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
        for messages in asked
    ]
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=score,
            args=trl.GRPOConfig(output_dir=folder, **_peer_settings(options)),
            train_dataset=datasets.Dataset.from_list([{"prompt": messages} for messages in asked]),
            processing_class=tokenizer,
            peft_config=peft.LoraConfig(
                r=options.rank, lora_alpha=2 * options.rank, target_modules=list(PROJECTIONS)
            ),
            callbacks=[_turn_taking(transformers.TrainerCallback, options.device, drawn, out)],
        )
        facts = {
            "name": f"trl {trl.__version__}",
            "prompt_tokens": sum(lengths),
            "torch": torch.__version__,
        }
        print(json.dumps(facts), file=out, flush=True)
        trainer.train()


def _peer_settings(options: argparse.Namespace) -> dict[str, object]:
    """TRL's fastest settings that change no result."""
    is_cpu = options.device == "cpu"
    return {
        "use_cpu": is_cpu,
        "bf16": not is_cpu,
        "fp16": False,
        "per_device_train_batch_size": options.prompts * options.group,
        "num_generations": options.group,
        "max_completion_length": options.tokens,
        "beta": 0.0,
        "learning_rate": LEARNING_RATE,
        "max_steps": 1_000_000,
        "shuffle_dataset": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }


def _turn_taking(callback: Any, device: str, drawn: dict[str, float], out: IO[str]) -> object:
    """A callback that begins a step when a line comes in and reports when it is done, with what was
    drawn.
    """
    import torch

    class Turns(callback):  # type: ignore[misc]
        began = cpu = 0.0

        def on_step_begin(self, *_: object, **__: object) -> None:
            if not sys.stdin.readline():
                os._exit(0)
            self.began, self.cpu = time.perf_counter(), time.process_time()

        def on_step_end(self, *_: object, **__: object) -> None:
            if device != "cpu":
                torch.cuda.synchronize()
            said = {
                "wall_s": time.perf_counter() - self.began,
                "cpu_s": time.process_time() - self.cpu,
                **drawn,
            }
            if device != "cpu":
                said["gpu_gb"] = torch.cuda.max_memory_allocated() / 1e9
            print(json.dumps(said | {"peak_gb": peak_gb()}), file=out, flush=True)

    return Turns()


@dataclass
class Contestant:
    """A worker process, what it is, and the steps it made."""

    process: "subprocess.Popen[str]"
    facts: dict[str, Any]
    steps: list[dict[str, float]] = field(default_factory=list)

    def step(self) -> dict[str, float]:
        """Let it make one step."""
        sender, receiver = _pipes(self.process)
        sender.write("step\n")
        sender.flush()
        said: dict[str, float] = json.loads(receiver.readline() or _died(self.process))
        return said

    def median(self, name: str) -> float:
        """Of one of the numbers its steps came with."""
        return statistics.median(step.get(name, float("nan")) for step in self.steps)


def _pipes(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _died(process: "subprocess.Popen[str]") -> str:
    raise SystemExit(
        f"a worker ended with status {process.wait()}; run it with --verbose to see why"
    )


def start(kind: str, python: Path, options: argparse.Namespace) -> Contestant:
    """A worker, ready for its first step."""
    # As a module: as a script its folder would be searched first, and there lies a `secrets` that
    # is not the standard library's.
    command = [
        str(python),
        "-m",
        "benchmarks.training",
        "--worker",
        kind,
        "--device",
        options.device,
    ]
    command += ["--folder", str(options.folder.resolve())]
    for name in ("prompts", "group", "tokens", "rank", "threads"):
        command += [f"--{name}", str(getattr(options, name))]
    # Both get what our trainer's process gets: waiting threads sleep, and memory that torch lets go
    # is kept for a second.
    threads = {
        "OMP_NUM_THREADS": str(options.threads),
        "OMP_WAIT_POLICY": "passive",
        "MIMALLOC_PURGE_DELAY": "1000",
    }
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    process = subprocess.Popen(
        [*command, *(["--plain"] if options.plain else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if options.verbose else subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, **threads, **quiet},
    )
    return Contestant(process, json.loads(_pipes(process)[1].readline() or _died(process)))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All steps of all contestants, in turn, and what came of them."""
    contestants = [start("ours", Path(sys.executable), options)]
    try:
        if not options.no_peer:
            contestants.append(start("peer", options.peer_python, options))
        for contestant in contestants:
            contestant.step()
        for number in range(options.steps):
            for contestant in contestants[:: -1 if number % 2 else 1]:
                contestant.steps.append(contestant.step())
                said = contestant.steps[-1]
                print(
                    f"step {number + 1}: {contestant.facts['name']}: {said['wall_s']:.2f} s",
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        for contestant in contestants:
            _pipes(contestant.process)[0].close()
            contestant.process.wait(60)
    return report(contestants, options)


def report(contestants: list[Contestant], options: argparse.Namespace) -> dict[str, Any]:
    """The numbers of a run."""
    ours = contestants[0]
    rows = [_row(contestant, ours) for contestant in contestants]
    settings = {
        name: getattr(options, name)
        for name in ("steps", "prompts", "group", "tokens", "rank", "threads", "device")
    }
    profile = {
        name: ours.median(f"{name}_s") for name in ("sample", "forward", "backward", "optimise")
    }
    return {
        "machine": machine(options),
        "settings": (
            settings
            | {"prompt_tokens": [contestant.facts["prompt_tokens"] for contestant in contestants]}
        ),
        "rows": rows,
        "profile_s": profile,
        "limits": limit_report(ours, options),
    }


def _row(contestant: Contestant, ours: Contestant) -> dict[str, Any]:
    pairs = list(zip(contestant.steps, ours.steps, strict=True))
    ratios = [theirs["wall_s"] / mine["wall_s"] for theirs, mine in pairs]
    per_token = [
        (theirs["wall_s"] / theirs["tokens"]) / (mine["wall_s"] / mine["tokens"])
        for theirs, mine in pairs
    ]
    return {
        "name": contestant.facts["name"],
        "torch": contestant.facts["torch"],
        "wall_s": contestant.median("wall_s"),
        "wall_s_all": [round(step["wall_s"], 3) for step in contestant.steps],
        "cpu_s": contestant.median("cpu_s"),
        "drawn_tokens": contestant.median("tokens"),
        "tokens_per_s": statistics.median(
            step["tokens"] / step["wall_s"] for step in contestant.steps
        ),
        "peak_gb": max(step["peak_gb"] for step in contestant.steps),
        "gpu_gb": max(
            (step["gpu_gb"] for step in contestant.steps if "gpu_gb" in step), default=None
        ),
        "ours_is_faster_by": statistics.median(ratios),
        "ours_is_faster_by_range": [min(ratios), max(ratios)],
        "ours_is_faster_per_token_by": statistics.median(per_token),
        "ours_needs_less_cpu_by": statistics.median(
            theirs["cpu_s"] / mine["cpu_s"] for theirs, mine in pairs
        ),
    }


def limit_report(ours: Contestant, options: argparse.Namespace) -> dict[str, float]:
    """How near a step comes to what the machine allows: the products that cannot be saved, at the
    speed of a plain large product.

    A trained row costs two products with every projection (forward, and the gradient that goes on),
    a drawn token two with the head. A decode step multiplies with everything and reads every weight
    once."""
    config = json.loads((options.folder / "config.json").read_text())
    width, feed, layers = (
        config["hidden_size"],
        config["intermediate_size"],
        config["num_hidden_layers"],
    )
    kv_width = width * config["num_key_value_heads"] // config["num_attention_heads"]
    projections = layers * (2 * width * width + 2 * width * kv_width + 3 * width * feed)
    head = width * config["vocab_size"]
    rows, tokens, prompt = ours.median("rows"), ours.median("tokens"), ours.facts["prompt_tokens"]
    training = 4e-9 * (rows * projections + tokens * head)
    sampling = 2e-9 * ((prompt + tokens) * projections + tokens * head)
    read = 1e-9 * options.tokens * (projections + head) * (4 if options.device == "cpu" else 2)
    speed, bandwidth = ours.facts["gflops"], ours.facts["gb_per_s"]
    taught = ours.median("forward_s") + ours.median("backward_s")
    return {
        "product_gflops": speed,
        "memory_gb_per_s": bandwidth,
        "rows_run": rows,
        "rows_without_sharing": options.group * prompt + tokens,
        "training_gflop": training,
        "training_at_least_s": training / speed,
        "training_share_of_limit": training / speed / taught,
        "sampling_gflop": sampling,
        "sampling_read_gb": read,
        "sampling_at_least_s": max(sampling / speed, read / bandwidth),
        "sampling_share_of_limit": (
            max(sampling / speed, read / bandwidth) / ours.median("sample_s")
        ),
    }


def machine(options: argparse.Namespace) -> dict[str, object]:
    """What the numbers were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    return {
        "processor": name,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
    }


def show(result: dict[str, Any]) -> None:
    """The result as Markdown."""
    print(f"{result['machine']}\n{result['settings']}\n")
    print(
        "| contestant | step s | CPU s | drawn tokens | tokens/s | peak GB | ours is faster by"
        " (range) | per token | less CPU by |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in result["rows"]:
        low, high = row["ours_is_faster_by_range"]
        print(
            f"| {row['name']} | {row['wall_s']:.3f} | {row['cpu_s']:.2f} |"
            f" {row['drawn_tokens']:.0f} | {row['tokens_per_s']:.1f} |"
            f" {row['gpu_gb'] or row['peak_gb']:.2f} | {row['ours_is_faster_by']:.2f}"
            f" ({low:.2f}-{high:.2f}) | {row['ours_is_faster_per_token_by']:.2f} |"
            f" {row['ours_needs_less_cpu_by']:.2f} |"
        )
    whole = sum(result["profile_s"].values())
    shares = ", ".join(
        f"{name} {seconds:.3f} s ({seconds / whole:.0%})"
        for name, seconds in result["profile_s"].items()
    )
    print(f"\nOurs: {shares}")
    print("\n".join(_limit_lines(result["limits"])))


def _limit_lines(limit: dict[str, float]) -> Iterator[str]:
    yield (
        f"Limits: {limit['product_gflops']:.0f} GFLOP/s in large products,"
        f" {limit['memory_gb_per_s']:.1f} GB/s"
    )
    yield (
        f"Training: {limit['rows_run']:.0f} rows run of {limit['rows_without_sharing']:.0f},"
        f" {limit['training_gflop']:.0f} GFLOP, at least {limit['training_at_least_s']:.3f} s:"
        f" {limit['training_share_of_limit']:.0%} of the limit reached"
    )
    yield (
        f"Sampling: {limit['sampling_gflop']:.0f} GFLOP, {limit['sampling_read_gb']:.1f} GB of"
        f" weights read, at least {limit['sampling_at_least_s']:.3f} s:"
        f" {limit['sampling_share_of_limit']:.0%} of the limit reached"
    )


def install_peer() -> None:
    """TRL into an environment of its own; takes minutes, needs a package index."""
    if not (PEER / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
    pins = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run(
        [str(PEER / "bin" / "python"), "-m", "pip", "install", "--quiet", *pins, *REQUIREMENTS],
        check=True,
    )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", type=int, default=5, help="measured steps of each, after one that warms up"
    )
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8, help="answers to each prompt")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of an answer, at most")
    parser.add_argument(
        "--plain", action="store_true", help="prompts without the house rules in front"
    )
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cpu", help="cpu, or cuda on a machine that has it")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".cache" / "engine" / MODEL_ID, help="the model"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--assert-goals",
        action="store_true",
        help="exit 1 unless ours takes at most half of TRL's time",
    )
    parser.add_argument("--no-peer", action="store_true", help="measure ours alone")
    parser.add_argument(
        "--install-peer", action="store_true", help="install TRL first, if it is not there"
    )
    parser.add_argument(
        "--peer-python",
        type=Path,
        default=PEER / "bin" / "python",
        help="an interpreter that can import trl",
    )
    parser.add_argument("--verbose", action="store_true", help="show what the workers say")
    parser.add_argument("--worker", choices=("ours", "peer"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.worker:
        (ours_worker if options.worker == "ours" else peer_worker)(options)
        return 0
    if options.install_peer:
        install_peer()
    if not options.no_peer and not options.peer_python.exists():
        print(
            "TRL is not installed: run with --install-peer, or with --no-peer to measure ours"
            " alone",
            file=sys.stderr,
        )
        return 2
    result = run(options)
    print(json.dumps(result, indent=2)) if options.json else show(result)
    is_missed = not options.no_peer and result["rows"][1]["ours_is_faster_by"] < 2.0
    return 1 if options.assert_goals and is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
