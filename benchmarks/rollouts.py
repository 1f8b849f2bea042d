"""Drawing rollouts: ours beside the serving engine's batch and transformers' `generate`, on the
same weights and prompts.

    python -m benchmarks.rollouts [--model FOLDER] [--prompts 4] [--count 8] [--tokens 24]
    [--prompt-tokens 180] [--shared 0]
        [--device cpu|cuda] [--dtype float32|bfloat16] [--no-graphs] [--peers batch,generate]
        [--runs 3] [--threads N] [--json] [--verify]

Without `--model` the weights are random ones of SmolLM2-135M's shape, which cost the same. No end
token is known to anybody, so all draw the same number of tokens at temperature 1. `--shared` is how
many tokens all prompts begin with alike. Times are the best of the runs, on the clock and, in
brackets, as processor time, which other programs lengthen less; the first run is shown apart (on a
GPU it holds the recording of the graphs). `step` is the time on the clock divided by the tokens of
one rollout, prompts included.

`--verify` draws instead of timing, and fails unless a second call repeats the first bit for bit,
recorded and plain steps draw the same tokens, new weights in old buffers do what they do in fresh
ones, and log-probabilities are near those of the CPU in single precision. "The same" allows one
rollout in twenty to differ: another choice of kernel rounds differently."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.scoring import score
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.engine.batch import Batch, Job
from metaclaw.engine.checkpoint import Shape, read_shape, read_tensors
from metaclaw.engine.frames import SamplingOptions
from metaclaw.engine.llama import Llama
from metaclaw.engine.training.rollout import Rollouts

_SMOLLM2 = Shape(30, 576, 9, 3, 64, 49_152, 8192, 1e-5, 100_000.0, frozenset())
_FEED = 1536
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one way to draw."""

    name: str
    tokens: int
    first_s: float
    wall_s: float
    cpu_s: float
    step_ms: float

    def __str__(self) -> str:
        rate = self.tokens / self.wall_s
        return (
            f"{self.name:<12} {self.wall_s:8.3f} s ({self.cpu_s:7.2f} s)  {rate:9.0f} tokens/s "
            f" step {self.step_ms:8.2f} ms  first {self.first_s:7.2f} s"
        )


def main() -> None:
    """Draw with everybody and print what it took."""
    args = _arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    shape, tensors = _weights(args.model)
    prompts = _prompts(args.prompts, args.prompt_tokens, args.shared)
    drawing = Drawing(args.count, args.tokens, seed=1)
    device, dtype = args.device, _DTYPES[args.dtype]
    if args.verify:
        _verify(shape, tensors, device, dtype, prompts, drawing)
        return
    ways: dict[str, Callable[[], int]] = {
        "ours": _ours(shape, tensors, device, dtype, args.graphs, prompts, drawing)
    }
    for peer in filter(None, args.peers.split(",")):
        if peer == "batch":
            ways[peer] = _batch(shape, tensors, dtype, prompts, drawing)
        else:
            ways[peer] = _generate(shape, tensors, device, dtype, prompts, drawing)
    if not args.json:
        print(
            f"{args.prompts} prompts of {args.prompt_tokens} tokens, {args.count} rollouts of"
            f" {args.tokens} each; {device}, {args.dtype}, {torch.get_num_threads()} threads"
        )
    timings: list[Timing] = []
    for name, draw in ways.items():
        timings.append(_timed(name, draw, args.runs, drawing.max_tokens, device))
        if not args.json:
            print(f"{timings[-1]}  {_ratio(timings)}", flush=True)
    if args.json:
        print(
            json.dumps(
                {
                    "settings": {**vars(args), "model": str(args.model)},
                    "timings": [asdict(timing) for timing in timings],
                }
            )
        )
        return
    if device == "cuda":
        print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def _ratio(timings: list[Timing]) -> str:
    ours, last = timings[0], timings[-1]
    return f"{last.wall_s / ours.wall_s:6.2f} x ours ({last.cpu_s / ours.cpu_s:.2f} x)"


def _verify(
    shape: Shape,
    tensors: dict[str, Tensor],
    device: str,
    dtype: torch.dtype,
    prompts: Prompts,
    drawing: Drawing,
) -> None:
    others = {name: tensor * 1.01 for name, tensor in tensors.items()}

    def make(weights: dict[str, Tensor], graphs: bool) -> Rollouts:
        return Rollouts(
            shape, weights, device=device, dtype=dtype, decode=lambda _: "", graphs=graphs
        )

    recorded, plain = make(tensors, True), make(tensors, False)
    for temperature in (1.0, 0.7, 0.0):
        warm = replace(drawing, temperature=temperature)
        first = recorded.sample(prompts, warm)
        _expect(
            first == recorded.sample(prompts, warm),
            f"a second call repeats the first at temperature {temperature}",
        )
        _expect_same(
            first,
            plain.sample(prompts, warm),
            f"recorded and plain steps draw the same at temperature {temperature}",
        )
    drawn = recorded.sample(prompts, drawing)
    recorded.replace(others)
    _expect_same(
        recorded.sample(prompts, drawing),
        make(others, True).sample(prompts, drawing),
        "new weights in old buffers",
    )
    teacher = Llama(shape, tensors)
    apart = [
        abs(one - other)
        for prompt, group in zip(prompts[:4], drawn, strict=False)
        for rollout in group[:2]
        for one, other in zip(
            rollout.logprobs_T, score(teacher, prompt, rollout.tokens_T), strict=True
        )
    ]
    mean = sum(apart) / len(apart)
    print(f"log-probabilities are {mean:.2e} off on average, {max(apart):.2e} at most")
    _expect(
        mean < (1e-4 if dtype == torch.float32 else 0.05),
        "log-probabilities are near those of the CPU",
    )


def _expect_same(one: list[list[Rollout]], other: list[list[Rollout]], claim: str) -> None:
    pairs = [pair for groups in zip(one, other, strict=True) for pair in zip(*groups, strict=True)]
    share = sum(left.tokens_T == right.tokens_T for left, right in pairs) / len(pairs)
    _expect(share >= 0.95, f"{claim} ({share:.1%} of rollouts)")


def _expect(is_so: bool, claim: str) -> None:
    print(f"{'ok  ' if is_so else 'NOT '} {claim}")
    if not is_so:
        raise SystemExit(1)


def _timed(name: str, draw: Callable[[], int], runs: int, tokens_each: int, device: str) -> Timing:
    walls, cpus = [], []
    tokens = 0
    for _ in range(runs + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = draw()
        if device == "cuda":
            torch.cuda.synchronize()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    best = min(walls[1:] or walls)
    return Timing(name, tokens, walls[0], best, min(cpus[1:] or cpus), 1000 * best / tokens_each)


def _ours(
    shape: Shape,
    tensors: dict[str, Tensor],
    device: str,
    dtype: torch.dtype,
    graphs: bool,
    prompts: Prompts,
    drawing: Drawing,
) -> Callable[[], int]:
    rollouts = Rollouts(
        shape, tensors, device=device, dtype=dtype, decode=lambda _: "", graphs=graphs
    )
    start = time.perf_counter()
    rollouts.replace({name: tensor * 1.001 for name, tensor in tensors.items()})
    print(f"new weights taken in {time.perf_counter() - start:.2f} s")
    return lambda: sum(
        len(rollout.tokens_T) for group in rollouts.sample(prompts, drawing) for rollout in group
    )


def _batch(
    shape: Shape, tensors: dict[str, Tensor], dtype: torch.dtype, prompts: Prompts, drawing: Drawing
) -> Callable[[], int]:
    # Its cache reserves the whole context for everybody.
    needed = replace(shape, positions=max(map(len, prompts)) + drawing.max_tokens)
    llama = Llama(needed, {name: tensor.to(dtype) for name, tensor in tensors.items()})

    def draw() -> int:
        batch = Batch(llama, len(prompts) * drawing.count)
        jobs = [
            Job(prompt, drawing.max_tokens, SamplingOptions())
            for prompt in prompts
            for _ in range(drawing.count)
        ]
        for job in jobs:
            batch.add(job)
        while not batch.is_idle:
            for job, _ in batch.step():
                if job.is_full:
                    batch.remove(job)
        return sum(len(job.sampled) for job in jobs)

    return draw


def _generate(
    shape: Shape,
    tensors: dict[str, Tensor],
    device: str,
    dtype: torch.dtype,
    prompts: Prompts,
    drawing: Drawing,
) -> Callable[[], int]:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=_FEED,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width,
        max_position_embeddings=shape.positions,
        rms_norm_eps=shape.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings="lm_head.weight" not in tensors,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.load_state_dict(tensors, strict=False)
    model = model.to(torch.device(device), dtype).eval()  # type: ignore[arg-type]
    # All prompts have one length here, so none is padded, which is in favour of `generate`.
    ids = torch.tensor([list(prompt) for prompt in prompts], device=device)

    def draw() -> int:
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=drawing.count,
                max_new_tokens=drawing.max_tokens,
                min_new_tokens=drawing.max_tokens,
            )
        return int(out[:, ids.shape[1] :].numel())

    return draw


def _weights(folder: Path | None) -> tuple[Shape, dict[str, Tensor]]:
    if folder is not None:
        return replace(read_shape(folder), end_ids=frozenset()), read_tensors(folder, torch.float32)
    shape, generator = _SMOLLM2, torch.Generator().manual_seed(0)
    width, kv = shape.width, shape.kv_width // 2
    sizes = {
        "q": (shape.query_width, width),
        "k": (kv, width),
        "v": (kv, width),
        "o": (width, shape.query_width),
    }
    feeds = {"gate": (_FEED, width), "up": (_FEED, width), "down": (width, _FEED)}
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocabulary, width),
        "model.norm.weight": (width,),
    }
    for number in range(shape.layers):
        layer = f"model.layers.{number}."
        shapes |= {f"{layer}self_attn.{name}_proj.weight": size for name, size in sizes.items()}
        shapes |= {f"{layer}mlp.{name}_proj.weight": size for name, size in feeds.items()}
        shapes |= {
            f"{layer}{name}_layernorm.weight": (width,) for name in ("input", "post_attention")
        }
    return shape, {
        name: torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator) * 0.04
        for name, size in shapes.items()
    }


def _prompts(count: int, length: int, shared: int) -> list[list[int]]:
    ids = torch.randint(17, 49_152, (count, length), generator=torch.Generator().manual_seed(3))
    ids[:, :shared] = ids[0, :shared].clone()
    return [list(map(int, row)) for row in ids.tolist()]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    for name, value in (
        ("prompts", 4),
        ("count", 8),
        ("tokens", 24),
        ("prompt-tokens", 180),
        ("shared", 0),
        ("runs", 3),
        ("threads", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=_DTYPES)
    parser.add_argument("--no-graphs", dest="graphs", action="store_false")
    parser.add_argument("--peers", default="batch,generate")
    for name in ("json", "verify"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
