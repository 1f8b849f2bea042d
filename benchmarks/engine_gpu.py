"""The embedded model on a GPU: are its numbers right, and how fast does it draw, learn and answer?

    python -m benchmarks.engine_gpu [--sections correct,serve,1.5B,135M,4B,8B] [--steps 2] [--json]

All weights are random and made on the device, so no file is needed. `correct` compares tiny models
of every kind on the GPU, in bfloat16, with the processor, in single precision. A section that is
named after a size draws 32 prompts × 16 answers × 64 tokens, then makes training steps of the
default size (32 prompts × 16 answers × 256 tokens), and reads answers from the serving pass.
`serve` runs the engine process with the 1.5B shape and measures the time to the first token of a
prompt of about 1,000 tokens, idle and while a training process works on the same GPU. Every section
runs in a process of its own; one that fails reports its traceback and stops no other."""

import argparse
import asyncio
import gc
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("correct", "serve", "1.5B", "135M", "4B", "8B")
LIMIT_S = 200
PROMPTS, GROUP, PROMPT_TOKENS = 32, 16, 200
DRAWN_TOKENS, STEP_TOKENS = 64, 256
FIRST_TOKEN_PROMPT = 1000

if TYPE_CHECKING:
    from torch import Tensor

    from metaclaw.domain.training import Datum, Rollout
    from metaclaw.engine.training.learner import Learner

Facts = dict[str, Any]


def main() -> int:
    """Run the sections, each in a process, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--json", action="store_true", help="only the JSON; each line adds a section"
    )
    parser.add_argument("--served", default="1.5B", help="the size that `serve` takes")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options)
        return 0
    found: Facts = {}
    for name in options.sections.split(","):
        began = time.perf_counter()
        found[name] = _run_section(name, options)
        found[name]["section_s"] = round(time.perf_counter() - began, 1)
        if not options.json:
            print(f"== {name}\n{json.dumps(found[name], indent=2)}", file=sys.stderr, flush=True)
        # The last line is the result, even of a run that is cut off.
        print(json.dumps(found), flush=True)
    return int(any("failed" in facts for facts in found.values()))


def _run_section(name: str, options: argparse.Namespace) -> Facts:
    try:
        done = subprocess.run(
            _command(name, options), cwd=ROOT, stdout=subprocess.PIPE, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        return {"failed": f"longer than {LIMIT_S} s", "so_far": _last(late.stdout or b"")}
    facts = _last(done.stdout)
    return facts if done.returncode == 0 else facts | {"failed": facts.get("failed", "ended")}


def _command(name: str, options: argparse.Namespace) -> list[str]:
    return [
        *(sys.executable, "-m", "benchmarks.engine_gpu", "--worker", name),
        *("--steps", str(options.steps), "--device", options.device, "--served", options.served),
    ]


def _last(out: bytes) -> Facts:
    """The facts of the last line that is one."""
    facts: Facts = {}
    for line in out.decode(errors="replace").splitlines():
        if line.startswith("{"):
            facts = json.loads(line)
    return facts


def _work(options: argparse.Namespace) -> None:
    """A section's life: print all that is known after each part."""
    parts: dict[str, Callable[[argparse.Namespace, Facts], None]] = {
        "correct": _correct,
        "serve": _serve,
        "teach": _teach_on,
    }
    facts: Facts = {}
    try:
        parts.get(options.worker, _size)(options, facts)
    except Exception:
        facts["failed"] = traceback.format_exc()
        traceback.print_exc()
        print(json.dumps(facts), flush=True)
        sys.exit(1)
    print(json.dumps(facts), flush=True)


# --- are the numbers right


def _correct(options: argparse.Namespace, facts: Facts) -> None:
    from benchmarks.random_models import FAMILY

    with tempfile.TemporaryDirectory() as folder:
        for kind in FAMILY:
            try:
                facts[kind] = _compare(kind, Path(folder) / kind, options.device)
            except Exception:
                facts[kind] = {"failed": traceback.format_exc()}
                facts["failed"] = f"{kind} and perhaps more"
            print(json.dumps(facts), flush=True)


def _compare(kind: str, folder: Path, device: str) -> Facts:
    import torch

    from benchmarks.random_models import VOCABULARY, write_member
    from benchmarks.scoring import load_model
    from metaclaw.domain.training import Drawing, Loss
    from metaclaw.engine.attention import Span
    from metaclaw.engine.checkpoint import map_tensors, read_shape
    from metaclaw.engine.served_model import ServedModel
    from metaclaw.engine.training.learner import Learner
    from metaclaw.engine.training.lora import Adapter, Pair, read_adapter, write_adapter

    write_member(kind, folder)
    chance = random.Random(1)
    tokens = [chance.randrange(3, VOCABULARY) for _ in range(60)]
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    plain = load_model(folder)
    expected = plain.run([Span(0, 0, tokens)], range(60))
    shared = ServedModel(read_shape(folder), map_tensors(folder), 3, device=device, dtype=dtype)
    found: Facts = {"logits_std": round(float(expected.std()), 3)}
    whole = shared.run([Span(0, 0, tokens)], range(60)).cpu()
    found["prefill"] = _apart(whole, expected)
    shared.run([Span(1, 0, tokens[:20])], [19])
    single = [
        shared.run([Span(1, place, [tokens[place]])], [0]).cpu().clone() for place in range(20, 60)
    ]
    found["single_tokens"] = _apart(torch.cat(single), expected[20:])
    # Three requests in one pass: two single tokens and a prompt between slots of other lengths.
    shared.run([Span(2, 0, tokens[:50])], [49])
    mixed = shared.run(
        [Span(1, 59, tokens[59:]), Span(2, 50, tokens[50:51]), Span(0, 0, tokens[:9])],
        [0, 1, 10],
    ).cpu()
    found["mixed"] = _apart(mixed, expected[[59, 50, 8]])
    both = shared.run([Span(1, 59, tokens[59:]), Span(2, 51, tokens[51:52])], [0, 1]).cpu()
    found["two_rows"] = _apart(both, expected[[59, 51]])

    ours = {
        "cpu": Learner(folder, rank=4, seed=3),
        "gpu": Learner(folder, rank=4, seed=3, device=device, dtype=str(dtype).split(".")[1]),
    }
    generator = torch.Generator().manual_seed(5)
    fresh = ours["cpu"].adapter()
    adapter = Adapter(
        fresh.rank,
        fresh.alpha,
        {
            name: Pair(a, 0.05 * torch.randn(b.shape, generator=generator))
            for name, (a, b) in fresh.pairs.items()
        },
    )
    for learner in ours.values():
        learner.adopt(adapter)
    prompts = [tokens[:20], tokens[:9], tokens[10:40]]
    pairs = [(prompt, tokens[40:60]) for prompt in prompts]
    one, other = (torch.tensor(learner.score(pairs)) for learner in ours.values())
    found["scores"] = _apart(other, one)
    drawn = ours["gpu"].sample(prompts, Drawing(8, 24, seed=2))
    again = ours["gpu"].score(
        [
            (prompt, one.tokens_T)
            for prompt, group in zip(prompts, drawn, strict=True)
            for one in group
        ]
    )
    flat = [value for group in drawn for one in group for value in one.logprobs_T]
    found["drawn_against_scored"] = _apart(
        torch.tensor(flat), torch.tensor([value for row in again for value in row])
    )
    write_adapter(folder / "adapter", adapter, "tiny")
    version = shared.with_adapter(read_adapter(folder / "adapter"))
    sequence = [*prompts[0], *drawn[0][0].tokens_T]
    logits = version.run([Span(0, 0, sequence[:-1])], range(len(sequence) - 1))
    start = len(prompts[0]) - 1
    served = logits[start:].cpu().log_softmax(-1)
    chosen = torch.tensor(sequence[start + 1 :]).unsqueeze(1)
    found["served_against_drawn"] = _apart(
        served.gather(1, chosen).squeeze(1), torch.tensor(drawn[0][0].logprobs_T)
    )
    data = _data(prompts, drawn)
    for learner in ours.values():
        learner.accumulate(data, Loss(), measures_kl=True)
    mine, theirs = (learner.state()["gradient"] for learner in ours.values())
    found["gradient_cosine"] = round(float(torch.cosine_similarity(mine, theirs, dim=0)), 5)
    found["gradient_length_ratio"] = round(float(theirs.norm() / mine.norm()), 4)
    return found


def _apart(found: "Tensor", expected: "Tensor") -> dict[str, float]:
    difference = (found.float() - expected.float()).abs()
    return {"mean": round(float(difference.mean()), 5), "most": round(float(difference.max()), 4)}


def _data(prompts: list[list[int]], drawn: list[list["Rollout"]]) -> list["Datum"]:
    from metaclaw.domain.ids import TurnId
    from metaclaw.domain.training import Datum

    chance = random.Random(3)
    return [
        Datum(
            TurnId(str(number)),
            tuple(prompt),
            one.tokens_T,
            (chance.uniform(-1.0, 1.0),) * len(one.tokens_T),
            one.logprobs_T,
        )
        for number, (prompt, group) in enumerate(zip(prompts, drawn, strict=True))
        for one in group
    ]


# --- how fast a size draws, learns and serves


def _size(options: argparse.Namespace, facts: Facts) -> None:
    import torch

    _learn(options, facts)
    gc.collect()
    torch.cuda.empty_cache()
    _serve_in_process(options, facts)


def _learn(options: argparse.Namespace, facts: Facts) -> None:
    from metaclaw.domain.training import Drawing

    with tempfile.TemporaryDirectory() as folder:
        learner = _learner(options.worker, Path(folder) / "model", options.device, facts)
        prompts = _prompts(learner.vocabulary)
        for name in ("draw_first", "draw"):
            took, drawn = _timed(
                lambda: learner.sample(prompts, Drawing(GROUP, DRAWN_TOKENS, seed=1))
            )
            tokens = sum(len(one.tokens_T) for group in drawn for one in group)
            facts[name] = {
                "s": round(took, 3),
                "tokens": tokens,
                "tokens_per_s": round(tokens / took),
            }
            _tell(facts)
        facts["steps"] = []
        for number in range(options.steps):
            facts["steps"].append(_step(learner, prompts, number, Path(folder)))
            _tell(facts)
        facts["greedy_64_s"] = round(
            _timed(lambda: learner.sample(prompts, Drawing(1, DRAWN_TOKENS, 0.0)))[0], 3
        )
        facts["change_weights_s"] = round(_timed(lambda: learner.adopt(learner.adapter()))[0], 3)


def _learner(size: str, folder: Path, device: str, facts: Facts) -> "Learner":
    import torch

    from benchmarks.random_models import SIZES, large_tensors, write_folder
    from metaclaw.engine.training.learner import Learner

    write_folder(folder, SIZES[size])
    tensors = large_tensors(size, device, torch.bfloat16)
    facts["parameters"] = sum(tensor.numel() for tensor in tensors.values())
    dtype = "float32" if device == "cpu" else "bfloat16"
    began = time.perf_counter()
    learner = Learner(folder, rank=16, seed=0, device=device, dtype=dtype, tensors=tensors)
    took = time.perf_counter() - began
    facts |= {"load_s": round(took, 2), "rows_at_once": learner._rows}
    if device != "cpu":
        facts["loaded_gb"] = round(torch.cuda.memory_allocated() / 1e9, 2)
    return learner


def _prompts(vocabulary: int) -> list[list[int]]:
    chance = random.Random(0)
    shared = [chance.randrange(3, vocabulary) for _ in range(PROMPT_TOKENS // 2)]
    return [
        [
            *shared,
            *(chance.randrange(3, vocabulary) for _ in range(PROMPT_TOKENS // 2 + number % 9)),
        ]
        for number in range(PROMPTS)
    ]


def _step(learner: "Learner", prompts: list[list[int]], number: int, folder: Path) -> Facts:
    import torch

    from metaclaw.domain.training import Adam, Drawing, Loss
    from metaclaw.engine.training.process import _step_part
    from metaclaw.engine.training.run_files import RunFiles

    backward = 0.0
    plain: Callable[..., None] = torch.Tensor.backward

    def timed_backward(*given: Any, **named: Any) -> None:
        nonlocal backward
        took, _ = _timed(lambda: plain(*given, **named))
        backward += took

    if learner._device.type != "cpu":
        torch.cuda.reset_peak_memory_stats()
    sample_s, drawn = _timed(
        lambda: learner.sample(prompts, Drawing(GROUP, STEP_TOKENS, seed=10 + number))
    )
    data = _data(prompts, drawn)
    tokens = sum(len(one.tokens_T) for one in data)
    torch.Tensor.backward = timed_backward  # type: ignore[method-assign]
    try:
        learn_s, _ = _timed(lambda: learner.accumulate(data, Loss(), measures_kl=True))
    finally:
        torch.Tensor.backward = plain  # type: ignore[method-assign]
    apply_s, _ = _timed(lambda: learner.apply(Adam(1e-4), float(tokens)))
    files = RunFiles(folder / f"run{number}")
    files.claim({})
    save_s, _ = _timed(lambda: files.save_step(number, lambda: _step_part(learner)))
    files.release(discard=True)
    parts = {
        "tokens": tokens,
        "sample_s": sample_s,
        "learn_s": learn_s,
        "backward_s": backward,
        "apply_s": apply_s,
        "save_s": save_s,
        "step_s": sample_s + learn_s + apply_s + save_s,
        "sample_tokens_per_s": tokens / sample_s,
        "share": learner._work.share,
    }
    if learner._device.type != "cpu":
        parts["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        parts["reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
    return {name: round(value, 3) for name, value in parts.items()}


def _serve_in_process(options: argparse.Namespace, facts: Facts) -> None:
    """The serving pass without a process or a tokenizer around it."""
    import torch

    from benchmarks.random_models import SIZES, large_tensors, write_folder
    from metaclaw.engine.batch import Batch, Job
    from metaclaw.engine.checkpoint import read_shape
    from metaclaw.engine.frames import SamplingOptions
    from metaclaw.engine.served_model import ServedModel

    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    size, found = options.worker, dict[str, Any]()
    facts["serving"] = found
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder) / "model", SIZES[size])
        shape = read_shape(Path(folder) / "model")
    took, model = _timed(
        lambda: ServedModel(
            shape,
            large_tensors(size, options.device, dtype),
            8,
            device=options.device,
            dtype=dtype,
        )
    )
    found["load_and_record_s"] = round(took, 2)
    if options.device != "cpu":
        found["loaded_gb"] = round(torch.cuda.memory_allocated() / 1e9, 2)
    chance = random.Random(1)
    for name, count in (("alone", 1), ("eight", 8)):
        firsts, rates = [], []
        for turn in range(2):
            batch = Batch(model)
            jobs = [
                Job(
                    [chance.randrange(3, shape.vocabulary) for _ in range(FIRST_TOKEN_PROMPT)],
                    64,
                    SamplingOptions(temperature=0.7, top_p=0.9, seed=turn),
                )
                for _ in range(count)
            ]
            for job in jobs:
                batch.add(job)
            began = time.perf_counter()
            while not all(job.sampled for job in jobs):
                batch.step()
            firsts.append(time.perf_counter() - began)
            drawn, began = sum(len(job.sampled) for job in jobs), time.perf_counter()
            while not all(job.is_full for job in jobs):
                for job, _ in batch.step():
                    if job.is_full:
                        batch.remove(job)
            more = sum(len(job.sampled) for job in jobs) - drawn
            rates.append(more / (time.perf_counter() - began))
        found[name] = {
            "last_first_token_ms": [round(1e3 * one, 1) for one in firsts],
            "tokens_per_s": [round(one) for one in rates],
        }


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    import torch

    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    done = work()
    if has_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - began, done


def _tell(facts: Facts) -> None:
    print(json.dumps(facts), flush=True)


# --- the time to the first token


def _serve(options: argparse.Namespace, facts: Facts) -> None:
    import torch
    from safetensors.torch import save_file

    from benchmarks.random_models import SIZES, large_tensors, write_folder

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_folder(model, SIZES[options.served])
        tensors = large_tensors(options.served, options.device, torch.bfloat16)
        save_file(
            {name: tensor.cpu() for name, tensor in tensors.items()}, model / "model.safetensors"
        )
        del tensors
        if options.device != "cpu":
            torch.cuda.empty_cache()
        asyncio.run(_first_tokens(model, options, facts))


async def _first_tokens(folder: Path, options: argparse.Namespace, facts: Facts) -> None:
    from metaclaw.engine import EmbeddedModel

    model = EmbeddedModel(folder, convert=False, device=options.device, start_timeout_s=120.0)
    began = time.perf_counter()
    await model.start()
    await model._ready_child()
    facts["start_s"] = round(time.perf_counter() - began, 2)
    _tell(facts)
    await _ask(model, 0)
    facts["idle"] = await _first_token_times(model, 100)
    _tell(facts)
    trainer = await asyncio.create_subprocess_exec(
        *_command("teach", options), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert trainer.stdout is not None
        await trainer.stdout.readline()  # the first step warms up
        facts["beside_training"] = await _first_token_times(model, 200, count=40)
        facts["training_went_on"] = trainer.returncode is None
        trainer.terminate()
        lines = (await trainer.stdout.read()).splitlines()
        whole = [line for line in lines if line.startswith(b"{") and line.endswith(b"}")]
        facts["steps_beside_s"] = [json.loads(line).get("step_s") for line in whole]
    finally:
        await model.aclose()


async def _first_token_times(model: Any, first: int, count: int = 20) -> Facts:
    found = [await _ask(model, first + number) for number in range(count)]
    firsts, rates = [one for one, _ in found], [rate for _, rate in found]
    return {
        "first_token_ms": {
            "p50": round(statistics.median(firsts), 1),
            "p90": round(sorted(firsts)[int(0.9 * len(firsts))], 1),
            "most": round(max(firsts), 1),
        },
        "tokens_per_s": round(statistics.median(rates)),
    }


async def _ask(model: Any, number: int) -> tuple[float, float]:
    """Milliseconds to the first word, and tokens per second after it."""
    from metaclaw.domain.chat import (
        ChatRequest,
        End,
        Message,
        Role,
        Sampling,
        Text,
        TextDelta,
        Wire,
    )

    chance = random.Random(number)
    words = " ".join(f"w{chance.randrange(3, 400)}" for _ in range(FIRST_TOKEN_PROMPT))
    request = ChatRequest(
        wire=Wire.CHAT,
        model="m",
        messages=(Message(Role.USER, (Text(words),)),),
        sampling=Sampling(max_tokens=32),
    )
    await asyncio.sleep(0.05)
    began, first, tokens = time.perf_counter(), 0.0, 0
    async for delta in model.generate(request):
        if isinstance(delta, TextDelta) and not first:
            first = time.perf_counter()
        if isinstance(delta, End) and delta.tokens is not None:
            tokens = len(delta.tokens.sampled_ids)
    return 1e3 * (first - began), (tokens - 1) / (time.perf_counter() - first)


def _teach_on(options: argparse.Namespace, facts: Facts) -> None:
    """A training process that makes steps of the default size until it is ended."""
    with tempfile.TemporaryDirectory() as folder:
        learner = _learner(options.served, Path(folder) / "model", options.device, facts)
        prompts = _prompts(learner.vocabulary)
        for number in range(1000):
            _tell(_step(learner, prompts, number, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
