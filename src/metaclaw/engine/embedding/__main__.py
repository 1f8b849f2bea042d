"""The embedding process. It ends when its input ends."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from metaclaw.engine.embedding import frames
from metaclaw.engine.embedding.client import MODEL_PACKAGE
from metaclaw.engine.pipe import Pipe

if TYPE_CHECKING:
    from metaclaw.engine.embedding.server import EmbeddingServer


def main() -> int:
    """Serve until the program that started it is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", default=MODEL_PACKAGE, help="the package with the weights")
    parser.add_argument("--vectors", help="the file for vectors that a provider makes; no model is loaded")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--folder", type=Path, help="serve, and keep the trimmed model and the library's vectors here")
    what.add_argument("--prepare", action="store_true", help="trim the model once for this installation, and end")
    arguments = parser.parse_args()
    if arguments.prepare:
        from metaclaw.engine.embedding.server import prepare

        prepare(_model_folder(arguments.package))
        return 0
    # What a library prints must not reach the pipe.
    write_handle = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    pipe = Pipe[frames.ToModel, frames.FromModel](sys.stdin.fileno(), write_handle, frames.to_model.decode, frames.pack)
    pipe.listen()
    try:
        server = _load(pipe, arguments)
    except (ImportError, OSError, KeyError, ValueError) as error:
        what_failed = "the search" if arguments.vectors else arguments.package
        pipe.send(frames.LoadFailed(f"{what_failed} cannot be loaded: {error}"))
        return 1
    pipe.send(frames.ModelReady())
    server.serve()
    return 0


def _load(pipe: "Pipe[frames.ToModel, frames.FromModel]", arguments: argparse.Namespace) -> "EmbeddingServer":
    if arguments.vectors:
        from metaclaw.engine.embedding.server import load_provider_server

        return load_provider_server(pipe, arguments.folder / arguments.vectors)
    from metaclaw.engine.embedding.server import load

    return load(pipe, _model_folder(arguments.package), arguments.folder)


def _model_folder(package: str) -> Path:
    spec = find_spec(package)  # without importing it, which would import torch
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("it is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


if __name__ == "__main__":
    sys.exit(main())
