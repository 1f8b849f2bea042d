"""How good an answer is, from 0 to 1, so that the first nights have something to climb; what is reported are the marks alone.

    passed    1
    choice    0.2 + 0.5 partial, where a box holds letters that can be chosen; else 0.1 where one is begun
    files     0.4 partial + 0.3 similarity to the reference, both less where more is said than it has; 0.1 for beginning with a file
    no end    half of it

An untrained model seldom knows when to stop, and seldom writes a box or a file of its own accord: that it came nearer must show.
What is nearly right is worth clearly less than what is right, so that a well-formed wrong answer is no place to stay. Within a
group rewards count in proportion to their spread: were letters without a box worth anything, groups without any box would learn to
say "A" long before one is found. A box with a letter that is no option earns no more than a beginning, though the published formula
pays for it: a model that copies "\\bbox{X}" from the question would stay there.
"""

import re
from typing import Final

from benchmarks.house_rules.rewards import similarity
from benchmarks.workdays.turns import Marked, Question, Score, in_words, read_answer
from metaclaw_bench.questions import ChoiceCheck

_BOX: Final = re.compile(r"\\(?:bbox|boxed)\{([^}]*)\}")
_BEGUN: Final = ("\\b", "bbox{")
_FOR_A_BOX: Final = 0.2
_FOR_A_BEGINNING: Final = 0.1
_PARTIAL: Final = 0.5
_OF_FILES: Final = 0.4
_FOR_A_FILE: Final = 0.1
_SIMILARITY: Final = 0.3
_UNENDED: Final = 0.5


def letters_in(said: str) -> frozenset[str] | None:
    """The letters of the first box, upper case; None where there is none, or none in it."""
    box = _BOX.search(said)
    letters = frozenset(re.findall(r"[A-Z]", box[1].upper())) if box else frozenset()
    return letters or None


def reward(score: Score, question: Question, said: str, *, is_whole: bool) -> tuple[float, bool]:
    """How good the answer is, and whether it passed."""
    marks = score(question.item, read_answer(said), question.before)
    if marks.passed and is_whole:
        return 1.0, True
    check = question.item.round.check
    worth = _choice(marks, check, said) if isinstance(check, ChoiceCheck) else _files(marks, question, said)
    return worth * (1.0 if is_whole else _UNENDED), marks.passed


def _choice(marks: Marked, check: ChoiceCheck, said: str) -> float:
    letters = letters_in(said)
    if letters is None or not letters <= set(check.options):
        return _FOR_A_BEGINNING if any(sign in said for sign in _BEGUN) else 0.0
    return _FOR_A_BOX + _PARTIAL * max(0.0, marks.partial)


def _files(marks: Marked, question: Question, said: str) -> float:
    wanted, text = in_words(question.item.reference), said.strip()
    if not text:
        return 0.0
    brevity = min(1.0, len(wanted) / len(text))
    begun = _FOR_A_FILE if text.startswith("FILE ") else 0.0
    return begun + brevity * (_OF_FILES * max(0.0, marks.partial) + _SIMILARITY * similarity(text, wanted))
