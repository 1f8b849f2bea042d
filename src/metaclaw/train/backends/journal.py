"""Where a run on a training service stands: one small file in the run's folder, replaced whole."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from metaclaw.errors import TrainingError

_NAME = "service.json"


@dataclass(frozen=True, slots=True)
class Mark:
    """The last step that is durable: the service's name for the state after it, optimiser included."""

    backend: str
    run: str
    steps: int
    state: str


def read(folder: Path) -> Mark | None:
    """The mark of the run in this folder, or None if it has none. Raises TrainingError if it cannot be read."""
    path = folder / _NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise TrainingError(f"cannot read {path}: {error}") from error


def write(folder: Path, mark: Mark) -> None:
    """Replace the mark; it is on disk when this returns. Raises TrainingError."""
    draft = folder / f"{_NAME}.new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(asdict(mark)))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / _NAME)
    except OSError as error:
        raise TrainingError(f"cannot write {folder / _NAME}: {error}") from error


def remove(folder: Path) -> None:
    """Forget the run. A folder without a mark is no error."""
    try:
        (folder / _NAME).unlink(missing_ok=True)
    except OSError as error:
        raise TrainingError(f"cannot remove {folder / _NAME}: {error}") from error
