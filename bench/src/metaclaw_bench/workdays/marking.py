"""What an answer to a generated question is worth: pure, in process, fast enough to be a reward."""

import posixpath

from metaclaw_bench.questions import ChoiceCheck
from metaclaw_bench.scoring import boxed
from metaclaw_bench.workdays.checker import TASK, check_parts
from metaclaw_bench.workdays.model import Answer, Files, Item, Marks


def score(item: Item, answer: Answer, before: Files) -> Marks:
    """The marks for an answer. `before` is the workspace as the round found it; what the answer
    writes is laid over it.
    """
    check = item.round.check
    if isinstance(check, ChoiceCheck):
        return _mark_choice(item, check, boxed(answer.text))
    after = {**before, **{posixpath.normpath(path): text for path, text in answer.files.items()}}
    asserted = check_parts(item.parts, after, lambda rule: item.book[rule].check)
    missed = [rule for rule, _, held in asserted if not held]
    broken = tuple(dict.fromkeys(rule for rule in missed if rule != TASK))
    return Marks(float(not missed), not missed, 1 - len(missed) / len(asserted), broken)


def _mark_choice(item: Item, check: ChoiceCheck, ticked: frozenset[str] | None) -> Marks:
    if ticked is None:
        return Marks(0.0, False, 0.0, item.rules)
    wrong = ticked ^ check.answer
    points = 1 - len(wrong) / len(check.options)
    broken = tuple(
        dict.fromkeys(
            item.option_rules[letter] for letter in sorted(wrong) if letter in item.option_rules
        )
    )
    return Marks(points, not wrong, max(0.0, points), broken)
