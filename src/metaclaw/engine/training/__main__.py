"""`python -m metaclaw.engine.training`: the trainer process, started by the program only. It uses
its standard input and output.
"""

import ctypes
import hashlib
import os
import pickle
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from metaclaw.engine.convert import prepare_model, require
from metaclaw.engine.frames import Pipe, TrainerOptions
from metaclaw.engine.training.calls import TrainerAnswer
from metaclaw.errors import EngineError, MissingPackageError, TrainingError

if TYPE_CHECKING:
    from metaclaw.engine.training.process import Line

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Lower the priority, check the weights, and serve until the pipe ends."""
    options = msgspec.json.decode(sys.argv[1], type=TrainerOptions)
    _die_with(options.parent)
    _lower_priority(options.nice)
    pipe: Line = Pipe(pickle.loads, pickle.dumps)
    try:
        _serve(options, pipe)
    except EngineError as error:
        is_missing = isinstance(error.__cause__, ImportError)
        pipe.send((MissingPackageError if is_missing else TrainingError)(str(error)))


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its parent: a stopped trainer cannot notice the end of
    its input.

    Linux has a signal for that. Elsewhere a stopped group in its parent's session is ended when the
    parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def _lower_priority(nice: int) -> None:
    os.nice(nice)
    if sys.platform == "linux":
        # Where the kernel groups processes by session, the priority of a process counts only within
        # its session: a process of priority 19 still gets half of the processor beside another
        # session. The priority of the session must be lowered, too.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


def _serve(options: TrainerOptions, pipe: "Line") -> None:
    for name in ("torch", "safetensors", "tokenizers"):
        require(name)
    from metaclaw.engine.checkpoint import choose_place
    from metaclaw.engine.training.learner import Learner
    from metaclaw.engine.training.process import Trainer

    pipe.listen()
    prepare_model(options, lambda share: None)
    model = _fingerprint(Path(options.folder))
    device, dtype = choose_place(options.device, options.dtype)
    pipe.send(TrainerAnswer((device, dtype)))

    def make(rank: int, seed: int) -> Learner:
        return Learner(
            Path(options.folder),
            rank=rank,
            seed=seed,
            device=device,
            dtype=dtype,
            threads=options.threads,
        )

    Trainer(make, model, str(options.folder)).serve(pipe)


def _fingerprint(folder: Path) -> str:
    """A hash that distinguishes base models, made without reading all of the weights."""
    try:
        config = (folder / "config.json").read_bytes()
    except OSError as error:
        raise EngineError(f"cannot read the model: {error}") from error
    weights = sorted((path.name, path.stat().st_size) for path in folder.glob("*.safetensors"))
    return hashlib.sha256(config + repr(weights).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
