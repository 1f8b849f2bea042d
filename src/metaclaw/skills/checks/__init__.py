"""Checks of answers: their text in a skill's front matter, and trying them."""

from metaclaw.skills.checks.run import examine, examine_all, examine_many, run_check
from metaclaw.skills.checks.samples import sample_answer
from metaclaw.skills.checks.syntax import check_of, check_trouble, parse_check, render_check, waits_for_person

__all__ = [
    "check_of",
    "check_trouble",
    "examine",
    "examine_all",
    "examine_many",
    "parse_check",
    "render_check",
    "run_check",
    "sample_answer",
    "waits_for_person",
]
