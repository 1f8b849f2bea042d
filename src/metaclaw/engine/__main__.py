"""`python -m metaclaw.engine`: the engine process, started by the program only. It uses its
standard input and output.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from metaclaw.engine import frames
from metaclaw.engine.convert import Progress, prepare_model, require
from metaclaw.engine.frames import Pipe
from metaclaw.errors import EngineError

if TYPE_CHECKING:
    from metaclaw.engine.serve import Line


def main() -> None:
    """Convert the weights if needed, load them, and serve until the pipe ends."""
    options = msgspec.json.decode(sys.argv[1], type=frames.EngineOptions)
    pipe: Line = Pipe(frames.to_engine.decode)
    try:
        _serve(options, pipe)
    except EngineError as error:
        pipe.send(frames.StartFailed(str(error)))


def _serve(options: frames.EngineOptions, pipe: "Line") -> None:
    for name in ("torch", "numpy", "safetensors", "tokenizers", "jinja2"):
        require(name)
    import torch

    from metaclaw.engine.checkpoint import choose_place
    from metaclaw.engine.serve import Engine

    torch.set_num_threads(options.threads)
    pipe.listen()
    prepare_model(options, _reporter(pipe))
    pipe.send(frames.Progress("loading", 0.0))
    adapters = {version: Path(folder) for version, folder in options.adapters.items()}
    device, dtype = choose_place(options.device, options.dtype)
    try:
        engine = Engine(pipe, Path(options.folder), options.slots, getattr(torch, dtype), device)
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"{device} has too little free memory to serve this model ({error}); serve it on the"
            ' processor with policy.device = "cpu", or set engine.max_batch lower'
        ) from error
    engine.run(adapters)


def _reporter(pipe: "Line") -> Progress:
    last = -1

    def report(share: float) -> None:
        nonlocal last
        if int(share * 100) > last:
            last = int(share * 100)
            pipe.send(frames.Progress("converting", share))

    return report


if __name__ == "__main__":
    main()
