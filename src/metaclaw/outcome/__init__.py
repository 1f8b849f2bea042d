"""Outcomes: whether a turn succeeded, from what followed it. Detectors, the judge, calibration."""

from metaclaw.outcome.episodes import (
    episodes_of,
    failure_signature,
    failures,
    followed,
    remedy_words,
)
from metaclaw.outcome.judge import Judge
from metaclaw.outcome.procedures import Command, Procedure, procedure_in, runs_of
from metaclaw.outcome.reading import bare_call_id
from metaclaw.outcome.verdicts import (
    Calibration,
    Isotonic,
    Sensed,
    fit_isotonic,
    fuse,
    is_cleared_by_one,
    raw_score,
    sense,
    verdict,
)
