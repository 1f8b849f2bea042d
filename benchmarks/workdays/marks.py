"""What a set of answers comes to: the published score, exactly right choices, files that passed; overall and by rule."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.workdays.rewards import letters_in
from benchmarks.workdays.turns import Asked, in_words

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Summary:
    """Means over questions. `accuracy` is the published formula: partial credit for choices, all or nothing for files. None where
    nothing of the kind was asked."""

    questions: int
    accuracy: float
    passed: float
    choice_exact: float | None
    choice_partial: float | None
    choice_boxed: float | None
    files_passed: float | None
    whole: float
    placed: float
    prompt_tokens: float
    by_rule: Mapping[str, float]

    def record(self) -> dict[str, object]:
        """As it is written down."""
        return asdict(self)


def summarise(asked: Sequence[Asked]) -> Summary:
    """What these answers come to."""
    choices = [one for one in asked if one.question.is_choice]
    files = [one for one in asked if not one.question.is_choice]
    return Summary(
        questions=len(asked),
        accuracy=_mean([one.score for one in asked]),
        passed=_mean([one.passed for one in asked]),
        choice_exact=_mean_of([one.passed for one in choices]),
        choice_partial=_mean_of([one.score for one in choices]),
        choice_boxed=_mean_of([letters_in(one.said) is not None for one in choices]),
        files_passed=_mean_of([one.passed for one in files]),
        whole=_mean([one.is_whole for one in asked]),
        placed=_mean([len(one.stamp.skills) for one in asked]),
        prompt_tokens=_mean([len(one.prompt) for one in asked]),
        by_rule=_by_rule(asked),
    )


def samples(asked: Sequence[Asked]) -> list[dict[str, object]]:
    """A few answers of each kind to look at: the question, the reference, what was said."""
    kinds = [[one for one in asked if one.question.is_choice is is_choice] for is_choice in (True, False)]
    return [
        {
            "question": one.question.text,
            "skills": list(one.stamp.skills),
            "reference": in_words(one.question.item.reference),
            "said": one.said,
            "passed": one.passed,
            "score": one.score,
        }
        for kind in kinds
        for one in kind[:: max(1, len(kind) // _SHOWN)][:_SHOWN]
    ]


def _by_rule(asked: Sequence[Asked]) -> dict[str, float]:
    rules = sorted({rule for one in asked for rule in one.question.item.rules})
    return {rule: _mean([one.passed for one in asked if rule in one.question.item.rules]) for rule in rules}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_of(values: Sequence[float]) -> float | None:
    return _mean(values) if values else None
