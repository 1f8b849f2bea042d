"""Checks of answers: their text in a skill's front matter, and trying them."""

from metaclaw.skills.checks.leniency import (
    TRIVIAL_ANSWERS,
    CheckKind,
    accepted_trifle,
    constant_parts,
    kind_of,
    lenience_trouble,
    near_answers,
    sample_answer,
)
from metaclaw.skills.checks.run import examine, examine_all, examine_many, run_check
from metaclaw.skills.checks.syntax import check_of, check_trouble, parse_check, render_check, waits_for_person

__all__ = [
    "TRIVIAL_ANSWERS",
    "CheckKind",
    "accepted_trifle",
    "check_of",
    "check_trouble",
    "constant_parts",
    "examine",
    "examine_all",
    "examine_many",
    "kind_of",
    "lenience_trouble",
    "near_answers",
    "parse_check",
    "render_check",
    "run_check",
    "sample_answer",
    "waits_for_person",
]
