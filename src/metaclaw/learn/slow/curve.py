"""The learning curve of a training run: the mean reward of each step, kept after the run's own files are deleted."""

import logging
from pathlib import Path
from typing import Final

import msgspec

from metaclaw.errors import TrainingError
from metaclaw.learn.slow.journal import Journal

log = logging.getLogger(__name__)

_KEPT: Final = 20


def keep_curve(folder: Path, batch: int, run: Path) -> None:
    """Keep the curve of a run that is over; only the newest few are kept. Blocks. A curve that cannot be kept is logged."""
    curves = folder / "curves"
    try:
        rewards = _rewards(run)
        curves.mkdir(parents=True, exist_ok=True)
        (curves / f"{batch:06d}.json").write_bytes(msgspec.json.encode(rewards))
        for old in sorted(curves.glob("*.json"))[:-_KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, TrainingError) as error:
        log.warning("curve_not_kept batch=%d reason=%s", batch, error)


def newest_curve(folder: Path) -> list[float]:
    """The rewards of the run that goes on, or of the last one. Blocks."""
    runs, curves = sorted((folder / "runs").glob("[0-9]*")), sorted((folder / "curves").glob("[0-9]*.json"))
    try:
        if runs and (rewards := _rewards(runs[-1])):
            return rewards
        return msgspec.json.decode(curves[-1].read_bytes(), type=list[float]) if curves else []
    except (OSError, TrainingError, msgspec.DecodeError):
        return []


def _rewards(run: Path) -> list[float]:
    return [record.reward for record in Journal(run / "drawn").records() if record.reward is not None]
