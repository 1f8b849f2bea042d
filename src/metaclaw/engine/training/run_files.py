"""The files of training: a run's state, and a check that an adapter is complete. Imports nothing
heavy.

    run.json                          the plan of the run
    step-00000012.state               after the 12th optimiser step: weights, moments
    gradient-00000012-00000003.state  three pieces accumulated towards the 13th

Each file is complete or absent. The two latest steps and, of each, the two latest gradients are
kept: where the latest file is damaged, the run continues from the one before."""

import contextlib
import fcntl
import json
import os
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from metaclaw.domain.chat import Json
from metaclaw.domain.training import RunProgress
from metaclaw.durable_files import BY_UMASK, replace_file
from metaclaw.errors import TrainingError

_MAGIC: Final = b"MCSTATE1"
_HEAD: Final = struct.Struct("<8sIQ")  # magic, checksum of the body, length of the body
_KEPT_STEPS: Final = 2
_KEPT_GRADIENTS: Final = 2
_SHARE: Final = 0.05
"""The share of the working time that writing gradients may take."""
_RECENT: Final = 3

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
_LENGTH_BYTES: Final = 8
_LONGEST_HEADER: Final = 100_000_000  # the limit of safetensors itself


@dataclass(frozen=True, slots=True)
class SavedState:
    """The latest state that can be read, and notes about damaged files."""

    progress: RunProgress
    step: bytes
    gradient: bytes | None
    notes: list[str]


class RunFiles:
    """The state files of one run, locked by one process for as long as it lives."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._costs_s: deque[float] = deque(maxlen=_RECENT)
        self._saved_at = clock()
        self._lock: int | None = None

    def claim(self, identity: Mapping[str, Json]) -> None:
        """Lock the folder for this run. Raises TrainingError if it belongs to another run or is in
        use.
        """
        with _translated(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            named = self._folder / "run.json"
            if named.exists():
                _check_identity(named, identity)
            else:
                replace_file(named, json.dumps(identity, indent=2).encode(), mode=BY_UMASK)
            for torn in self._folder.glob("*.tmp"):
                torn.unlink()

    def recover(self) -> SavedState | None:
        """The latest complete state, or None if the run has none yet. Damaged files are skipped and
        named in the notes.
        """
        notes: list[str] = []
        steps = self._steps()
        for step in steps:
            body = _read(self._step_path(step), notes)
            if body is None:
                continue
            for pieces in self._gradients(step):
                gradient = _read(self._gradient_path(step, pieces), notes)
                if gradient is not None:
                    return SavedState(RunProgress(step, pieces), body, gradient, notes)
            return SavedState(RunProgress(step, 0), body, None, notes)
        if steps:
            raise TrainingError(
                f"no state of the run in {self._folder} can be read: {'; '.join(notes)}"
            )
        return None

    def save_step(self, steps: int, make: Callable[[], bytes]) -> None:
        """Write the state after an optimiser step; on disk when this returns. Its gradient is
        zero.
        """
        self._save(self._step_path(steps), make)
        for old in self._steps()[_KEPT_STEPS:]:
            for pieces in self._gradients(old):
                self._gradient_path(old, pieces).unlink()
            self._step_path(old).unlink()

    def save_gradient(self, progress: RunProgress, make: Callable[[], bytes]) -> None:
        """Write what was accumulated towards the next step; on disk when this returns."""
        started = self._clock()
        self._save(self._gradient_path(progress.steps, progress.pieces), make)
        self._costs_s.append(self._clock() - started)
        for old in self._gradients(progress.steps)[_KEPT_GRADIENTS:]:
            self._gradient_path(progress.steps, old).unlink()

    @property
    def is_due(self) -> bool:
        """Whether writing the gradient now takes no more than its share of the time since the last
        write.
        """
        # The least of the recent costs: one of them may include a pause of training.
        return not self._costs_s or min(self._costs_s) <= _SHARE * (self._clock() - self._saved_at)

    def release(self, *, discard: bool) -> None:
        """Unlock the folder; with `discard` remove the run's files first."""
        if discard:
            remove_run(self._folder)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _save(self, path: Path, make: Callable[[], bytes]) -> None:
        with _translated(path):
            body = make()
            replace_file(path, _HEAD.pack(_MAGIC, zlib.crc32(body), len(body)), body, mode=BY_UMASK)
        self._saved_at = self._clock()

    def _take_lock(self) -> None:
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TrainingError(f"another process works on the run in {self._folder}") from error

    def _steps(self) -> list[int]:
        return sorted(
            (int(path.stem.split("-")[1]) for path in self._folder.glob("step-*.state")),
            reverse=True,
        )

    def _gradients(self, step: int) -> list[int]:
        paths = self._folder.glob(f"gradient-{step:08d}-*.state")
        return sorted((int(path.stem.split("-")[2]) for path in paths), reverse=True)

    def _step_path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}.state"

    def _gradient_path(self, step: int, pieces: int) -> Path:
        return self._folder / f"gradient-{step:08d}-{pieces:08d}.state"


def remove_run(folder: Path) -> None:
    """Remove a run's files, and its folder if nothing else is in it. A run that is not there is no
    error.
    """
    for pattern in ("*.tmp", "gradient-*.state", "step-*.state", "run.json", "lock"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _read(path: Path, notes: list[str]) -> bytes | None:
    with _translated(path):
        content = memoryview(path.read_bytes())
    if len(content) >= _HEAD.size:
        magic, checksum, length = _HEAD.unpack_from(content)
        body = content[_HEAD.size :]
        if magic == _MAGIC and length == len(body) and checksum == zlib.crc32(body):
            return bytes(body)
    notes.append(f"{path.name} is damaged and was passed over")
    return None


def _check_identity(named: Path, identity: Mapping[str, Json]) -> None:
    try:
        there: Json = json.loads(named.read_bytes())
    except ValueError as error:
        raise TrainingError(
            f"{named} cannot be read ({error}); remove {named.parent} to begin that run anew"
        ) from error
    wanted = json.loads(json.dumps(identity))
    if there != wanted:
        differing = [
            key for key in wanted if not isinstance(there, dict) or there.get(key) != wanted[key]
        ] or ["plan"]
        raise TrainingError(
            f"the run in {named.parent} was begun with another {', '.join(differing)}; it cannot go"
            " on as this one"
        )


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(f"cannot keep the run's state at {path}: {error}") from error


class _Tensor(msgspec.Struct):
    """The place of a tensor behind the header. The header's entry about the file itself has
    none.
    """

    data_offsets: tuple[int, int] = (0, 0)


_header = msgspec.json.Decoder(dict[str, _Tensor])


def is_complete_adapter(folder: Path) -> bool:
    """Whether an adapter's files are there and have the length that they name. Their content is
    checked when they are loaded.
    """
    weights = folder / WEIGHTS_FILE
    try:
        with weights.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if header_bytes > _LONGEST_HEADER:
                return False
            tensors = _header.decode(file.read(header_bytes))
        ends = [tensor.data_offsets[1] for tensor in tensors.values()]
        expected_bytes = _LENGTH_BYTES + header_bytes + max(ends, default=0)
        return (
            weights.stat().st_size == expected_bytes and (folder / CONFIG_FILE).stat().st_size > 0
        )
    except (OSError, msgspec.MsgspecError):
        return False
