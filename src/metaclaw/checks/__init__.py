"""Checks of answers and tool calls: their text in a skill's front matter, the commands that they
read, and trying them.
"""

from metaclaw.checks.answer import documents_at, texts_at, unread_part
from metaclaw.checks.leniency import (
    TRIVIAL_ANSWERS,
    CheckKind,
    change_words,
    constant_parts,
    fixed_words,
    form_note,
    kind_of,
    near_answers,
    sample_answer,
    trial_trouble,
    with_gaps,
)
from metaclaw.checks.run import Screen, examine, examine_all, examine_many, run_check, screen_of
from metaclaw.checks.syntax import check_of, check_trouble, parse_check, waits_for_person
from metaclaw.checks.workers import wall_limit_s, work_clock
