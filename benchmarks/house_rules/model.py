"""Where the model comes from: a folder that is there, or a GGUF file, in one piece or several, turned into one."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from metaclaw.engine.convert import ensure_model


def find_model(folder: Path, parts: Sequence[Path]) -> Path:
    """The model folder, made now from the GGUF's parts (or from the installed weights, where none are named) if it is not there."""
    # A converted folder appears whole or not at all.
    if not parts or (folder / "config.json").is_file():
        return ensure_model(folder, lambda share: None)
    with tempfile.TemporaryDirectory() as place:
        return ensure_model(folder, lambda share: None, join(parts, Path(place) / "joined.gguf"))


def join(parts: Sequence[Path], whole: Path) -> Path:
    """One file of several, one after another."""
    with whole.open("wb") as out:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, out)
    return whole
