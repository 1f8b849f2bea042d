"""A sense of failure: what a turn came to, from what followed it."""

from metaclaw.outcome.calibration import Calibration, Isotonic
from metaclaw.outcome.calibration import fit as fit_isotonic
from metaclaw.outcome.deciding import SessionVerdict, is_cleared_by_one, raw_score, session_verdict, verdict
from metaclaw.outcome.judge import Judge
from metaclaw.outcome.metrics import Interval, auroc, ece, interval
from metaclaw.outcome.sensing import MARGIN, Sensed, fuse, sense

__all__ = [
    "MARGIN",
    "Calibration",
    "Interval",
    "Isotonic",
    "Judge",
    "Sensed",
    "SessionVerdict",
    "auroc",
    "ece",
    "fit_isotonic",
    "fuse",
    "interval",
    "is_cleared_by_one",
    "raw_score",
    "sense",
    "session_verdict",
    "verdict",
]
