r"""The published score of a round, to the letter, and the words a person says to the answer.

box     the first `\bbox{…}` or `\boxed{…}` of the answer, and only the first: every ASCII letter in it; no letters, no box
choice  1 - (|extra| + |missing|) / |options|; without a box 0. Partial credit and no floor: letters that are no options are extra
files   1 if the check passed, else 0
passed  choice: exactly the right letters; files: the check passed
iou, precision, recall, f1   of the ticked letters against the right ones; absent without a box
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from metaclaw_bench.questions import KEEP_IN_MIND, ChoiceCheck, FileCheck, Round

_BOX: Final = re.compile(r"\\(?:bbox|boxed)\{([^}]*)\}")
_ASCII_LETTER: Final = re.compile(r"[A-Za-z]")
NO_BOX: Final = (
    r"Note: your previous response did not include a \bbox{X} answer (e.g. \bbox{A} for a single"
    r" option, "
    rf"or \bbox{{A,B}} for multiple options). {KEEP_IN_MIND}"
)


@dataclass(frozen=True, slots=True)
class Ticks:
    """How the ticked letters compare with the right ones."""

    iou: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, slots=True)
class RoundScore:
    """What a round came to. `exact` is only of choices, `ticks` only where there was a box.

    `broken` says why nothing could be found out (the agent or the check did not work): such a round
    scores 0 and is counted apart."""

    day: str
    round: str
    score: float
    passed: bool
    exact: bool | None = None
    ticks: Ticks | None = None
    broken: str | None = None


def boxed(answer: str) -> frozenset[str] | None:
    """The letters in the answer's first box, or None if there is no box with letters there."""
    found = _BOX.search(answer)
    # Letters first, capitals after: some letters that are not ASCII have capitals that are.
    letters = (
        frozenset(letter.upper() for letter in _ASCII_LETTER.findall(found[1]))
        if found
        else frozenset()
    )
    return letters or None


def score_choice(day: str, round_id: str, check: ChoiceCheck, answer: str) -> RoundScore:
    """The score of a choice."""
    given = boxed(answer)
    if given is None:
        return RoundScore(day, round_id, 0.0, passed=False, exact=False)
    score = 1 - len(given ^ check.answer) / len(check.options)
    exact = given == check.answer
    return RoundScore(
        day, round_id, score, passed=exact, exact=exact, ticks=_compare(given, check.answer)
    )


def score_files(day: str, round_id: str, passed: bool) -> RoundScore:
    """The score of a file check that ran."""
    return RoundScore(day, round_id, 1.0 if passed else 0.0, passed=passed)


def score_broken(day: str, round_: Round, why: str) -> RoundScore:
    """The score of a round in which agent or check did not work: as if it were wrong, and
    marked.
    """
    return RoundScore(
        day,
        round_.id,
        0.0,
        passed=False,
        exact=False if isinstance(round_.check, ChoiceCheck) else None,
        broken=why,
    )


def comment(round_: Round, answer: str, passed: bool) -> str:
    """What the person says to the answer. `passed` is what the round's score says."""
    said = round_.feedback
    if passed:
        return said.correct
    match round_.check:
        case FileCheck():
            return f"{said.incorrect}\n{KEEP_IN_MIND}" if said.incorrect else ""
        case ChoiceCheck() as check:
            return _corrected(check, said.options, boxed(answer))
        case _:
            assert_never(round_.check)


def message(comment_before: str, question: str | None) -> str:
    """What is sent: the question with the last comment before it; at the end of a day the comment
    alone.
    """
    if not comment_before:
        return question or ""
    return "\n\n".join(
        [f"[Previous Feedback] {comment_before}", *([question] if question is not None else [])]
    )


def _corrected(check: ChoiceCheck, options: Mapping[str, str], given: frozenset[str] | None) -> str:
    if given is None:
        return NO_BOX
    lines = [
        f"You missed option {letter}: {options.get(letter, '')}"
        for letter in sorted(check.answer - given)
    ]
    lines += [
        f"You incorrectly selected option {letter}: {options.get(letter, '')}"
        for letter in sorted(given - check.answer)
    ]
    return "\n".join([*lines, KEEP_IN_MIND])


def _compare(given: frozenset[str], right: frozenset[str]) -> Ticks:
    common = len(given & right)
    precision, recall = common / len(given), common / len(right)
    return Ticks(
        common / len(given | right),
        precision,
        recall,
        2 * precision * recall / (precision + recall) if common else 0.0,
    )
