"""`python -m metaclaw.engine.embedding`: the embedding process, started by the program; `--prepare`
is for installations.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from metaclaw.engine.embedding import frames
from metaclaw.engine.embedding.client import MODEL_PACKAGE
from metaclaw.engine.frames import Pipe


def main() -> int:
    """Prepare the model, or serve until the program ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", default=MODEL_PACKAGE, help="the package with the weights")
    parser.add_argument(
        "--vectors", help="the file for vectors that a provider makes; no model is loaded"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--folder",
        type=Path,
        help="serve, and keep the trimmed model and the library's vectors here",
    )
    what.add_argument(
        "--prepare", action="store_true", help="trim the model once for this installation, and end"
    )
    arguments = parser.parse_args()
    if arguments.prepare:
        from metaclaw.engine.embedding.server import prepare

        prepare(_model_folder(arguments.package))
        return 0
    pipe = Pipe[frames.ToModel, frames.FromModel](frames.to_model.decode)
    pipe.listen()
    try:
        from metaclaw.engine.embedding.server import VECTORS_FILE, load

        package = None if arguments.vectors else _model_folder(arguments.package)
        server = load(pipe, arguments.folder / (arguments.vectors or VECTORS_FILE), package)
    except (ImportError, OSError, KeyError, ValueError) as error:
        what_failed = "the search" if arguments.vectors else arguments.package
        pipe.send(frames.LoadFailed(f"{what_failed} cannot be loaded: {error}"))
        return 1
    pipe.send(frames.ModelReady())
    server.serve()
    return 0


def _model_folder(package: str) -> Path:
    spec = find_spec(package)  # without importing it, which would import torch
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("it is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


if __name__ == "__main__":
    sys.exit(main())
