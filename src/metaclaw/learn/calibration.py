"""How far detectors and judge are to be believed, learned from the turns on which a person or a check has had the last word."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.verdict import Outcome, Source, Verdict
from metaclaw.outcome import Calibration, Sensed, auroc, ece, fit_isotonic, fuse, raw_score

log = logging.getLogger(__name__)

_EVERY_S: Final = 600.0
_MOST: Final = 5_000
_LEAST_SHOWN: Final = 20


class GradedTurns(Protocol):
    """Verdicts of detectors and judges on turns of which the truth is known."""

    def graded(self, limit: int) -> list[tuple[Verdict, Outcome]]:
        """Each such verdict with what a person, or else a check, said of its turn; newest first. Blocks."""


@dataclass(frozen=True, slots=True)
class Trust:
    """How good the verdicts were where the truth is known; None where too little of it is."""

    turns: int
    auroc: float | None = None
    ece: float | None = None


class CalibrationLoop:
    """Keeps the calibration in force up to date."""

    def __init__(self, graded: GradedTurns) -> None:
        self._graded = graded
        self.current = Calibration()
        self.trust = Trust(0)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await run_sync(self.refit)
            await anyio.sleep(_EVERY_S)

    def refit(self) -> None:
        """Fit both maps anew. Blocks."""
        sensed: list[tuple[float, bool]] = []
        judged: list[tuple[float, bool]] = []
        believed: list[tuple[float, bool]] = []
        for verdict, truth in self._graded.graded(_MOST):
            score = _raw(verdict)
            if score is None:
                continue
            failed = truth is Outcome.FAIL
            (judged if verdict.source is Source.JUDGE else sensed).append((score, failed))
            if verdict.p_fail is not None:
                believed.append((verdict.p_fail, failed))
        self.current = Calibration(fit_isotonic(sensed), fit_isotonic(judged))
        self.trust = _trust(believed)
        log.debug("calibrated sensed=%d judged=%d", len(sensed), len(judged))


def _raw(verdict: Verdict) -> float | None:
    """The score before calibration; None where nothing was said."""
    return raw_score(Sensed(None, verdict.signals, fuse(verdict.signals)), verdict.votes)


def _trust(pairs: Iterable[tuple[float, bool]]) -> Trust:
    known = list(pairs)
    return Trust(len(known)) if len(known) < _LEAST_SHOWN else Trust(len(known), auroc(known), ece(known))
